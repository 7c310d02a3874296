"""What a rule's actions do: a small class for each kind, with `prepare` and `recover`.

    work       what an action is given: its event, its time, a place for its notes
    catalog    from a step to the class that does it
    program    runs a program, and ends it with all that it began
    units      what systemd says of a unit
    command    a program of the user's
    service    a systemd unit that is stopped or started
    signal     a signal, and waiting for what it brings about
    ready      waiting while the balancer takes the machine out
    haproxy    a server of HAProxy that is drained
    http       a request
    notify     a message by apprise, sent by `messenger` in a process of its own
    messenger  that process
    log        a line of the agent's log

Each runs in a thread of its own, ends soon once it is told to stop, and raises `Failed` where it
could not do what it was asked. Nothing here needs POSIX to be imported.
"""
