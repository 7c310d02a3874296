"""The guest plane: the metadata endpoint, our own asyncio Protocol over httptools.

    wire       bytes on a connection to requests and back; every limit and timer of a connection
    endpoint   what a judged request is answered with
    callers    who is asking: the machine behind a connection
    documents  the rendered bytes of each scope and version, kept by the feed

A GET is answered from memory in the call that read it, and never depends on the store.
"""
