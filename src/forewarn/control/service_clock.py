"""The service's time, whether anything may start in it, and what guests are owed of it.

Notice is time in which guests could read (docs/decisions/0007-time-and-outages.md). A
`ServiceClock` is the clock that the service goes by: the wall clock's time while that can be
trusted, and a reckoned one while not (see `trust`). It knows when guests could read: the event loop
that answers them beats, and after a beat that was long in coming nothing starts until every notice
has moved later by that time. A `Heartbeat` beats, saves until when guests could read, and moves the
notices in the transaction that saves the new time: a crash moves nothing twice and nothing never.
"""

import asyncio
import threading
from datetime import datetime, timedelta
from typing import Final

import msgspec
import structlog

from forewarn.clock import Clock
from forewarn.control import trust
from forewarn.control.plane import Plane
from forewarn.control.trust import Look, Trust
from forewarn.maintenance import notice
from forewarn.maintenance.alerts import ClockDoubt
from forewarn.store.port import StoreError

OUTAGE_TOLERANCE: Final = timedelta(seconds=5)
"""A shorter outage moves nothing: a client that polls once a second misses a few answers, out of a
notice of minutes (of 30 s at the least)."""

OUTAGE_SECONDS: Final = OUTAGE_TOLERANCE.total_seconds()

LOOK_SECONDS: Final = 0.05
"""The longest that reading both clocks may take, in real seconds; a thread may be put aside between
the two. Then they are read again."""

MAX_LOOKS: Final = 5
"""How often they are read again. A machine this busy may be doubted for a moment."""

SETTING: Final = "serving"
"""The setting under which the store keeps `Served`."""

BEAT_SECONDS: Final = 2.0
"""Real seconds between two beats: a crash lets an outage seem longer by no more than this, and well
within OUTAGE_TOLERANCE. Each beat is one commit of a small row."""

_log = structlog.get_logger(__name__)


