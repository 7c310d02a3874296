"""Forewarn: notice of maintenance for virtual machines, and their approval.

Azure's Scheduled Events protocol on any platform. The rooms of this package, top to bottom; a
room imports only from lines below its own, and rooms on one line are strangers (the import
contracts in pyproject.toml keep this):

    __main__                   `python -m forewarn` is the command line
    cli                        what people type; the only place that wires rooms together
    server                     the two planes: guests' metadata endpoint, operators' API
    control | client           the plane, the ticker, the executor, the feed; the client library
    store | connectors         the memory; what carries maintenance out
    maintenance | protocol     the rules; the wire. Both decide and neither does: no I/O in them
    vocabulary | clock         the enums that every room shares; the only reader of a clock
    configuration              settings files, judged against what may be in them
"""

from forewarn.version import __version__

__all__ = ["__version__"]
