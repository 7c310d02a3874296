"""The operator's program carries maintenance out: run once a machine, or once an operation.

The program gets the task as JSON on its standard input and as FOREWARN_* variables; its exit status
is the outcome. docs/guides/connectors.md is the contract. Each run has a `runner` process of its
own and is kept in files, so that a restart of the service neither kills nor repeats it.

An operation's runs are in one folder, `<operation>@<when it started>`, for an older database that
is restored gives the same number to another operation. A run is a folder in it,
`<attempt>.<try>.<subject>`, where the subject is the machine or `_all`:

    task.json  the program's standard input
    alive     a pipe that the runner holds open as long as it lives
    begun     the program may have begun: durable before it does
    result    the end of the program: there whole, or not at all
    trouble   the runner's own error messages

The pipe tells if a runner lives: the kernel closes it with the last process that holds it, so no
process number is compared and none that is used again deceives. The service holds it until the
runner does. The methods of `TaskRuns` but `end` block: they belong on a thread.
"""

import asyncio
import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
import structlog

from forewarn.connectors import runner
from forewarn.connectors.port import AsItIs, Connector, Found, Outcome, Task, unchanged
from forewarn.connectors.settings import CommandConnectorSettings
from forewarn.maintenance.model import listed

WHOLE = "_all"
"""The subject of a run for a whole operation: no machine's name begins with `_`."""

NEW, KEPT = "new", "kept"
"""The names of a file in the folder of runs. It is NEW until a start finds no task under way: each
start before, not the first alone, may miss runs that were left in another folder."""

CHECKS = "check"
"""The prefix of the names of the check command's runs, in the place of the attempt."""

LOOK_AGAIN_SECONDS = 1.0
"""The pause before another look at runs that could not be looked at: the system gives no file
descriptor or thread, or a folder cannot be read. Nobody can tell then if a program still runs; if
it were called failed, another would begin beside it."""

MAX_TROUBLE = 1000
"""The most bytes that are quoted of a runner's own messages: their last lines."""

MAX_HEAD = 100
"""More than the five numbers of a result's first line ever take."""

_log = structlog.get_logger(__name__)

L = TypeVar("L")
T = TypeVar("T")


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a program."""

    kind: str
    """`exit`, `signal`, or `refused`: it could not be run."""
    number: int
    """The exit status, the signal's number, or the errno."""
    stage: int = 0
    """0 it ended by itself, 1 SIGTERM at its time limit ended it, 2 it had to be killed then."""
    out: bytes = b""
    err: bytes = b""

    @property
    def succeeded(self) -> bool:
        """True if it ended by itself with exit status 0."""
        return self.kind == "exit" and self.number == 0 and self.stage == 0


class RunTrace(Enum):
    """The trace of a run without a result and without a living runner."""

    NOTHING = "nothing"
    """The program has not begun."""
    BEGUN = "begun"
    """It may have done anything."""


class TaskRun(NamedTuple):
    """The place of one run."""

    attempt: int
    again: int
    """The number of the try in that attempt, from 0."""
    subject: str
    folder: Path


class CheckOwner(NamedTuple):
    """The owner of a check's runs, as a task is that of its own."""

    operation: str
    """Its name."""
    attempt: int
    started_at: datetime
    """The time of its start, which distinguishes it from another one of the same name."""


RunOwner: TypeAlias = Task | CheckOwner


class PlannedRun(NamedTuple):
    """A run as it would be started."""

    argv: tuple[str, ...]
    order: dict[str, Any]
    """The program's standard input, as JSON."""
    variables: dict[str, str]
    """Its variables about the task, beside those that the service passes on."""


class RunLimits(NamedTuple):
    """The time limits of a program."""

    time_seconds: float
    grace_seconds: float


