#!/bin/sh
# Tests a handler in any language: forewarn emulator -- ./test_handler.sh ./handler
set -eu

operate() { # PATH, and the body of a POST
    curl --silent --show-error --fail --noproxy '*' "$FOREWARN_OPERATOR/v1/$1" \
        ${2:+--header Content-Type:application/json --data "$2"}
}

operate maintenances '{"event_type": "Reboot", "machines": ["vm-0"]}' >/dev/null

"$@" &
handler=$!
trap 'kill "$handler" 2>/dev/null || true' EXIT

tries=0
until operate maintenances/1 | grep -q '"start_cause":"approved"'; do
    tries=$((tries + 1))
    [ "$tries" -lt 60 ] || { echo "it has not approved" >&2 && exit 1; }
    sleep 1
done
operate finish '{}' >/dev/null # the reboot is over
echo "it has approved"
