"""The relay: answers the guests of one hypervisor in the service's place.

    settings    relay.toml, with the address that guests ask
    run         the process that the command line turns into: signals, systemd, what it ends with
    relay       the parts put together, and what happens when; what it shows of itself
    cache       what the relay knows of its host, from which it answers guests, also while the
                service is away; which documents it takes, how old they are, and their file
    forwarding  what guests ask of the service: approvals, refused with 503 while no replica
                answers; first requests; and who asked
    upstream    the connection to the service's replicas: one after another until one answers; one
                request, for the host, waits for as long as the relay runs
    streams     one connection to a replica, over asyncio's streams

`server.guest` listens to guests and answers them, the same as the service's. A relay runs on every
hypervisor for as long as that does, so it has no database and no web framework: nothing here may
import the store's engines, the control plane's threads or what serves operators.
"""
