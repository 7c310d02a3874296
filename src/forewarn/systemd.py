"""What a process tells the systemd that started it, and whether it speaks to its journal.

sd_notify(3) is a datagram of lines to NOTIFY_SOCKET; JOURNAL_STREAM names the stream that journald
reads (systemd.exec(5)). Where there is no systemd nothing is told. The service and the agent are
both its clients.
"""

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Final, TextIO

ANSWER_SECONDS: Final = 1.0
"""How long a datagram may wait for a place in the manager's queue: it is news, and no promise."""


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
        """Tell some lines, such as `READY=1`; what cannot be told is left."""
        family = getattr(socket, "AF_UNIX", None)  # there is none on Windows
        if not self._address or family is None:
            return
        name = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as datagrams:
            datagrams.settimeout(ANSWER_SECONDS)
            datagrams.sendto("\n".join(lines).encode(), name)


def reads(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Tell whether journald reads a stream of this process.

    The variable alone does not say so: it is handed down to processes whose output goes elsewhere.

    Args:
        stream: Such as standard error.
        environment: The process's variables.
    """
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):  # a stream of no file, such as one in memory
        return False
    return environment.get("JOURNAL_STREAM", "") == f"{found.st_dev}:{found.st_ino}"
