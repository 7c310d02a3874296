"""The reports of the relays on hosts, and the holds of hosts whose relay is away.

Each replica writes down the requests that it heard, without waiting for the writer, and reads those
of the others; each judges all relays, so a replica that dies takes nothing with it
(`maintenance.relays.judge`). Holds and releases are decided again in the transaction that makes
them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

import msgspec
import structlog

from forewarn.clock import Clock
from forewarn.control.plane import Plane
from forewarn.control.service_clock import ServiceClock
from forewarn.control.ticker import Rounds
from forewarn.control.unit_of_work import UnitOfWork
from forewarn.maintenance import commands, notice, relays
from forewarn.maintenance.accounts import Token
from forewarn.maintenance.alerts import Alert, AlertKind
from forewarn.maintenance.model import Changes, Hold, HoldKind, HostState, Refused
from forewarn.maintenance.relays import Relay, RelayTerms
from forewarn.maintenance.transitions import Transitions
from forewarn.store.port import StoreError
from forewarn.store.sql import Store
from forewarn.vocabulary import ErrorCode

LOOK_EVERY: Final = timedelta(seconds=1)
"""Real time between two judgements."""

SAVE_SECONDS: Final = 2.0
"""Real seconds between two writes of these reports (`relays.HEARSAY` counts on it)."""

SAVE_ALONE_SECONDS: Final = 10.0
"""The same where no other process reads it: only the next start does."""

SETTLE: Final = timedelta(seconds=10)
"""The time for relays to be heard again after the start, and after the store was away: they try
again after some seconds."""

OVERLAP: Final = timedelta(seconds=10)
"""The time span that is read again: rows are written some seconds late."""

JUDGED_AT_ONCE: Final = 8
"""The relays that lack a change and are judged in one round of the loop: a document that nobody has
asked for is encoded for that, in a fifth of a millisecond."""

MAX_AT_ONCE: Final = 200
"""The most hosts that are held or released in one look: a transaction of a tenth of a second."""

replace = msgspec.structs.replace

_log = structlog.get_logger(__name__)


class RelayWatch(Rounds):
    """The relays as all replicas hear them. Lives on the event loop's thread.

    `has_all` returns True if a relay of a host that has this ETag has everything that concerns it.
    `on_void` is called with each host that has a token which is no longer valid.
    """

    def __init__(
        self,
        plane: Plane,
        store: Store,
        clock: ServiceClock,
        real: Clock,
        *,
        replica: str,
        has_all: Callable[[str, str], bool],
        on_void: Callable[[str], None],
    ) -> None:
        super().__init__("relays", real, clock)
        self._plane = plane
        self._store = store
        self._at = clock.at
        self._replica = replica
        self._has_all = has_all
        self._on_void = on_void
        self.tokens: dict[str, Token] = {}
        """Those of relays, by name."""
        self._by_digest: dict[str, Token] = {}
        self.relays: dict[str, Relay] = {}
        """The latest report of each, here or elsewhere, by host."""
        self._of_host: dict[str, dict[str, Token]] = {}
        """The same tokens by host."""
        self._oldest: dict[str, datetime] = {}
        """When the oldest valid token of each host was made."""
        self._behind: dict[str, datetime] = {}
        """Since when relays lack something that changed (`RelayTerms.behind`)."""
        self._coming_back: set[str] = set()
        """The hosts that a drain reboots: each waits for its relay before its machines return."""
        self._held_by_operators: set[str] = set()
        """Hosts that need no hold of ours while an operator's lasts."""
        self._using: set[str] = set()
        """Names of tokens whose first use is being written down."""
        self._unsaved: set[str] = set()
        self._stalls = deque[tuple[str, timedelta]]()
        """Those that could not be recorded, as the store was away; the writer's thread adds to it.
        """
        self._terms = self._terms_since(clock.now())
        self._read_to: datetime | None = None
        self._save_at = 0.0
        self._away = False
        self._awaits = True
        """True if a relay may be away that has time to ask after the start, or is away and its host
        not yet held, so nothing starts."""

    def learn(self, changes: Changes) -> None:
        """Follow changes."""
        for name in changes.revoked_tokens:
            self._drop(name)
        for drain in changes.drains:
            if drain.state in {HostState.REBOOTING, HostState.BACK}:
                self._coming_back.add(drain.host)
            else:
                self._coming_back.discard(drain.host)
        holds = [each for each in changes.holds if each.kind is HoldKind.HOST]
        ended = [each for each in changes.released if each.kind is HoldKind.HOST]
        self._held_by_operators.difference_update(each.name for each in (*holds, *ended))
        self._held_by_operators.update(each.name for each in holds if each.by != relays.BY)
        for token in changes.tokens:
            if token.host:
                self._put(token)
                if token.used_at is not None:
                    self._using.discard(token.name)

    def tokens_of(self, host: str) -> list[Token]:
        """Return the valid tokens of a host's relay, the oldest first."""
        own = self._of_host.get(host, {}).values()
        return sorted(own, key=lambda token: token.created_at)

    # What the relays' plane tells.

    def token_of(self, digest: str) -> Token | None:
        """Return the valid token of this digest; None if there is none."""
        return self._by_digest.get(digest)

    def use(self, token: Token) -> None:
        """Note the first use of a token by the relay itself: it voids the one before.

        A look at the documents does not, as somebody may try a new token before the relay has it.
        """
        if token.used_at is None and token.name not in self._using:

            def done(noted: "Future[None]") -> None:
                if noted.exception():  # on the writer's thread: its next use tries again
                    self._using.discard(token.name)

            self._using.add(token.name)
            self._plane.order(use_token, token.name).add_done_callback(done)

    def hear(
        self, host: str, *, version: str, age_seconds: float, machines: int, etag: str
    ) -> datetime:
        """Note a request for the host: its relay is there, and has the document of this ETag.

        The answer is the time of the request, for `expect`.
        """
        now = self._time.now()
        before = self.relays.get(host)
        if before is None or host in self._coming_back:
            self._save_at = 0.0  # the next start, or its drain, has to know it
        self.relays[host] = Relay(
            host=host,
            replica=self._replica,
            version=version,
            started_at=now - timedelta(seconds=age_seconds),
            heard_at=now,
            due_at=now,
            etag=etag,
            machines=machines,
            held_for=before.held_for if before is not None else None,
        )
        self._unsaved.add(host)
        return now

    def is_coming_back(self, host: str) -> bool:
        """Return True if a drain reboots a host, and will check that its relay has asked since."""
        return host in self._coming_back

    def expect(self, host: str, heard_at: datetime, seconds: float) -> None:
        """Note that a relay's next request is expected so many real seconds from now.

        `heard_at` is when the request before it came; if another came since, nothing changes.
        """
        known = self.relays.get(host)
        if known is None or known.replica != self._replica or known.heard_at != heard_at:
            return
        due = self._time.now() + timedelta(seconds=seconds)
        self.relays[host] = replace(known, due_at=due)
        self._unsaved.add(host)

    def changed(self, hosts: Iterable[str]) -> None:
        """Note a change of these hosts, which their relays are to ask for at once."""
        now = self._time.now()
        for host in hosts:
            if host in self._oldest:
                self._behind.setdefault(host, now)

    def stalled(self, host: str, seconds: float) -> None:
        """Note that a host's guests got no answer for this many real seconds, until now."""
        _log.warning("a relay stalled: the notices of its host move later", host=host, s=seconds)
        self._record(host, timedelta(seconds=seconds))

    def _record(self, host: str, length: timedelta) -> None:
        def done(recorded: "Future[int]") -> None:
            if recorded.exception():  # on the writer's thread: the next look tries again
                self._stalls.append((host, length))

        self._plane.order(record_stall, host, length).add_done_callback(done)

    # What follows.

    def may_start(self) -> bool:
        """Return True if anything may start; each transaction asks, on any thread.

        After the start, and after the store was away, nothing does before each relay has asked or
        its host is held for its absence: its guests may neither read nor approve. Nor does anything
        while more hosts are to be held than at once.
        """
        return not self._awaits

    def is_away(self, relay: Relay, now: datetime) -> bool:
        """Return True if a relay that has a token should have asked again by now."""
        return relay.host in self._oldest and relays.is_away(relay, self._terms, now)

    def has_all(self, relay: Relay) -> bool:
        """Return True if a relay has everything that concerns its host."""
        return self._has_all(relay.host, relay.etag)

    def alerts(self) -> list[Alert]:
        """Return alerts of relays that are away, except those of rebooting hosts."""
        found, now = super().alerts(), self._time.now()
        for relay in self.relays.values():
            if self.is_away(relay, now) and relay.host not in self._coming_back:
                message = (
                    f"the relay of host {relay.host} did not ask for it: its guests cannot "
                    "approve, and nothing of the host starts while it is held"
                )
                found.append(Alert(AlertKind.RELAY_AWAY, relay.host, message, relay.heard_at))
        return found

    async def run(self) -> None:
        """Write, read and judge, until `stop`."""
        await super().run()
        if self._unsaved:
            await self._exchange()

    async def _round(self) -> timedelta:
        try:
            await self.look()
        except StoreError as error:
            if not self._away:
                _log.warning("what relays say cannot be shared now", why=str(error))
            self._away = True
        else:
            if self._away:
                self._away = False
                self.settle()
        return LOOK_EVERY

    async def look(self) -> None:
        """Look once; after StoreError the next look does the rest."""
        for _ in range(len(self._stalls)):
            self._record(*self._stalls.popleft())
        now = self._clock.monotonic()
        if now >= self._save_at or self._away:
            shared = self._store.shared
            self._save_at = now + (SAVE_SECONDS if shared else SAVE_ALONE_SECONDS)
            if shared or self._unsaved or self._read_to is None:
                await self._exchange()
        await self._follow_those_behind()
        terms, at = self._terms, self._time.now()
        judged = [one for one in self.relays.values() if one.host not in self._held_by_operators]
        away, back = relays.judge(judged, terms, self.has_all, at)
        is_crowd = len(away) > MAX_AT_ONCE
        self._awaits = self._awaits or is_crowd
        if away or back:
            await self._follow(away[:MAX_AT_ONCE], back[:MAX_AT_ONCE])
        if self._awaits:
            awaited = (relays.is_awaited(one, terms, at) for one in self.relays.values())
            self._awaits = is_crowd or any(awaited)

    async def _follow(self, away: list[tuple[Relay, datetime]], back: list[Relay]) -> None:
        # A host is held for an absence that the store knows of, and a report that was written may
        # be lost in a crash of the database.
        self._unsaved.update(relay.host for relay, _ in away)
        if self._unsaved:
            await self._exchange()
        held = [(*each, self._plane.order(hold, *each)) for each in away]
        freed = [(relay.host, self._plane.order(release, relay.host)) for relay in back]
        for relay, since, future in held:
            with self._settling(relay.host):
                known = await asyncio.wrap_future(future)
                self._take(known)
                if known.held_for != relay.held_for:
                    _log.warning("a relay is away: its host is held", host=relay.host, at=since)
        for host, done in freed:
            with self._settling(host):
                await asyncio.wrap_future(done)
                if host in self.relays:
                    self.relays[host] = replace(self.relays[host], held_for=None)
                _log.info("a relay is back: its host is released", host=host)

    async def _follow_those_behind(self) -> None:
        for number, (host, since) in enumerate([*self._behind.items()], 1):
            relay = self.relays.get(host)
            if relay is None or self.has_all(relay):
                del self._behind[host]
            elif relay.heard_at > since:
                self._behind[host] = relay.heard_at
            if number % JUDGED_AT_ONCE == 0:
                await asyncio.sleep(0)

    @contextmanager
    def _settling(self, host: str) -> Iterator[None]:
        """Contain an error about a host; what is refused is tried again at the next look."""
        with self._contained(f"host {host}"):
            try:
                yield
            except Refused as refusal:
                _log.warning("a relay's host cannot be held or released", why=refusal.message)

    async def _exchange(self) -> None:
        """Write the reports heard here, and read those of others."""
        hosts, self._unsaved = self._unsaved, set()
        heard = [self.relays[host] for host in hosts if host in self.relays]
        since, at = self._read_to, self._time.now()
        try:
            found = await asyncio.to_thread(self._write_and_read, heard, since)
        except BaseException:
            self._unsaved |= hosts
            raise
        self._read_to = at - OVERLAP
        for relay in found.values():
            self._take(self._after_start(relay) if since is None else relay)

    def _write_and_read(self, heard: list[Relay], since: datetime | None) -> dict[str, Relay]:
        if heard:
            self._store.hear(heard, self._at())
        if since is not None and not self._store.shared:
            return {}
        with self._store.read() as reading:
            return reading.relays(since=since)

    def _after_start(self, stored: Relay) -> Relay:
        """Return a relay after a start of this replica: requests that waited here are over."""
        if self._store.shared and stored.replica != self._replica:
            return stored
        due_at = min(stored.due_at, self._terms.began_at)
        return replace(stored, replica=self._replica, due_at=due_at)

    def _take(self, stored: Relay) -> None:
        if stored.host not in self._of_host:
            return
        known = self.relays.get(stored.host)
        if known is None or known.heard_at < stored.heard_at:
            self.relays[stored.host] = stored
        else:
            self.relays[stored.host] = replace(known, held_for=stored.held_for)

    def _terms_since(self, since: datetime) -> RelayTerms:
        return RelayTerms(
            replica=self._replica,
            began_at=since - SETTLE,
            since=since,
            tokens=self._oldest,
            behind=self._behind,
        )

    def _put(self, token: Token) -> None:
        self.tokens[token.name] = self._by_digest[token.digest] = token
        self._of_host.setdefault(token.host, {})[token.name] = token
        self._date(token.host)

    def _drop(self, name: str) -> None:
        token = self.tokens.pop(name, None)
        if token is None:
            return
        del self._by_digest[token.digest], self._of_host[token.host][name]
        self._date(token.host)
        self._using.discard(name)
        self._on_void(token.host)
        if token.host not in self._of_host:
            self.relays.pop(token.host, None)

    def _date(self, host: str) -> None:
        made = [token.created_at for token in self._of_host[host].values()]
        if made:
            self._oldest[host] = min(made)
        else:
            del self._oldest[host], self._of_host[host]

    def settle(self) -> None:
        """Judge no relay before each had time to ask: at the start, and after an outage.

        The store is read again: it may have lost a hold that this process remembers.
        """
        self._read_to = None
        self._terms = self._terms_since(self._time.now() + SETTLE)
        self._awaits = True


