"""The client: a service on a machine uses it to read its scheduled events and to approve them.

`event` and `errors` are what a handler sees. Deciders: `discovery` (where the endpoint is),
`responses` (what an answer means), `session` (the pace, the server, dialogues) and `watch` (answers
in; changes and the next question out). `transport` is HTTP over h11, for both shells and for one
request to any address. Shells: `sync` over sockets, `aio` over asyncio's streams.

A process with only `sync` loads no asyncio. Nothing here imports the service's packages: a machine
that watches needs neither store nor server. Imports only `protocol`, `vocabulary`, `clock` and
`version`; imported by `agent`, `testing` and `cli`.
"""
