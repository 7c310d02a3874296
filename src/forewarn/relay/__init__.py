"""The relay: answers the guests of one hypervisor in the service's place.

    settings    relay.toml, with the address that guests ask
    run         the process that the command line turns into: signals, systemd, exit statuses
    relay       the parts put together, their order at start and stop; status and metrics
    cache       the documents of the host, from which guests are answered, also while the service
                is away; which documents are accepted, their age, and their file
    forwarding  the guests' requests to the service: approvals, refused with 503 while no replica
                answers; first requests; and sightings
    upstream    the connection to the service's replicas: one after another until one answers; one
                request, for the host, waits for as long as the relay runs
    streams     one connection to a replica, over asyncio's streams

`server.guest` listens to guests and answers them, the same as the service's. A relay runs on every
hypervisor for as long as that does, so it has no database and no web framework: nothing here may
import the store's engines, the control plane's threads or the operator plane.
"""