# What `Plane.order` does in a transaction; it looks again at what the store has by then.


def create_token(unit: UnitOfWork, token: Token) -> Token:
    """Give a host's relay a new token, beside the one that it uses."""
    made = replace(token, created_at=unit.now)
    void = relays.issue(unit.world.tokens_of(made.host))
    unit.take(Changes(tokens=(made,), revoked_tokens=_names(void)))
    return made


def use_token(unit: UnitOfWork, name: str) -> None:
    """Note that a token was used first: the one that it replaces is void."""
    known = unit.world.tokens.get(name)
    if known is None or known.used_at is not None:
        return
    used = replace(known, used_at=unit.now)
    void = relays.use(unit.world.tokens_of(known.host), used)
    unit.take(Changes(tokens=(used,), revoked_tokens=_names(void)))


def _names(tokens: Iterable[Token]) -> tuple[str, ...]:
    return tuple(token.name for token in tokens)


def revoke_tokens(unit: UnitOfWork, host: str) -> int:
    """Revoke all tokens of a host's relay; a hold for its absence goes, too.

    The answer is how many there were.
    """
    void = _names(unit.world.tokens_of(host))
    if not void:
        message = f"the relay of host {host!r} has no token: see 'forewarn host list'"
        raise Refused(ErrorCode.NOT_FOUND, message, what="host", name=host)
    _release(unit, host)
    unit.take(Changes(revoked_tokens=void))
    unit.store.forget_relay(host)
    return len(void)


