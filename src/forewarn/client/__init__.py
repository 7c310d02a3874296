"""The client: a service on a machine uses it to read its scheduled events and to approve them.

    event      what a handler sees
    discovery  where the endpoint is
    session    what is asked, in which api-version, how often, and again after what; what an answer
               means; the machine's name. No I/O in here
    watch      answers in; out come changes (which event appeared, started or is over), and the next
               question. No I/O either
    transport  HTTP over h11, for the client and for one request to any address
    watch_file the file in which a watch keeps its state
    proxies    the HTTP proxy that the environment names for chats and webhooks
    sync       the client over sockets
    aio        the same for asyncio: each wait in a thread of its own

A process with only `sync` loads no asyncio. Nothing here imports the service's packages: a machine
that watches needs neither store nor server. Imports only `protocol`, `vocabulary`, `clock` and
`version`; imported by `agent`, `testing` and `cli`, and for HTTP alone by `relay` and `server`.
"""
