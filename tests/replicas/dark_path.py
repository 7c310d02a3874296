"""A network of its own, in which the path to a database goes dark as in reality: packets vanish."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

CLONE_NEWNET: Final = 0x40000000
"""Of unshare(2)."""

ADDRESS: Final = "127.0.0.9"
"""A second way to this machine, which the packet filter tells from the first."""

RULES: Final = (
    "table ip dark { chain arriving { type filter hook input priority 0; "
    f"ip saddr {ADDRESS} drop; ip daddr {ADDRESS} drop; }}; }}"
)


def can_be() -> bool:
    """Tell whether this user may have a network of its own."""
    return os.geteuid() == 0 and all(map(shutil.which, ("nft", "ip")))


def in_own_network(work: Callable[[], T]) -> T:
    """Do something on a thread, which has a network of its own with all that it starts."""

    def begin() -> T:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.unshare(CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return work()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(begin).result()


def darken() -> None:
    """Let no packet pass by `ADDRESS`; on the thread that has the network."""
    subprocess.run(["nft", "-f", "-"], input=RULES, text=True, check=True)


def clear() -> None:
    """Let packets pass again."""
    subprocess.run(["nft", "delete", "table", "ip", "dark"], check=True)
