"""The rules: what may happen to which machine, when, and who must be told first.

Deciders only. A snapshot, a cause and `now` go in; a decision, made of new values, comes out.
Nothing in here does I/O, logs, reads a clock or draws a number: ids and time are arguments, so
a fifteen-minute notice is tested in a microsecond and a transaction's body may run twice.

    model       the frozen values: machines, scopes, operations, events, approvals
    lifecycle   the transitions of an operation, as one table
    notice      the least notice of each type, and when NotBefore may be
    causes      what can happen
    planner     a request becomes operations and their events
    policy      what the settings decide about the rules
    attention   what an operator must know
    schedule    decide(snapshot, cause, now, mint) and wakeup_at(operation)
    carrying    claims, outcomes, doubts: what follows from executors' words
    bench       the working copy of one decision
    copies      dictionaries that know what was written to them
    holds       what a hold keeps from starting
    fleet       the fleet as an operator writes it down
    dealing     what applying such a fleet changes; update domains dealt
    invariants  what must hold of any snapshot
    errors      Refused

Knows nothing of the wire, of storage, or of who asks. Imports only `vocabulary`.
"""
