"""The agent: prepares a machine for maintenance by rules, approves, and brings it back.

Pure: values in, values out; no I/O, no clock, no chance.

    action_settings  the settings of a rule's actions
    rules            which rule takes an event
    forecast         what the decider would do for an event, for `agent explain`
    state            the records that the journal holds, and the durable state that they make
    messages         the decider's inputs and outputs
    decider          decides everything that the agent does
    approval         who approves an event, and when

Shells: threads, sockets, files.

    settings         one TOML file and its drop-ins
    journal          the records on disk, in SQLite
    poller           reads the endpoint, and sends approvals
    actions          runs actions, each in a thread of its own; what each kind does
    status           what the agent shows: `/status`, the metrics and the port; asks its peers
    logs             what the agent logs, and in which form
    daemon           the process: one thread decides, all others send it inputs
    __main__         `python -m forewarn.agent`: the daemon, without the command line

It stands on the client and never reaches the service's rooms: maintenance, store, connectors,
control, server. Only the command line imports it.
"""
