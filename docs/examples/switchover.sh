#!/bin/bash
# Hands a PostgreSQL primary's role to its standby before this machine goes down, and makes what runs
# here the standby when it is back. Each of the two may be run again at any time: it goes on.
# Usage: switchover.sh prepare|recover SETTINGS
set -euo pipefail
export LC_ALL=C PGCONNECT_TIMEOUT=5

ANSWER_SECONDS=10     # for one answer of a server: a healthy one takes milliseconds
CHECKPOINT_SECONDS=60 # for what lies in memory to be written, while the server still serves
REPLAY_SECONDS=20     # for the standby to replay the last of what it has received
SETTLE_SECONDS=30     # for a server that is just starting or stopping
PROMOTE_SECONDS=30    # for a standby that has replayed everything
STREAM_SECONDS=60     # for a standby that has just been started
MOST_BEHIND=$((16 * 1024 * 1024)) # bytes, one file of WAL: writes wait while the rest is shipped

verb=$1
# shellcheck source=/dev/null
. "$2" # the limits above too, where others are wanted
: "${data:?}" "${bin:?}" "${owner:?}" "${here:?}" "${other:?}" "${start:?}" "${stop:?}" "${begun:?}"

say() { echo "$*"; }
fail() {
    echo "$*"
    exit 1
}

own() { $owner "$@"; } # as the user who owns the data
ask() { # CONNECTION QUERY: its answer, columns parted by blanks
    own timeout --foreground "$ANSWER_SECONDS" \
        "$bin/psql" -XAtq -F ' ' -v ON_ERROR_STOP=1 -d "$1" -c "$2"
}
await() { # SECONDS COMMAND...: until it succeeds
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.2
    done
}
answers() { [ "$(ask "$1" "$2" 2>/dev/null)" = "$3" ]; }

known() { own "$bin/pg_controldata" "$data" | sed -n "s/^$1: *//p"; }
role() { # of what lies here
    local state
    if own "$bin/pg_ctl" -D "$data" status >/dev/null; then
        case $(ask "$here" 'SELECT pg_is_in_recovery()') in
            f) echo primary ;;
            t) echo standby ;;
            *) echo silent ;;
        esac
        return
    fi
    state=$(known 'Database cluster state')
    case $state in
        'shut down') echo stopped ;; # a primary, cleanly
        'shut down in recovery' | 'in archive recovery') echo asleep ;; # a standby
        *) echo crashed ;; # a primary that has not written down how far it came
    esac
}
settled() { [ "$(role 2>/dev/null)" != silent ]; }
role_there() {
    case $(ask "$other" 'SELECT pg_is_in_recovery()' 2>/dev/null) in
        f) echo primary ;;
        t) echo standby ;;
        *) echo silent ;;
    esac
}

