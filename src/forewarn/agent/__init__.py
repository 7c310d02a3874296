"""The agent: prepares a machine for maintenance by rules, approves, and brings it back.

    settings    one TOML file and its drop-ins, judged whole
    rules       which rule takes an event; pure
    outlook     what a rule comes to at best, foretold; pure
    steps       the actions that a rule may name, as values
    phases      the life of an event in the agent's hands, one table; pure
    records     what the journal holds, and the values that it makes
    ledger      the durable state, made of the records alone; pure
    messages    what the decider is told, and what it tells the shell to do
    machine     the decider; pure
    newcomers   the decider's part that waits for the machine's own name; pure
    actions     what the actions of a rule do; shell
    journal     records on disk, each synced; shell
    looking     the endpoint: documents in, approvals out; shell
    hands       runs actions in threads; shell
    peers       asks the other machines' agents; shell
    view        what is shown of all this; pure
    metrics     what is counted of it
    port        the status port; shell
    boot        which boot of the machine this is; shell
    deadline    one time limit for all that comes on a socket; shell
    telling     what the log says of all this
    logs        the form of the log
    daemon      the process: one thread decides, all others tell it
    __main__    `python -m forewarn.agent`: the daemon and nothing of the command line
    consent     the decider's part that speaks with peers and the endpoint; pure

It stands on the client and never reaches the service's rooms: maintenance, store, connectors,
control, server.
"""
