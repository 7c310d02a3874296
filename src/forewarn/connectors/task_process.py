"""Runs of an operator's program, kept in files so that they outlive the process that began them.

An operation's runs are in one folder, `<operation>@<when it started>`, for an older database that
is restored gives the same number to another operation. A run is a folder in it,
`<attempt>.<try>.<subject>`, where the subject is the machine or `_all`:

    task.json  what the program reads as its standard input
    alive     a pipe that the runner holds open as long as it lives
    begun     the program may have begun: durable before it does
    result    how it ended: there whole, or not at all
    trouble   what the runner itself complained of

Whether a runner lives is read from the pipe: the kernel closes it with the last process that holds
it, so no process number is compared and none that is used again deceives. The service holds it
until the runner does. All functions here block, but for `TaskRuns.end`: they belong on a thread.
"""

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Collection
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
import structlog

from forewarn.connectors import runner

WHOLE = "_all"
"""The subject of a run for a whole operation: no machine's name begins with `_`."""

CHECKS = "check"
"""What runs of the check command begin with, in the place of the attempt."""

LOOK_AGAIN_SECONDS = 1.0
"""How long to wait for file descriptors. Whether a program runs or has ended is then not known: to
call it failed would let it run on, and another begin."""

MAX_TROUBLE = 1000
"""How many bytes of a runner's own complaint are quoted: its last lines."""

MAX_HEAD = 100
"""More than the five numbers of a result's first line ever take."""

_log = structlog.get_logger(__name__)


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended."""

    kind: str
    """`exit`, `signal`, or `refused`: it could not be run."""
    number: int
    """The exit status, the signal's number, or the errno."""
    stage: int = 0
    """0 it ended by itself, 1 it was asked to at its time limit, 2 it had to be killed then."""
    out: bytes = b""
    """The end of its standard output."""
    err: bytes = b""
    """The end of its standard error."""

    @property
    def succeeded(self) -> bool:
        """Whether it ended by itself with exit status 0."""
        return self.kind == "exit" and self.number == 0 and self.stage == 0


class RunTrace(Enum):
    """What is left of a run that has no result and nobody alive."""

    NOTHING = "nothing"
    """The program has not begun."""
    BEGUN = "begun"
    """It may have done anything."""


class TaskRun(NamedTuple):
    """One run's place."""

    attempt: int
    again: int
    """Which try of that attempt, from 0."""
    subject: str
    folder: Path


class RunOwner(Protocol):
    """What a program is run for: a task, or a check."""

    @property
    def operation(self) -> str:
        """What names it."""

    @property
    def attempt(self) -> int:
        """The fencing number."""

    @property
    def started_at(self) -> datetime:
        """When it started, which tells it from another one of the same name."""


class RunLimits(NamedTuple):
    """How long a program may take."""

    time_seconds: float
    grace_seconds: float