refuse_without_standby() {
    local found recovers streams may system replayed behind
    found=$(ask "$other" "SELECT pg_is_in_recovery(),
        EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming'),
        has_function_privilege('pg_promote(boolean, integer)', 'EXECUTE'),
        system_identifier, coalesce(pg_last_wal_replay_lsn(), '0/0') FROM pg_control_system()" 2>&1) ||
        fail "refused: the standby cannot be asked: $found"
    read -r recovers streams may system replayed <<<"$found"
    [ "$recovers" = t ] || fail "refused: the other server is no standby"
    [ "$streams" = t ] || fail "refused: the standby does not stream"
    [ "$may" = t ] || fail "refused: this role may not promote the standby"
    [ "$system" = "$(ask "$here" 'SELECT system_identifier FROM pg_control_system()')" ] ||
        fail "refused: the other server is no copy of this one"
    behind=$(ask "$here" "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '$replayed')::bigint")
    [ "$behind" -le "$MOST_BEHIND" ] || fail "refused: the standby is $behind bytes behind"
}

go_back() { # only while nobody can have been told to promote
    trap '' TERM INT
    say "$*: this stays the primary"
    $start || fail "and it could not be started again"
    rm -f "$begun"
    exit 1
}

replayed_there() {
    if [ "$(role)" = stopped ]; then # the last record is the checkpoint of the shutdown
        answers "$other" "SELECT pg_last_wal_replay_lsn() > '$(known 'Latest checkpoint location')'" t
    else
        answers "$other" "SELECT pg_last_wal_replay_lsn() >= '$(ask "$here" \
            'SELECT pg_last_wal_replay_lsn()')'" t
    fi
}

hand_over() { # what is stopped cleanly, or a standby already
    [ "$(role)" != asleep ] || $start
    if ! await "$REPLAY_SECONDS" replayed_there; then
        [ -e "$data/standby.signal" ] || go_back "the standby has not received everything"
        fail "the standby has not received everything; nobody is the primary"
    fi
    say "the standby has everything up to $(known 'Latest checkpoint location')"
    trap '' TERM INT # from here on there is only forward
    become_standby
    ask "$other" 'SELECT pg_promote(false)' >/dev/null || say "promoting was not answered"
    await "$PROMOTE_SECONDS" answers "$other" 'SELECT pg_is_in_recovery()' f ||
        fail "nobody knows whether the standby was promoted; this server stays down"
    say "the standby is promoted"
}

become_standby() { # whoever starts it: the boot, systemd, this script
    own touch "$data/standby.signal"
    own sync "$data/standby.signal" "$data"
}

streams_here() {
    answers "$here" "SELECT status FROM pg_stat_wal_receiver" streaming
}

prepare() {
    local now
    await "$SETTLE_SECONDS" settled || fail "refused: the server here runs and does not answer"
    now=$(role)
    case $now in
        primary)
            refuse_without_standby
            ANSWER_SECONDS=$CHECKPOINT_SECONDS ask "$here" CHECKPOINT # the shutdown's own is short then
            mkdir -p "$(dirname "$begun")" # by hand it may run before the agent ever has
            touch "$begun"
            sync "$begun" "$(dirname "$begun")"
            trap 'go_back "told to stop"' TERM INT
            $stop || go_back "the server could not be stopped" # fast: what is written is shipped first
            [ "$(role)" = stopped ] || go_back "the server did not stop cleanly"
            say "stopped"
            hand_over
            ;;
        standby | asleep | stopped)
            if [ ! -e "$begun" ]; then
                [ "$now" != stopped ] || fail "refused: somebody else has stopped the primary"
                say "no primary runs here: nothing is switched"
            elif [ "$(role_there)" = primary ]; then
                become_standby
                say "the other server is the primary already"
            else
                hand_over
            fi
            ;;
        *) fail "refused: the server here was not stopped cleanly" ;;
    esac
}

recover() {
    local now there
    if [ ! -e "$begun" ]; then
        say "nothing was switched here"
        return
    fi
    await "$SETTLE_SECONDS" settled || fail "the server here runs and does not answer"
    now=$(role) there=$(role_there)
    case "$there $now" in
        "silent "*) fail "the other server does not answer, and may be the primary: nothing is started" ;;
        "primary primary") fail "both are primaries: stop one now" ;;
        "primary crashed") fail "the primary here was not stopped cleanly: rewind it (pg_rewind), then start it" ;;
        "standby primary") say "this is the primary still" ;;
        *)
            if [ "$there" = standby ] && [ ! -e "$data/standby.signal" ]; then
                $start # nobody was told to promote
                say "this is the primary again"
            else
                [ "$there" = primary ] || hand_over
                become_standby_here
            fi
            ;;
    esac
    rm -f "$begun"
}

become_standby_here() {
    become_standby
    $start
    await "$STREAM_SECONDS" streams_here ||
        fail "the server here does not stream: its log says why; if it has diverged, pg_rewind"
    say "this is the standby, and streams"
}

case $verb in
    prepare) prepare ;;
    recover) recover ;;
    *) fail "usage: switchover.sh prepare|recover SETTINGS" ;;
esac
