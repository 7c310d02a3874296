"""The control plane: the rules put to work on the store.

    plane            one method for each request: decide, check, save, publish
    lookup           the operations that a reference names, and the views of drains and connectors
    control_plane    the parts of this room over one store, for a service, an emulator or a test
    unit_of_work     the input of a transaction: the World, and the store beside it
    writer           the one thread that writes; requests that wait together share a commit
    accounts         operators' tokens, and the record of their requests
    tombstones       the incarnations of removed scopes and machines
    outbox           takes the commits of all replicas into the World, and publishes them
    recovery         makes a store safe to go on with that has lost changes
    changefeed       publishes changes to the process's memory, after the commit, and has the latest
                     news for those who follow
    heartbeat        saves when guests could last read, and gives an outage back to them
    replicas         the live replicas; what each says of itself, and saw of machines; none leads
    relay_watch      the reports of relays on hosts; holds the hosts of relays that are away
    service_clock    the service's time, the permission to start anything, and the extension of
                     notices after an outage
    ticker           the rounds that drive the parts below, after changes and in time; the start of
                     due operations, the return of machines, the purge of old history
    fleet_sync       surveys the fleet's hosts, and records moves and crashes
    executor         claims started operations by leases, and gives them to their connector
    host_drains      drives the drains of hosts, and their reboots
    maintenances     drives maintenances unit by unit, and runs their checks
    webhooks         sends news to webhooks

Three threads share state here, each piece with one owner (docs/architecture.md). Knows no HTTP.
Used by `server` and `testing`.
"""
