"""The control plane: the rules put to work on the store.

    plane            one method for each thing asked: decide, check, save, publish
    lookup           what a reference means, and what drains and connectors get to see
    unit_of_work     what a transaction works on: the World, and the store beside it
    writer           the one thread that writes; requests that wait together share a commit
    accounts         operators' tokens, and the record of what operators ask
    tombstones       the incarnations of what was removed
    outbox           publishes what this and other replicas commit, in one order; and what follows
                     when the store has lost its last changes
    changefeed       tells the process's memory what changed, after the commit, and has the latest
                     news for those who follow
    heartbeat        saves when guests could last read, and gives an outage back to them
    replicas         which replicas live; what each says of itself, and saw of machines; none leads
    relay_watch      what relays on hosts are heard to say; holds the hosts of those that are away
    service_clock    the service's time, whether anything may start in it, and by how much notices
                     move after an outage
    ticker           what drives the parts below: rounds after changes, and when time has come; has
                     the plane start what is due, go on when machines are back, forget old history
    fleet_sync       surveys the fleet's hosts, and records moves and crashes
    executor         claims started operations by leases, and has their connector carry them out
    host_drains      drives the drains of hosts, and has the hosts rebooted
    maintenances     drives maintenances unit by unit, and has their checks run
    webhooks         sends news to webhooks

Three threads share state here, each piece with one owner (docs/architecture.md). Knows no HTTP.
Used by `server` and `testing`.
"""
