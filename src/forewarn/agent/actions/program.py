"""Programs, systemd units that are stopped or started, and processes that get a signal.

A program that is stopped ends with everything that it started.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from forewarn.agent.actions.action import (
    LOGGER,
    Action,
    ActionFailed,
    ActionRun,
    ActionStopped,
    contents,
)
from forewarn.agent.rules import CommandSettings, ServiceSettings, SignalSettings

GRACE_SECONDS: Final = 10.0
"""The time between SIGTERM and SIGKILL, for a program to put things in order."""

TAIL_BYTES: Final = 4096
"""The most bytes that are kept of the end of a program's output."""

SYSTEMCTL: Final = "systemctl"
STARTING, STOPPING = "activating", "deactivating"
RUNNING: Final = frozenset({"active", STARTING, "reloading", "refreshing"})
"""States of a unit (org.freedesktop.systemd1(5), ActiveState)."""

LOOK_SECONDS: Final = 0.2
"""The pause between two looks at the process, file or unit: a checkpoint takes seconds."""

READ_BYTES: Final = 65536
LEFT_OVER_SECONDS: Final = 1.0
"""The time to read on after a program has ended: another may hold its pipe open for ever. If that
one writes after this, the pipe is closed, as it is when the agent ends."""

AGENT_ONLY: Final = frozenset({"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"})
"""Variables by which systemd speaks to the agent, and not to its programs."""


class CommandAction(Action[CommandSettings]):
    """Runs one program to prepare, and another to undo it."""

    def prepare(self) -> str:
        return self._execute(self.settings.run)

    def recover(self) -> str:
        return self._execute(self.settings.undo)

    def _execute(self, argv: Sequence[str]) -> str:
        run = self.run
        status, said = execute(argv, run, stdin=run.document(), environment=run.environment())
        if status:
            how = f"ended with {status}" if status > 0 else f"was ended by signal {-status}"
            raise ActionFailed(f"{argv[0]} {how}{': ' if said else ''}{said}")
        return said