class TaskRuns:
    """The folder of all runs, and the runners that this process began.

    It takes part in fencing: once a later attempt has asked what there is, an earlier one of this
    process begins nothing more. Whoever can write to the folder can forge results.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._runners: dict[Path, subprocess.Popen[bytes]] = {}
        self._latest: dict[str, int] = {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def of(self, task: RunOwner) -> list[TaskRun]:
        """Return an operation's runs, the latest first."""
        found = []
        with self._lock, contextlib.suppress(FileNotFoundError):
            self._latest[task.operation] = max(task.attempt, self._latest.get(task.operation, 0))
            for folder in self._place(task).iterdir():
                attempt, _, rest = folder.name.partition(".")
                again, _, subject = rest.partition(".")
                if attempt.isdigit() and again.isdigit():
                    found.append(TaskRun(int(attempt), int(again), subject, folder))
        return sorted(found, reverse=True)

    def begin(
        self,
        task: RunOwner,
        subject: str,
        argv: tuple[str, ...],
        *,
        stdin: bytes,
        environment: dict[str, str],
        limits: RunLimits,
        check: bool = False,
    ) -> TaskRun:
        """Start a program on a runner of its own, with these variables and no others.

        The subject is a machine or WHOLE. A run of the check command is nobody's result.

        Raises:
            OSError: It could not be started; the program has not run.
        """
        run, alive = self._make(task, subject, check=check)
        try:
            (run.folder / "task.json").write_bytes(stdin)
            for folder in (run.folder.parent, self._folder):
                _sync(folder)
            arguments = (str(alive), str(run.folder), *map(str, limits), *argv)
            with (run.folder / "trouble").open("wb") as trouble:
                process = subprocess.Popen(  # noqa: S603 - the operator's own, without a shell
                    (sys.executable, "-I", "-S", runner.__file__, *arguments),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=trouble,
                    pass_fds=(alive,),
                    start_new_session=True,
                    cwd="/",
                    env=environment,
                )
        finally:
            os.close(alive)
        with self._lock:
            self._runners[run.folder] = process
        return run

    async def end(self, run: TaskRun) -> RunResult | RunTrace:
        """Wait until nobody is at work on a run, and return its result or what is left of it."""
        while True:
            try:
                pipe = await asyncio.to_thread(_living, run.folder / "alive")
                if pipe is None:
                    return await asyncio.to_thread(self._left, run)
            except OSError as error:
                if error.errno not in {errno.EMFILE, errno.ENFILE}:
                    raise
                _log.warning("cannot look at a run: out of file descriptors", run=str(run.folder))
                await asyncio.sleep(LOOK_AGAIN_SECONDS)
            else:
                await _closing(pipe)

    def adopt(self, task: RunOwner, subject: str, run: TaskRun | None, check: TaskRun) -> None:
        """Let the check command's result be the result of a run that was lost; None: elsewhere."""
        if run is None:
            run, alive = self._make(task, subject, check=False)
            os.close(alive)
        (check.folder / "result").rename(run.folder / "result")
        _sync(run.folder)

    def trouble(self, run: TaskRun) -> str:
        """Return the last line of what a runner complained of."""
        with contextlib.suppress(OSError):
            text = (run.folder / "trouble").read_bytes()[-MAX_TROUBLE:]
            lines = text.decode("utf-8", "replace").strip().splitlines()
            return lines[-1] if lines else ""
        return ""

    def forget(self, task: RunOwner) -> None:
        """Remove an operation's runs."""
        with self._lock:
            self._latest.pop(task.operation, None)
        _remove(self._place(task))

    def sweep(self, live: Collection[str]) -> None:
        """Remove the runs of all other operations, but for those that are under way."""
        for place in list(self._folder.iterdir()):
            operation, at, _ = place.name.partition("@")
            if not at or operation in live:
                continue
            pipes = [_living(folder / "alive") for folder in place.iterdir()]
            living = [pipe for pipe in pipes if pipe is not None]
            for pipe in living:
                os.close(pipe)
            if living:
                _log.warning(
                    "a program still runs for an operation that has ended", folder=str(place)
                )
            else:
                _remove(place)

    def _left(self, run: TaskRun) -> RunResult | RunTrace:
        with self._lock:
            process = self._runners.pop(run.folder, None)
        if process is not None:  # the kernel may forget it
            process.wait()  # its pipe is closed already: it is as good as gone
        with contextlib.suppress(FileNotFoundError):
            ended = _read(run.folder / "result")
            if ended is not None:
                return ended
            _log.error("cannot read a result", file=str(run.folder / "result"))
        return RunTrace.BEGUN if (run.folder / "begun").exists() else RunTrace.NOTHING

    def _place(self, task: RunOwner) -> Path:
        return self._folder / f"{task.operation}@{task.started_at:%Y%m%dT%H%M%S.%fZ}"

    def _make(self, task: RunOwner, subject: str, *, check: bool) -> tuple[TaskRun, int]:
        """Make a run's folder; return the run, and the descriptor that keeps it alive."""
        place = self._place(task)
        prefix = f"{CHECKS}-{task.attempt}" if check else str(task.attempt)
        with self._lock:
            latest = self._latest.get(task.operation, 0)
            if latest > task.attempt:
                message = f"attempt {latest} has taken over the operation"
                raise OSError(message)
            place.mkdir(mode=0o700, exist_ok=True)
            again = 0
            while (folder := place / f"{prefix}.{again}.{subject}").exists():
                again += 1
            folder.mkdir(mode=0o700)
            os.mkfifo(folder / "alive", 0o600)
            alive = os.open(folder / "alive", os.O_RDWR | os.O_NONBLOCK)
        return TaskRun(task.attempt, again, subject, folder), alive


def spoken(ended: RunResult, limits: RunLimits) -> str:
    """Return in words how a program ended; `""` if it succeeded."""
    if ended.stage:
        how = "stopped by SIGTERM" if ended.stage == 1 else "killed by SIGKILL"
        return f"exceeded its time limit of {limits.time_seconds:g} s and was {how}"
    if ended.kind == "refused":
        return f"could not run the program: {os.strerror(ended.number)}"
    if ended.kind == "signal":
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(ended.number).name}"
        return f"killed by signal {ended.number}"
    return f"exit status {ended.number}" if ended.number else ""


def _read(result: Path) -> RunResult | None:
    head, newline, tails = result.read_bytes().partition(b"\n")
    words = head[:MAX_HEAD].decode("ascii", "replace").split(" ")
    if not newline or len(words) != 5 or words[0] not in {"exit", "signal", "refused"}:
        return None
    if not all(word.isdigit() for word in words[1:]):
        return None
    number, stage, out, err = map(int, words[1:])
    if out + err != len(tails):
        return None
    return RunResult(kind=words[0], number=number, stage=stage, out=tails[:out], err=tails[out:])


def _living(alive: Path) -> int | None:
    """Return a descriptor of the pipe while somebody holds it, else None."""
    try:
        pipe = os.open(alive, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    if _closed(pipe):
        os.close(pipe)
        return None
    return pipe


async def _closing(pipe: int) -> None:
    """Return when the runner that holds this pipe is gone; close it."""
    loop = asyncio.get_running_loop()
    stirred = asyncio.Event()
    loop.add_reader(pipe, stirred.set)
    try:
        while not _closed(pipe):
            await stirred.wait()
            stirred.clear()
    finally:
        loop.remove_reader(pipe)
        os.close(pipe)


def _closed(pipe: int) -> bool:
    try:
        return not os.read(pipe, 1)
    except BlockingIOError:
        return False


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(place: Path) -> None:
    def say(_: object, path: str, error: tuple[object, BaseException, object]) -> None:
        if not isinstance(error[1], FileNotFoundError):
            _log.warning("cannot remove a run's file", file=path, reason=str(error[1]))

    shutil.rmtree(place, onerror=say)
