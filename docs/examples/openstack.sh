#!/bin/sh
# Carries one operation out with the OpenStack client, machine by machine.
set -eu

task=$(cat)
event_type=$(printf '%s' "$task" | jq -r 'if .live_migration then "Redeploy" else .event_type end')
machines=$(printf '%s' "$task" | jq -r '.machines[]')
hosts="{}"

for machine in $machines; do
    echo "$event_type $machine" >&2
    case "$event_type" in
    Reboot)
        openstack server reboot --wait "$machine"
        ;;
    Redeploy)
        openstack server migrate --live-migration ${FOREWARN_TO_HOST:+--host "$FOREWARN_TO_HOST"} --wait "$machine"
        host=$(openstack server show -f value -c OS-EXT-SRV-ATTR:host "$machine")
        hosts=$(printf '%s' "$hosts" | jq -c --arg machine "$machine" --arg host "$host" '.[$machine] = $host')
        ;;
    Preempt | Terminate)
        openstack server delete --wait "$machine"
        ;;
    *)
        echo "no rule for $event_type" >&2
        exit 1
        ;;
    esac
done >&2

echo "{\"hosts\": $hosts}"
