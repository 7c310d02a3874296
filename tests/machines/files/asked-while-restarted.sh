#!/bin/sh
# Restart a unit three times, and ask again and again meanwhile as `ask` does; print what came of it.
unit=$1
shift
rm -f /run/over
(for n in 1 2 3; do systemctl restart "$unit" || echo no restart; done; touch /run/over) &
while [ ! -e /run/over ]; do
    ask "$@" >/dev/null || echo refused
    echo asked
done | sort -u
