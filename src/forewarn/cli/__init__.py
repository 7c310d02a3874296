"""The command line: one file for each group of commands. It puts the concrete parts together.

    main         all commands, and how their errors are printed
    serve        `forewarn serve` and `replicas`
    relay        `forewarn relay`
    connector    `forewarn connector`: the operator's program, run by hand
    unit         `forewarn unit`: the systemd units and sample settings that are shipped
    store        `forewarn restore-check` and `forewarn store`
    accounts     `forewarn token`, `login`, `logout`, `audit` and `page`
    webhook      `forewarn webhook`
    fleet        `forewarn fleet`, and fleet files as commands read, write and name them in errors
    host         `forewarn host`
    maintenance  `forewarn schedule`, `forewarn rollout` and `forewarn maintenance`
    events       `forewarn events`, `alerts`, `history`, and what is decided about them: `approve`,
                 `cancel`, `postpone`, `hold`, `release`, `acknowledge`, `resolve`
    follow       `forewarn follow`, and how commands wait: `--wait`, and `watch`
    guest        `forewarn watch`
    agent        `forewarn agent`
    testing      `forewarn emulator`, `record` and `certify`
    doctor       `forewarn doctor`: looks at a guest, or at the service's machine
    demo         `forewarn demo`
    demo_guest   the program in each machine of the demo; imports nothing of Forewarn
    command      commands on click, and those that are one request: rows of method, path, arguments
                 and columns
    login        the address and the token that `forewarn login` remembers
    operator_client  the operator plane, as the commands ask it: address, token, pages of a list
    options      what commands take, as values
    output       tables, text, JSON
    exits        how commands end, and read what they need

Only the program starts here; nothing else imports it. Heavy imports stay inside the commands, so
that `forewarn --help` is quick.
"""
