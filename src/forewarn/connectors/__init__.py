"""What carries maintenance out.

    port       Connector, Act, Outcome, Found: what the executor asks and is told
    simulated  nothing is touched; an act lasts as long as the settings say
    command    the operator's program, once a machine or once an operation
    runs       one program's run as files: begun, alive, result
    runner     the process around one run, which outlives the service

A connector does what it is told and reports; it knows neither the rules nor the store. Driven by
`control.executor`, chosen by `server.settings`.
"""