class TaskRuns:
    """The folder of all runs, and the runners that this process began.

    It takes part in fencing: once a later attempt has asked for the runs, an earlier one of this
    process begins nothing more. Anyone who can write to the folder can forge results. A file in it
    says that it is not new: the runs that earlier processes left in the place of a new folder are
    lost.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._runners: dict[Path, subprocess.Popen[bytes]] = {}
        self._latest: dict[str, int] = {}
        self._missed: set[str] = set()
        """Operations that earlier processes claimed, where the folder is new."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._is_new = not (folder / KEPT).exists()
        (folder / (NEW if self._is_new else KEPT)).touch(mode=0o600)

    def may_miss(self, task: RunOwner) -> bool:
        """Return True if an earlier process may have begun it, with its runs in a lost folder."""
        return task.operation in self._missed

    def of(self, task: RunOwner) -> list[TaskRun]:
        """Return an operation's runs, the latest first."""
        found = []
        with self._lock:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                for folder in self._place(task).iterdir():
                    attempt, _, rest = folder.name.partition(".")
                    again, _, subject = rest.partition(".")
                    if attempt.isdigit() and again.isdigit():
                        found.append(TaskRun(int(attempt), int(again), subject, folder))
            first = min((run.attempt for run in found), default=task.attempt)
            if self._is_new and first > 1 and task.operation not in self._latest:
                self._missed.add(task.operation)
            self._latest[task.operation] = max(task.attempt, self._latest.get(task.operation, 0))
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

        The subject is a machine or WHOLE. A run of the check command does not count as a result.

        Raises:
            OSError: It could not be started; the program has not run.
        """
        argv = executable(argv, environment)
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
        """Wait for a run to end, and return its result or its trace."""
        while (pipe := await _looked_at(_living, run.folder / "alive")) is not None:
            await _closing(pipe)
        return await _looked_at(self._left, run)

    def adopt(self, task: RunOwner, subject: str, run: TaskRun | None, check: TaskRun) -> None:
        """Take the check command's result for that of a lost run; None: of one elsewhere."""
        if run is None:
            run, alive = self._make(task, subject, check=False)
            os.close(alive)
        (check.folder / "result").rename(run.folder / "result")
        _sync(run.folder)

    def trouble(self, run: TaskRun) -> str:
        """Return the last line of a runner's error messages."""
        with contextlib.suppress(OSError):
            return last_line((run.folder / "trouble").read_bytes()[-MAX_TROUBLE:])
        return ""

    def forget(self, task: RunOwner) -> None:
        """Remove an operation's runs."""
        with self._lock:
            self._latest.pop(task.operation, None)
            self._missed.discard(task.operation)
        _remove(self._place(task))

    def sweep(self, live: Collection[str]) -> None:
        """Remove the runs of all other operations, except those that are under way."""
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
        if self._is_new and not live:
            (self._folder / NEW).rename(self._folder / KEPT)
            self._is_new = False

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
        is_lost = not run.folder.exists()  # it was made before the program could begin
        return RunTrace.BEGUN if is_lost or (run.folder / "begun").exists() else RunTrace.NOTHING

    def _place(self, task: RunOwner) -> Path:
        return self._folder / f"{task.operation}@{task.started_at:%Y%m%dT%H%M%S.%fZ}"

    def _make(self, task: RunOwner, subject: str, *, check: bool) -> tuple[TaskRun, int]:
        """Make a run's folder; return the run, and the descriptor that keeps it alive."""
        place = self._place(task)
        prefix = f"{CHECKS}-{task.attempt}" if check else str(task.attempt)
        with self._lock:
            latest = self._latest.get(task.operation, 0)
            if latest > task.attempt:
                raise OSError(f"attempt {latest} has taken over the operation")
            if not self._folder.exists():  # somebody removed it, with the runs of other operations
                self._folder.mkdir(mode=0o700, parents=True)
                self._is_new = True
            place.mkdir(mode=0o700, exist_ok=True)
            again = 0
            while (folder := place / f"{prefix}.{again}.{subject}").exists():
                again += 1
            folder.mkdir(mode=0o700)
            os.mkfifo(folder / "alive", 0o600)
            alive = os.open(folder / "alive", os.O_RDWR | os.O_NONBLOCK)
        return TaskRun(task.attempt, again, subject, folder), alive


