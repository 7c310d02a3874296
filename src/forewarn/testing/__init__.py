"""Fleets played from scenarios, without waiting and without a network.

It plays the service: a text says what operators, guests, the connector and the clock do, and what
must then hold. It is no kit for the tests of handlers and has no fake client: what those need
today is in docs/guides/handling.md.

    script      the language of scenario files: text in, values out, strict
    sentences   its sentences, by their subjects
    statements  what they say, as values
    words       the words of a line, and errors with their place
    scenario    a scenario played over the real rules, store and documents
    judge       whether what a line expects is so
    world       a service without sockets: it can be killed, started and given time
    timeline    what was said and what guests saw, for people and for programs

Time stands still here until the scenario moves it. Nothing in this room decides what is right: the
rules do, and the scenario's own expectations. Used by `cli` and by tests.
"""
