"""The service's clock: the time, whether anything may start, and how long guests could not read.

Notice is time in which guests could read (docs/decisions/0007-time-and-outages.md). A
`ServiceClock` is the clock that the service goes by: the wall clock's time while that can be
trusted, and a reckoned one while not. It knows when guests could read: the event loop that answers
them beats and gives guests their turns, and when it stood still for too long nothing starts until
every notice has moved later by that time (see `timekeeping` for both). A `Heartbeat` beats, saves
the last time at which guests could read, and extends the notices in the same transaction: after a
crash every outage counts exactly once.
"""

import asyncio
import math
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

import msgspec
import structlog

from forewarn.clock import Clock
from forewarn.control import timekeeping
from forewarn.control.plane import Plane
from forewarn.control.replicas import Replicas
from forewarn.control.timekeeping import Look, Trust
from forewarn.maintenance import notice
from forewarn.maintenance.alerts import ClockDoubt
from forewarn.store.port import Reading, StoreError

LOOK_SECONDS: Final = 0.05
"""The longest that reading both clocks may take, in real seconds; a thread may be put aside between
the two. Then they are read again."""

MAX_LOOKS: Final = 5
"""How often they are read again. A machine this busy may be doubted for a moment."""

SETTING: Final = "serving"
"""The setting under which the store keeps `Served`."""

BEAT_SECONDS: Final = 0.25
"""Real seconds between two beats: a stall seems longer by no more than this."""

AGREE_SECONDS: Final = 5.0
"""Real seconds after which every other replica that lives has beaten twice, and so has looked at
the database's clock and said whether it doubts it, too."""

SAVE_SECONDS: Final = 2.0
"""Real seconds between two beats that are saved: a crash lets an outage seem longer by no more than
this, and well within `timekeeping.OUTAGE_SECONDS`. Each is one commit of a small row."""

_log = structlog.get_logger(__name__)


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What one start of the service leaves to the next."""

    until: datetime
    """The last time at which guests are known to have been able to read."""
    doubted: bool = False
    """Whether the time of day was not trusted."""
    unread_seconds: float = 0.0
    """How long its recent stalls were for which no notice has moved, in the service's seconds."""


