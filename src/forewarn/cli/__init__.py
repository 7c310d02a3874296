"""The command line: one file for each group of commands. It puts the concrete parts together.

    main         all commands, and how their errors are printed
    serve        `forewarn serve`
    relay        `forewarn relay`
    follow       `forewarn follow`
    until_over   `--wait`
    stream       the news that these follow
    store        `forewarn restore-check` and `forewarn store`
    fleet        `forewarn fleet`
    fleet_file   reads and writes fleet files, and names their entries in errors
    maintenance  `forewarn schedule` and `forewarn maintenance`
    rollout      `forewarn rollout`
    events       `forewarn events`, `approve`, `cancel`, `postpone`, `hold` and `release`
    host         `forewarn host`
    alerts       `forewarn alerts`, `acknowledge`, `resolve`, `clock trust` and `replicas`
    accounts     `forewarn token`, `audit` and `page`
    webhook      `forewarn webhook`
    watch        `forewarn watch`
    agent        `forewarn agent`
    installation  what installing as a systemd service changes; decides, and does nothing
    installer    carries that out: `serve --install`, `agent install`, `relay install`
    simulate     `forewarn simulate`
    emulator     `forewarn emulator`
    record       `forewarn record`
    certify      `forewarn certify`
    demo         `forewarn demo`
    demo_guest   the program in each machine of the demo; imports nothing of Forewarn
    operator     the operator plane, as the commands ask it
    guest        the metadata endpoint, as the commands ask it
    operations   `forewarn history`, and operations as tables
    options      what commands take
    output       tables, text, JSON
    exits        how commands end, and read what they need

Only the program starts here; nothing else imports it. Heavy imports stay inside the commands, so
that `forewarn --help` is quick.
"""
