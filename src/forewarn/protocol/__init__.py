"""The wire: the guest protocol without any I/O.

Values and bytes go in, values and bytes come out; no sockets, no clock, no chance, no logging.

    versions   the published versions as one table
    document   what a guest reads and writes, as frozen values
    codec      the only file that knows JSON names and date formats
    instance   /metadata/instance: a tree of strings and its leaves
    exchange   a request judged: every rule of docs/protocol.md sections 3 and 9, in order

A stranger to `maintenance`: the server maps one's values to the other's. Imports only
`vocabulary`.
"""
