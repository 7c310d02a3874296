"""What the agent tells systemd, over NOTIFY_SOCKET; and which boot this is.

sd_notify(3) is a datagram of lines. Where there is no systemd nothing is told.
"""

import contextlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Notifier:
    """Tells the manager that started this process.

    Args:
        environment: The process's variables.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        microseconds = environment.get("WATCHDOG_USEC", "")
        mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.every: float | None = None
        """How often the watchdog wants a word, halved to be in time, in seconds; None if never."""
        if self._address and mine and microseconds.isdigit() and int(microseconds):
            self.every = int(microseconds) / 2_000_000

    def alive(self) -> None:
        """Tell the watchdog, if it wants a word."""
        if self.every:
            self.tell("WATCHDOG=1")

    def tell(self, *lines: str) -> None:
        """Tell some lines, such as `READY=1`."""
        family = getattr(socket, "AF_UNIX", None)
        if not self._address or family is None:
            return
        name = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as datagrams:
            datagrams.settimeout(1.0)
            datagrams.sendto("\n".join(lines).encode(), name)


def boot() -> str:
    """Return what names this boot of the machine; `""` where the platform does not tell."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
