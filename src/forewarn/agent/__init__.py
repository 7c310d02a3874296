"""The agent: prepares a machine for maintenance by rules, approves, and brings it back.

    settings  agent.toml and its drop-ins
    rules     the choice of a rule for an event, and the settings of its actions. Pure
    decider   the times at which an action begins, ends or is undone, also after a restart in the
              middle of one. Pure
    approvals the machine that approves an event, and the time of it. Pure
    state     the durable state, and the transitions by which it changes. Pure
    journal   keeps that on the disk, across crashes and reboots
    actions   run the actions of a rule, within their time limits
    activity  the log and the metrics of all that happens
    status    the answers of the status port, and the questions to its peers
    daemon    the process: one thread decides, all others, such as the poller's, send it inputs

Pure is without I/O, clock or chance. `__main__` is the program that `forewarn agent run` turns
into. It stands on the client and never reaches maintenance, store, connectors, control or server.
"""
