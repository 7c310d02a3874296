"""Fleets played from scenarios, without waiting and without a network.

A text says what operators, guests, the connector and the clock do, and what must hold after that.
`parser` reads it, `scenario` plays it over `harness`, a service without sockets, and `trace` checks
what must hold over time. For tests of handlers, see docs/guides/handling.md.

Nothing here decides what is right: the rules do, and the expectations of the scenario. Time stands
still until the scenario moves it. Used by `cli` and by tests.
"""
