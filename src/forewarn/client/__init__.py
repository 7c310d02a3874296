"""The client: a service on a machine uses it to read its scheduled events and to approve them.

    event      the values that a handler gets
    discovery  the addresses of the endpoint
    session    the questions: their api-version, pace and retries; the meaning of answers; the
               machine's name. No I/O in here
    watch      answers in; out come changes (an event appeared, started or is over), and the next
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
