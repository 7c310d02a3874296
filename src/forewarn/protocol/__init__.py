"""The wire: the guest protocol, values and bytes in, values and bytes out.

No sockets, no clock, no chance, no logging. `exchange` judges a request, a `message` value, by
docs/protocol.md sections 3 and 9: its `target`, whom a proxy speaks for (`identity`), how the
machine fares (`agent_status`); `refusals` has what it answers. `document` and `instance` are what
guests read, in the `versions` that are published. `codec` alone knows JSON names and date formats,
`tolerant` reads any server's answer for the client, `text` compares by ASCII case.

A stranger to `maintenance`: the server maps one's values to the other's. Imports only
`vocabulary` and `version`.
"""
