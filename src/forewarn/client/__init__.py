"""The client: what a service on a machine uses to learn of its maintenance and to approve it.

    event      what a handler sees: events, documents, changes, troubles, the machine
    errors     what goes wrong, by whose fault
    pace       how often is asked, how long is waited
    discovery  where the endpoint is: candidates in order, over texts
    chance     the one source of chance
    answers    what an answer means: a document, or a failure with its likely cause
    terms      what is known of the server; the questions to it
    state      what a watch knows, as values and as JSON
    watch      DECIDER: answers, failures and time in; changes and the next question out
    errands    DECIDERS: a document, an approval, the machine's name: what is asked until it is had
    opening    what a client is made of, before it has a socket; how trouble is told
    http       HTTP without the socket, over h11, with a limit on all that is read
    sockets    a connection over a socket
    sync       SHELL over sockets: Client, Watch
    streams    a connection over asyncio's streams
    aio        SHELL over streams: AsyncClient, AsyncWatch

The two shells are strangers, and a process with only `sync` loads no asyncio. Nothing here reaches
the service's rooms: a machine that watches needs neither store nor server. Imports only `protocol`,
`vocabulary`, `clock` and `version`; imported by `agent`, `testing` and `cli`.
"""