class ServiceClock:
    """A clock that no jump of the time of day goes through, and a gate for what starts.

    Any thread may ask it: what it knows is replaced as a whole, under its lock. Only the event
    loop's thread beats and tells of guests' turns. The clock may be scaled, by the service's
    seconds in a real one; the loop lives in real time whatever the scale.
    """

    def __init__(self, clock: Clock, real: Clock, scale: float = 1.0) -> None:
        self._clock = clock
        self._real = real
        self._scale = scale
        self._tolerance = timekeeping.TOLERANCE * scale
        self._lock = threading.Lock()
        self._opened = False
        self._owed = timedelta(0)
        self._trust = Trust(agreed=self._look())
        self._alive = real.monotonic()
        """When the event loop last ran, in real seconds."""
        self._stalls = timekeeping.NO_STALLS

    # The clock.

    @property
    def wall(self) -> Clock:
        """The clock beneath, jumps and all: for what must be quick and only shows the time."""
        return self._clock

    def now(self) -> datetime:
        """Return the time of day: the wall clock's while it is trusted, else as reckoned."""
        look = self._look()
        known = self._trust
        if known.since is None and abs(timekeeping.parted(known, look)) <= self._tolerance:
            return look.wall
        with self._lock:
            self._judge(look)
            known = self._trust
        return look.wall if known.since is None else timekeeping.reckoned(known, look.monotonic)

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
        """Return why nothing may start, in words for an operator."""
        self.now()
        found: list[str] = []
        if not self._opened:
            found.append("starts are paused: guests cannot read yet")
        elif self._held_up():
            found.append("starts are paused: guests get no answer, the event loop is held up")
        if self._owed:
            found.append("starts are paused while notices are extended after an outage")
        if doubt := self.clock_doubt():
            found.append(doubt.message)
        return tuple(found)

    def clock_doubt(self) -> ClockDoubt | None:
        """Return why the time of day is not trusted; None while it is."""
        known = self._trust
        if known.since is None:
            return None
        return ClockDoubt(_spoken(known, self._tolerance), known.since)

    # What guests could read.

    @property
    def owed(self) -> timedelta:
        """How much later every notice must move before anything starts again."""
        return self._owed

    def begin(self, served: Served | None) -> timedelta:
        """Start to count from what the start before left; return by how much notices must move."""
        look = self._look()
        with self._lock:
            self._trust, away = Trust(agreed=look), timedelta(0)
            now = ended = self._alive = self._real.monotonic()
            before = timekeeping.NO_STALLS
            if served is not None:
                self._trust, away = timekeeping.resume(
                    look, served.until, doubted=served.doubted, tolerance=self._tolerance
                )
                ended -= away.total_seconds() / self._scale
                if served.unread_seconds:
                    before = (timekeeping.Stall(ended, served.unread_seconds / self._scale),)
            # That the service was away is one more stall.
            self._stalls, owed = timekeeping.end_gap(before, ended, now)
            doubt = self.clock_doubt()
        if doubt:
            _log.warning(doubt.message)
        return timedelta(seconds=owed * self._scale)

    def open(self) -> None:
        """Note that guests can read from now on."""
        self.beat()
        self._opened = True

    def beat(self) -> None:
        """Note that guests can read now; what time they could not for too long is owed them."""
        look = self._look()
        real = self._real.monotonic()
        with self._lock:
            self._run_again(real)
            self._judge(look)

    def turn(self, now: float) -> None:
        """Note that the event loop gives a guest its turn now (in real seconds), and so runs.

        Guests can keep it so busy that beats are late; then it is overloaded, and did not stand
        still. Each request comes by here.
        """
        if now - self._alive <= timekeeping.STALL_SECONDS:
            self._alive = now
            return
        with self._lock:
            self._run_again(now)

    def served(self) -> Served:
        """Return what the next start must know."""
        until = self.now()
        with self._lock:
            unread = timekeeping.unread_seconds(self._stalls, self._alive, self._alive)
        return Served(
            until=until, doubted=self._trust.since is not None, unread_seconds=unread * self._scale
        )

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
                self._trust, owed = timekeeping.believe(self._trust, look)
                self._owed += owed
                _log.warning("the clock is trusted by an operator", ahead=ahead.total_seconds())

    def agree(self) -> None:
        """Take the wall clock for right because others do: what was doubted is owed to nobody."""
        look = self._look()
        with self._lock:
            if self._trust.since is not None:
                self._trust = Trust(agreed=look)
                _log.warning("the clock is trusted again, as the other replicas trust it")

    def _held_up(self) -> bool:
        """Tell whether the event loop stands still, and is an outage if it runs again now."""
        now = self._real.monotonic()
        unread = timekeeping.unread_seconds(self._stalls, self._alive, now)
        return unread > timekeeping.OUTAGE_SECONDS

    def _run_again(self, now: float) -> None:
        """Note that the event loop runs; the lock is held."""
        gap = now - self._alive
        self._stalls, owed = timekeeping.end_gap(self._stalls, self._alive, now)
        self._alive = now
        self._owed += timedelta(seconds=owed * self._scale)
        if gap > timekeeping.STALL_SECONDS:
            _log.warning("guests got no answer", seconds=round(gap * self._scale, 1))

    def _judge(self, look: Look) -> None:
        """Look again; the lock is held."""
        before: Trust = self._trust
        self._trust, owed = timekeeping.judge(before, look, self._tolerance)
        self._owed += owed
        if before.since is None and self._trust.since is not None:
            _log.warning(_spoken(self._trust, self._tolerance))
        elif before.since is not None and self._trust.since is None:
            _log.info("the clocks agree again", since=before.since.isoformat())

    def _look(self) -> Look:
        """Read both clocks as one, or as near to it as this machine lets us."""
        looks = 0
        while True:
            looks += 1
            began = self._real.monotonic()
            look = Look(self._clock.now(), self._clock.monotonic())
            if self._real.monotonic() - began <= LOOK_SECONDS or looks == MAX_LOOKS:
                return look


