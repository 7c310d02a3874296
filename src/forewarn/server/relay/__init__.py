"""The relay plane, for the relays on hosts (`server.relay_feed` has the requests).

    hub          each host's document for its relay, and the requests that wait for it
    application  judges, answers and records the relays' requests, on a socket

A third socket, beside the guests' and the operators'. A host's token reads and approves for the
machines of that host, and nothing else. Used by `server.service` alone; a relay imports nothing of
it.
"""