def hold(unit: UnitOfWork, relay: Relay, since: datetime) -> Relay:
    """Hold the host of a relay that is away, once for each absence.

    The answer is the relay as the store has it then: heard again, or held for its absence.
    """
    known = unit.store.relays([relay.host]).get(relay.host)
    if known is None or known.heard_at != relay.heard_at or known.held_for == relay.heard_at:
        return known or relay
    if not unit.world.tokens_of(relay.host):
        return relay  # they were revoked a moment ago
    other = _host_hold(unit, relay.host)
    if other is not None and other.by != relays.BY:
        return relay  # an operator holds it: once that is released, this holds it
    if other is None:
        unit.decide(commands.place_hold, _new_hold(relay.host, since, unit.now))
    # Decided first: what a refused job has written by then is committed with its batch.
    unit.store.mark_relay(relay.host, relay.heard_at)
    return replace(known, held_for=relay.heard_at)


def release(unit: UnitOfWork, host: str) -> None:
    """Release the host of a relay that is back, unless an operator did."""
    _release(unit, host)
    unit.store.mark_relay(host, None)


def record_stall(unit: UnitOfWork, host: str, length: timedelta) -> int:
    """Move the notices of a host later: its guests got no answer for so long, until now.

    The answer is how many operations that concerned.
    """
    if _host_hold(unit, host) is not None:
        return 0  # nothing starts, and NotBefore moves on already
    new = _new_hold(host, unit.now - length, unit.now)

    def pause(working: Transitions) -> list[str]:
        held = commands.place_hold(working, new)
        commands.release_hold(working, new)
        return held

    return len(unit.decide(pause).operations)


def _release(unit: UnitOfWork, host: str) -> None:
    held = _host_hold(unit, host)
    if held is not None and held.by == relays.BY:
        unit.decide(commands.release_hold, held)


def _host_hold(unit: UnitOfWork, host: str) -> Hold | None:
    return unit.world.holds.get((HoldKind.HOST, host))


def _new_hold(host: str, since: datetime, now: datetime) -> Hold:
    reason = f"its relay did not ask since {notice.spoken(since)}"
    return Hold(kind=HoldKind.HOST, name=host, reason=reason, by=relays.BY, at=min(since, now))
