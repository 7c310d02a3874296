"""Fleets played from scenarios, without waiting and without a network.

It plays the service: a text says what operators, guests, the connector and the clock do, and what
must hold after that. It is no kit for the tests of handlers; docs/guides/handling.md has what those
need.

    parser     the language of scenario files: text in; calls and expectations out
    scenario   a scenario played line by line, its expectations checked, its timeline
    trace      the checker of what must hold over time, shared by scenarios, simulation and kills
    harness    a service without sockets, which can be killed, started and given time

Nothing here decides what is right: the rules do, and the expectations of the scenario. Time stands
still until the scenario moves it. Used by `cli` and by tests.
"""
