"""Writes down until when guests could read, and gives them back the time in which they could not.

Notice is time in which guests could read (docs/decisions/0007-time-and-outages.md). At a start,
what has gone by since the last time written down is an outage; while the service lives, a beat
that was long in coming is one. Either moves every notice later, in the transaction that writes the
new time down: a crash moves nothing twice and nothing never.
"""

import asyncio
from datetime import datetime
from typing import Final

import msgspec
import structlog

from forewarn.clock import Clock
from forewarn.control.plane import Plane
from forewarn.control.watch import OUTAGE_TOLERANCE, Watch
from forewarn.maintenance.alerts import ClockDoubt
from forewarn.store.port import StoreError

SETTING: Final = "serving"
"""Where the store keeps `Served`."""

BEAT_SECONDS: Final = 2.0
"""Real seconds between two beats: a crash lets an outage seem longer by no more than this, and well
within OUTAGE_TOLERANCE. Each beat is one commit of a small row."""

_log = structlog.get_logger(__name__)


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What one start of the service leaves to the next."""

    until: datetime
    """The last time at which guests are known to have been able to read."""
    doubted: bool = False
    """Whether the time of day was not trusted."""


class Heartbeat:
    """Keeps the watch going and the store up to date with it.

    Args:
        plane: Whose notices move.
        watch: Knows when guests could read.
        real: The machine's own clock, whose seconds beats are apart.
    """

    def __init__(self, plane: Plane, watch: Watch, real: Clock) -> None:
        self._plane = plane
        self._watch = watch
        self._real = real
        self._wake = asyncio.Event()
        self._stopping = False
        self._turn = asyncio.Lock()
        self._saving: asyncio.Task[None] | None = None
        self._away = False

    async def begin(self) -> None:
        """Give back an outage since the last start, before anything else happens.

        Raises:
            StoreError: The store is away; nothing was changed.
        """
        kept = await asyncio.wrap_future(self._plane.kept(SETTING))
        served = None if kept is None else msgspec.json.decode(kept, type=Served)
        until = None if served is None else served.until
        away = self._watch.begin(until, doubted=served is not None and served.doubted)
        if away <= OUTAGE_TOLERANCE:
            await asyncio.wrap_future(self._plane.keep(SETTING, self._served()))
            return
        lapse = self._plane.lapse(away, kept=(SETTING, self._served()))
        _log.warning(
            "guests could not read; every notice moves later by that",
            seconds=round(away.total_seconds(), 1),
            operations=await asyncio.wrap_future(lapse),
        )

    async def run(self) -> None:
        """Beat, until `end`."""
        while not self._stopping:
            self._watch.beat()
            if self._saving is None or self._saving.done():
                self._saving = asyncio.create_task(self._save())
            await self._real.wait(BEAT_SECONDS, self._wake)
        await self._save()

    def stop(self) -> None:
        """Make `run` return; the last time written down is this one."""
        self._stopping = True
        self._wake.set()

    def doubt(self) -> str:
        """Return why the time of day is not trusted, in words; `""` when it is."""
        self._watch.now()
        return self._watch.doubt()

    def clock_doubt(self) -> ClockDoubt | None:
        """Return that doubt as what an operator must know; None where there is none."""
        self._watch.now()
        return self._watch.clock_doubt()

    async def believe(self) -> None:
        """Take the wall clock for right, by an operator's word; durable when this returns.

        Raises:
            StoreError: The store is away. The clock is believed, and nothing starts until every
                notice has moved.
        """
        self._watch.believe()
        async with self._turn:
            await self._write_down()

    async def _save(self) -> None:
        async with self._turn:
            try:
                await self._write_down()
                self._away = False
            except StoreError as error:
                if not self._away:
                    _log.warning("until when guests could read was not written", reason=str(error))
                self._away = True
            except Exception:  # noqa: BLE001 - the next beat tries again
                _log.exception("until when guests could read was not written")

    async def _write_down(self) -> None:
        owed = self._watch.owed
        if not owed:
            await asyncio.wrap_future(self._plane.keep(SETTING, self._served()))
            return
        lapse = self._plane.lapse(owed, kept=(SETTING, self._served()))
        operations = await asyncio.wrap_future(lapse)
        self._watch.pay(owed)
        _log.warning(
            "every notice has moved later",
            seconds=round(owed.total_seconds(), 1),
            operations=operations,
        )

    def _served(self) -> str:
        served = Served(until=self._watch.now(), doubted=bool(self._watch.doubt()))
        return msgspec.json.encode(served).decode()
