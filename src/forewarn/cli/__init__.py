"""What people type: one file per command group, and the only place that wires rooms together.

    main         the commands put together, and what their errors become
    serve        `forewarn serve`
    fleet        `forewarn fleet`
    fleet_file   a fleet file: read, and named in what is refused of it
    schedule     `forewarn schedule`
    maintenance  `forewarn maintenance`
    events       `forewarn events`, `approve`, `cancel` and `postpone`
    holds        `forewarn hold` and `release`
    attention    `forewarn attention`, `note` and `resolve`
    history      `forewarn history`
    watch        `forewarn watch`
    clock        `forewarn clock`
    restore_check `forewarn restore-check`
    agent        `forewarn agent`
    simulate     `forewarn simulate`
    demo         `forewarn demo`
    operator     the operator plane as a client
    guest        the metadata endpoint as a client
    operations   operations as tables
    output       tables, text, JSON
    times        times and spans as people type and read them
    exits        the exit statuses

Heavy imports stay inside the commands that need them, so that `forewarn --help` is quick.
"""
