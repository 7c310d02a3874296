#!/bin/sh
# Runs DRAIN before this machine goes down, approves, and runs RECOVER when it is over.
# Usage: handle.sh DRAIN RECOVER; it keeps handle.state in $STATE_DIRECTORY, or in this folder
set -u # and not -e: whatever fails, wait for the next event
drain=$1 recover=$2
endpoint=${FOREWARN_ENDPOINT:-http://169.254.169.254}
events="$endpoint/metadata/scheduledevents?api-version=2020-07-01"
state=${STATE_DIRECTORY:-.}/handle.state

ask() { # SECONDS, then what curl takes: never by a proxy, and no answer but a 2xx
    seconds=$1
    shift
    curl --silent --show-error --fail --noproxy '*' --max-time "$seconds" --header Metadata:true "$@"
}

approve() { # ID: sent until it is confirmed; however often it arrives, it counts once
    tries=0
    until ask 10 --data "{\"StartRequests\":[{\"EventId\":\"$1\"}]}" "$events"; do
        tries=$((tries + 1))
        [ "$tries" -lt 60 ] || return
        sleep 1
    done
}

# The name in events: the host name may differ.
until name=$(ask 150 "$endpoint/metadata/instance/compute/name?api-version=2021-02-01&format=text"); do
    sleep 1
done

save() { # the reboot that was approved ends this process: the next one undoes what it drained
    printf '%s' "$in_hand" >"$state.new" && mv "$state.new" "$state"
}

in_hand=$(cat "$state" 2>/dev/null) # ids of events that DRAIN was run for, a blank around each
before=$in_hand # the ids of the document before: two in a row confirm that an event is over
seen="" # the ids that this process has run DRAIN for
patience=150 # the first answer may take two minutes, while the cloud turns events on
while :; do
    # Only a document counts: a proxy's own page does not mean that an event is over.
    if document=$(ask "$patience" "$events") &&
        listed=$(printf '%s' "$document" | jq -er '.Events | map(.EventId | ascii_upcase) | " \(join(" ")) "') &&
        ours=$(printf '%s' "$document" | jq -r --arg name "$name" '.Events[]
            | select(.EventStatus == "Scheduled")
            | select(any(.Resources[]; ascii_downcase == ($name | ascii_downcase)))
            | .EventId | ascii_upcase'); then
        patience=10
        for id in $ours; do
            case $seen in *" $id "*) continue ;; esac
            seen="$seen $id "
            case $in_hand in *" $id "*) ;; *) in_hand="$in_hand $id " ;; esac
            save
            if ! "$drain" "$id"; then
                echo "$drain failed: $id is not approved, and starts when its notice is over" >&2
            elif ! approve "$id"; then
                echo "$id could not be approved: it starts when its notice is over" >&2
            fi
        done
        for id in $in_hand; do
            case "$listed$before" in *" $id "*) continue ;; esac
            in_hand=$(printf '%s' "$in_hand" | sed "s/ $id //")
            [ -n "$in_hand" ] || "$recover" "$id" || echo "$recover failed after $id" >&2
            save
        done
        before=$listed
    fi
    sleep 1
done
