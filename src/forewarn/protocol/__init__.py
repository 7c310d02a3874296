"""The wire: the guest protocol without any I/O.

Values and bytes go in, values and bytes come out; no sockets, no clock, no chance, no logging.

    versions   the published versions as one table
    document   what a guest reads, as frozen values, and the descriptions by default
    instance   /metadata/instance: a tree of strings and its leaves
    text       case by ASCII alone; how much of a client's text is shown back
    codec      the only file that knows JSON names and date formats
    tolerant   reads the answer of any server in any version: the client's side
    message    a request and an answer as values
    identity   whom a proxy speaks for: its signed headers
    target     a request's path and query, read
    refusals   every refusal, its text and standing; what the sources leave open
    agent_status   the header that says how a machine fares
    exchange   judges a request by docs/protocol.md sections 3 and 9, in their order

A stranger to `maintenance`: the server maps one's values to the other's. Imports only
`vocabulary` and `version`.
"""
