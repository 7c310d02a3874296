"""The agent: prepares a machine for maintenance by rules, approves, and brings it back.

    settings  agent.toml and its drop-ins
    rules     which rule takes an event, and the settings of its actions. Pure
    decider   when an action begins, ends or is undone, also after a restart in the middle of one;
              and when an event is approved. Pure
    state     what is remembered, and by which transitions it changes. Pure
    journal   keeps that on the disk, across crashes and reboots
    actions   run what a rule says, within its time limit
    activity  what is logged and counted of all that happens
    status    what is shown at the status port, and read of its peers
    logs      the form of the lines on standard error
    daemon    the process: one thread decides, all others, such as the poller's, send it inputs

Pure is without I/O, clock or chance. `__main__` is what `forewarn agent run` turns into.

It stands on the client and never reaches maintenance, store, connectors, control or server.
"""
