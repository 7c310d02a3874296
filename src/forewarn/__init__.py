"""Forewarn: notice of maintenance for virtual machines, and their approval.

Azure's Scheduled Events protocol on any platform. The rooms of this package, top to bottom; a room
imports only from lines below its own, and rooms on one line are strangers (the import contracts in
pyproject.toml keep this):

    __main__                   `python -m forewarn` is the command line
    cli                        the commands that people type; the only place that wires rooms
                               together
    relay                      answers the guests of one hypervisor in the service's place
    server | agent             the two planes: guests' metadata endpoint, operators' API; the
                               program that prepares a machine and approves
    control | client           the plane, the ticker, the executor, the feed; the client library
    store | connectors         the memory; the programs that carry maintenance out
    maintenance | protocol     the rules; the wire. Both decide and neither does: no I/O in them
    status_port | logs         the status and metrics of agents and relays; the lines of every log
    vocabulary | clock         the enums that every room shares; the only reader of a clock
    settings | systemd         settings files, and their errors; messages to and from systemd
    times                      times and spans as people type and read them
"""

import importlib

from forewarn.version import __version__

TYPE_CHECKING = False
"""Type checkers take this for true. Every program begins here: to load `typing` takes 10 ms."""

if TYPE_CHECKING:
    from forewarn.client.aio import AsyncClient, AsyncDocuments, AsyncWatch
    from forewarn.client.event import (
        Appeared,
        BadAnswer,
        Change,
        ClientError,
        Document,
        Event,
        Gone,
        MachineIdentity,
        Misuse,
        RequestRefused,
        Started,
        Trouble,
        Unreachable,
        Updated,
    )
    from forewarn.client.session import Pace
    from forewarn.client.sync import Client, Documents, Watch

__all__ = [
    "Appeared",
    "AsyncClient",
    "AsyncDocuments",
    "AsyncWatch",
    "BadAnswer",
    "Change",
    "Client",
    "ClientError",
    "Document",
    "Documents",
    "Event",
    "Gone",
    "MachineIdentity",
    "Misuse",
    "Pace",
    "RequestRefused",
    "Started",
    "Trouble",
    "Unreachable",
    "Updated",
    "Watch",
    "__version__",
]

_ROOMS = {
    "aio": ("AsyncClient", "AsyncDocuments", "AsyncWatch"),
    "event": (
        *("Appeared", "Change", "Document", "Event", "Gone"),
        *("MachineIdentity", "Started", "Trouble", "Updated"),
        *("BadAnswer", "ClientError", "Misuse", "RequestRefused", "Unreachable"),
    ),
    "session": ("Pace",),
    "sync": ("Client", "Documents", "Watch"),
}
_MODULE_OF = {name: f"forewarn.client.{room}" for room, names in _ROOMS.items() for name in names}


if not TYPE_CHECKING:  # a type checker sees every name above, and that there is no other

    def __getattr__(name: str) -> object:
        """Load a public name at its first use."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'forewarn' has no attribute {name!r}")
        found: object = getattr(importlib.import_module(_MODULE_OF[name]), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    """Return every public name, loaded or not."""
    return sorted({*globals(), *__all__})