class ServiceClock:
    """A clock that no jump of the time of day goes through, and a gate for what starts.

    Any thread may ask it: what it knows is replaced as a whole, under its lock. Only the event
    loop's beats.

    Args:
        clock: The service's clock, which may be scaled.
        real: The machine's own: the loop lives in real time whatever the scale.
        scale: The service's seconds in a real one.
    """

    def __init__(self, clock: Clock, real: Clock, scale: float = 1.0) -> None:
        self._clock = clock
        self._real = real
        self._tolerance = trust.TOLERANCE * scale
        self._lock = threading.Lock()
        self._opened = False
        self._owed = timedelta(0)
        look = self._look()
        self._trust = trust.begin(look)
        self._beaten = real.monotonic()
        self._beaten_at = look.monotonic

    # The clock.

    @property
    def wall(self) -> Clock:
        """The clock beneath, jumps and all: for what must be quick and only shows the time."""
        return self._clock

    def now(self) -> datetime:
        """Return the time of day: the wall clock's while it is trusted, else as reckoned."""
        look = self._look()
        known = self._trust
        if known.since is None and abs(trust.parted(known, look)) <= self._tolerance:
            return look.wall
        with self._lock:
            self._judge(look)
            known = self._trust
        return look.wall if known.since is None else trust.reckoned(known, look.monotonic)

    def monotonic(self) -> float:
        """Return the clock's monotonic seconds."""
        return self._clock.monotonic()

    async def wait(self, seconds: float, wake: asyncio.Event) -> None:
        """Wait in the clock's seconds."""
        await self._clock.wait(seconds, wake)

    # The gate.

    def may_start(self) -> bool:
        """Tell whether anything may start now: each transaction asks, so this makes no words."""
        self.now()
        with self._lock:  # a beat that comes late leaves time owed and is no hold-up any more
            trusted = self._trust.since is None
            return self._opened and trusted and not self._owed and not self._held_up()

    def obstacles(self) -> tuple[str, ...]:
        """Return why nothing may start, in words for an operator; nothing when it may."""
        self.now()
        found: list[str] = []
        if not self._opened:
            found.append("starts are paused: guests cannot read yet")
        elif self._held_up():
            found.append("starts are paused: guests get no answer, the event loop is held up")
        if self._owed:
            found.append("starts are paused while notices are extended after an outage")
        doubt = self.doubt()
        if doubt:
            found.append(doubt)
        return tuple(found)

    def doubt(self) -> str:
        """Return why the time of day is not trusted, in words; `""` when it is."""
        found = self.clock_doubt()
        return "" if found is None else found.message

    def clock_doubt(self) -> ClockDoubt | None:
        """Return the doubt as what an operator must know; None while the time is trusted."""
        known = self._trust
        if known.since is None:
            return None
        return ClockDoubt(_spoken(known, self._tolerance), known.since)

    # What guests could read.

    @property
    def owed(self) -> timedelta:
        """How much later every notice must move before anything starts again."""
        return self._owed

    def begin(self, until: datetime | None, *, doubted: bool) -> timedelta:
        """Start to count; return how long the service was away.

        Args:
            until: The last time that the service before wrote down, None at the first start.
            doubted: Whether it doubted the time of day then.
        """
        look = self._look()
        with self._lock:
            away = timedelta(0)
            self._trust = trust.begin(look)
            if until is not None:
                tolerance = self._tolerance
                self._trust, away = trust.resume(look, until, doubted=doubted, tolerance=tolerance)
            self._beaten, self._beaten_at = self._real.monotonic(), look.monotonic
            doubt = self.doubt()
        if doubt:
            _log.warning(doubt)
        return away

    def open(self) -> None:
        """Note that guests can read from now on."""
        self.beat()
        self._opened = True

    def beat(self) -> None:
        """Note that guests can read now; what time they could not for too long is owed them."""
        look = self._look()
        real = self._real.monotonic()
        with self._lock:
            if real - self._beaten > OUTAGE_SECONDS:
                length = timedelta(seconds=look.monotonic - self._beaten_at)
                self._owed += length
                _log.warning("guests got no answer", seconds=round(length.total_seconds(), 1))
            self._beaten, self._beaten_at = real, look.monotonic
            self._judge(look)

    def pay(self, length: timedelta) -> None:
        """Note that every notice has moved later by this."""
        with self._lock:
            self._owed -= length

    def believe(self) -> None:
        """Take the wall clock for right, by an operator's word; what it is ahead is owed."""
        look = self._look()
        with self._lock:
            self._judge(look)
            if self._trust.since is not None:
                ahead = self._trust.ahead
                self._trust, owed = trust.believe(self._trust, look)
                self._owed += owed
                _log.warning("the clock is trusted by an operator", ahead=ahead.total_seconds())

    def _held_up(self) -> bool:
        """Tell whether the event loop has not beaten for so long that guests get no answer."""
        return self._real.monotonic() - self._beaten > OUTAGE_SECONDS

    def _judge(self, look: Look) -> None:
        """Look again; the lock is held."""
        before: Trust = self._trust
        self._trust, owed = trust.judge(before, look, self._tolerance)
        self._owed += owed
        if before.since is None and self._trust.since is not None:
            _log.warning(self.doubt())
        elif before.since is not None and self._trust.since is None:
            _log.info("the clocks agree again", since=before.since.isoformat())

    def _look(self) -> Look:
        """Read both clocks as one, or as near to it as this machine lets us."""
        left = MAX_LOOKS
        while True:
            left -= 1
            began = self._real.monotonic()
            look = Look(self._clock.now(), self._clock.monotonic())
            if self._real.monotonic() - began <= LOOK_SECONDS or not left:
                return look


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What one start of the service leaves to the next."""

    until: datetime
    """The last time at which guests are known to have been able to read."""
    doubted: bool = False
    """Whether the time of day was not trusted."""


class Heartbeat:
    """Keeps the service's clock going, and the store up to date with it.

    Lives on the event loop's thread; one saving at a time, by `_saving_lock`.

    Args:
        plane: Whose notices move.
        clock: Knows when guests could read.
        real: The machine's own clock, whose seconds beats are apart.
    """

    def __init__(self, plane: Plane, clock: ServiceClock, real: Clock) -> None:
        self._plane = plane
        self._clock = clock
        self._real = real
        self._wake = asyncio.Event()
        self._stopping = False
        self._saving_lock = asyncio.Lock()
        self._saving: asyncio.Task[None] | None = None
        self._away = False

    async def begin(self) -> None:
        """Give back an outage since the last start, before anything else happens.

        Raises:
            StoreError: The store is away; nothing was changed.
        """
        kept = await asyncio.wrap_future(self._plane.setting(SETTING))
        served = None if kept is None else msgspec.json.decode(kept, type=Served)
        until = None if served is None else served.until
        away = self._clock.begin(until, doubted=served is not None and served.doubted)
        if away <= OUTAGE_TOLERANCE:
            await asyncio.wrap_future(self._plane.put_setting(SETTING, self._served()))
            return
        lapse = self._plane.extend_notices(away, setting=(SETTING, self._served()))
        _log.warning(
            "guests could not read; every notice moves later by as much",
            seconds=round(away.total_seconds(), 1),
            operations=await asyncio.wrap_future(lapse),
        )

    async def run(self) -> None:
        """Beat, until `stop`."""
        while not self._stopping:
            self._clock.beat()
            if self._saving is None or self._saving.done():
                self._saving = asyncio.create_task(self._save())
            await self._real.wait(BEAT_SECONDS, self._wake)
        await self._save()

    def stop(self) -> None:
        """Make `run` return; the last time that is saved is this one."""
        self._stopping = True
        self._wake.set()

    def doubt(self) -> str:
        """Return why the time of day is not trusted, in words; `""` when it is."""
        self._clock.now()
        return self._clock.doubt()

    def clock_doubt(self) -> ClockDoubt | None:
        """Return that doubt as what an operator must know; None where there is none."""
        self._clock.now()
        return self._clock.clock_doubt()

    async def believe(self) -> None:
        """Take the wall clock for right, by an operator's word; durable when this returns.

        Raises:
            StoreError: The store is away. The clock is believed, and nothing starts until every
                notice has moved.
        """
        self._clock.believe()
        async with self._saving_lock:
            await self._write_down()

    async def _save(self) -> None:
        async with self._saving_lock:
            try:
                await self._write_down()
                self._away = False
            except StoreError as error:
                if not self._away:
                    _log.warning("could not save the heartbeat", reason=str(error))
                self._away = True
            except Exception:  # noqa: BLE001 - the next beat tries again
                _log.exception("could not save the heartbeat")

    async def _write_down(self) -> None:
        owed = self._clock.owed
        if not owed:
            await asyncio.wrap_future(self._plane.put_setting(SETTING, self._served()))
            return
        lapse = self._plane.extend_notices(owed, setting=(SETTING, self._served()))
        operations = await asyncio.wrap_future(lapse)
        self._clock.pay(owed)
        _log.warning(
            "every notice has moved later",
            seconds=round(owed.total_seconds(), 1),
            operations=operations,
        )

    def _served(self) -> str:
        served = Served(until=self._clock.now(), doubted=bool(self._clock.doubt()))
        return msgspec.json.encode(served).decode()


def _spoken(known: Trust, tolerance: timedelta) -> str:
    """Return why the time of day is not trusted, and what to do."""
    assert known.since is not None
    seconds = known.ahead.total_seconds()
    way = "ahead of" if seconds >= 0 else "behind"
    apart = f"{abs(seconds):.0f} s {way} what the monotonic clock counts"
    if known.until_told and abs(known.ahead) <= tolerance:
        apart = "doubted since before the last start"
    return (
        f"starts are paused: the wall clock is {apart}, since {notice.spoken(known.since)}; "
        "correct it, or run 'forewarn clock trust' if it is right"
    )
