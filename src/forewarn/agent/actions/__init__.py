"""What the actions of a rule do: one small class for each kind, with `prepare` and `recover`.

    action   runs actions: what one gets, how it ends; and the two kinds that only concern the
             agent itself: `ready` and `log`
    program  programs, systemd units and processes: `command`, `service` and `signal`
    haproxy  drains a server of HAProxy
    http     sends an HTTP request
    notify   sends a message through apprise, in a process of its own

Each action runs in a thread of its own, ends soon after it is told to stop, and raises
`ActionFailed` if it could not do its work. Nothing here needs POSIX to be imported, and a kind's
module is loaded when an action of that kind first runs.
"""
