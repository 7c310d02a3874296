"""The relay: answers the guests of one hypervisor in the service's place.

    settings    relay.toml
    __main__    `python -m forewarn.relay`, which the command line turns into
    run         the process: signals, systemd, what it ends with
    relay       the parts put together, and what happens when
    upstream    requests to the service's replicas, one after another until one answers
    news_reader  reads what changed, for as long as the relay runs
    backend     what guests ask of the service: approvals, first requests; and who asked
    host_documents  what the relay knows of its host, and which news it takes; decides, does nothing
    freshness   how old that is, and whether guests are answered from it; decides, and does nothing
    state_file  what it knows, kept on the disk for the next start
    status      the metrics, and one line for people

Guests are answered by `server.guest`, the same as the service's. A relay runs on every hypervisor
for as long as that does, so it has no database and no web framework: nothing here may import the
store's engines, the control plane's threads or what serves operators. Only the command line and
test tools import this package.
"""
