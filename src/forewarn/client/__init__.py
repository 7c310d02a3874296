"""The client: a service on a machine uses it to read its scheduled events and to approve them.

    event      what a handler sees: events, documents, changes, troubles, the machine
    errors     what goes wrong, by whose fault
    discovery  where the endpoint is: candidates in order
    responses  what a response means: a document, or a failure with its likely cause
    session    DECIDER: the pace, what is known of the server, dialogues (document, approval, name)
    watch      DECIDER: answers, failures and time in; changes and the next question out
    transport  HTTP over h11, what both shells share, and `request` for one request to any address
    sync       SHELL over sockets: Client, Watch, Documents
    aio        SHELL over asyncio's streams: AsyncClient, AsyncWatch, AsyncDocuments

A process with only `sync` loads no asyncio. Nothing here imports the service's packages: a machine
that watches needs neither store nor server. Imports only `protocol`, `vocabulary`, `clock` and
`version`; imported by `agent`, `testing` and `cli`.
"""
