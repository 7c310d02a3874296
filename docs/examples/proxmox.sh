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
        result=$(pvesh get "/nodes/$node/tasks/$1/status" --output-format json |
            jq -r 'if .status == "running" then "running" else .exitstatus end')
        [ "$result" = running ] || break
        sleep 2
    done
    if [ "$result" != OK ]; then
        echo "task $1: $result" >&2
        exit 1
    fi
}

running() {
    pvesh get "/nodes/$node/qemu/$vmid/status/current" --output-format json | jq -e '.status == "running"' >&2
}

if [ "$FOREWARN_LIVE_MIGRATION" = true ]; then # a Freeze that moves
    FOREWARN_EVENT_TYPE=Redeploy
fi

case "$FOREWARN_EVENT_TYPE" in
Freeze)
    # Whatever fails or ends this program, the machine is not left paused.
    trap 'pvesh create "/nodes/$node/qemu/$vmid/status/resume" >&2' EXIT
    trap 'exit 143' TERM
    task "/nodes/$node/qemu/$vmid/status/suspend"
    sleep 5
    task "/nodes/$node/qemu/$vmid/status/resume"
    trap - EXIT
    ;;
Reboot)
    if [ "$FOREWARN_UNFORESEEN" = true ]; then # it has failed: start it, unless it is up again
        running || task "/nodes/$node/qemu/$vmid/status/start"
        exit
    fi
    task "/nodes/$node/qemu/$vmid/status/reboot" --timeout 600
    ;;
Redeploy)
    target=$FOREWARN_TO_HOST
    [ -n "$target" ] || target=$(choose-node --not "$node") # your own rule: prints one node's name
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
