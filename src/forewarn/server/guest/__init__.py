"""The guest plane: the metadata endpoint, our own asyncio Protocol over httptools.

From a socket inwards:

    plane        the plane put together: how the service fills, opens, feeds and stops it
    listener     the addresses that guests ask at: their settings, the sockets, and the kernel's
                 filter against guests that open far too many connections
    connection   one connection: order, times, backpressure
    connections  all of them: their limits, their accounts, and the sweep of their times
    http         bytes to requests, exact to the byte, and answers to bytes
    endpoint     the answer to a request, refusals, and their counts; the requests that wait for a
                 change, and those that repeat themselves to the byte
    machines     the machine that asks, directly or by a proxy, and its instance tree
    documents    the rendered bytes of each scope and version, kept by the changefeed, and the
                 enabling of scopes
    limits       every limit by name; rates, and a fair share of the loop for each guest

A GET is answered from memory in the call that read it, and never depends on the store. All of it
runs on one event loop's thread, which owns all of this memory. Two things cross threads: an
approval, which the control plane's writer answers by `call_soon_threadsafe`; and `seen`, which
operators' requests read from other threads, one immutable value at a time.
"""
