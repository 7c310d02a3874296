"""A signal to a process, and waiting for what it brings about: its exit, or a file."""

import contextlib
import os
import select
import signal as numbers
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from forewarn.agent.actions import units
from forewarn.agent.actions.work import Failed, Work
from forewarn.agent.steps import Signal as Terms

LOOK_SECONDS: Final = 0.2
"""Between two looks at what is waited for: a checkpoint takes seconds."""


class Signal:
    """Sends a signal and waits.

    Args:
        terms: What the rule gives.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def prepare(self, work: Work) -> str:
        """Send `signal`, and wait as `wait` says."""
        with self._process(work) as (pid, descriptor):
            before = _stamp(self._terms.file)
            _send(descriptor, self._terms.signal)
            while self._terms.wait == "exit" and not _ended(descriptor):
                work.wait(LOOK_SECONDS)
            while self._terms.wait == "file" and _stamp(self._terms.file) in {before, None}:
                if _ended(descriptor) and _stamp(self._terms.file) in {before, None}:
                    message = f"process {pid} ended and has not written {self._terms.file}"
                    raise Failed(message)
                work.wait(LOOK_SECONDS)
        return f"{self._terms.signal} to process {pid}"

    def recover(self, work: Work) -> str:
        """Send `undo_signal`, if there is one."""
        if not self._terms.undo_signal:
            return ""
        with self._process(work) as (pid, descriptor):
            _send(descriptor, self._terms.undo_signal)
        return f"{self._terms.undo_signal} to process {pid}"

    @contextlib.contextmanager
    def _process(self, work: Work) -> Iterator[tuple[int, int]]:
        """Yield the process's number and a descriptor that stays its own though it ends."""
        pid = self._pid(work)
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError as error:
            message = f"process {pid} of {self._terms.unit or self._terms.pid_file} does not run"
            raise Failed(message) from error
        except (OSError, AttributeError) as error:
            message = f"this platform does not let process {pid} be held: {error}"
            raise Failed(message) from error
        try:
            yield pid, descriptor
        finally:
            os.close(descriptor)

    def _pid(self, work: Work) -> int:
        if self._terms.unit:
            pid = int(units.state(self._terms.unit, work).get("MainPID", "0"))
            if pid == 0:
                message = f"{self._terms.unit} has no main process"
                raise Failed(message)
            return pid
        try:
            text = Path(self._terms.pid_file).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            message = f"{self._terms.pid_file} cannot be read: {error}"
            raise Failed(message) from error
        if not text.isdigit() or int(text) < 2:
            message = f"{self._terms.pid_file} holds {text[:20]!r}, which is no process's number"
            raise Failed(message)
        return int(text)


def _send(descriptor: int, name: str) -> None:
    number = getattr(numbers, name, None)
    if not isinstance(number, numbers.Signals):
        message = f"this platform has no signal {name}"
        raise Failed(message)
    try:
        numbers.pidfd_send_signal(descriptor, number)
    except OSError as error:
        message = f"{name} cannot be sent: {error.strerror}"
        raise Failed(message) from error


def _ended(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def _stamp(file: str) -> tuple[int, int, int] | None:
    """Return what tells one writing of a file from another; None if it does not exist."""
    if not file:
        return None
    try:
        found = Path(file).stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
