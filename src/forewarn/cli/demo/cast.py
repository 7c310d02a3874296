"""Who plays: the demo's fleet, its guests in their roles, and the service's settings."""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

SCALE: Final = 90
"""The service's seconds in one real second: fifteen minutes' notice last ten seconds."""

HISTORY: Final = 100
"""Operations that are read at a time; the story makes a tenth of them."""

NEWEST: Final = "2020-07-01"
PREVIEW: Final = "2017-03-01"


class Guest(NamedTuple):
    """A machine and the program inside it."""

    machine: str
    scope: str
    domain: int
    role: str
    """`approves`, `drains` or `watches`: see `guest`."""
    shown: str
    """The role, for people."""
    drain_seconds: float = 0.0
    """Real ones."""
    version: str = NEWEST


GUESTS: Final = (
    Guest("web-0", "web", 0, "approves", "approves at once"),
    Guest("web-3", "web", 0, "approves", "follows web-0"),
    Guest("web-1", "web", 1, "drains", "drains, approves", 3.0),
    Guest("web-4", "web", 1, "drains", "follows web-1", 3.0),
    Guest("web-2", "web", 2, "watches", "never approves"),
    Guest("web-5", "web", 2, "watches", "never approves"),
    Guest("batch_0", "batch", 0, "drains", "saves, approves", 1.5),
    Guest("batch_1", "batch", 1, "drains", "saves, approves", 1.5),
    Guest("FrontEnd_IN_0", "shop", 0, "approves", f"speaks {PREVIEW}", 0.0, PREVIEW),
    Guest("FrontEnd_IN_1", "shop", 1, "approves", f"speaks {PREVIEW}", 0.0, PREVIEW),
    Guest("bastion", "bastion", 0, "drains", "drains for long", 60.0),
)
"""In the order in which they are shown: domain by domain."""

WEB_DOMAINS: Final = (("web-0", "web-3"), ("web-1", "web-4"), ("web-2", "web-5"))
HOST: Final = "h1"
"""The host that is patched: machines of three scopes are on it."""

HOST_LEADERS: Final = ("web-0", "batch_0", "FrontEnd_IN_0")
PREEMPTED: Final = "batch_1"
CANCELLED: Final = "bastion"


def fleet() -> dict[str, Any]:
    """Return the fleet as `forewarn fleet apply` takes it: no update domain is written down."""
    return {
        "availability_set": [
            {
                "name": "web",
                "update_domains": 3,
                "machines": [{"name": f"web-{n}", "host": f"h{n + 1}"} for n in range(6)],
            }
        ],
        "scale_set": [
            {
                "name": "batch",
                "priority": "low",
                "machines": [{"index": n, "host": f"h{n + 1}"} for n in range(2)],
            }
        ],
        "cloud_service": [
            {
                "name": "shop",
                "roles": [{"name": "FrontEnd", "instances": [{"host": "h1"}, {"host": "h2"}]}],
            }
        ],
        "machine": [{"name": "bastion", "host": "h7"}],
    }


def settings(folder: Path, port: int) -> str:
    """Return the service's settings file.

    Args:
        folder: Where the database and the operators' socket are put.
        port: Of the guest plane, on loopback.
    """

    def quoted(path: Path) -> str:
        return json.dumps(str(path))  # a JSON string of printable characters is one of TOML's

    return f"""\
[store]
path = {quoted(folder / "forewarn.db")}

[operator]
socket = {quoted(folder / "operator.sock")}

[[guest.listener]]
address = "127.0.0.1"
port = {port}

[connector.simulated]
freeze_seconds = 120
reboot_seconds = 180
preempt_seconds = 120

[clock]
scale = {SCALE}

[log]
format = "console"
"""
