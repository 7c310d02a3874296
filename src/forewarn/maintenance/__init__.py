"""The rules: what may happen to which machine, when, and who must be told first.

Deciders only: the World, a command and `now` go in; a decision, made of new values, comes out.
Nothing in here does I/O, logs, reads a clock or draws a number: ids and time are arguments, so a
transaction's body may run twice. Imports only `vocabulary`, and `times` for words.

    model        the frozen values: machines, scopes, operations, events, approvals, holds, policy
    world        all that is alive, in tables with indexes and a journal that undoes
    notice       the least notice of each type, when NotBefore may be, how it moves after an outage
    commands     what operators, guests and executors ask, and whether it is allowed or comes too
                 late: decide(world, command, now, mint)
    transitions  whether an operation is announced, starts, waits, is back or ends, by one table,
                 and has units take their turns; vocabulary says which statuses guests see
    planner      what a request may say, and what it becomes: units and operations
    host_drain   the drain of a host: its states, what each does next, what proves a reboot
    host_plan    who leaves a host, which way and where to; and a look at all hosts
    accounts     operators' tokens, and the records of the audit log
    relays       the relays on hosts: their tokens, and which hosts are held for theirs
    units        the units of a maintenance, the policy of their turns, and how far each is
    turns        what a maintenance does next: which units go, what the others wait for, when it
                 halts
    turn_orders  what operators order about a maintenance
    footprints   what units take, and what of other maintenance is in their way
    turn_check   the check that has to pass before a maintenance goes on
    turn_plan    the order of units, and what an operator sees of it
    turn_forecast  when units would be over: the commands themselves, in virtual time
    time_windows when maintenance windows are open, as people write them
    fleet_file   the fleet file: how it is checked, what applying one changes, who gets which domain
    fleet_import the fleet file that is made of libvirt's domains
    host_observations  surveys of hosts compared: a machine has moved, crashed, or is not known
    standing     in words, what an operation waits for, and what would end that
    alerts       what needs an operator
    news         what outsiders are told of a change
    webhooks     who gets it by HTTP, how far each has come, and when to try again
    invariants   what must always hold
"""
