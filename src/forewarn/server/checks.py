"""Runs the checks of maintenances: programs of the settings.

They run as the command connector's do (`connectors.command`): a runner of its own keeps
the end of the output, and ends the program when its time is over, whether the service still runs
or not.
"""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from forewarn.connectors import command
from forewarn.connectors.command import WHOLE, CheckOwner, RunLimits, RunResult, TaskRuns
from forewarn.maintenance.turn_check import CheckResult, CheckRun
from forewarn.server.settings import UnitCheck

GRACE_SECONDS: Final = 2.0
"""The time of a program after SIGTERM: it only looks, and has nothing to put in order."""

MAX_SAID: Final = 200


class ProgramChecks:
    """The checks that the settings name.

    `state` is the folder for the runs of programs, on a local disk.
    """

    def __init__(
        self,
        checks: Sequence[UnitCheck],
        state: Path,
        environment: Mapping[str, str],
        scale: float = 1.0,
    ) -> None:
        self._checks = {check.name: check for check in checks}
        self._state = state.absolute()
        self._environment = command.passed_on(environment)
        self._scale = scale
        self._opening = threading.Lock()
        self._runs: TaskRuns | None = None

    @property
    def names(self) -> frozenset[str]:
        """The checks that a policy may name."""
        return frozenset(self._checks)

    async def run(self, run: CheckRun) -> CheckResult:
        """Run a check to its end; an error counts as a failure."""
        check = self._checks.get(run.name)
        if check is None:
            return _failed(f"no check named {run.name!r} in the settings")
        seconds = run.seconds / self._scale
        return await self._run(check, run, seconds)

    async def _run(self, check: UnitCheck, run: CheckRun, seconds: float) -> CheckResult:
        """Run a program; it passes by exit status 0."""
        told = {"maintenance": run.maintenance, "check": run.name, "wave": run.wave}
        variables = {f"{command.PREFIX}{name.upper()}": str(told[name]) for name in told}
        owner = CheckOwner(f"maintenance-{run.maintenance}", run.number, run.began_at)
        limits = RunLimits(seconds, GRACE_SECONDS)
        try:
            runs = await asyncio.to_thread(self._opened)
            one = await asyncio.to_thread(
                runs.begin,
                owner,
                WHOLE,
                check.program,
                stdin=msgspec.json.encode(told),
                environment=self._environment | variables,
                limits=limits,
            )
        except (OSError, ValueError) as error:
            return _failed(f"could not start the program: {error}")
        ended = await runs.end(one)
        trouble = await asyncio.to_thread(runs.trouble, one)
        await asyncio.to_thread(runs.forget, owner)
        if not isinstance(ended, RunResult):
            return _failed(trouble or "the process that ran it was killed")
        if ended.succeeded:
            return CheckResult(passed=True)
        said = command.readable(ended.err) or command.readable(ended.out)
        how = command.spoken(ended, limits)
        return _failed(f"{how}: {said[-MAX_SAID:]}".removesuffix(": "))

    def _opened(self) -> TaskRuns:
        with self._opening:  # of two checks at once, one would sweep the other's run away
            if self._runs is None:
                self._runs = TaskRuns(self._state)
                self._runs.sweep(())
            return self._runs


def _failed(message: str) -> CheckResult:
    return CheckResult(passed=False, message=message)
