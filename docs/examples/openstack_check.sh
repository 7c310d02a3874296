#!/bin/sh
# Says whether a lost deletion was carried out.
set -u

case "$FOREWARN_EVENT_TYPE" in
Preempt | Terminate) ;;
*) exit 1 ;;
esac
known=$(openstack server list -f value -c Name) || exit 1
gone=0
left=0
for machine in $FOREWARN_MACHINES; do
    if printf '%s\n' "$known" | grep -Fqx "$machine"; then
        left=$((left + 1))
    else
        gone=$((gone + 1))
    fi
done
[ "$left" -eq 0 ] && exit 0
[ "$gone" -eq 0 ] || exit 1
echo '{"done": false}'