def executable(argv: tuple[str, ...], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return a command with its program's full path; it may block.

    FileNotFoundError if there is no such program.
    """
    path = shutil.which(argv[0], path=environment.get("PATH"))
    if path is None:
        raise FileNotFoundError(f"no executable program {argv[0]}")
    return (path, *argv[1:])


def last_line(output: bytes) -> str:
    """Return the last line of what a program wrote."""
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


def spoken(ended: RunResult, limits: RunLimits) -> str:
    """Describe the end of a program; `""` if it succeeded."""
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


def _is_refused(left: RunResult | RunTrace) -> bool:
    return isinstance(left, RunResult) and left.kind == "refused"


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


async def _looked_at(look: Callable[[L], T], what: L) -> T:
    """Look on a thread, until it succeeds."""
    while True:
        try:
            return await asyncio.to_thread(look, what)
        except (OSError, RuntimeError) as error:
            _log.warning("cannot look at the runs of a program", reason=str(error))
        await asyncio.sleep(LOOK_AGAIN_SECONDS)


def _living(alive: Path) -> int | None:
    try:
        pipe = os.open(alive, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    if _closed(pipe):
        os.close(pipe)
        return None
    return pipe


async def _closing(pipe: int) -> None:
    """Wait until the runner that holds this pipe is gone; close it."""
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


PREFIX: Final = "FOREWARN_"
"""The prefix of a program's variables about the task; the service's own variables of that prefix
are not passed on."""

OWN_VARIABLES: Final = frozenset(
    {"CREDENTIALS_DIRECTORY", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID", "NOTIFY_SOCKET"}
    | {"STATE_DIRECTORY", "WATCHDOG_PID", "WATCHDOG_USEC"}
)
"""Further variables that are the service's alone: those from systemd, with its secrets."""

CHECK_SECONDS: Final = 60.0
"""The time limit of the check command: it only looks."""

MAX_VARIABLE: Final = 64 * 1024
"""The longest variable, in bytes: the kernel refuses 128 KiB. A longer list is in the JSON only."""

MAX_RUNS: Final = 4
"""The most runs of a program that goes on after a crash, until one run comes to an end: the cause
that kills four of them in a row is not over by the fifth."""

MAX_SAID: Final = 1500
"""The most characters that are quoted of one program: history holds 2,000 for the outcome."""

MAX_SAID_OF_EACH: Final = 200
"""The most characters that are quoted of each of several programs."""

MAX_NAMED: Final = 10
"""The most machines that an outcome names; of more it gives the number."""

MAX_HOST: Final = 256
"""The most characters of a host's name, as in the fleet file."""


class CommandUnusable(Exception):  # noqa: N818 - a state of the settings, as StoreUnusable is
    """The connector cannot be used; the message is one line for the operator."""


class _Said(msgspec.Struct, frozen=True):
    """The report that a program may print in the last line of its standard output."""

    done: bool = True
    """False, from a check command that exits with 0: nothing of the task was done."""
    hosts: dict[str, str] = {}
    message: str = ""


class CommandConnector(Connector):
    """Runs the operator's program, which gets the environment without the service's own variables.

    Raises:
        CommandUnusable: This system is not POSIX, or has no folder for the results.
    """

    def __init__(
        self,
        settings: CommandConnectorSettings,
        state: Path,
        environment: Mapping[str, str],
        os_name: str = os.name,
    ) -> None:
        if os_name != "posix":
            raise CommandUnusable("the command connector needs a POSIX system, such as Linux")
        self._settings = settings
        self._limits = RunLimits(settings.time_limit_seconds, settings.grace_seconds)
        self._environment = passed_on(environment)
        self._slots = asyncio.Semaphore(settings.at_once)
        # With its only thread there already. Where the system gives a pool no further thread, the
        # caller gets an error, and another thread does the work all the same, after a while.
        self._beginning = ThreadPoolExecutor(max_workers=1)
        self._beginning.submit(int)
        try:
            self._runs = TaskRuns(state.absolute())
        except OSError as error:
            message = f"cannot make the folder {state} for the results of commands: {error}"
            raise CommandUnusable(message) from error

    async def perform(
        self, task: Task, as_it_is: AsItIs = unchanged
    ) -> Outcome | Literal[Found.UNKNOWN]:
        """Run the program for every subject without a result of an earlier attempt."""
        earlier = await self._earlier(task)
        ended = await _all(
            {s: self._perform(task, s, runs, as_it_is) for s, runs in earlier.items()}
        )
        known = {subject: outcome for subject, outcome in ended.items() if outcome is not None}
        return _joint(known) if len(known) == len(ended) else Found.UNKNOWN

    async def check(self, task: Task) -> Outcome | Found:
        """Return the result by the files of earlier attempts, or by the check command."""
        earlier = await self._earlier(task)
        left = await _all({s: self._check(task, s, runs) for s, runs in earlier.items()})
        if RunTrace.BEGUN in left.values():
            return Found.UNKNOWN
        known = {s: self._outcome(one) for s, one in left.items() if isinstance(one, RunResult)}
        return _joint(known) if len(known) == len(left) else Found.NOT_DONE

    async def forget(self, task: Task) -> None:
        """Remove the files of this operation."""
        await asyncio.to_thread(self._runs.forget, task)

    async def sweep(self, live: Collection[str]) -> None:
        """Remove the files of operations that are over."""
        await asyncio.to_thread(self._runs.sweep, live)

    def _goes_on(self, left: RunResult | RunTrace) -> bool:
        """Return True if another run continues a lost one; an operator's program never does.

        An attempt has at most MAX_RUNS runs.
        """
        del left
        return False

    def _is_final(self, left: RunResult | RunTrace) -> bool:
        """Return True if a run's result is final; that of an operator's program always is."""
        return isinstance(left, RunResult)

    async def _more(self, task: Task, earlier: TaskRun | None) -> dict[str, Any]:
        del task, earlier
        return {}

    def _limits_of(self, task: Task) -> RunLimits:
        """Return the limits of a task's program."""
        del task
        return self._limits

    def _room(self, task: Task, subject: str) -> contextlib.AbstractAsyncContextManager[object]:
        """Return a context that holds one of the places for runs that are under way at once."""
        del task, subject
        return self._slots

    async def _earlier(self, task: Task) -> dict[str, list[TaskRun]]:
        """Return the existing runs of each subject, the latest first.

        A task that was begun once a machine or once an operation is finished so, whatever `per`
        says now.
        """
        begun = await _looked_at(self._runs.of, task)
        whole = {run.subject == WHOLE for run in begun} or {self._settings.per == "operation"}
        earlier: dict[str, list[TaskRun]] = {WHOLE: []} if True in whole else {}
        if not earlier:
            earlier = {machine: [] for machine in task.machines}
        for run in begun:
            earlier.setdefault(run.subject, []).append(run)
        return earlier

    async def _perform(
        self, task: Task, subject: str, earlier: list[TaskRun], as_it_is: AsItIs
    ) -> Outcome | None:
        """Return how a subject's run ended; None if its runner was lost."""
        left, lost = await self._settled(earlier)
        if isinstance(left, RunResult):
            return self._outcome(left)
        program = self._settings.program
        begun = lost is not None and lost.attempt > task.repeat_after
        async with self._room(task, subject):
            task = await as_it_is(task)
            for _ in range(MAX_RUNS):
                try:
                    run = await self._begin(task, subject, program, earlier=lost)
                except (OSError, ValueError) as error:
                    if begun:  # what could not be started is only what goes on after it
                        _log.warning("a program cannot be started again", reason=str(error))
                        break
                    return Outcome(succeeded=False, message=f"could not start the program: {error}")
                left, lost = await self._runs.end(run), run
                if begun and _is_refused(left):
                    left = RunTrace.BEGUN
                if not self._goes_on(left):
                    break
                begun = True
        if isinstance(left, RunResult):
            return self._outcome(left) if self._is_final(left) else None
        if left is RunTrace.NOTHING and not begun:
            assert lost is not None, "only a run leaves nothing"
            why = await asyncio.to_thread(self._runs.trouble, lost) or "its runner was killed"
            return Outcome(succeeded=False, message=f"could not start the program: {why}")
        _log.error("a program's runner was lost", operation=task.operation, subject=subject)
        return None

    async def _check(
        self, task: Task, subject: str, earlier: list[TaskRun]
    ) -> RunResult | RunTrace:
        left, run = await self._settled(earlier)
        # After a failure here, another replica may have done it in an attempt between.
        is_latest = run is None or run.attempt >= task.attempt - 1 or not task.claimed_elsewhere
        if isinstance(left, RunResult) and (left.succeeded or is_latest):
            return left
        begun_here = run is not None and run.attempt > task.repeat_after
        if not begun_here and not task.claimed_elsewhere and not self._may_miss(task):
            return RunTrace.NOTHING
        left = RunTrace.BEGUN
        if self._settings.check_command:
            left = await self._ask(task, subject, run)
        if left is RunTrace.BEGUN:
            _log.warning(
                "the result of a run is unknown", operation=task.operation, subject=subject
            )
        return left

    def _may_miss(self, task: Task) -> bool:
        """Return True if a run that nobody allowed to be repeated may be lost with the folder."""
        return task.attempt > task.repeat_after + 1 and self._runs.may_miss(task)

    async def _ask(self, task: Task, subject: str, lost: TaskRun | None) -> RunResult | RunTrace:
        """Ask the check command for the result of a run that was lost, here or elsewhere."""
        limits = RunLimits(CHECK_SECONDS, self._settings.grace_seconds)
        argv = self._settings.check_command
        async with self._slots:
            try:
                check = await self._begin(task, subject, argv, check=limits)
            except (OSError, ValueError) as error:
                _log.error("the check command cannot be run", reason=str(error))
                return RunTrace.BEGUN
            found = await self._runs.end(check)
        if not isinstance(found, RunResult):
            return RunTrace.BEGUN
        said, complaint = _said(found.out)
        if found.succeeded and not said.done:
            return RunTrace.NOTHING
        if found.succeeded and not complaint:
            try:  # a result that is not kept would not keep `perform` from another run
                await asyncio.to_thread(self._runs.adopt, task, subject, lost, check)
            except (OSError, RuntimeError) as error:
                complaint = f"its result cannot be kept: {error}"
            else:
                return found
        _log.warning(
            "the check command cannot tell",
            why=complaint or spoken(found, limits),
            hint='to say that nothing was done, print {"done": false} and exit with 0',
        )
        return RunTrace.BEGUN

    async def _settled(self, earlier: list[TaskRun]) -> tuple[RunResult | RunTrace, TaskRun | None]:
        """Return a subject's result, or the trace of its latest run that had begun; and the run.

        Waits for runs that are under way. One that was refused counts if no other had begun.
        """
        lost, refused = None, None
        for run in earlier:
            left = await self._runs.end(run)
            if _is_refused(left):
                refused = refused or (left, run)
            elif isinstance(left, RunResult) and self._is_final(left):
                return left, run
            elif left is not RunTrace.NOTHING and lost is None:
                lost = run
        if lost is None and refused is not None:
            return refused
        return (RunTrace.BEGUN if lost else RunTrace.NOTHING), lost

    async def _begin(
        self,
        task: Task,
        subject: str,
        argv: tuple[str, ...],
        *,
        earlier: TaskRun | None = None,
        check: RunLimits | None = None,
    ) -> TaskRun:
        order = _order(task, subject)
        told = order | await self._more(task, earlier)
        begin = functools.partial(
            self._runs.begin,
            task,
            subject,
            argv,
            stdin=msgspec.json.encode(told),
            environment=self._environment | _variables(order),
            limits=check or self._limits_of(task),
            check=check is not None,
        )
        return await asyncio.get_running_loop().run_in_executor(self._beginning, begin)

    def planned(self, task: Task) -> PlannedRun:
        """Return the run for a task of one machine, and run nothing.

        FileNotFoundError if there is no such program.
        """
        order = _order(task, WHOLE if self._settings.per == "operation" else task.machines[0])
        argv = executable(self._settings.program, self._environment)
        return PlannedRun(argv, order, _variables(order))

    def _outcome(self, ended: RunResult) -> Outcome:
        said, complaint = _said(ended.out)
        how = spoken(ended, self._limits)
        words = "; ".join(filter(None, (said.message or readable(ended.err), complaint)))
        message = f"{how}: {words}".strip(": ")
        return Outcome(succeeded=ended.succeeded, message=message, hosts=said.hosts)


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the service's environment without the service's own variables."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(PREFIX) and name not in OWN_VARIABLES
    }


