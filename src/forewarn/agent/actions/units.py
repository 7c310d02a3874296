"""systemd units that are stopped or started, and processes that get a signal."""

import contextlib
import os
import select
import signal as signals
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from forewarn.agent.action_settings import ServiceSettings, SignalSettings
from forewarn.agent.actions import program
from forewarn.agent.actions.action import Action, ActionFailed, ActionRun

SYSTEMCTL: Final = "systemctl"
RUNNING: Final = frozenset({"active", "activating", "reloading", "refreshing"})

LOOK_SECONDS: Final = 0.2
"""Between two looks at the process or file: a checkpoint takes seconds."""


class ServiceAction(Action[ServiceSettings]):
    """Notes whether a unit runs, then stops or starts it; undoing leaves it as it was."""

    def prepare(self) -> str:
        unit, start = self.settings.unit, bool(self.settings.start)
        ran = _unit(unit, self.run)["ActiveState"] in RUNNING
        self.run.note({"ran": ran})
        if ran is start:
            return f"{unit} {'runs' if ran else 'does not run'} already"
        return self._systemctl("start" if start else "stop")

    def recover(self) -> str:
        started, facts = bool(self.settings.start), self.run.begun.facts
        if facts is None or facts["ran"] is started:  # nothing noted, nothing changed
            return f"{self.settings.unit} was not changed"
        return self._systemctl("stop" if started else "start")

    def _systemctl(self, verb: str) -> str:
        """Have systemd start or stop the unit, and wait until it has."""
        unit = self.settings.unit
        status, said = program.execute([SYSTEMCTL, verb, "--", unit], self.run)
        if status:
            message = f"systemctl {verb} {unit} ended with {status}: {said}"
            raise ActionFailed(message)
        return ""


class SignalAction(Action[SignalSettings]):
    """Sends a signal, and waits for the process's exit or for a file."""

    def prepare(self) -> str:
        settings = self.settings
        with self._process() as (pid, descriptor):
            before = _stamp(settings.file)
            _send(descriptor, settings.signal)
            while settings.wait == "exit" and not _ended(descriptor):
                self.run.wait(LOOK_SECONDS)
            while settings.wait == "file" and _stamp(settings.file) in {before, None}:
                if _ended(descriptor) and _stamp(settings.file) in {before, None}:
                    message = f"process {pid} ended and has not written {settings.file}"
                    raise ActionFailed(message)
                self.run.wait(LOOK_SECONDS)
        return f"{settings.signal} to process {pid}"

    def recover(self) -> str:
        if not self.settings.undo_signal:
            return ""
        with self._process() as (pid, descriptor):
            _send(descriptor, self.settings.undo_signal)
        return f"{self.settings.undo_signal} to process {pid}"

    @contextlib.contextmanager
    def _process(self) -> Iterator[tuple[int, int]]:
        """Yield the process's number, and a descriptor that stays its own after its end."""
        pid = self._pid()
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError as error:
            where = self.settings.unit or self.settings.pid_file
            message = f"process {pid} of {where} does not run"
            raise ActionFailed(message) from error
        except (OSError, AttributeError) as error:
            message = f"cannot get hold of process {pid} on this platform: {error}"
            raise ActionFailed(message) from error
        try:
            yield pid, descriptor
        finally:
            os.close(descriptor)

    def _pid(self) -> int:
        if self.settings.unit:
            pid = int(_unit(self.settings.unit, self.run).get("MainPID", "0"))
            if pid == 0:
                message = f"{self.settings.unit} has no main process"
                raise ActionFailed(message)
            return pid
        file = self.settings.pid_file
        try:
            text = Path(file).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            message = f"cannot read {file}: {error}"
            raise ActionFailed(message) from error
        if not text.isdigit() or int(text) < 2:
            message = f"{file} holds {text[:20]!r}: expected a process's number"
            raise ActionFailed(message)
        return int(text)


def _unit(unit: str, run: ActionRun) -> dict[str, str]:
    """Return a unit's properties, ActiveState and MainPID among them."""
    status, said = program.execute(
        [SYSTEMCTL, "show", "--property=LoadState,ActiveState,MainPID", "--", unit], run
    )
    known = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    if status or "ActiveState" not in known:
        message = f"systemctl show {unit} ended with {status}: {said}"
        raise ActionFailed(message)
    if known.get("LoadState") == "not-found":
        message = f"systemd has no unit {unit}"
        raise ActionFailed(message)
    return known


def _send(descriptor: int, name: str) -> None:
    number = getattr(signals, name, None)
    if not isinstance(number, signals.Signals):
        message = f"this platform has no signal {name}"
        raise ActionFailed(message)
    try:
        signals.pidfd_send_signal(descriptor, number)
    except OSError as error:
        message = f"cannot send {name}: {error.strerror}"
        raise ActionFailed(message) from error


def _ended(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def _stamp(file: str) -> tuple[int, int, int] | None:
    """Return what tells one version of a file from another; None if it does not exist."""
    if not file:
        return None
    try:
        found = Path(file).stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
