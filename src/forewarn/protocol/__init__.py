"""The wire: the guest protocol, values and bytes in, values and bytes out.

No sockets, no clock, no chance, no logging.

    exchange   judges a request by docs/protocol.md sections 3 and 9: its target, its headers, the
               machine that a proxy names; and writes the replies
    versions   the document that guests read, and the part of it that each api-version shows
    instance   the instance metadata that guests read
    codec      alone knows JSON names and date formats, for both ends of the wire: writes a server's
               answers, reads approvals, and any server's answer for the client
    refusals   the error answers, and the limits of the wire
    message    a request and a reply as values

A stranger to `maintenance`: the server maps one's values to the other's. Imports only `vocabulary`
and `version`.
"""
