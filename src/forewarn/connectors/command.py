"""The operator's program carries maintenance out: run once a machine, or once an operation.

The program gets the task as JSON on its standard input and as FOREWARN_* variables; its exit status
is the outcome. docs/guides/connectors.md is the contract. Each run has a runner process of its own
(see `task_process`), so that a restart of the service neither kills nor repeats it.
"""

import asyncio
import os
import shutil
from collections.abc import Collection, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec
import structlog

from forewarn.connectors import task_process
from forewarn.connectors.command_settings import CommandConnectorSettings
from forewarn.connectors.port import Found, Outcome, Task
from forewarn.connectors.task_process import (
    WHOLE,
    Program,
    RunLimits,
    RunningTask,
    RunResult,
    RunTrace,
    TaskRun,
    TaskRuns,
)

PREFIX: Final = "FOREWARN_"
"""What a program's variables about the task begin with; the service's own are not passed on."""

OWN_VARIABLES: Final = frozenset(
    {"CREDENTIALS_DIRECTORY", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID", "NOTIFY_SOCKET"}
    | {"STATE_DIRECTORY", "WATCHDOG_PID", "WATCHDOG_USEC"}
)
"""Further variables that are the service's alone: what systemd gives it, its secrets among them."""

CHECK_SECONDS: Final = 60.0
"""How long the check command may take: it only looks."""

MAX_VARIABLE: Final = 64 * 1024
"""The longest variable, in bytes: the kernel refuses 128 KiB. A longer list is in the JSON only."""

MAX_SAID: Final = 1500
"""The most characters that are quoted of one program: history holds 2,000 for the outcome."""

MAX_SAID_OF_EACH: Final = 200
"""The most characters that are quoted of each of several programs."""

MAX_NAMED: Final = 10
"""The most machines that an outcome names; of more it gives the number."""

MAX_HOST: Final = 256
"""The most characters of a host's name, as in the fleet file."""

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class CommandUnusable(Exception):  # noqa: N818 - a state of the settings, as StoreUnusable is
    """The connector cannot be used; the message is one line for the operator."""


class _Said(msgspec.Struct, frozen=True):
    """What a program may say in the last line of its standard output."""

    done: bool = True
    """False, from a check command that exits with 0: nothing of the task was done."""
    hosts: dict[str, str] = {}
    message: str = ""


class _Report(msgspec.Struct, frozen=True, kw_only=True):
    """How one subject's run ended, in words."""

    subject: str
    succeeded: bool
    message: str
    hosts: dict[str, str] = {}


class CommandConnector:
    """Runs the operator's program.

    Args:
        settings: Which, and how.
        state: The folder for the runs' files; made if it is not there.
        environment: The service's own variables, of which a program gets what is not the service's.
        os_name: The kind of this system, as `os.name`.

    Raises:
        CommandUnusable: This system is not POSIX, or the settings name no program that could run.
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
        _judge("program", settings.program, "set the program that carries maintenance out")
        if settings.check_command:
            _judge("check_command", settings.check_command, "")
        self._settings = settings
        self._limits = RunLimits(settings.time_limit_seconds, settings.grace_seconds)
        self._environment = {
            name: value
            for name, value in environment.items()
            if not name.startswith(PREFIX) and name not in OWN_VARIABLES
        }
        self._slots = asyncio.Semaphore(settings.at_once)
        try:
            self._runs = TaskRuns(state.absolute())
        except OSError as error:
            message = f"cannot make the folder {state} for the results of commands: {error}"
            raise CommandUnusable(message) from error

    async def perform(self, task: Task) -> Outcome | Literal[Found.UNKNOWN]:
        """Run the program for all that has no result of an earlier attempt."""
        earlier = await self._earlier(task)
        tasks = [self._perform(task, subject, found) for subject, found in earlier.items()]
        reports = await _all(tasks)
        known = [report for report in reports if report is not None]
        return _outcome(known) if len(known) == len(reports) else Found.UNKNOWN

    async def check(self, task: Task) -> Outcome | Found:
        """Tell what the files of earlier attempts, or the check command, say."""
        earlier = await self._earlier(task)
        tasks = [self._check(task, subject, found) for subject, found in earlier.items()]
        left = await _all(tasks)
        if RunTrace.BEGUN in left:
            return Found.UNKNOWN
        ended = [one for one in left if isinstance(one, RunResult)]
        if len(ended) < len(left):
            return Found.NOT_DONE
        pairs = zip(earlier, ended, strict=True)
        return _outcome([self._report(subject, one) for subject, one in pairs])

    async def forget(self, task: Task) -> None:
        """Remove the files of this operation."""
        await asyncio.to_thread(self._runs.forget, task)

    async def sweep(self, live: Collection[str]) -> None:
        """Remove the files of operations that are over."""
        await asyncio.to_thread(self._runs.sweep, live)

    async def _earlier(self, task: Task) -> dict[str, list[TaskRun]]:
        """Return the runs that there are of each subject, the latest first.

        What was begun once a machine or once an operation is ended so, whatever `per` says now.
        """
        begun = await asyncio.to_thread(self._runs.of, task)
        whole = {run.subject == WHOLE for run in begun} or {self._settings.per == "operation"}
        earlier: dict[str, list[TaskRun]] = {WHOLE: []} if True in whole else {}
        if not earlier:
            earlier = {machine: [] for machine in task.machines}
        for run in begun:
            earlier.setdefault(run.subject, []).append(run)
        return earlier

    async def _perform(self, task: Task, subject: str, earlier: list[TaskRun]) -> _Report | None:
        """Return how a subject's run ended; None if its runner was lost."""
        left, _ = await self._settled(earlier)
        if isinstance(left, RunResult):
            return self._report(subject, left)
        async with self._slots:
            try:
                run = await self._begin(task, subject, self._settings.program, self._limits)
            except (OSError, ValueError) as error:
                message = f"could not start the program: {error}"
                return _Report(subject=subject, succeeded=False, message=message)
            left = await self._end(run)
        if isinstance(left, RunResult):
            return self._report(subject, left)
        if left is RunTrace.NOTHING:
            why = await asyncio.to_thread(self._runs.trouble, run)
            message = f"could not start the program: {why or 'its runner was killed'}"
            return _Report(subject=subject, succeeded=False, message=message)
        _log.error("a program's runner was lost", operation=task.operation, subject=subject)
        return None

    async def _check(
        self, task: Task, subject: str, earlier: list[TaskRun]
    ) -> RunResult | RunTrace:
        left, run = await self._settled(earlier)
        if left is not RunTrace.BEGUN or run is None:
            return left
        if run.attempt <= task.repeat_after:
            return RunTrace.NOTHING
        if self._settings.check_command:
            left = await self._ask(task, run)
        if left is RunTrace.BEGUN:
            _log.warning(
                "the result of a run is unknown", operation=task.operation, subject=subject
            )
        return left

    async def _ask(self, task: Task, lost: TaskRun) -> RunResult | RunTrace:
        """Ask the check command for the result of a run that was lost."""
        limits = RunLimits(CHECK_SECONDS, self._settings.grace_seconds)
        async with self._slots:
            try:
                check = await self._begin(
                    task, lost.subject, self._settings.check_command, limits, check=True
                )
            except (OSError, ValueError) as error:
                _log.error("the check command cannot be run", reason=str(error))
                return RunTrace.BEGUN
            found = await self._end(check)
        if not isinstance(found, RunResult):
            return RunTrace.BEGUN
        said, complaint = _said(found.out)
        if found.succeeded and not said.done:
            return RunTrace.NOTHING
        if found.succeeded and not complaint:
            await asyncio.to_thread(self._runs.adopt, lost, check)
            return found
        _log.warning(
            "the check command cannot tell",
            why=complaint or task_process.spoken(found, limits),
            hint='to say that nothing was done, print {"done": false} and exit with 0',
        )
        return RunTrace.BEGUN

    async def _settled(self, earlier: list[TaskRun]) -> tuple[RunResult | RunTrace, TaskRun | None]:
        """Return what a subject's runs came to, when none of them is under way.

        Returns:
            Its end, or what is left of the latest that had begun; and that run.
        """
        left: tuple[RunResult | RunTrace, TaskRun | None] = (RunTrace.NOTHING, None)
        for run in earlier:
            stands = await self._end(run)
            if isinstance(stands, RunResult):
                return stands, run
            if stands is RunTrace.BEGUN and left[1] is None:
                left = stands, run
        return left

    async def _begin(
        self,
        task: Task,
        subject: str,
        argv: tuple[str, ...],
        limits: RunLimits,
        *,
        check: bool = False,
    ) -> TaskRun:
        found = shutil.which(argv[0], path=self._environment.get("PATH"))
        if found is None:
            message = f"no executable program {argv[0]}"
            raise FileNotFoundError(message)
        order = _order(task, subject)
        program = Program(
            argv=(found, *argv[1:]),
            order=msgspec.json.encode(order),
            environment=self._environment | _variables(order),
            limits=limits,
            checks=check,
        )
        return await asyncio.to_thread(self._runs.begin, task, subject, program)

    async def _end(self, run: TaskRun) -> RunResult | RunTrace:
        while isinstance(stands := await asyncio.to_thread(self._runs.look, run), RunningTask):
            await self._runs.over(stands)
        return stands

    def _report(self, subject: str, ended: RunResult) -> _Report:
        said, complaint = _said(ended.out)
        how = task_process.spoken(ended, self._limits)
        parts = (said.message, complaint) if said.message else (_text(ended.err), complaint)
        words = "; ".join(part for part in parts if part)
        return _Report(
            subject=subject,
            succeeded=ended.succeeded,
            message=f"{how}: {words}".strip(": "),
            hosts=said.hosts,
        )


async def _all(tasks: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return what each comes to; an error is raised when none is under way any more."""
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


def _judge(name: str, argv: tuple[str, ...], wanted: str) -> None:
    where = f"connector.command.{name}"
    if not argv or not argv[0]:
        message = f"{where} is empty: {wanted}, such as ['/usr/local/bin/maintain']"
        raise CommandUnusable(message)
    if "/" in argv[0] and not argv[0].startswith("/"):
        message = f"{where}: invalid program {argv[0]!r}: expected a full path or a bare name"
        raise CommandUnusable(message)
    if any("\0" in argument for argument in argv):
        message = f"{where} contains a NUL character, which no argument can contain"
        raise CommandUnusable(message)


def _order(task: Task, subject: str) -> dict[str, object]:
    """Return what a program reads: the task, and which machine it is about."""
    order: dict[str, object] = {
        "operation": task.operation,
        "attempt": task.attempt,
        "event_type": task.event_type.value,
        "source": task.source.value,
        "machines": task.machines,
        "hosts": task.hosts,
        "duration_seconds": task.duration_seconds,
        "started_at": task.started_at,
    }
    if subject != WHOLE:
        order["machine"] = subject
        order["host"] = task.hosts[task.machines.index(subject)]
    return order


def _variables(order: Mapping[str, object]) -> dict[str, str]:
    variables = {}
    for name, value in order.items():
        if isinstance(value, tuple):
            text = " ".join(each or "-" for each in value)
        else:
            text = value if isinstance(value, str) else _plain(value)
        if len(text.encode()) <= MAX_VARIABLE:
            variables[PREFIX + name.upper()] = text
    return variables


def _plain(value: object) -> str:
    """Return a number or a time as the JSON has it."""
    return msgspec.json.encode(value).decode().strip('"')


def _said(out: bytes) -> tuple[_Said, str]:
    """Return what the last line of a program's output says, and what is wrong with it."""
    line = out.rstrip().rpartition(b"\n")[2].strip()
    if not line.startswith(b"{"):
        return _Said(), ""
    try:
        said = msgspec.json.decode(line, type=_Said)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return _Said(), f"the last line of the output is invalid: {error}"
    for machine, host in said.hosts.items():
        if len(host) > MAX_HOST or not host.isprintable():
            text = f"the output has an invalid host for {machine[:MAX_HOST]!r}"
            return _Said(message=_clean(said.message)), text
    return _Said(said.done, said.hosts, _clean(said.message)), ""


def _text(data: bytes) -> str:
    return _clean(data.decode("utf-8", "replace"))


def _clean(text: str) -> str:
    """Return the end of a text that people can read, without what moves a terminal's cursor."""
    kept = "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )
    return kept.strip()[-MAX_SAID:]


def _outcome(reports: list[_Report]) -> Outcome:
    """Return one outcome for all of an operation's runs: it failed if one of them did."""
    hosts = {machine: host for report in reports for machine, host in report.hosts.items()}
    if len(reports) == 1:
        (one,) = reports
        return Outcome(succeeded=one.succeeded, message=one.message, hosts=hosts)
    failed = [report for report in reports if not report.succeeded]
    fine = [report.subject for report in reports if report.succeeded]
    telling = [
        f"{one.subject}: {one.message[-MAX_SAID_OF_EACH:]}"
        for one in failed or reports
        if one.message
    ]
    said = "\n".join(telling[:MAX_NAMED])
    if not failed:
        return Outcome(succeeded=True, message=said[-MAX_SAID:], hosts=hosts)
    summary = f"failed: {_names([report.subject for report in failed])}; succeeded: {_names(fine)}"
    return Outcome(succeeded=False, message=f"{summary}\n{said[:MAX_SAID]}", hosts=hosts)


def _names(names: list[str]) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more
