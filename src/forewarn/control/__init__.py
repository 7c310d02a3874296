"""The control plane: the rules put to work on the store.

    plane            one method for each thing asked: read, decide, check, save, publish
    loading          which part of the store a decision gets to see, and what a reference means
    unit_of_work     what one transaction has read, and what it is going to save
    writer           the one thread that writes; requests that wait together share a commit
    accounts         operators' tokens, and the record of what operators ask
    tombstones       the incarnations of what was removed
    follower         publishes what this and other replicas commit, in one order
    lost_changes     what follows when the store has lost its last changes
    changefeed       tells the process's memory what changed, after the commit
    news_tail        the latest news in memory, for those who follow
    sightings        what replicas saw of machines, as one
    relay_watch      what relays on hosts are heard to say; holds the hosts of those that are away
    service_clock    the service's time, whether anything may start in it, and what guests are owed
    timekeeping      whether the time of day can be trusted, and how long guests could not read
    rounds           what drives the parts below: rounds after changes, and when time has come
    ticker           has the plane start what is due at its time, and forget old history
    machine_returns  has operations looked at again when machines that they await have asked
    fleet_sync       keeps the fleet in step with its libvirt hosts
    executor         claims started operations and runs the connector
    host_drains      drives the drains of hosts
    rollouts         drives rollouts, and has their checks run
    webhooks         delivers news to webhooks

Three threads share state here, each piece with one owner (docs/architecture.md). Knows no HTTP.
Used by `server` and `testing`.
"""
