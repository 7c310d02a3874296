"""The operator's program carries maintenance out: run once a machine, or once an operation.

The program gets the task as JSON on its standard input and as FOREWARN_* variables; its exit status
is the outcome. docs/guides/connectors.md is the contract. Each run has a runner process of its own
(see `task_process`), so that a restart of the service neither kills nor repeats it.
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Collection, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec
import structlog

from forewarn.connectors import task_process
from forewarn.connectors.port import Connector, Found, Outcome, Task
from forewarn.connectors.settings import CommandConnectorSettings
from forewarn.connectors.task_process import (
    WHOLE,
    RunLimits,
    RunResult,
    RunTrace,
    TaskRun,
    TaskRuns,
)
from forewarn.maintenance.model import listed

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

MAX_RUNS: Final = 4
"""How often a program that goes on by itself is run until one run comes to an end: what kills four
of them in a row is not over by the fifth."""

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


class CommandConnector(Connector):
    """Runs the operator's program, which gets of the environment what is not the service's.

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
        self._environment = passed_on(environment)
        self._slots = asyncio.Semaphore(settings.at_once)
        try:
            self._runs = TaskRuns(state.absolute())
        except OSError as error:
            message = f"cannot make the folder {state} for the results of commands: {error}"
            raise CommandUnusable(message) from error

    async def perform(self, task: Task) -> Outcome | Literal[Found.UNKNOWN]:
        """Run the program for all that has no result of an earlier attempt."""
        earlier = await self._earlier(task)
        ended = await _all({s: self._perform(task, s, runs) for s, runs in earlier.items()})
        known = {subject: outcome for subject, outcome in ended.items() if outcome is not None}
        return _joint(known) if len(known) == len(ended) else Found.UNKNOWN

    async def check(self, task: Task) -> Outcome | Found:
        """Tell what the files of earlier attempts, or the check command, say."""
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
        """Return whether another run goes on where this one was lost: no operator's program does.

        At most MAX_RUNS runs of one attempt do.
        """
        del left
        return False

    def _is_final(self, left: RunResult | RunTrace) -> bool:
        """Return whether a run's result is the subject's: whatever an operator's program leaves."""
        return isinstance(left, RunResult)

    def _spoken(self, ended: RunResult) -> str:
        """Return in words how the program ended; "" where its own words say enough."""
        return task_process.spoken(ended, self._limits)

    async def _more(self, task: Task, earlier: TaskRun | None) -> dict[str, Any]:
        del task, earlier
        return {}

    def _room(self, task: Task, subject: str) -> contextlib.AbstractAsyncContextManager[object]:
        """Return what holds a run's place among those that are under way at once."""
        del task, subject
        return self._slots

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

    async def _perform(self, task: Task, subject: str, earlier: list[TaskRun]) -> Outcome | None:
        """Return how a subject's run ended; None if its runner was lost."""
        left, lost = await self._settled(earlier)
        if isinstance(left, RunResult):
            return self._outcome(left)
        program, begun = self._settings.program, False
        async with self._room(task, subject):
            for _ in range(MAX_RUNS):
                try:
                    run = await self._begin(task, subject, program, earlier=lost)
                except (OSError, ValueError) as error:
                    if begun:  # what could not be started is only what goes on after it
                        break
                    return Outcome(succeeded=False, message=f"could not start the program: {error}")
                left, lost = await self._runs.end(run), run
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
        if isinstance(left, RunResult):
            return left
        begun_here = run is not None and run.attempt > task.repeat_after
        if not begun_here and not task.claimed_elsewhere:
            return RunTrace.NOTHING
        left = RunTrace.BEGUN
        if self._settings.check_command:
            left = await self._ask(task, subject, run)
        if left is RunTrace.BEGUN:
            _log.warning(
                "the result of a run is unknown", operation=task.operation, subject=subject
            )
        return left

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
            await asyncio.to_thread(self._runs.adopt, task, subject, lost, check)
            return found
        _log.warning(
            "the check command cannot tell",
            why=complaint or task_process.spoken(found, limits),
            hint='to say that nothing was done, print {"done": false} and exit with 0',
        )
        return RunTrace.BEGUN

    async def _settled(self, earlier: list[TaskRun]) -> tuple[RunResult | RunTrace, TaskRun | None]:
        """Return a subject's result, or what is left of its latest run that had begun; and the run.

        Waits for what is under way.
        """
        lost = None
        for run in earlier:
            left = await self._runs.end(run)
            if isinstance(left, RunResult) and self._is_final(left):
                return left, run
            if left is not RunTrace.NOTHING and lost is None:
                lost = run
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
        found = shutil.which(argv[0], path=self._environment.get("PATH"))
        if found is None:
            message = f"no executable program {argv[0]}"
            raise FileNotFoundError(message)
        order = _order(task, subject)
        told = order | await self._more(task, earlier)
        return await asyncio.to_thread(
            self._runs.begin,
            task,
            subject,
            (found, *argv[1:]),
            stdin=msgspec.json.encode(told),
            environment=self._environment | _variables(order),
            limits=check or self._limits,
            check=check is not None,
        )

    def _outcome(self, ended: RunResult) -> Outcome:
        said, complaint = _said(ended.out)
        how = self._spoken(ended)
        words = "; ".join(filter(None, (said.message or readable(ended.err), complaint)))
        message = f"{how}: {words}".strip(": ")
        return Outcome(succeeded=ended.succeeded, message=message, hosts=said.hosts)


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the service's environment without what is the service's alone."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(PREFIX) and name not in OWN_VARIABLES
    }


async def _all(tasks: Mapping[str, Coroutine[Any, Any, T]]) -> dict[str, T]:
    """Return what each comes to; an error is raised when none is under way any more."""
    results = await asyncio.gather(*tasks.values(), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    pairs = zip(tasks, results, strict=True)
    return {name: result for name, result in pairs if not isinstance(result, BaseException)}


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
    return {PREFIX + name.upper(): text for name, text in short.items()}


def _text_of(value: object) -> str:
    if isinstance(value, list | tuple):
        return " ".join(each or "-" for each in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


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


def readable(data: bytes) -> str:
    """Return the end of a program's output as people can read it."""
    return _clean(data.decode("utf-8", "replace"))


def _clean(text: str) -> str:
    """Return the end of a text that people can read, without what moves a terminal's cursor."""
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
    summary = f"failed: {listed(failed, MAX_NAMED)}; succeeded: {succeeded}"
    return Outcome(succeeded=False, message=f"{summary}\n{said[:MAX_SAID]}", hosts=hosts)
