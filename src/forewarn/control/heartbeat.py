"""The time when guests could last read, saved while the service serves.

An outage extends the notices in the transaction that saves it: after a crash every outage counts
exactly once. A start begins with the record of the one before, by whatever clock.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from typing import Final

import msgspec
import structlog

from forewarn.clock import Clock
from forewarn.control.plane import Plane
from forewarn.control.replicas import Replicas
from forewarn.control.service_clock import Served, ServiceClock
from forewarn.control.unit_of_work import UnitOfWork
from forewarn.maintenance import commands, notice
from forewarn.maintenance.alerts import Alert, store_down
from forewarn.store.port import JUMP, StoreError, StoreUnavailable
from forewarn.store.queries import Reading

SETTING: Final = "serving"
"""The setting under which the store keeps `Served`."""

BEAT_SECONDS: Final = 0.25
"""Real seconds between two beats: a stall seems longer by no more than this."""

SAVE_SECONDS: Final = 2.0
"""Real seconds between two beats that are saved: a crash lets an outage seem longer by no more than
this, and well within `notice.OUTAGE_SECONDS`. Each is one commit of a small row."""

HUNG_SECONDS: Final = 5.0
"""Real seconds after which a save that has not ended is an alert: clients of approvals give up."""

_log = structlog.get_logger(__name__)


@dataclass(eq=False, repr=False)
class Heartbeat:
    """Keeps the service's clock going, and the store up to date with it.

    Lives on the event loop's thread; one saving at a time, by `_saving_lock`. Where replicas share
    the store, an outage counts only as far as no replica beat: guests could read from another. So a
    replica that owes notices does not beat before it has found out. `serves` returns True if guests
    can read here.
    """

    plane: Plane
    clock: ServiceClock
    real: Clock
    replicas: Replicas
    _: KW_ONLY
    serves: Callable[[], bool] = lambda: True
    store_down: Alert | None = None
    """The alert that nothing can be saved; None once something was."""
    leaving: bool = False
    """True once the process was asked to stop: after a crash somebody has to look for it."""
    _stopping: bool = False
    _saving: asyncio.Task[None] | None = None
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _saving_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def begin(self) -> None:
        """Give back an outage since the last start, before anything else happens."""
        behind = await asyncio.wrap_future(self.plane.order(set_back, self.clock.shown))
        if behind:
            _log.warning(
                "the wall clock was set back: NotBefore stays as guests have read it",
                seconds=round(behind.total_seconds(), 1),
            )
        served = _served(await asyncio.wrap_future(self.plane.setting(SETTING)))
        rows = await self.replicas.begin(self.plane.writer.read)
        if self.replicas.store.shared:
            beats = [self.clock.shown(row.beat_at) for row in rows if row.serving]
            beats += [] if served is None else [served.until]
            served = Served(until=max(beats)) if beats else None
        owed = self.clock.begin(served)
        await self._extend(owed, "guests could not read; every notice has moved later by as much")
        await self._beat()

    async def run(self) -> None:
        """Beat, until `stop`; save now and then, and at once when notices must move."""
        save_at = -math.inf
        while not self._stopping:
            if self.serves():
                self.clock.beat()
            else:
                self.clock.look()
            now = self.real.monotonic()
            is_due = now >= save_at or (self.clock.owed and self.store_down is None)
            if self._saving is None or self._saving.done():
                if is_due:
                    save_at = now + SAVE_SECONDS
                    self._saving = asyncio.create_task(self._save())
            elif self.store_down is None and now - save_at >= HUNG_SECONDS - SAVE_SECONDS:
                self._note(StoreUnavailable(f"a write has not ended within {HUNG_SECONDS:.0f} s"))
            await self.real.wait(BEAT_SECONDS, self._wake)
        await self._save()

    def stop(self) -> None:
        """Make `run` return; the last time that is saved is this one."""
        self._stopping = True
        self._wake.set()

    async def _save(self) -> None:
        async with self._saving_lock:
            try:
                owed = self.clock.owed
                await self._extend(owed, "every notice has moved later")
                self.clock.pay(owed)
                await self._beat()
                self.store_down = None
            except Exception as error:  # noqa: BLE001 - the next beat tries again
                self._note(error)

    def _note(self, error: Exception) -> None:
        """Note that nothing can be saved; log it once, but unexpected errors each time."""
        before, known = self.store_down, isinstance(error, StoreError)
        if not (known and before):
            _log.warning("could not save the heartbeat", why=error, exc_info=not known)
        since = self.clock.now() if before is None else before.since
        self.store_down = store_down(error, since)

    async def _extend(self, owed: timedelta, message: str) -> None:
        """Save when guests could last read, and move every notice later, in one transaction."""
        served = msgspec.json.encode(self.clock.served()).decode()
        if owed:
            limit = self._of_all if self.replicas.store.shared else None
            lapse = self.plane.extend_notices(owed, setting=(SETTING, served), limit=limit)
            _log.warning(
                message,
                seconds=round(owed.total_seconds(), 1),
                operations=await asyncio.wrap_future(lapse),
            )
        elif not self.replicas.store.shared:
            await asyncio.wrap_future(self.plane.put_setting(SETTING, served))

    async def _beat(self) -> None:
        await self.replicas.beat(serving=self.serves(), stopped=self._stopping and self.leaving)

    def _of_all(self, reading: Reading, now: datetime, length: timedelta) -> timedelta:
        """Return the part of this replica's outage that was one of all, and did not count yet."""
        own = self.replicas.own.name
        rows = reading.replicas().items()
        shown = self.clock.shown
        read_at = [shown(row.beat_at) for name, row in rows if row.serving and name != own]
        if (served := _served(reading.setting(SETTING))) is not None:
            read_at.append(served.until)
        left = min(length, now - max(read_at, default=now - length))
        return left if left.total_seconds() > notice.OUTAGE_SECONDS else timedelta(0)


def set_back(unit: UnitOfWork, shown: Callable[[datetime], datetime]) -> timedelta:
    """Make times from before the clock was set back comparable with now.

    It was set back if guests could read later than now, by the last start or by other replicas. The
    answer is by how much, 0 for no more than JUMP. `shown` turns what dates rows into the service's
    time.
    """
    store, now = unit.store, unit.now
    served = _served(store.setting(SETTING))
    latest = [shown(row.beat_at) for row in store.replicas().values()]
    latest += [] if served is None else [served.until]
    behind = max(latest, default=now) - now
    if behind <= JUMP:
        return timedelta(0)
    store.set_back(now, store.now() or now)
    hooks = store.webhooks().values()
    store.put_webhooks(commands.earlier(hook, behind, "next_try_at") for hook in hooks)
    if served is not None:
        served = msgspec.structs.replace(served, until=min(served.until, now))
        store.put_setting(SETTING, msgspec.json.encode(served).decode())
    unit.decide(commands.set_back, behind)
    return behind


def _served(kept: str | None) -> Served | None:
    return None if kept is None else msgspec.json.decode(kept, type=Served)