async def _all(tasks: Mapping[str, Coroutine[Any, Any, T]]) -> dict[str, T]:
    results = await asyncio.gather(*tasks.values(), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    pairs = zip(tasks, results, strict=True)
    return {name: result for name, result in pairs if not isinstance(result, BaseException)}


def _order(task: Task, subject: str) -> dict[str, Any]:
    order: dict[str, Any] = msgspec.to_builtins(task)
    # No program's business: earlier runs, and the window for a start that has happened.
    for name in ("repeat_after", "claimed_elsewhere", "opens_at", "closes_at"):
        del order[name]
    if subject != WHOLE:
        order["machine"] = subject
        place = task.machines.index(subject)
        order |= {"host": task.hosts[place], "vm_id": task.vm_ids[place]}
    return order


def _variables(order: dict[str, Any]) -> dict[str, str]:
    texts = {name: _text_of(value) for name, value in order.items()}
    short = {name: text for name, text in texts.items() if len(text.encode()) <= MAX_VARIABLE}
    # UTF-8 whatever the locale: one of ISO 8859-1 has no letter for many a description.
    return {PREFIX + name.upper(): os.fsdecode(text.encode()) for name, text in short.items()}


def _text_of(value: object) -> str:
    if isinstance(value, list | tuple):
        return " ".join(each or "-" for each in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _said(out: bytes) -> tuple[_Said, str]:
    """Return the report in the last line of a program's output, and its fault in words."""
    _, newline, line = out.rstrip().rpartition(b"\n")
    if len(out) == runner.OUT_BYTES and not newline:
        return _Said(), "the last line of the output is longer than 1 MiB, and was not read"
    line = line.strip()
    if not line.startswith(b"{"):
        return _Said(), ""
    try:
        said = msgspec.json.decode(line, type=_Said)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _Said(), f"the last line of the output is invalid: {error}"
    for machine, host in said.hosts.items():
        if len(host) > MAX_HOST or not host.isprintable():
            text = f"the output has an invalid host for {machine[:MAX_HOST]!r}"
            return _Said(message=_clean(said.message)), text
    return _Said(said.done, said.hosts, _clean(said.message)), ""


def readable(data: bytes) -> str:
    """Return the end of a program's output as people can read it."""
    return _clean(data.decode("utf-8", "replace"))


def _clean(text: str) -> str:
    """Return the readable end of a text, without sequences that move a terminal's cursor."""
    kept = "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )
    return kept.strip()[-MAX_SAID:]


def _joint(outcomes: dict[str, Outcome]) -> Outcome:
    """Return one outcome for all of an operation's runs: it failed if one of them did."""
    if len(outcomes) == 1:
        return next(iter(outcomes.values()))
    hosts = {machine: host for one in outcomes.values() for machine, host in one.hosts.items()}
    failed = {subject: one for subject, one in outcomes.items() if not one.succeeded}
    telling = [
        f"{subject}: {one.message[-MAX_SAID_OF_EACH:]}"
        for subject, one in (failed or outcomes).items()
        if one.message
    ]
    said = "\n".join(telling[:MAX_NAMED])
    if not failed:
        return Outcome(succeeded=True, message=said[-MAX_SAID:], hosts=hosts)
    fine = [subject for subject in outcomes if subject not in failed]
    succeeded = listed(fine, MAX_NAMED) or "none"
    # Readers put "Reboot failed: " before it.
    summary = f"on {listed(failed, MAX_NAMED)}; succeeded on {succeeded}"
    return Outcome(succeeded=False, message=f"{summary}\n{said[:MAX_SAID]}", hosts=hosts)
