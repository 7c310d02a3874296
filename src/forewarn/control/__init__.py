"""The control plane: the rules put to work on the store.

    plane     one method per thing asked: one transaction, one now, decide, save, publish
    turns     what waits together is decided together, each by itself
    draft     what a turn has come to so far, read as the store would be
    approvals guests' words, by turns
    reports   what executors say of what they hold, by turns
    tombstones the incarnations of what was removed
    loading   what of the store a decision gets to see
    writer    the one thread that writes; requests that wait together share a commit
    changefeed what changed, told to whoever listens, after the commit
    ticker    waits for the next wakeup and asks the plane to advance what is due
    trust     whether the time of day can be trusted: observations in, a verdict out
    watch     the service's clock, and whether anything may start in it
    heartbeat writes down until when guests could read, and gives outages back
    executor  claims started operations and runs the connector

Knows no HTTP. Used by `server`.
"""
