"""What each host's relay has to know, and who waits for it.

A relay asks for what changed after a position, and waits. The hub notes for each host which of its
machines and scopes changed last at which number of the outbox, so that an answer is built from what
is there now: a document is always whole, and a relay that gets it twice is none the worse. The
latest changes of all hosts are kept; a relay that was away for longer gets a snapshot.

A machine is a host's if the fleet says so, or if a visible operation moves it there: the relay of
the target knows it before it resumes.

A relay that waits is a future in a set. A change costs only the hosts that have what changed, and a
scope is encoded once for all of them. Used on the event loop alone.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

import msgspec

from forewarn.maintenance import model
from forewarn.maintenance.model import MAX_TEXT, Changes, Machine, Operation
from forewarn.server import relay_feed
from forewarn.server.relay_feed import EncodedNews, GuestRules, ScopeDocument
from forewarn.vocabulary import EventType

MAX_CHANGES: Final = 200_000
"""How many changes of a machine or scope for a host are kept, some 20 MB: a rolling update of
100,000 machines. A relay that has missed more gets a snapshot."""

MAX_WAITING: Final = 4
"""How many requests of one host may wait: a relay has one, and one more while it changes over."""

MAX_CLAIMED: Final = 10_000
"""How many machines may be with a relay that found them there before the fleet knew."""

_Kind = Literal["machine", "scope"]
_Change = tuple[_Kind, str]
"""What changed, by its key."""


class _Host(msgspec.Struct):
    """What is known of a host."""

    machines: dict[str, None] = {}
    """Keys."""
    changed: dict[_Change, int] = {}
    """What changed lately, and the number of its last change."""
    latest: int = 0
    """The number of the last change."""
    kept_after: int = 0
    """Changes with greater numbers are kept."""
    scopes: dict[str, int] = {}
    """How many of its machines each scope has."""
    waiting: "dict[asyncio.Future[bool], None]" = {}
    awaited: tuple[str, ...] = ()
    """Machines whose waiting requests the relay is to answer at once."""
    found: tuple[_Change, ...] = ()
    """Machines that its relay has found there, with their scopes: no row of the outbox tells it."""
    ahead: int = 0
    """How far its relay had come when the store's numbers were lower: it is an older copy."""


