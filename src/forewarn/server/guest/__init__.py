"""The guest plane: the metadata endpoint, our own asyncio Protocol over httptools.

From a socket inwards:

    listener     where guests reach it; opened last, stopped first
    connections  all connections together: how many, of whom, whose time is up
    wire         one connection: order, times, backpressure, the last answer
    reading      bytes to requests, exact to the byte, without I/O
    repeats      requests that repeat themselves to the byte, and are not judged again
    limits       every limit and time of a connection, by name
    endpoint     what a request is answered with
    callers      who is asking: the machine behind a connection, and when it last asked
    rate         how often a machine may ask
    waiting      requests that wait for their document to change: a set, woken by the feed
    proxies      which proxies a listener trusts, and what they sign with
    strangers    callers that are no machine, told to the log
    asking       what turns a scope on: the first request of one of its machines
    documents    the rendered bytes of each scope and version, kept by the feed
    instances    a machine's place in the fleet as its instance tree
    refusals     what the transport refuses by itself
    writing      replies to bytes
    tally        who was turned away, counted by reason

A GET is answered from memory in the call that read it, and never depends on the store. All of
it runs on one event loop's thread; only an approval leaves it, and its answer comes back to it.
"""
