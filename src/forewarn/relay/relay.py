"""The relay put together: its documents, its upstream, its guests, and the order of events.

Guests are answered as soon as the documents are known: from a replica, or, where none can be
reached, from the file that the relay before left. The answers show how old that is. All memory
belongs to the event loop's thread; the file is written in a thread of its own, one writing at a
time.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec
import structlog

from forewarn import status_port
from forewarn.client.session import CLOCKS_AGREE_SECONDS
from forewarn.clock import Clock, SystemClock
from forewarn.control.replicas import SharedSightings
from forewarn.maintenance import notice
from forewarn.maintenance.model import Changes, Sighting
from forewarn.relay import cache
from forewarn.relay.cache import Freshness, HostDocuments, StateFile, StateUnusable
from forewarn.relay.forwarding import SIGHTING_BEATS, Forwarding
from forewarn.relay.settings import HostRelaySettings, replica
from forewarn.relay.upstream import Credentials, HostReader, Upstream
from forewarn.server import relay_feed
from forewarn.server.guest.documents import DelayedAnswer
from forewarn.server.guest.endpoint import Figures
from forewarn.server.guest.machines import Source
from forewarn.server.guest.plane import GuestPlane
from forewarn.server.process import Crashed
from forewarn.server.relay_feed import GuestRules, HostDocument, RelayState
from forewarn.server.sockets import HandedOver
from forewarn.status_port import Labels
from forewarn.version import __version__

BEAT_SECONDS: Final = 0.7
"""The pause between two looks at due work: a stall of the loop seems longer by no more than this.
Each costs a relay that idles 0.01 % of a core."""

SIGHTINGS_EVERY: Final = 2
"""The number of beats, a second or so, after which the service gets the machines that asked."""

TOUCH_SECONDS: Final = 30.0
"""The pause between two updates of the file's time: after a crash its documents seem older by no
more than this."""

FIRST_SECONDS: Final = 2.0
"""The wait of a start for a replica before guests are answered from the file: news is then read
before any guest asks."""

SAVE_SECONDS: Final = 2.0
"""The longest that a change waits for the disk before guests read it all the same: a disk may hang.
"""

SAVE_AGAIN_SECONDS: Final = 10.0

DRAIN_SECONDS: Final = 1.5
"""The time for guests to leave the connections that they keep, before the relay stops."""

CLOSE_SECONDS: Final = 8.0

PREFIX: Final = "forewarn_relay_"

FAMILIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "serving": "1 if guests are answered, 0 while they are not.",
        "upstream_up": "1 if a replica of the service is heard, 0 otherwise.",
        "age_seconds": "How long the documents may have been out of date: 0 while a replica is "
        "heard.",
        "machines": "Machines of this host.",
        "machines_seen": "Machines that asked for their events since the start.",
        "answers_total": "Answers to requests for the host, with and without a change.",
        "upstream_failures_total": "Requests for the host that a replica did not answer as "
        "it should.",
        "approvals_total": "Approvals that were sent to the service, by outcome.",
        "stalled_seconds_total": "Time in which guests got no answer, since the start.",
        "state_saved": "1 if the disk has the documents, 0 while they cannot be saved.",
        "started_timestamp_seconds": "When the relay started, in seconds since 1970.",
        "guest_connections": "Connections of guests that are open.",
        "guest_connections_accepted_total": "Connections of guests since the start.",
        "guest_waiters": "Requests that wait for their document to change.",
        "guest_requests_total": "Answers to guests, by resource and status.",
        "guest_refusals_total": "Requests and connections of guests that a limit turned away, by "
        "reason.",
    }
)
"""The help of every metric, by its name without PREFIX; a counter's name ends in `_total`."""

_log = structlog.get_logger(__name__)


class RelayStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/status`."""

    version: str
    host: str
    """`""` before the first document."""
    machines: int
    serving: bool
    revoked: bool
    age_seconds: float
    """The longest time for which the documents may be out of date; 0 while a replica is connected.
    """
    replica: str
    trouble: str
    """The reason why no replica is connected; `""` while one is."""
    saved: bool
    process: int

    def line(self) -> str:
        """Return it in one line, for systemd."""
        if self.revoked:
            return "Guests are not answered: the service refuses the token of this host"
        if not self.serving:
            return f"Guests are not answered yet: {self.trouble}"
        served = f"{self.machines} machine{'' if self.machines == 1 else 's'} of {self.host}"
        if self.age_seconds:
            return f"{served}, without the service for {self.age_seconds:.0f} s: {self.trouble}"
        return f"{served}, by {self.replica}"


LABELS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "approvals": ("outcome",),
        "guest_refusals": ("reason",),
        "guest_requests": ("resource", "status"),
    }
)
"""The names of the labels of the figures that have some."""


def _family(
    labels: tuple[str, ...], values: float | Mapping[tuple[str, ...], float]
) -> Mapping[Labels, float]:
    if not isinstance(values, Mapping):
        return {(): float(values)}
    return {tuple(zip(labels, words, strict=True)): value for words, value in values.items()}


class GuestClock:
    """The machine's time, or the service's where they differ: guests count notice by it."""

    def __init__(self, own: Clock, service: Callable[[], tuple[datetime, float] | None]) -> None:
        self._own = own
        self._service = service
        self.monotonic = own.monotonic
        self.wait = own.wait

    def now(self) -> datetime:
        """Return the time of day."""
        own, told = self._own.now(), self._service()
        if told is None:
            return own
        time = told[0] + timedelta(seconds=self.monotonic() - told[1])
        return own if abs((time - own).total_seconds()) < CLOCKS_AGREE_SECONDS else time


@dataclass(eq=False, repr=False, kw_only=True)
class HostRelay:
    """The whole relay without the process around it; made and used on the event loop."""

    settings: HostRelaySettings
    mint: Callable[[], str]
    chance: Callable[[], float]
    handed_over: HandedOver
    clock: SystemClock
    on_beat: Callable[[float], None] = lambda _: None
    """Called with each beat and the monotonic time: the process tells systemd of itself."""
    _stalls: tuple[notice.Stall, ...] = notice.NO_STALLS
    _stalled: float = 0.0
    _unreported: float = 0.0
    _held: HostDocuments | None = None
    _guests: GuestPlane | None = None
    _known: asyncio.Event = field(default_factory=asyncio.Event)
    _is_open: bool = False
    _is_suspended: bool = False
    _unsaved: HostDocuments | None = None
    _taken_at: float = 0.0
    """When the latest document came, in seconds since 1970."""
    _saved: bool = True
    _save_at: float = 0.0
    _touch_at: float = 0.0
    _saving: asyncio.Task[None] | None = None
    _telling: asyncio.Task[None] | None = None
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _beats: int = 0

    def __post_init__(self) -> None:
        """Make the parts that depend on these."""
        clock, settings = self.clock, self.settings.upstream
        began = clock.now(), clock.monotonic()
        self._began = self._alive = clock.monotonic()
        self._started_at = clock.now().timestamp()
        self._file = StateFile(Path(self.settings.state.folder))
        self._upstream = Upstream(
            tuple(map(replica, settings.urls)),
            Credentials(settings),
            relay_feed.MAX_HOST_BYTES,
            first=int(self.chance() * len(settings.urls)),
        )
        self._wall = GuestClock(clock, lambda: self._reader.service_time)
        # The time of requests: of what the service's clock is set to, their ages know nothing.
        self._steady = GuestClock(clock, lambda: began)
        self._forwarding = Forwarding(self._upstream, self._age, self._sighting, clock)
        self._reader = HostReader(
            upstream=self._upstream,
            etag=lambda: self._held.etag if self._held is not None else "",
            state=self._state,
            take=self._take,
            told=self._reported,
            before=self._forwarding.claim_again,
            chance=self.chance,
            clock=clock,
        )
        self._seen = SharedSightings(self._sighting, beats=SIGHTING_BEATS)

    # Start and stop.

    async def open(self) -> tuple[str, ...]:
        """Open the sockets once the documents are known; return the addresses of the listeners.

        SocketUnusable or SecretUnusable if a listener cannot be opened, StateUnusable if another
        relay has the folder; `close` it then.
        """
        self._file.lock()
        await self._read_file()
        self._start("the beat", self._beat_on())
        self._start("the reader of the host", self._reader.run())
        if self._held is not None:
            await self._or_crashed(self._reader.tried.wait(), FIRST_SECONDS)
        await self._or_crashed(self._known_for_guests())
        held_ = self._held
        assert held_ is not None
        guests = self._guests = self._plane(held_.rules)
        guests.tell_news(self._hear)
        guests.tell_strangers(self._arrival)
        guests.replace(tuple(held_.documents.values()), machines=tuple(held_.machines.values()))
        opened = await guests.open()
        self._is_open = True
        return opened

    async def _known_for_guests(self) -> None:
        while not self._serves():
            self._known.clear()
            await self._known.wait()

    async def _or_crashed(
        self, waiting: Coroutine[Any, Any, object], seconds: float | None = None
    ) -> None:
        task = asyncio.ensure_future(waiting)
        try:
            await asyncio.wait(
                {task, *self._tasks}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            task.cancel()
        self._check()

    async def wait(self, stop: asyncio.Event) -> None:
        """Return when `stop` is set; Crashed if a part of the relay has ended by itself."""
        await self._or_crashed(stop.wait())

    def _check(self) -> None:
        for task in filter(asyncio.Task.done, self._tasks):
            cause = None if task.cancelled() else task.exception()
            if isinstance(cause, Crashed):
                raise cause
            raise Crashed(f"{task.get_name()} has ended by itself") from cause

    async def drain(self) -> None:
        """Ask guests to leave the connections that they keep, while all are served."""
        if self._guests is not None and self._is_open:
            await self._guests.drain(DRAIN_SECONDS)
        if self._telling is not None:  # it takes longer only where the service hangs
            await asyncio.wait([self._telling], timeout=DRAIN_SECONDS)

    async def close(self) -> None:
        """Stop accepting, finish the work under way, and save unsaved documents.

        TimeoutError after CLOSE_SECONDS.
        """
        async with asyncio.timeout(CLOSE_SECONDS):
            if self._guests is not None:
                await self._guests.close()
            tasks = [*self._tasks, *filter(None, [self._telling])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._forwarding.close()
            if self._saving is not None:
                await asyncio.gather(self._saving, return_exceptions=True)
            await self._write()
            await self._touch()
            self._file.unlock()

    def _start(self, name: str, running: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(running, name=name))

    def reload(self) -> None:
        """Read the files again that may change at run time: proxies' secrets; SecretUnusable."""
        if self._guests is not None:
            self._guests.reload()

    def _plane(self, rules: GuestRules) -> GuestPlane:
        return GuestPlane(
            listeners=self.settings.guest.listener,
            limits=self.settings.guest,
            rules=rules,
            backend=self._forwarding,
            time=self._wall,
            wall=self._wall,
            request_time=self._steady,
            on_turn=self._turn,
            mint=self.mint,
            handed_over=self.handed_over,
            age=lambda: self._freshness.shown_age(self.clock.monotonic()),
        )

    # What it knows.

    @property
    def _freshness(self) -> Freshness:
        return self._reader.freshness

    async def _take(self, etag: str, told: HostDocument) -> None:
        """Take a document over: once it is saved, guests are answered by it."""
        before = self._held
        after = cache.take(before, etag, told)
        if after != before:
            await self._save(after)
        self._held = after
        self._known.set()
        guests = self._guests
        if guests is None:
            return  # `open` shows all of it
        if before is None or before.rules != after.rules:
            guests.apply(after.rules)
        documents, removed = cache.difference(before.documents if before else {}, after.documents)
        machines, gone = cache.difference(before.machines if before else {}, after.machines)
        guests.replace(documents, removed_scopes=removed, machines=machines, removed_machines=gone)
        self._await_again()
        self._forwarding.arrived(machines, after.host)
        self._seen.learn(Changes(removed_machines=gone))

    def _await_again(self) -> None:
        """End the waiting requests of machines that have to ask again; their next ones are news."""
        if self._held is not None and self._guests is not None and self._held.awaited:
            self._guests.end_waits(self._held.awaited)
            self._seen.await_again(self._held.awaited)

    def _sighting(self, machine: str) -> Sighting | None:
        return None if self._guests is None else self._guests.seen(machine)

    def _age(self, at: datetime) -> float:
        return (self._steady.now() - at).total_seconds()

    def _arrival(self, source: Source) -> DelayedAnswer | None:
        return self._forwarding.arrival(source) if self._freshness.is_true else None

    # What is due.

    def _turn(self, now: float) -> None:
        """Note that the event loop gives a guest its turn, or a beat, and so runs."""
        gap = now - self._alive
        self._stalls, owed = notice.end_gap(self._stalls, self._alive, now)
        self._alive = now
        if gap > notice.STALL_SECONDS:
            self._stalled += gap
            self._unreported += owed
            _log.warning("guests got no answer: the event loop stood still", seconds=round(gap, 1))
            self._reader.ask_again(now - gap)

    async def _beat_on(self) -> None:
        while True:
            self._turn(self.clock.monotonic())
            self._beat(self._alive)
            self.on_beat(self._alive)
            await self.clock.wait(BEAT_SECONDS)

    def _beat(self, now: float) -> None:
        self._beats += 1
        if self._freshness.is_revoked:
            self._forget()
        self._suspend_or_resume()
        if not self._is_open and self._serves():
            self._known.set()
        if not self._saved and now >= self._save_at and not _runs(self._saving):
            self._save_at = now + SAVE_AGAIN_SECONDS
            self._saving = asyncio.create_task(self._write())
        if now >= self._touch_at and not _runs(self._saving):
            self._touch_at = now + TOUCH_SECONDS
            self._saving = asyncio.create_task(self._touch())
        if self._beats % SIGHTINGS_EVERY == 0:
            self._await_again()
            self._tell()

    def _hear(self, machine: str) -> None:
        """Take news of a machine, and report it at once: a new operation awaits known machines."""
        self._seen.hear(machine)
        self._tell()

    def _tell(self) -> None:
        if self._freshness.is_true and self._guests is not None and not _runs(self._telling):
            self._telling = asyncio.create_task(self._forwarding.tell(self._seen))

    def _serves(self) -> bool:
        now = self.clock.monotonic()
        limit = self.settings.upstream.max_stale_seconds
        return self._held is not None and self._freshness.serves(now, limit)

    def _suspend_or_resume(self) -> None:
        guests, serves = self._guests, self._serves()
        if guests is None or not self._is_open or serves is not self._is_suspended:
            return
        self._is_suspended = not serves
        if serves:
            _log.info("guests are answered again")
            guests.resume()
            return
        guests.suspend()
        if self._held is not None:
            limit = self.settings.upstream.max_stale_seconds
            _log.error("guests are not answered: no replica answered for too long", seconds=limit)

    def _forget(self) -> None:
        """Forget the documents: the service refuses this host's token, so it is not to be trusted.

        Guests get no answer until the service takes it again, or another token. The file goes, so
        that no start answers from it.
        """
        if self._held is None:
            return
        _log.error(
            "guests are not answered: every replica refuses this host's token", host=self._held.host
        )
        guests = self._guests
        if guests is not None and self._is_open:
            guests.suspend()
            self._is_suspended = True
            gone = tuple(self._held.machines)
            guests.replace((), removed_scopes=tuple(self._held.documents), removed_machines=gone)
        self._held = self._unsaved = None
        self._saving = asyncio.create_task(self._remove(self._saving))

    # The file.

    async def _read_file(self) -> None:
        try:
            found = await asyncio.to_thread(self._file.read)
        except StateUnusable as error:
            _log.warning("nothing is known from before the start", why=str(error))
            return
        if found is None:
            return
        self._held, at = found
        # A file of the future: the clock was set back, by so much at least.
        age = abs(self.clock.now().timestamp() - at)
        self._reader.freshness = Freshness(true_until=self.clock.monotonic() - age)
        self._known.set()

    async def _save(self, known: HostDocuments) -> None:
        """Save the next documents of guests; guests get them even if that is not possible."""
        if self._saving is not None:
            await asyncio.wait([self._saving], timeout=SAVE_SECONDS)
        self._unsaved, self._taken_at = known, self.clock.now().timestamp()
        if not _runs(self._saving):
            self._saving = asyncio.create_task(self._write())
            await asyncio.wait([self._saving], timeout=SAVE_SECONDS)
        if self._unsaved is not None:
            self._cannot_save("it takes too long")

    async def _write(self) -> None:
        known = self._unsaved
        if known is None:
            return
        try:
            await asyncio.to_thread(self._file.write, known, max(self._taken_at, self._true_at()))
        except OSError as error:
            self._cannot_save(error.strerror or str(error))
            # No start is to show guests something older than what they have read.
            await self._remove_file()
            return
        if self._unsaved is not known:
            return  # what came meanwhile is not saved yet
        self._unsaved = None
        if not self._saved:
            _log.info("the documents are saved again")
        self._saved = True

    def _cannot_save(self, why: str) -> None:
        if self._saved:
            _log.warning(
                "the documents cannot be saved: a restart without the service will have none",
                why=why,
            )
        self._saved = False

    async def _remove(self, before: "asyncio.Task[None] | None") -> None:
        """Remove the file of documents that are forgotten, after what is under way there."""
        if before is not None:
            await asyncio.wait([before])
        await self._remove_file()

    async def _remove_file(self) -> None:
        try:
            await asyncio.to_thread(self._file.remove)
        except OSError as error:
            _log.error("the documents on the disk are too old, and stay there", why=error.strerror)

    async def _touch(self) -> None:
        if self._held is not None and self._unsaved is None:
            await asyncio.to_thread(self._file.touch, self._true_at())

    def _true_at(self) -> float:
        """Return when the documents were the service's last, in seconds since 1970."""
        return self.clock.now().timestamp() - self._freshness.age(self.clock.monotonic())

    # What it shows.

    def _state(self) -> RelayState:
        now = self.clock.monotonic()
        return RelayState(
            version=__version__,
            age_seconds=round(now - self._began, 1),
            machines=0 if self._held is None else len(self._held.machines),
            stalled_seconds=round(self._unreported, 1),
        )

    def _reported(self, state: RelayState) -> None:
        self._unreported = max(0.0, self._unreported - state.stalled_seconds)

    def status(self, process: int) -> RelayStatus:
        """Return the relay's status."""
        now = self.clock.monotonic()
        known = self._held
        return RelayStatus(
            version=__version__,
            host="" if known is None else known.host,
            machines=0 if known is None else len(known.machines),
            serving=self._is_open and not self._is_suspended,
            revoked=self._freshness.is_revoked,
            age_seconds=round(self._freshness.age(now), 1),
            replica=str(self._upstream.now_first),
            trouble=self._reader.trouble,
            saved=self._saved,
            process=process,
        )

    def metrics(self, process: int) -> bytes:
        """Return all metrics as text."""
        status, reader = self.status(process), self._reader
        figures: Figures = {
            "serving": status.serving,
            "upstream_up": not status.trouble,
            "age_seconds": status.age_seconds,
            "machines": status.machines,
            "state_saved": status.saved,
            "answers": reader.answers,
            "upstream_failures": reader.failures,
            "approvals": {(word,): count for word, count in self._forwarding.approvals.items()},
            "stalled_seconds": round(self._stalled, 1),
            "started_timestamp_seconds": self._started_at,
            **({} if self._guests is None else self._guests.figures()),
        }
        families = {
            name: _family(LABELS.get(short, ()), figures[short])
            for name in FAMILIES
            if (short := name.removesuffix("_total")) in figures
        }
        return status_port.metrics_page(PREFIX, FAMILIES, families)


def _runs(task: "asyncio.Task[None] | None") -> bool:
    return task is not None and not task.done()
