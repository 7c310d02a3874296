"""The rules: what may happen to which machine, when, and who must be told first.

Deciders only: the World, a command and `now` go in; a decision, made of new values, comes out.
Nothing in here does I/O, logs, reads a clock or draws a number: ids and time are arguments, so a
transaction's body may run twice. Imports only `vocabulary`, and `times` for words.

    model        the frozen values: machines, scopes, operations, events, approvals, holds, policy
    world        all live state, in tables with indexes and a journal that undoes
    notice       the least notice of each type, the earliest NotBefore, its extension after an
                 outage
    commands     the requests of operators, guests and executors, each allowed, refused or too
                 late: decide(world, command, now, mint)
    transitions  the steps of an operation (announced, started, returning, over), by one table, and
                 the turns of units; vocabulary says which statuses guests see
    planner      the limits of a request, and its result: units and operations
    host_drain   the drain of a host: its states, the next step of each, the proof of a reboot
    host_plan    the plan of a drain: which machines leave, how and where to; a look at all hosts
    accounts     operators' tokens, and the records of the audit log
    relays       the relays on hosts: their tokens, and the hosts that are held for theirs
    units        the units of a maintenance, the policy of their turns, and their progress
    turns        the next step of a maintenance: units that go, obstacles of the others, halts
    turn_orders  the orders of operators about a maintenance
    footprints   the footprints of units, and other maintenance in their way
    turn_check   the check that has to pass before a maintenance goes on
    turn_plan    the order of units, and the plan for an operator
    turn_forecast  the predicted end of units: the commands themselves, in virtual time
    time_windows maintenance windows as people write them, and the times when they are open
    fleet_file   the fleet file: its checks, the changes that it makes, the choice of domains
    fleet_import the fleet file that is made from libvirt's domains
    host_observations  surveys of hosts compared: a machine has moved, crashed, or is not known
    standing     the thing that an operation waits for, in words, and the command that ends that
    alerts       the conditions that need an operator
    news         the news of changes for outsiders
    webhooks     the receivers of news by HTTP, the progress of each, the times of its retries
    invariants   the invariants
"""
