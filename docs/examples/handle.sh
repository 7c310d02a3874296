#!/bin/sh
# Runs DRAIN before this machine goes down, approves, and runs RECOVER when it is over.
# Usage: handle.sh DRAIN RECOVER
set -eu
drain=$1 recover=$2
endpoint=${FOREWARN_ENDPOINT:-http://169.254.169.254}
events="$endpoint/metadata/scheduledevents?api-version=2020-07-01"

ask() { # SECONDS, then what curl takes: never by a proxy, and no answer but a 2xx
    seconds=$1
    shift
    curl --silent --fail --noproxy '*' --max-time "$seconds" --header Metadata:true "$@"
}

# The name that events use: the host's own name may be another.
until name=$(ask 150 "$endpoint/metadata/instance/compute/name?api-version=2021-02-01&format=text"); do
    sleep 1
done

handled="" # ids of events that were drained for, with a blank around each
patience=150 # the first answer may take two minutes, while the cloud turns events on
while :; do
    # What is no document, such as a proxy's own page, says nothing: least of all that it is over.
    if document=$(ask "$patience" "$events") &&
        listed=$(printf '%s' "$document" | jq -er '.Events | map(.EventId | ascii_upcase) | " \(join(" ")) "'); then
        patience=10
        ours=$(printf '%s' "$document" | jq -r --arg name "$name" '.Events[]
            | select(.EventStatus == "Scheduled")
            | select(any(.Resources[]; ascii_downcase == ($name | ascii_downcase)))
            | .EventId | ascii_upcase')
        for id in $ours; do
            case $handled in *" $id "*) continue ;; esac
            "$drain" "$id"
            # Sent again until it is confirmed; however often it arrives, it counts once.
            tries=0
            until ask 10 --data "{\"StartRequests\":[{\"EventId\":\"$id\"}]}" "$events"; do
                tries=$((tries + 1))
                [ "$tries" -lt 60 ] || break # it starts when its notice is over
                sleep 1
            done
            handled="$handled $id "
        done
        for id in $handled; do
            case $listed in *" $id "*) continue ;; esac
            "$recover" "$id"
            handled=$(printf '%s' "$handled" | sed "s/ $id //")
        done
    fi
    sleep 1
done
