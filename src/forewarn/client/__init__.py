"""The client library: what a service on a machine uses to learn of maintenance and to approve it.

    discovery   where the endpoint is: candidates in order, over texts

It imports no server code and no rules: a machine needs nothing but the wire.
"""
