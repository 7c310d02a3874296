#!/bin/sh
# Carries one task out in a Proxmox cluster.
set -eu

machine=$FOREWARN_MACHINE
place=$(pvesh get /cluster/resources --type vm --output-format json |
    jq -r --arg name "$machine" '.[] | select(.name == $name) | "\(.node) \(.vmid)"')
if [ -z "$place" ]; then
    echo "no machine $machine in this cluster" >&2
    exit 1
fi
node=${place% *}
vmid=${place#* }

# A call that starts a task prints the task's id: wait for it, and fail if it failed.
task() {
    upid=$(pvesh create "$@" --output-format json | jq -r .)
    wait_for "$upid"
}

wait_for() {
    while :; do
        status=$(pvesh get "/nodes/$node/tasks/$1/status" --output-format json)
        [ "$(echo "$status" | jq -r .status)" = running ] || break
        sleep 2
    done
    result=$(echo "$status" | jq -r .exitstatus)
    if [ "$result" != OK ]; then
        echo "task $1: $result" >&2
        exit 1
    fi
}

if [ "$FOREWARN_LIVE_MIGRATION" = true ]; then # a Freeze that moves
    FOREWARN_EVENT_TYPE=Redeploy
fi

case "$FOREWARN_EVENT_TYPE" in
Freeze)
    task "/nodes/$node/qemu/$vmid/status/suspend"
    sleep 5
    task "/nodes/$node/qemu/$vmid/status/resume"
    ;;
Reboot)
    task "/nodes/$node/qemu/$vmid/status/reboot" --timeout 600
    ;;
Redeploy)
    target=$(choose-node --not "$node") # your own rule: prints one node's name
    task "/nodes/$node/qemu/$vmid/migrate" --target "$target" --online 1
    echo "{\"hosts\": {\"$machine\": \"$target\"}}"
    ;;
Preempt | Terminate)
    task "/nodes/$node/qemu/$vmid/status/stop"
    wait_for "$(pvesh delete "/nodes/$node/qemu/$vmid" --output-format json | jq -r .)"
    ;;
*)
    echo "no rule for $FOREWARN_EVENT_TYPE" >&2
    exit 1
    ;;
esac
