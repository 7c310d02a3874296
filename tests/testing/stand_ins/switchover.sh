# The failover page's script: its halves are the drain and its end.
case $1 in
prepare) exec "$FOREWARN_DRAIN" ;;
recover) exec "$FOREWARN_UNDRAIN" ;;
esac