class RelayHub:
    """Answers relays; see the module.

    Machines and whole documents are those of other listeners, which are told of a change before it.
    `epoch` returns what changes whenever the store may have lost changes. `alone` is whether no
    other process writes to the store: then none can be ahead of this one.
    """

    def __init__(
        self,
        machines: Mapping[str, Machine],
        whole: Callable[[str], ScopeDocument],
        rules: GuestRules,
        *,
        epoch: Callable[[], str],
        alone: bool,
        most: int = MAX_CHANGES,
    ) -> None:
        self._machines = machines
        self._whole = whole
        self._rules = rules
        # Other settings after a restart are news to every relay, too.
        self._settings = hashlib.sha256(relay_feed.encode(rules)).hexdigest()[:8]
        self._store_epoch = epoch
        self._alone = alone
        self._most = most
        self._epoch = ""
        self._sequence = 0
        """The number up to which all changes are known here."""
        self._start = 0
        """The number up to which they were known when memory was filled."""
        self._kept_after = 0
        """Changes with greater numbers are kept, of all hosts."""
        self._order: deque[tuple[int, str, _Change]] = deque()
        self._hosts: dict[str, _Host] = {}
        """Those that have machines, or a relay that asks."""
        self._gone = 0
        """The number of the last change of the hosts that were forgotten."""
        self._places: dict[str, tuple[str, tuple[str, ...]]] = {}
        """The scope and the hosts of each machine, as they are counted in `_hosts`."""
        self._having: dict[str, dict[str, None]] = {}
        """The hosts that have machines of each scope."""
        self._shown: dict[str, object] = {}
        """What guests see of each visible operation, by id."""
        self._targets: dict[str, dict[str, str]] = {}
        """Where visible operations move a machine to, by its key and theirs."""
        self._pending: dict[str, dict[str, str]] = {}
        """The Scheduled operations of each machine."""
        self._moving: dict[str, Operation] = {}
        """The operations that move machines to hosts that nobody knows yet, by id."""
        self._claimed: dict[str, str] = {}
        """The hosts whose relays have found a machine there that an operation moves."""
        self._encoded: dict[str, msgspec.Raw] = {}
        self.on_change: Callable[[Iterable[str]], None] = lambda _: None
        """Is told of which hosts something changed, before their relays are."""
        self._unmarked: dict[tuple[str, _Change], None] = {}
        """What changed since the last number was told."""

    # What is known.

    def learn(self, changes: Changes) -> None:
        """Follow what changed; relays are answered when `reach` tells its number."""
        for operation in changes.operations:
            self._put(operation)
        for machine in changes.machines:
            self._place(machine.key)
            self._change_machine(machine.key)
        for key in changes.removed_machines:
            self._claimed.pop(key, None)
            self._place(key)
        for scope in changes.scopes:
            self._change_scope(scope.key)
        for key in changes.removed_scopes:
            self._encoded.pop(key, None)

    def reach(self, sequence: int) -> None:
        """Note that all changes up to this number are known, and answer whom they concern."""
        if self._current_epoch() != self._epoch:
            self.begin(sequence)
            return
        self._sequence = max(sequence, self._sequence)
        concerned = {}
        for host, change in self._unmarked:
            known = self._host(host)
            known.changed[change] = known.latest = sequence
            self._order.append((sequence, host, change))
            concerned[host] = known
        self._unmarked.clear()
        self._forget()
        self.on_change(concerned)
        for host, known in concerned.items():
            if not known.waiting:
                self._forget_if_empty(host)
            _wake(known)

    def _current_epoch(self) -> str:
        return f"{self._store_epoch()}-{self._settings}"

    def begin(self, sequence: int) -> None:
        """Count from this number on: every relay gets a snapshot of what is known by now.

        At the start, and after the store has lost changes.
        """
        self._epoch = self._current_epoch()
        self._sequence = self._start = self._kept_after = sequence
        self._gone = 0
        self._order.clear()
        self._unmarked.clear()
        for known in self._hosts.values():
            known.changed.clear()
            known.latest = known.kept_after = 0
            _wake(known)

    def _forget(self) -> None:
        while len(self._order) > self._most:
            sequence, host, change = self._order.popleft()
            self._kept_after = sequence
            known = self._hosts.get(host)
            if known is not None and known.changed.get(change) == sequence:
                del known.changed[change]

    def _host(self, host: str) -> _Host:
        """Return what is known of a host, which is known from now on."""
        new = _Host(latest=self._gone, kept_after=self._gone)
        return self._hosts.setdefault(host, new)

    def _forget_if_empty(self, host: str) -> None:
        """Forget a host without machines; if its relay asks again, it gets a snapshot."""
        known = self._hosts.get(host)
        if known is not None and not known.machines:
            del self._hosts[host]
            self._gone = max(self._gone, known.latest)

    def _put(self, operation: Operation) -> None:
        visible = operation.status.visible
        for name in operation.machines:
            key = model.key(name)
            _mark(self._pending, key, operation.id, "yes" if operation.pending else None)
            if _mark(self._targets, key, operation.id, (visible and operation.to_host) or None):
                self._place(key)
        if visible and _moves(operation) and not operation.to_host and not operation.pending:
            self._moving[operation.id] = operation
        elif self._moving.pop(operation.id, None) is not None:
            for name in operation.machines:
                if self._claimed.pop(model.key(name), None) is not None:
                    self._place(model.key(name))
        shown = operation.shown
        if self._shown.get(operation.id) == shown:
            return  # a claim was made or renewed: guests see nothing of that
        if shown is None:
            self._shown.pop(operation.id)
        else:
            self._shown[operation.id] = shown
        for event in (*operation.events, *operation.dropped):
            if not event.silent:
                self._change_scope(event.scope)

    def _place(self, key: str) -> None:
        """Count a machine at its hosts, in place of those that it had."""
        machine = self._machines.get(key)
        scope, hosts = "", dict[str, None]()
        if machine is not None:
            scope = machine.scope
            found = (machine.host, self._claimed.get(key, ""), *self._targets.get(key, {}).values())
            hosts = dict.fromkeys(filter(None, found))
        before_scope, before = self._places.pop(key, ("", ()))
        if hosts:
            self._places[key] = scope, tuple(hosts)
        for host in before:
            if host not in hosts or scope != before_scope:
                self._leave(host, key, before_scope)
        for host in hosts:
            if host not in before or scope != before_scope:
                self._enter(host, key, scope)

    def _enter(self, host: str, key: str, scope: str) -> None:
        known = self._host(host)
        known.machines[key] = None
        known.scopes[scope] = known.scopes.get(scope, 0) + 1
        self._having.setdefault(scope, {})[host] = None
        self._unmarked[host, ("machine", key)] = None
        self._unmarked[host, ("scope", scope)] = None

    def _leave(self, host: str, key: str, scope: str) -> None:
        known = self._hosts[host]
        known.machines.pop(key)
        known.scopes[scope] -= 1
        if not known.scopes[scope]:
            del known.scopes[scope]
            del self._having[scope][host]
            if not self._having[scope]:
                del self._having[scope]
        self._unmarked[host, ("machine", key)] = None
        self._unmarked[host, ("scope", scope)] = None

    def _change_machine(self, key: str) -> None:
        for host in self._places.get(key, ("", ()))[1]:
            self._unmarked[host, ("machine", key)] = None

    def _change_scope(self, key: str) -> None:
        self._encoded.pop(key, None)
        for host in self._having.get(key, ()):
            self._unmarked[host, ("scope", key)] = None

    # What is asked.

    @property
    def position(self) -> str:
        """The position that relays have that know everything."""
        return f"{self._epoch}.{self._sequence}"

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return sum(len(host.waiting) for host in self._hosts.values())

    def place_of(self, position: str) -> tuple[str, int]:
        """Return a position's epoch and number; `""` and 0 for one that is none of ours."""
        epoch, _, number = position.rpartition(".")
        is_text = 0 < len(epoch) <= MAX_TEXT and epoch.isprintable()
        if is_text and number.isascii() and number.isdigit() and len(number) <= 18:
            return epoch, int(number)
        return "", 0

    def has_all(self, host: str, epoch: str, sequence: int) -> bool:
        """Tell whether a relay that came so far has everything that concerns its host."""
        has_latest = epoch == self._epoch and sequence >= self._latest(host)
        return has_latest and not self._is_of_other_changes(host, sequence)

    def machine(self, host: str, key: str) -> Machine | None:
        """Return a machine of a host; None if it is not there."""
        known = self._hosts.get(host)
        return self._machines.get(key) if known is not None and key in known.machines else None

    def has_scope(self, host: str, key: str) -> bool:
        """Tell whether a host has machines of a scope."""
        known = self._hosts.get(host)
        return known is not None and key in known.scopes

    def is_busy(self, host: str) -> bool:
        """Tell whether an operation of the host's machines is Scheduled."""
        known = self._hosts.get(host)
        return known is not None and any(key in self._pending for key in known.machines)

    def news(self, host: str, after: str) -> bytes | None:
        """Return what changed for a host after a position, encoded; None if nothing did."""
        epoch, sequence = self.place_of(after)
        kept_after, latest = self._kept_after, self._latest(host)
        known = self._hosts.get(host)
        kept_after = latest if known is None else max(kept_after, known.kept_after)
        if epoch != self._epoch or sequence < min(kept_after, latest):
            return self._snapshot(host)
        if sequence != self._sequence and self._is_of_other_changes(host, sequence):
            return self._snapshot(host)
        known = self._hosts.get(host)
        if known is None or not (known.latest > sequence or known.awaited or known.found):
            return None
        found, known.found = known.found, ()
        awaited, known.awaited = known.awaited, ()
        changed = [change for change, number in known.changed.items() if number > sequence]
        changed += (change for change in found if change not in changed)
        if not changed and not awaited:
            return None
        return self._news(host, known, changed, snapshot=False, awaited=awaited)

    def _is_of_other_changes(self, host: str, sequence: int) -> bool:
        """Tell whether a relay's number counts changes that a restored store has lost."""
        if sequence > self._sequence and self._alone:
            self._host(host).ahead = sequence
        known = self._hosts.get(host)
        return known is not None and sequence <= known.ahead

    async def wait(self, host: str, seconds: float, lost: "asyncio.Future[None]") -> bool:
        """Wait until something of a host changes; return whether it did in time.

        `lost` is done once its relay's connection is lost: the wait ends then, too.
        """
        known = self._host(host)
        while len(known.waiting) >= MAX_WAITING:
            oldest = next(iter(known.waiting))
            del known.waiting[oldest]
            if not oldest.done():
                oldest.set_result(False)
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[bool] = loop.create_future()
        known.waiting[waiting] = None
        timer = loop.call_later(seconds, _end, waiting)

        def leave(_: "asyncio.Future[None]") -> None:
            _end(waiting)

        lost.add_done_callback(leave)
        try:
            return bool(await waiting)
        finally:
            timer.cancel()
            lost.remove_done_callback(leave)
            known.waiting.pop(waiting, None)

    def wake(self, host: str) -> None:
        """End the waits of a host, of which a relay's token is not valid any more."""
        if (known := self._hosts.get(host)) is not None:
            _wake(known)
            self._forget_if_empty(host)

    def wake_all(self) -> None:
        """End all waits."""
        for known in self._hosts.values():
            _wake(known)

    def claim(self, host: str, listener: str, address: str) -> bytes | None:
        """Return the News of a machine that moves to a host nobody told; None if none has this.

        Its relay has heard from it: until the operation is over, the machine is that host's.
        """
        if len(self._claimed) >= MAX_CLAIMED:
            return None
        for operation in self._moving.values():
            for name in operation.machines:
                machine = self._machines.get(model.key(name))
                if machine is None or (machine.listener, machine.address) != (listener, address):
                    continue
                self._claimed[machine.key] = host
                self._place(machine.key)
                known = self._hosts[host]
                changed: list[_Change] = [("machine", machine.key), ("scope", machine.scope)]
                known.found = (*known.found, *changed)
                _wake(known)
                return self._news(host, known, changed, snapshot=False)
        return None

    def ask_again(self, operation: Operation) -> None:
        """Have relays end the waiting requests of the machines that an operation awaits.

        Of relays that wait for news: who does not is told when it is asked for again.
        """
        for key in map(model.key, operation.awaited):
            for host in self._places.get(key, ("", ()))[1]:
                known = self._hosts[host]
                if known.waiting or (known.awaited and key not in known.awaited):
                    known.awaited = (*known.awaited, key)
                    _wake(known)

    def _latest(self, host: str) -> int:
        known = self._hosts.get(host)
        return max(self._start, known.latest if known is not None else self._gone)

    def _snapshot(self, host: str) -> bytes:
        known = self._hosts.get(host) or _Host()
        changed: list[_Change] = [("machine", key) for key in known.machines]
        changed += [("scope", key) for key in known.scopes]
        return self._news(host, known, changed, snapshot=True)

    def _news(
        self,
        host: str,
        known: _Host,
        changed: list[_Change],
        *,
        snapshot: bool,
        awaited: tuple[str, ...] = (),
    ) -> bytes:
        machines, removed_machines, scopes, removed_scopes = [], [], [], []
        for kind, key in changed:
            if kind == "machine":
                if key in known.machines:
                    machines.append(self._machines[key])
                else:
                    removed_machines.append(key)
            elif key in known.scopes:
                scopes.append(self._encode(key))
            else:
                removed_scopes.append(key)
        news = EncodedNews(
            host=host,
            position=self.position,
            snapshot=snapshot,
            machines=tuple(machines),
            removed_machines=tuple(removed_machines),
            scopes=tuple(scopes),
            removed_scopes=tuple(removed_scopes),
            rules=self._rules if snapshot else None,
            awaited=awaited,
        )
        return relay_feed.encode(news)

    def _encode(self, key: str) -> msgspec.Raw:
        encoded = self._encoded.get(key)
        if encoded is None:
            encoded = self._encoded[key] = msgspec.Raw(relay_feed.encode(self._whole(key)))
        return encoded


def _moves(operation: Operation) -> bool:
    return operation.event_type is EventType.REDEPLOY or operation.live_migration


def _mark(known: dict[str, dict[str, str]], key: str, operation: str, value: str | None) -> bool:
    """Note what an operation is to a machine, nothing for None; return whether that is new."""
    of_it = known.get(key, {})
    if of_it.get(operation) == value:
        return False
    if value is None:
        del of_it[operation]
        if not of_it:
            del known[key]
    else:
        known.setdefault(key, {})[operation] = value
    return True


def _wake(known: _Host) -> None:
    for waiting in known.waiting:
        if not waiting.done():
            waiting.set_result(True)
    known.waiting.clear()


def _end(waiting: "asyncio.Future[bool]") -> None:
    if not waiting.done():
        waiting.set_result(False)
