"""The service's clock: the time, whether anything may start, and how long guests could not read.

While the wall clock and the monotonic one count alike, the time of day is the wall clock's. If they
part, it is reckoned: the last on which they agreed, and what the monotonic clock has counted since.
So every NotBefore, lease and record stays on one line of time until somebody has judged the jump
(docs/decisions/0007-time-and-outages.md). `Trust` is what is known of both.

A `ServiceClock` also knows when guests could read: when the event loop that answers them stood
still for too long (`notice.end_gap`) nothing starts until every notice has moved later by that
time. A `Heartbeat` saves the last time at which guests could read, and extends the notices in the
same transaction: after a crash every outage counts exactly once.
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
from forewarn.control.plane import Plane
from forewarn.control.replicas import Replicas
from forewarn.maintenance import notice
from forewarn.maintenance.alerts import Alert, ClockDoubt, store_down
from forewarn.maintenance.model import LISTENING
from forewarn.store.port import Reading, StoreError, StoreUnavailable

TOLERANCE = timedelta(seconds=2)
"""How far the clocks may part between two looks: NTP steps what it cannot slew (over 0.128 s), and
a leap second is 1 s."""

LOOK_SECONDS: Final = 0.05
"""Where reading both clocks takes longer, a thread was put aside: they are read again."""

MAX_LOOKS: Final = 5
"""How often they are read again. A machine this busy may be doubted for a moment."""

SETTING: Final = "serving"
"""The setting under which the store keeps `Served`."""

BEAT_SECONDS: Final = 0.25
"""Real seconds between two beats: a stall seems longer by no more than this."""

AGREE_SECONDS: Final = 5.0
"""Real seconds in which every live replica beats twice, and so says whether it doubts it, too."""

SAVE_SECONDS: Final = 2.0
"""Real seconds between two beats that are saved: a crash lets an outage seem longer by no more than
this, and well within `notice.OUTAGE_SECONDS`. Each is one commit of a small row."""

HUNG_SECONDS: Final = 5.0
"""Real seconds after which a save that has not ended is an alert: clients of approvals give up."""

_log = structlog.get_logger(__name__)


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What one start of the service leaves to the next."""

    until: datetime
    """The last time at which guests are known to have been able to read."""
    doubted: bool = False
    """Whether the time of day was not trusted."""
    unread_seconds: float = 0.0
    """How long its recent stalls were for which no notice has moved, in the service's seconds."""


