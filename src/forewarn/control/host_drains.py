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
from forewarn.maintenance.host_plan import HostSurvey
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
        self._numbers: set[int] = set()
        """The maintenances of the drains that are under way."""
        self._looked_at = clock.now()
        """When the hosts that stay empty were looked at last."""
        self._latest: HostSurvey | None = None
        self._shown: asyncio.Task[HostSurvey] | None = None
        """The look that viewers wait for."""
        self._looking: asyncio.Task[HostSurvey] | None = None

    def learn(self, changes: Changes) -> None:
        """Follow changes, and wake up where one may concern a drain."""
        self._put(changes.drains)
        concerned = changes.drains or changes.holds or changes.released
        if concerned or any(o.maintenance in self._numbers for o in changes.operations):
            self._wake.set()

    def _put(self, drains: Iterable[Drain]) -> None:
        for drain in drains:
            before = self.drains.get(drain.host)
            self.drains[drain.host] = drain
            if before is not None:
                self._numbers.difference_update(before.maintenances)
            if drain.goes_on:
                self._numbers.update(drain.maintenances)
            if before is None or before.state is not drain.state:
                _log.info("host", host=drain.host, state=drain.state, reason=drain.reason)

    def stop(self) -> None:
        """Make `run` return after the step that is under way; nobody waits for a look any more."""
        super().stop()
        if self._looking is not None:
            self._looking.cancel()

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
        found = {guest.vm_id for facts in hosts.values() for guest in facts.guests}
        keys = {m.vm_id: m.key for m in self._machines() if m.vm_id in found} if found else {}
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
        nap = await super()._round()
        resting = [host for host, drain in self.drains.items() if drain.rests]
        if resting and self._clock.now() - self._looked_at >= LOOK_AGAIN:
            self._looked_at = self._clock.now()
            survey = await self._look()
            for host in resting if survey is not None else ():
                with self._contained(f"{self._one} {host}"):
                    stepped = await asyncio.wrap_future(self._step(host, survey))
                    if (work := self._ordered(host, stepped)) is not None:  # it rests no longer
                        self._begin_task(work)
        return nap

    def _going(self) -> list[str]:
        return [host for host, drain in self.drains.items() if drain.goes_on]

    def _step(self, each: str, survey: HostSurvey | None) -> "Future[Stepped]":
        return self._plane.step_drain(each, survey)

    def _ordered(self, each: str, stepped: Stepped) -> Coroutine[Any, Any, None] | None:
        return self._reboot(each) if stepped.reboot else None

    async def _look(self) -> HostSurvey | None:
        if self._stop.is_set():
            return None
        self._looking = asyncio.create_task(self.survey())
        try:
            return await self._looking
        except asyncio.CancelledError:
            if not self._stop.is_set():
                raise
            return None
        finally:
            self._looking = None

    async def _reboot(self, host: str) -> None:
        outcome = await self._run_reboot(host)
        if outcome.succeeded:
            return
        _log.warning("the reboot command of a host failed", host=host, reason=outcome.message)
        record = partial(self._plane.record_failed_reboot, host, outcome.message)
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
