"""Drives the drains of hosts: looks at the hosts, submits each step to the plane, runs reboots.

`maintenance.host_drain` decides. A step follows each change of a drain or its operations that the
changefeed publishes, and the time that the step before named. A look at the hosts runs on the event
loop with a limit; nothing else waits for it. A reboot command runs only after the step that ordered
it was committed, by the process that committed it: after a kill in between, nobody runs it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import Any

import structlog

from forewarn.clock import Clock
from forewarn.connectors.port import Connector, Outcome
from forewarn.control.plane import Plane, Stepped
from forewarn.control.ticker import Steps
from forewarn.maintenance.host_drain import LOOK_AGE_LIMIT
from forewarn.maintenance.host_plan import HostSurvey, MachineKeys
from forewarn.maintenance.model import Changes, Drain, HostState, Machine

SURVEY_SECONDS = 45.0
"""The limit of a look at the hosts. It is longer than a connector waits for a host that does not
answer, and shorter than the age at which a look is too old to reboot a host."""

LOOK_AGAIN = timedelta(seconds=30)
"""The pause between two looks at the hosts that stay empty: somebody may put a machine there."""

RECENT = timedelta(seconds=2)
"""The greatest age of a look that is only shown: a viewer of a drain asks every second."""

_log = structlog.get_logger(__name__)


class HostDrains(Steps[str]):
    """Drives all drains. Lives on the event loop's thread.

    `host_back` is the time for a host's reboot and the reboot command, which may install patches
    before.
    """

    stop_seconds = 3.0
    """Enough for most reboot commands, which return at once: one that is cut off may have had its
    effect or not."""

    def __init__(
        self,
        plane: Plane,
        connector: Connector,
        clock: Clock,
        machines: Callable[[], Iterable[Machine]],
        host_back: timedelta,
    ) -> None:
        super().__init__("drains", clock, "host")
        self._plane = plane
        self._connector = connector
        self._machines = machines
        self._host_back = host_back
        self.drains: dict[str, Drain] = {}
        """The latest drain of each host, as of the last change."""
        self._of_maintenance: dict[int, str] = {}
        """The hosts whose drains are under way, by the maintenances that these have asked for."""
        self._looked_at = clock.now()
        """When the hosts that stay empty were looked at last."""
        self._latest: HostSurvey | None = None
        self._shown: asyncio.Task[HostSurvey] | None = None
        """The look that viewers wait for."""
        self._looking: asyncio.Task[HostSurvey] | None = None
        self._next: asyncio.Task[HostSurvey] | None = None
        """The look that drains wait for, which begins when `_looking` is over."""

    def learn(self, changes: Changes) -> None:
        """Follow changes, and wake up where one may concern a drain."""
        self._put(changes.drains)
        if changes.holds or changes.released:
            self._due.update(self._under_way())
        hosts = map(self._of_maintenance.get, {one.maintenance for one in changes.operations})
        self._due.update(filter(None, hosts))
        if self._due:
            self._wake.set()

    def _under_way(self) -> list[str]:
        return [host for host, drain in self.drains.items() if drain.goes_on]

    def _put(self, drains: Iterable[Drain]) -> None:
        for drain in drains:
            host = drain.host
            before = self.drains.get(host)
            self.drains[host] = drain
            for number in before.maintenances if before is not None else ():
                self._of_maintenance.pop(number, None)
            if drain.goes_on:
                self._of_maintenance |= dict.fromkeys(drain.maintenances, host)
                self._due.add(host)
            else:
                self._due.discard(host)
                self._wake_at.pop(host, None)
            if before is None or before.state is not drain.state:
                _log.info("host", host=host, state=drain.state, reason=drain.reason)

    def stop(self) -> None:
        """Make `run` return after the step that is under way; nobody waits for a look any more."""
        super().stop()
        for look in filter(None, (self._looking, self._next)):
            look.cancel()

    async def survey(self) -> HostSurvey:
        """Look at all hosts; a failure is reported in the survey's `trouble`."""
        began_at = self._clock.now()
        trouble = ""
        try:
            async with asyncio.timeout(SURVEY_SECONDS):
                hosts = await self._connector.survey()
        except TimeoutError:
            hosts, trouble = {}, f"no answer within {SURVEY_SECONDS:.0f} s"
        except Exception as error:  # noqa: BLE001 - any error of a connector is reported
            _log.exception("the hosts could not be looked at")
            hosts, trouble = {}, f"{type(error).__name__}: {error}"
        keys = MachineKeys(self._machines())
        survey = HostSurvey(began_at=began_at, hosts=hosts, keys=keys, trouble=trouble)
        self._latest = survey
        return survey

    async def recent_survey(self) -> HostSurvey:
        """Return a look at all hosts to be shown, which may be a little old."""
        latest = self._latest
        if latest is not None and self._clock.now() - latest.began_at < RECENT:
            return latest
        if self._shown is None or self._shown.done():  # each asks every host: one at a time
            self._shown = asyncio.create_task(self.survey())
        return await asyncio.shield(self._shown)

    async def _round(self) -> timedelta:
        resting: list[str] = []
        if self._clock.now() - self._looked_at >= LOOK_AGAIN:
            self._looked_at = self._clock.now()
            resting = [host for host, drain in self.drains.items() if drain.rests]
            self._due.update(self._under_way())
        nap = await super()._round()
        if resting:
            survey = await self._look()
            for host in resting if survey is not None else ():
                with self._contained(f"{self._one} {host}"):
                    stepped = await asyncio.wrap_future(self._step(host, survey))
                    if (work := self._ordered(host, stepped)) is not None:  # it rests no longer
                        self._begin_task(work)
        return nap

    def _goes_on(self, each: str) -> bool:
        return self.drains[each].goes_on

    def _step(self, each: str, survey: HostSurvey | None) -> "Future[Stepped]":
        return self._plane.step_drain(each, survey)

    def _ordered(self, each: str, stepped: Stepped) -> Coroutine[Any, Any, None] | None:
        return self._reboot(each) if stepped.reboot else None

    async def _drive_all(self, due: Iterable[str]) -> None:
        """Drive them side by side: a look takes as long as the slowest host, and is one for all."""
        ended = await asyncio.gather(*map(self._drive_contained, due), return_exceptions=True)
        for error in filter(None, ended):
            raise error

    async def _look(self) -> HostSurvey | None:
        """Look at the hosts, once for all that ask before it begins."""
        if self._stop.is_set():
            return None
        if self._next is None:
            self._next = asyncio.create_task(self._look_after(self._looking))
        try:
            return await asyncio.shield(self._next)
        except asyncio.CancelledError:
            if not self._stop.is_set():
                raise
            return None

    async def _look_after(self, before: "asyncio.Task[HostSurvey] | None") -> HostSurvey:
        if before is not None:
            await asyncio.wait({before})
        self._looking, self._next = self._next, None
        return await self.survey()

    async def _reboot(self, host: str) -> None:
        asked_at = self.drains[host].reboot_asked_at
        outcome = await self._run_reboot(host)
        if outcome.succeeded:
            return
        _log.warning("the reboot command of a host failed", host=host, reason=outcome.message)
        record = partial(self._plane.record_failed_reboot, host, asked_at, outcome.message)
        await self._record_result(f"{self._one} {host}", record, self._stop)

    async def _run_reboot(self, host: str) -> Outcome:
        drain, now = self.drains[host], self._clock.now()
        asked_at = drain.reboot_asked_at if drain.state is HostState.REBOOTING else None
        if asked_at is None or now - asked_at > LOOK_AGE_LIMIT:
            message = "the service stood still before it, and machines may run there again"
            return Outcome(succeeded=False, message=message)
        _log.info("rebooting a host", host=host)
        try:
            async with asyncio.timeout(self._host_back.total_seconds()):
                return await self._connector.reboot_host(host)
        except TimeoutError:
            return Outcome(succeeded=False, message=f"no end within {self._host_back}")
        except Exception as error:  # noqa: BLE001 - any error of a connector is reported
            _log.exception("the reboot command of a host failed", host=host)
            return Outcome(succeeded=False, message=f"{type(error).__name__}: {error}")
