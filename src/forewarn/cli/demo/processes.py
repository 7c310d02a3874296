"""The demo's processes: the real service and its guests, each a process of its own.

They are no children of the terminal's: Ctrl-C reaches the demo alone, which then ends them in
order. A guest ends by itself when its stdin does, whatever becomes of the demo.
"""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from forewarn.cli.demo import cast

GUEST_SCRIPT: Final = Path(__file__).with_name("guest.py")

STOP_SECONDS: Final = 10.0
"""How long a process may take to end before it is killed; what the service promises for itself."""

MAX_READ: Final = 64 * 1024
"""The most bytes read of a guest's words at a time."""


class Process:
    """A program that the demo started.

    Args:
        command: The program and its arguments.
        log: Where its stderr goes, and its stdout unless it is read.
        reads: Whether `lines` reads its stdout.
    """

    def __init__(self, command: Sequence[str], log: Path, *, reads: bool) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter and our own files
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if reads else errors,
                stderr=errors,
                start_new_session=True,
            )
        self._begun = b""
        self._asked = False
        if self._process.stdout is not None:
            os.set_blocking(self._process.stdout.fileno(), False)

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Return its exit status; None while it runs."""
        return self._process.poll()

    def lines(self) -> list[str]:
        """Return the whole lines that it has written since, without waiting."""
        if self._process.stdout is None:
            return []
        with contextlib.suppress(BlockingIOError):
            self._begun += os.read(self._process.stdout.fileno(), MAX_READ)
        *whole, self._begun = self._begun.split(b"\n")
        return [line.decode(errors="replace") for line in whole]

    def ask_to_stop(self) -> None:
        """Ask it to end, once, and do not wait: a second signal would end the service in haste."""
        if self._asked:
            return
        self._asked = True
        with contextlib.suppress(OSError):
            self._process.terminate()

    def stop(self) -> None:
        """End it: ask first, then kill; return when it is gone."""
        self.ask_to_stop()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def service(settings: Path, log: Path) -> Process:
    """Start the real service."""
    command = [sys.executable, "-m", "forewarn", "serve", "--config", str(settings)]
    return Process(command, log, reads=False)


def guest(role: cast.Guest, port: int, log: Path) -> Process:
    """Start the program inside one machine.

    Args:
        role: Who it is.
        port: Of the guest plane.
        log: Where its stderr goes.
    """
    command = [
        *(sys.executable, "-I", str(GUEST_SCRIPT)),
        *("--url", f"http://127.0.0.1:{port}/vm/{role.machine}"),
        *("--role", role.role),
        *("--api-version", role.version),
        *("--drain", str(role.drain_seconds)),
    ]
    return Process(command, log, reads=True)


def free_port() -> int:
    """Return a port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def tail(log: Path, lines: int = 8) -> str:
    """Return the last lines of a log."""
    with contextlib.suppress(OSError):
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    return ""