class Look(msgspec.Struct, frozen=True):
    """Both clocks at one instant."""

    wall: datetime
    monotonic: float


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the clocks."""

    agreed: Look
    """When they last agreed; the time of day is reckoned from here while they do not."""
    since: datetime | None = None
    """Since when the time of day is doubted, as it is reckoned; None while it is trusted."""
    ahead: timedelta = timedelta(0)
    """How far the wall clock was ahead of the reckoning at the last look; negative: behind."""
    until_told: bool = False
    """The doubt is older than this process: what the clocks say to each other cannot end it."""
    lower_bound: bool = False
    """At the start the wall clock was behind the last time written down. How long the service was
    away nobody knows, so any time from the reckoned one on ends the doubt."""


def resume(
    look: Look, until: datetime, *, doubted: bool, tolerance: timedelta = TOLERANCE
) -> tuple[Trust, timedelta]:
    """Return the trust of a start after another, and how long the service was away.

    `until` is the last time that the service before wrote down. A clock that was set forward
    meanwhile makes the time away longer than it was, which lengthens notice.
    """
    if look.wall < until - tolerance:
        reckoned = Look(until, look.monotonic)
        ahead = look.wall - until
        trust = Trust(
            agreed=reckoned, since=until, ahead=ahead, until_told=doubted, lower_bound=not doubted
        )
        return trust, timedelta(0)
    away = max(timedelta(0), look.wall - until)
    return Trust(agreed=look, since=look.wall if doubted else None, until_told=doubted), away


def reckoned(trust: Trust, monotonic: float) -> datetime:
    """Return the time of day that follows from the monotonic clock alone."""
    return trust.agreed.wall + timedelta(seconds=monotonic - trust.agreed.monotonic)


def parted(trust: Trust, look: Look) -> timedelta:
    """Return how far the wall clock is ahead of the reckoning; negative: behind."""
    return look.wall - reckoned(trust, look.monotonic)


def judge(trust: Trust, look: Look, tolerance: timedelta = TOLERANCE) -> tuple[Trust, timedelta]:
    """Return what is known after a look, and by how much notices must move: 0 but after a start."""
    ahead = parted(trust, look)
    agree = abs(ahead) <= tolerance or (trust.lower_bound and ahead > tolerance)
    if agree and not trust.until_told:
        return Trust(agreed=look), max(timedelta(0), ahead) if trust.lower_bound else timedelta(0)
    since = trust.since
    if since is None:
        since = reckoned(trust, look.monotonic)
    return msgspec.structs.replace(trust, since=since, ahead=ahead), timedelta(0)


def believe(trust: Trust, look: Look) -> tuple[Trust, timedelta]:
    """Return the trust after an operator's word that the wall clock is right, and what is owed.

    As far as it is ahead, time did not pass. One that is behind moves no NotBefore, a promise.
    """
    return Trust(agreed=look), max(timedelta(0), parted(trust, look))


class ServiceClock:
    """A clock that no jump of the time of day goes through, and a gate for what starts.

    Any thread may ask it; only the event loop's thread beats and tells of guests' turns. The clock
    may be scaled, by the service's seconds in a real one; the loop lives in real time.
    """

    def __init__(self, clock: Clock, real: Clock, scale: float = 1.0) -> None:
        self._clock = clock
        self._real = real
        self._scale = scale
        self._tolerance = TOLERANCE * scale
        self._lock = threading.Lock()
        self._opened = False
        self._owed = timedelta(0)
        self._trust = Trust(agreed=self._look())
        self._alive = real.monotonic()
        """When the event loop last ran, in real seconds."""
        self._stalls = notice.NO_STALLS
        self._away = timedelta(0)
        self._back_at = self._alive

    # The clock.

    @property
    def wall(self) -> Clock:
        """The clock beneath, jumps and all: for what must be quick and only shows the time."""
        return self._clock

    def now(self) -> datetime:
        """Return the time of day: the wall clock's while it is trusted, else as reckoned."""
        look = self._look()
        known = self._trust
        if known.since is None and abs(parted(known, look)) <= self._tolerance:
            return look.wall
        with self._lock:
            self._judge(look)
            known = self._trust
        return look.wall if known.since is None else reckoned(known, look.monotonic)

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

    def listening(self) -> timedelta:
        """Return how long ago a machine that listens may have asked; an outage does not count."""
        up = timedelta(seconds=(self._real.monotonic() - self._back_at) * self._scale)
        return LISTENING + (self._away if up < LISTENING else timedelta(0))

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
            self._back_at = now = ended = self._alive = self._real.monotonic()
            before = notice.NO_STALLS
            if served is not None:
                self._trust, away = resume(
                    look, served.until, doubted=served.doubted, tolerance=self._tolerance
                )
                self._away = away
                ended -= away.total_seconds() / self._scale
                if served.unread_seconds:
                    before = (notice.Stall(ended, served.unread_seconds / self._scale),)
            # That the service was away is one more stall.
            self._stalls, owed = notice.end_gap(before, ended, now)
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

        Guests can keep it so busy that beats are late, though it did not stand still.
        """
        if now - self._alive <= notice.STALL_SECONDS:
            self._alive = now
            return
        with self._lock:
            self._run_again(now)

    def served(self) -> Served:
        """Return what the next start must know."""
        until = self.now()
        with self._lock:
            unread = notice.unread_seconds(self._stalls, self._alive, self._alive)
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
                self._trust, owed = believe(self._trust, look)
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
        unread = notice.unread_seconds(self._stalls, self._alive, now)
        return unread > notice.OUTAGE_SECONDS

    def _run_again(self, now: float) -> None:
        """Note that the event loop runs; the lock is held."""
        gap = now - self._alive
        self._stalls, owed = notice.end_gap(self._stalls, self._alive, now)
        self._alive = now
        self._owed += timedelta(seconds=owed * self._scale)
        if gap > notice.STALL_SECONDS:
            _log.warning("guests got no answer", seconds=round(gap * self._scale, 1))

    def _judge(self, look: Look) -> None:
        """Look again; the lock is held."""
        before: Trust = self._trust
        self._trust, owed = judge(before, look, self._tolerance)
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

    Lives on the event loop's thread; one saving at a time, by `_saving_lock`. Where replicas share
    the store, an outage counts only as far as no replica beat: guests could read from another. So a
    replica that owes notices does not beat before it has found out. `serves` tells whether guests
    can read here.
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
        self._replicas = replicas
        self._shared = replicas is not None and replicas.shared
        self._serves = serves
        self._doubted_since: float | None = None
        self._wake = asyncio.Event()
        self._stopping = False
        self._saving_lock = asyncio.Lock()
        self._saving: asyncio.Task[None] | None = None
        self.store_down: Alert | None = None
        """What an operator is told while nothing can be saved; None once something was."""

    async def begin(self) -> None:
        """Give back an outage since the last start, before anything else happens."""
        kept = await asyncio.wrap_future(self._plane.setting(SETTING))
        served = None if kept is None else msgspec.json.decode(kept, type=Served)
        if self._replicas is not None:
            rows = await self._replicas.begin()
            beats = [self._replicas.shown(row.beat_at) for row in rows if row.serving]
            beats += [] if served is None else [served.until]
            if self._shared:
                served = Served(until=max(beats)) if beats else None
        owed = self._clock.begin(served)
        if self._replicas is not None:
            self._replicas.sightings.set_back(self._clock.now())
        await self._extend(owed, "guests could not read; every notice has moved later by as much")
        await self._beat()

    async def run(self) -> None:
        """Beat, until `stop`; save now and then, and at once when notices must move."""
        save_at = -math.inf
        while not self._stopping:
            if self._serves():
                self._clock.beat()
            now = self._real.monotonic()
            is_due = now >= save_at or (self._clock.owed and self.store_down is None)
            if self._saving is None or self._saving.done():
                if is_due:
                    save_at = now + SAVE_SECONDS
                    self._saving = asyncio.create_task(self._save())
            elif self.store_down is None and now - save_at >= HUNG_SECONDS - SAVE_SECONDS:
                self._note(StoreUnavailable(f"a write has not ended within {HUNG_SECONDS:.0f} s"))
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
        """Take the wall clock for right, by an operator's word; durable when this returns."""
        async with self._saving_lock:
            if self._replicas is not None:
                self._replicas.sightings.set_back(self._clock.wall.now())
            self._clock.believe()
            await self._pay(is_outage=False)

    async def _save(self) -> None:
        async with self._saving_lock:
            try:
                await self._pay()
                self.store_down = None
            except Exception as error:  # noqa: BLE001 - the next beat tries again
                self._note(error)

    def _note(self, error: Exception) -> None:
        """Note that nothing can be saved; log it once, but each time if nobody foresaw it."""
        before, known = self.store_down, isinstance(error, StoreError)
        if not (known and before):
            _log.warning("could not save the heartbeat", why=error, exc_info=not known)
        since = self._clock.now() if before is None else before.since
        self.store_down = store_down(error, since)

    async def _pay(self, *, is_outage: bool = True) -> None:
        owed = self._clock.owed
        await self._extend(owed, "every notice has moved later", is_outage=is_outage)
        self._clock.pay(owed)
        await self._beat()

    async def _extend(self, owed: timedelta, message: str, *, is_outage: bool = True) -> None:
        """Save when guests could last read, and move every notice later, in one transaction."""
        served = msgspec.json.encode(self._clock.served()).decode()
        if owed:
            limit = self._of_all if self._shared and is_outage else None
            lapse = self._plane.extend_notices(owed, setting=(SETTING, served), limit=limit)
            _log.warning(
                message,
                seconds=round(owed.total_seconds(), 1),
                operations=await asyncio.wrap_future(lapse),
            )
        elif not self._shared:
            await asyncio.wrap_future(self._plane.put_setting(SETTING, served))

    async def _beat(self) -> None:
        if self._replicas is not None:
            doubt = self._clock.clock_doubt()
            await self._replicas.beat(
                serving=self._serves(), doubts_clock=doubt is not None, stopped=self._stopping
            )
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
        return left if left.total_seconds() > notice.OUTAGE_SECONDS else timedelta(0)

    def _compare(self, *, doubts: bool) -> None:
        """Trust the database's clock again where another replica does: it is ours that is wrong."""
        assert self._replicas is not None
        now = self._real.monotonic()
        if not doubts:
            self._doubted_since = None
        elif self._doubted_since is None:
            self._doubted_since = now
        elif now - self._doubted_since >= AGREE_SECONDS and any(
            not other.doubts_clock for other in self._replicas.others()
        ):
            self._replicas.sightings.set_back(self._clock.wall.now())
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