class Heartbeat:
    """Keeps the service's clock going, and the store up to date with it.

    Lives on the event loop's thread; one saving at a time, by `_saving_lock`. Beats are real
    seconds apart. Where replicas share the store, each saves its own row, and an outage counts only
    as far as no replica beat: guests could read from another. So a replica that owes notices does
    not beat before it has found out.

    `serves` tells whether guests can read here.
    """

    def __init__(
        self,
        plane: Plane,
        clock: ServiceClock,
        real: Clock,
        replicas: Replicas | None = None,
        *,
        serves: Callable[[], bool] = lambda: True,
    ) -> None:
        self._plane = plane
        self._clock = clock
        self._real = real
        self._replicas = replicas if replicas is not None and replicas.shared else None
        self._serves = serves
        self._doubted_since: float | None = None
        self._wake = asyncio.Event()
        self._stopping = False
        self._saving_lock = asyncio.Lock()
        self._saving: asyncio.Task[None] | None = None
        self._away = False

    async def begin(self) -> None:
        """Give back an outage since the last start, before anything else happens."""
        kept = await asyncio.wrap_future(self._plane.setting(SETTING))
        served = None if kept is None else msgspec.json.decode(kept, type=Served)
        if self._replicas is not None:
            rows = await self._replicas.look()
            beats = [self._replicas.shown(row.beat_at) for row in rows if row.serving]
            beats += [] if served is None else [served.until]
            served = Served(until=max(beats)) if beats else None
        owed = self._clock.begin(served)
        await self._write_down(
            owed, "guests could not read; every notice has moved later by as much"
        )

    async def run(self) -> None:
        """Beat, until `stop`; save now and then, and at once when notices must move."""
        save_at = -math.inf
        while not self._stopping:
            if self._serves():
                self._clock.beat()
            now = self._real.monotonic()
            is_due = now >= save_at or (self._clock.owed and not self._away)
            if is_due and (self._saving is None or self._saving.done()):
                save_at = now + SAVE_SECONDS
                self._saving = asyncio.create_task(self._save())
            await self._real.wait(BEAT_SECONDS, self._wake)
        await self._save()

    def stop(self) -> None:
        """Make `run` return; the last time that is saved is this one."""
        self._stopping = True
        self._wake.set()

    def clock_doubt(self) -> ClockDoubt | None:
        """Look at the clocks; return why the time of day is not trusted, None if it is."""
        self._clock.now()
        return self._clock.clock_doubt()

    async def believe(self) -> None:
        """Take the wall clock for right, by an operator's word; durable when this returns.

        While the store is away, nothing starts until every notice has moved.
        """
        self._clock.believe()
        async with self._saving_lock:
            await self._pay(is_outage=False)

    async def _save(self) -> None:
        async with self._saving_lock:
            try:
                await self._pay()
                self._away = False
            except Exception as error:  # noqa: BLE001 - the next beat tries again
                known = isinstance(error, StoreError)
                if not (known and self._away):
                    _log.warning(
                        "could not save the heartbeat", reason=str(error), exc_info=not known
                    )
                self._away = True

    async def _pay(self, *, is_outage: bool = True) -> None:
        owed = self._clock.owed
        await self._write_down(owed, "every notice has moved later", is_outage=is_outage)
        self._clock.pay(owed)

    async def _write_down(self, owed: timedelta, message: str, *, is_outage: bool = True) -> None:
        """Save the heartbeat, and move every notice later by what is owed, in one transaction."""
        served = msgspec.json.encode(self._clock.served()).decode()
        if owed:
            limit = self._of_all if self._replicas is not None and is_outage else None
            lapse = self._plane.extend_notices(owed, setting=(SETTING, served), limit=limit)
            _log.warning(
                message,
                seconds=round(owed.total_seconds(), 1),
                operations=await asyncio.wrap_future(lapse),
            )
        elif self._replicas is None:
            await asyncio.wrap_future(self._plane.put_setting(SETTING, served))
        if self._replicas is not None:
            doubt = self._clock.clock_doubt()
            await self._replicas.beat(serving=self._serves(), doubts_clock=doubt is not None)
            self._compare(doubts=doubt is not None)

    def _of_all(self, reading: Reading, now: datetime, length: timedelta) -> timedelta:
        """Return how much of this replica's outage was one of all, and did not count yet."""
        assert self._replicas is not None
        own = self._replicas.own.name
        rows = reading.replicas().items()
        shown = self._replicas.shown
        read_at = [shown(row.beat_at) for name, row in rows if row.serving and name != own]
        kept = reading.setting(SETTING)
        if kept is not None:
            read_at.append(msgspec.json.decode(kept, type=Served).until)
        left = min(length, now - max(read_at, default=now - length))
        return left if left.total_seconds() > timekeeping.OUTAGE_SECONDS else timedelta(0)

    def _compare(self, *, doubts: bool) -> None:
        """Trust the database's clock again where another replica has trusted it all along.

        Then our own monotonic clock is wrong: the machine slept, say.
        """
        assert self._replicas is not None
        now = self._real.monotonic()
        if not doubts:
            self._doubted_since = None
        elif self._doubted_since is None:
            self._doubted_since = now
        elif now - self._doubted_since >= AGREE_SECONDS and any(
            not other.doubts_clock for other in self._replicas.others()
        ):
            self._clock.agree()


def _spoken(known: Trust, tolerance: timedelta) -> str:
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
