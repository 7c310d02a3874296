"""A network namespace of a test's own, in which packets of a second way vanish as it likes."""

import contextlib
import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from typing import Final

CLONE_NEWNET: Final = 0x40000000
"""Of unshare(2) and setns(2)."""

FAR: Final = "127.0.0.9"
"""A second way to this machine, which the packet filter tells from the first."""

RULES: Final = (
    "table ip dark { chain arriving { type filter hook input priority 0; "
    f"ip saddr {FAR} drop; ip daddr {FAR} drop; }}; }}"
)


def missing() -> str:
    """Say why these namespaces cannot be made here; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces with a PostgreSQL in them need root"
    absent = [each for each in ("ip", "nft") if not shutil.which(each)]
    return f"not installed: {', '.join(absent)}" if absent else ""


@contextlib.contextmanager
def own() -> Iterator[None]:
    """Make a network of its own for this thread, and what it starts."""
    home = os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    try:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        yield
    finally:
        assert libc.setns(home, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        os.close(home)


def darken() -> None:
    """Let packets by the second way vanish."""
    subprocess.run(["nft", "-f", "-"], input=RULES, text=True, check=True)


def clear() -> None:
    """Let packets pass again."""
    subprocess.run(["nft", "delete", "table", "ip", "dark"], check=True)
