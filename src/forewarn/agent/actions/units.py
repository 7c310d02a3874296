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
from forewarn.agent.actions.action import ActionFailed, ActionRun

SYSTEMCTL: Final = "systemctl"
RUNNING: Final = frozenset({"active", "activating", "reloading", "refreshing"})

LOOK_SECONDS: Final = 0.2
"""Between two looks at the process or file: a checkpoint takes seconds."""


class ServiceAction:
    """Stops or starts a unit; undoing leaves it as it was."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings

    def prepare(self, run: ActionRun) -> str:
        """Note whether the unit runs, then stop or start it."""
        unit, start = self._settings.unit, bool(self._settings.start)
        ran = _unit(unit, run)["ActiveState"] in RUNNING
        run.note({"ran": ran})
        if ran is start:
            return f"{unit} {'runs' if ran else 'does not run'} already"
        _systemctl("start" if start else "stop", unit, run)
        return ""

    def recover(self, run: ActionRun) -> str:
        """Have the unit as it was; where nothing was noted, nothing was changed."""
        unit, started = self._settings.unit, bool(self._settings.start)
        if run.facts is None or run.facts["ran"] is started:
            return f"{unit} was not changed"
        _systemctl("stop" if started else "start", unit, run)
        return ""


class SignalAction:
    """Sends a signal, and waits for the process's exit or for a file."""

    def __init__(self, settings: SignalSettings) -> None:
        self._settings = settings

    def prepare(self, run: ActionRun) -> str:
        """Send `signal`, and wait as `wait` says."""
        settings = self._settings
        with self._process(run) as (pid, descriptor):
            before = _stamp(settings.file)
            _send(descriptor, settings.signal)
            while settings.wait == "exit" and not _ended(descriptor):
                run.wait(LOOK_SECONDS)
            while settings.wait == "file" and _stamp(settings.file) in {before, None}:
                if _ended(descriptor) and _stamp(settings.file) in {before, None}:
                    message = f"process {pid} ended and has not written {settings.file}"
                    raise ActionFailed(message)
                run.wait(LOOK_SECONDS)
        return f"{settings.signal} to process {pid}"

    def recover(self, run: ActionRun) -> str:
        """Send `undo_signal`, if there is one."""
        if not self._settings.undo_signal:
            return ""
        with self._process(run) as (pid, descriptor):
            _send(descriptor, self._settings.undo_signal)
        return f"{self._settings.undo_signal} to process {pid}"

    @contextlib.contextmanager
    def _process(self, run: ActionRun) -> Iterator[tuple[int, int]]:
        """Yield the process's number, and a descriptor that stays its own after its end."""
        pid = self._pid(run)
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError as error:
            where = self._settings.unit or self._settings.pid_file
            message = f"process {pid} of {where} does not run"
            raise ActionFailed(message) from error
        except (OSError, AttributeError) as error:
            message = f"cannot get hold of process {pid} on this platform: {error}"
            raise ActionFailed(message) from error
        try:
            yield pid, descriptor
        finally:
            os.close(descriptor)

    def _pid(self, run: ActionRun) -> int:
        if self._settings.unit:
            pid = int(_unit(self._settings.unit, run).get("MainPID", "0"))
            if pid == 0:
                message = f"{self._settings.unit} has no main process"
                raise ActionFailed(message)
            return pid
        file = self._settings.pid_file
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


def _systemctl(verb: str, unit: str, run: ActionRun) -> None:
    """Have systemd start or stop a unit, and wait until it has."""
    status, said = program.execute([SYSTEMCTL, verb, "--", unit], run)
    if status:
        message = f"systemctl {verb} {unit} ended with {status}: {said}"
        raise ActionFailed(message)


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
