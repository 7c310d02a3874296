"""The messages between this process and the systemd that started it.

sd_notify(3) sends lines in a datagram to NOTIFY_SOCKET; JOURNAL_STREAM names the stream that
journald reads (systemd.exec(5)); LISTEN_FDS is how many sockets were opened for this process
(sd_listen_fds(3)). Without systemd nothing is sent, and there are none.
"""

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Final, TextIO

ANSWER_SECONDS: Final = 1.0
"""The longest wait of a datagram for room in the manager's queue; then it is dropped."""

FIRST_LISTENING_FILE: Final = 3
"""The number of the first file that is handed over, SD_LISTEN_FDS_START."""


class Notifier:
    """Notifies the manager that started this process, as its variables say."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        microseconds = environment.get("WATCHDOG_USEC", "")
        mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.every: float | None = None
        """Seconds between keep-alive messages, half of what the watchdog allows; None for none."""
        if self._address and mine and microseconds.isdigit() and int(microseconds):
            self.every = int(microseconds) / 2_000_000

    def alive(self) -> None:
        """Send a keep-alive message if there is a watchdog."""
        if self.every:
            self.tell("WATCHDOG=1")

    def tell(self, *lines: str) -> None:
        """Send lines, such as `READY=1`; ignore errors.

        A line break in one becomes a space: a text from elsewhere adds no line of its own.
        """
        family = getattr(socket, "AF_UNIX", None)  # there is none on Windows
        if not self._address or family is None:
            return
        name = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as datagrams:
            datagrams.settimeout(ANSWER_SECONDS)
            told = "\n".join(line.replace("\n", " ") for line in lines)
            datagrams.sendto(told.encode("utf-8", "replace"), name)


def listening_files(environment: Mapping[str, str]) -> range:
    """Return the files that are listening sockets opened for this process.

    Variables that it inherited from another process, for which they were set, are passed over.
    """
    count = environment.get("LISTEN_FDS", "")
    if environment.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal():
        return range(0)
    return range(FIRST_LISTENING_FILE, FIRST_LISTENING_FILE + int(count))


def reads(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Return True if journald reads a stream of this process.

    The variable alone is not enough: child processes inherit it, whose output may go elsewhere.
    """
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):  # a stream of no file, such as one in memory
        return False
    return environment.get("JOURNAL_STREAM", "") == f"{found.st_dev}:{found.st_ino}"
