"""What carries maintenance out.

    port       Connector, Act, Outcome: what the executor asks and is told
    simulated  nothing is touched; an act lasts as long as the settings say

A connector does what it is told and reports; it knows neither the rules nor the store. Driven by
`control.executor`, chosen by `server.settings`.
"""