def execute(
    argv: Sequence[str], run: ActionRun, *, stdin: bytes = b"", environment: Mapping[str, str] = {}
) -> tuple[int, str]:
    """Run a program in a process group of its own; return its exit status, and its output's end.

    No shell reads `argv`; `environment` is added to the agent's own. A status below 0 is the signal
    that ended it. When the run is stopped, the group gets SIGTERM, and SIGKILL after 10 s.
    """
    program = shutil.which(argv[0])
    if program is None:
        raise ActionFailed(f"no executable program {argv[0]!r}")
    if run.stopped:
        raise ActionStopped
    try:
        process = subprocess.Popen(  # noqa: S603 - running what the settings name is the point
            [program, *argv[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={k: v for k, v in os.environ.items() if k not in AGENT_ONLY} | dict(environment),
            start_new_session=sys.platform != "win32",
        )
    except OSError as error:
        raise ActionFailed(f"cannot run {program}: {error.strerror}") from error
    group = _ProcessGroup(process)
    assert process.stdin is not None
    assert process.stdout is not None
    tail, over = bytearray(), threading.Event()
    reader = threading.Thread(target=_read, args=(process.stdout, tail, over), daemon=True)
    writer = threading.Thread(target=_write, args=(process.stdin, stdin), daemon=True)
    last_resort = threading.Timer(GRACE_SECONDS, group.send, ["SIGKILL"])
    last_resort.daemon = True

    def stop() -> None:
        try:
            last_resort.start()  # first: the leader's end finds it there
        except RuntimeError:  # the system gives no more threads, and nobody else would send it
            group.send("SIGKILL")
        else:
            group.send("SIGTERM")

    try:
        reader.start()
        writer.start()
        try:
            with run.on_stop(stop):
                group.wait()
        except ActionStopped:  # while it was begun
            stop()
            group.wait()
    finally:
        # If it was told to stop, what it began has the same time to put things in order.
        while last_resort.is_alive() and reader.is_alive():
            reader.join(LOOK_SECONDS)
        last_resort.cancel()
        status = group.close()
        if reader.ident is not None:  # it was started
            reader.join(LEFT_OVER_SECONDS)
            over.set()
            if reader.is_alive():
                message = "%s left a process behind that has its output: it is read no more"
                LOGGER.warning(message, argv[0])
    if run.stopped:
        raise ActionStopped
    return status, bytes(tail).decode("utf-8", "replace").strip()


class _ProcessGroup:
    """A process and all that it started, as far as they stay in its group.

    The system may give a process's number to another as soon as the process was waited for, and
    with it the group's. So the leader stays a zombie, which keeps the number, until the last
    signal was sent; the lock keeps the stopping threads from sending one after that.
    """

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._lock = threading.Lock()
        self._closed = False

    def wait(self) -> None:
        """Wait for the leader's end."""
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        else:  # macOS before Python 3.13 and Windows: there the number is free a moment too early
            self._process.wait()

    def close(self) -> int:
        """End the processes that are left, and return the leader's status; no signal follows."""
        self.send("SIGKILL")
        with self._lock:
            self._closed = True
        return self._process.wait()

    def send(self, name: str) -> None:
        """Send all of them a signal; on Windows end the leader."""
        with self._lock, contextlib.suppress(ProcessLookupError, PermissionError):
            if self._closed:
                return
            if sys.platform == "win32":
                self._process.terminate()
            else:
                os.killpg(self._process.pid, getattr(signal, name))


def _read(pipe: IO[bytes], tail: bytearray, over: threading.Event) -> None:
    with contextlib.suppress(OSError, ValueError), pipe:
        while (chunk := os.read(pipe.fileno(), READ_BYTES)) and not over.is_set():
            tail[:] = (tail + chunk)[-TAIL_BYTES:]


def _write(pipe: IO[bytes], data: bytes) -> None:
    with contextlib.suppress(OSError), pipe:  # a program need not read it
        pipe.write(data)


class ServiceAction(Action[ServiceSettings]):
    """Notes if a unit runs, then stops or starts it; undoing leaves it as it was."""

    def prepare(self) -> str:
        unit, start = self.settings.unit, bool(self.settings.start)
        # Stopped by an earlier run, whose systemctl was killed, or to be started again.
        while (known := _unit(unit, self.run))["ActiveState"] == STOPPING:
            self.run.wait(LOOK_SECONDS)
        starts = known["ActiveState"] == STARTING or bool(known.get("Job"))  # as after a boot
        ran = starts or known["ActiveState"] in RUNNING
        self.run.note({"ran": ran})
        if ran is start and not starts:
            return f"{unit} {'runs' if ran else 'does not run'} already"
        return self._systemctl("start" if start else "stop")

    def recover(self) -> str:
        started, facts = bool(self.settings.start), self.run.begun.facts
        if facts is None or facts["ran"] is started:  # nothing noted, nothing changed
            return f"{self.settings.unit} was not changed"
        return self._systemctl("stop" if started else "start")

    def _systemctl(self, verb: str) -> str:
        unit = self.settings.unit
        status, said = execute([SYSTEMCTL, verb, "--", unit], self.run)
        if status:
            raise ActionFailed(f"systemctl {verb} {unit} ended with {status}: {said}")
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
                    raise ActionFailed(f"process {pid} ended and has not written {settings.file}")
                self.run.wait(LOOK_SECONDS)
        return f"{settings.signal} to process {pid}"

    def recover(self) -> str:
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
            raise ActionFailed(f"process {pid} of {where} does not run") from error
        except (OSError, AttributeError) as error:
            message = f"cannot open process {pid} on this platform: {error}"
            raise ActionFailed(message) from error
        try:
            yield pid, descriptor
        finally:
            os.close(descriptor)

    def _pid(self) -> int:
        if self.settings.unit:
            pid = int(_unit(self.settings.unit, self.run).get("MainPID", "0"))
            if pid == 0:
                raise ActionFailed(f"{self.settings.unit} has no main process")
            return pid
        file = self.settings.pid_file
        text = contents(file).decode("ascii", "replace").strip()
        if not text.isdigit() or int(text) < 2:
            raise ActionFailed(f"{file} holds {text[:20]!r}: expected a process id")
        return int(text)


def _unit(unit: str, run: ActionRun) -> dict[str, str]:
    status, said = execute(
        [SYSTEMCTL, "show", "--property=LoadState,ActiveState,MainPID,Job", "--", unit], run
    )
    known = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    if status or "ActiveState" not in known:
        raise ActionFailed(f"systemctl show {unit} ended with {status}: {said}")
    if known.get("LoadState") == "not-found":
        raise ActionFailed(f"systemd has no unit {unit}")
    return known


def _send(descriptor: int, name: str) -> None:
    number = getattr(signal, name, None)
    if not isinstance(number, signal.Signals):
        raise ActionFailed(f"this platform has no signal {name}")
    try:
        signal.pidfd_send_signal(descriptor, number)
    except OSError as error:
        raise ActionFailed(f"cannot send {name}: {error.strerror}") from error


def _ended(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def _stamp(file: str) -> tuple[int, int, int] | None:
    if not file:
        return None
    try:
        found = Path(file).stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
