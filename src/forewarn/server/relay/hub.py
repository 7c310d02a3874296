"""Each host's document for its relay, and the requests that wait for it.

A relay has its host whole: it asks by the ETag of its document, waits, and gets all of it once that
has changed. So nobody counts changes, and a relay that was away for long is one that was away for a
moment.

An ETag is `EPOCH.NUMBER.DIGEST`, which only the service reads. The digest of the document alone
shows if anything changed; it is the same at each replica, and after a restart. The number is that
of the last change in the outbox by then, within an epoch that changes when the store may have lost
changes. A replica with a lower one is behind: it lets the relay wait until it has caught up, so no
relay is ever taken back.

A machine is a host's if the fleet says so, or if a visible operation moves it there: the relay of
the target knows it before it resumes. Until that is over it is in the documents of both.

A relay that waits is a future in a set. A change costs only the hosts that have the changed values;
a scope is encoded once for all of them, and a host once for each change. Used on the event loop
alone.
"""

import asyncio
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from forewarn.maintenance import model
from forewarn.maintenance.model import Changes, Machine, Operation
from forewarn.maintenance.world import Index
from forewarn.server import relay_feed
from forewarn.server.relay_feed import MAX_ETAG, EncodedHost, GuestRules, ScopeDocument
from forewarn.vocabulary import EventStatus, EventType

DIGEST_BYTES: Final = 16
"""The length of a digest: two documents of a host do not have the same one by chance."""

MAX_WAITING: Final = 4
"""The most requests of one host that may wait: a relay has one, and one more while it changes over.
"""

WOKEN_AT_ONCE: Final = 8
"""The hosts whose relays are answered in one round of the loop, in some milliseconds: a change of a
scope may concern a thousand hosts with 70 KiB each, and guests are answered meanwhile."""

MAX_CLAIMED: Final = 10_000
"""The most machines with a relay that found them there before the fleet knew."""


class HostTag(msgspec.Struct, frozen=True):
    """An ETag, taken apart."""

    epoch: str
    number: int
    digest: str

    def __str__(self) -> str:
        """Return it as relays read it."""
        return f"{self.epoch}.{self.number}.{self.digest}"


NO_TAG: Final = HostTag("", 0, "")


def tag_of(etag: str) -> HostTag:
    """Return an ETag taken apart, NO_TAG for one that no replica made."""
    parts = etag.rsplit(".", 2)
    if len(parts) == 3 and len(etag) <= MAX_ETAG and etag.isascii() and etag.isprintable():
        epoch, number, digest = parts
        if epoch and number.isdigit() and len(number) <= 18 and len(digest) == 2 * DIGEST_BYTES:
            return HostTag(epoch, int(number), digest)
    return NO_TAG


class _Host(msgspec.Struct):
    """A host's machines, scopes and waiting requests."""

    machines: dict[str, None] = {}
    """Keys."""
    scopes: dict[str, int] = {}
    """The number of its machines in each scope."""
    waiting: "dict[asyncio.Future[bool], None]" = {}
    digest: str = ""
    """The digest of its current document; `""` until it is needed."""


@dataclass(eq=False, repr=False)
class RelayHub:
    """Answers relays; see the module.

    Machines and whole documents are those of other listeners, which learn of a change before it.
    """

    machines: Mapping[str, Machine]
    whole: Callable[[str], ScopeDocument]
    rules: GuestRules
    epoch: Callable[[], str]
    """Returns a text that changes whenever the store may have lost changes."""
    alone: bool
    """True if no other process writes to the store: then this one is never behind."""
    on_change: Callable[[Iterable[str]], None] = lambda _: None
    """Called with the hosts of a change, before their relays are answered."""
    on_lost: Callable[[], None] = lambda: None
    """Called once the store may have lost changes."""
    _epoch: str = ""
    _sequence: int = 0
    """The number up to which all changes are known here."""
    _hosts: dict[str, _Host] = field(default_factory=dict)
    """Those that have machines, or a relay that asks."""
    _places: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    """The scope and the hosts of each machine, as they are counted in `_hosts`."""
    _having: Index = field(default_factory=Index)
    """The hosts that have machines of each scope."""
    _visible: dict[str, Operation] = field(default_factory=dict)
    """The operations that guests see, by id."""
    _of_machine: Index = field(default_factory=Index)
    """Their ids by the keys of their machines."""
    _moving: dict[str, Operation] = field(default_factory=dict)
    """The operations that move machines to hosts that nobody knows yet, by id."""
    _claimed: dict[str, str] = field(default_factory=dict)
    """The hosts whose relays have found a machine there that an operation moves."""
    _encoded: dict[str, msgspec.Raw] = field(default_factory=dict)
    _concerned: dict[str, None] = field(default_factory=dict)
    """The hosts with a change since the last number was reached."""
    _woken: dict[str, None] = field(default_factory=dict)
    """The hosts whose relays are to be answered, in turn."""

    # What is known.

    def learn(self, changes: Changes) -> None:
        """Follow changes; relays are answered when `reach` gets their number."""
        for operation in changes.operations:
            self._put(operation)
        for machine in changes.machines:
            self._place(machine.key)
            self._concern(machine.key)
        for key in changes.removed_machines:
            self._claimed.pop(key, None)
            self._place(key)
        for scope in changes.scopes:
            self._change_scope(scope.key)
        for key in changes.removed_scopes:
            self._encoded.pop(key, None)

    def reach(self, sequence: int) -> None:
        """Note that all changes up to this number are known, and answer the relays concerned."""
        if self.epoch() != self._epoch:
            self.begin(sequence)
            self.on_lost()
            self._concerned.update(dict.fromkeys(self._hosts))
        self._sequence = max(sequence, self._sequence)
        concerned, self._concerned = self._concerned, {}
        self.on_change(concerned)
        for host in concerned:
            if (known := self._hosts.get(host)) is not None:
                known.digest = ""
                self._forget_if_empty(host)
        self._wake_in_turn(concerned)

    def begin(self, sequence: int) -> None:
        """Count from this number on, at the start and after the store has lost changes."""
        self._epoch = self.epoch()
        self._sequence = sequence
        self._concerned.clear()

    def _host(self, host: str) -> _Host:
        return self._hosts.setdefault(host, _Host())

    def _forget_if_empty(self, host: str) -> None:
        known = self._hosts.get(host)
        if known is not None and not (known.machines or known.waiting):
            del self._hosts[host]

    def _put(self, operation: Operation) -> None:
        """Replace an operation; machines may have dropped out of it."""
        before = self._visible.pop(operation.id, None)
        after = operation if operation.status.visible else None
        had, has = _machines_of(before), _machines_of(after)
        for key in had.keys() - has.keys():
            self._of_machine.drop(key, operation.id)
        moves = after is not None and _moves(after)
        for key in had if operation.id in self._moving else ():
            if not moves or key not in has:
                self._claimed.pop(key, None)
        self._moving.pop(operation.id, None)
        if after is not None:
            self._visible[operation.id] = after
            for key in has:
                self._of_machine.add(key, operation.id)
            if moves:
                self._moving[operation.id] = after
        for key in had | has:
            self._place(key)
        for key in _awaited_of(before) ^ _awaited_of(after):
            self._concern(key)
        for scope in operation.moved_from(before):
            self._change_scope(scope)

    def _place(self, key: str) -> None:
        """Count a machine at its hosts, in place of its earlier ones."""
        machine = self.machines.get(key)
        scope, hosts = "", dict[str, None]()
        if machine is not None:
            scope = machine.scope
            targets = (each.to_host for each in self._operations_of(key))
            found = (machine.host, self._claimed.get(key, ""), *targets)
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
        self._having.add(scope, host)
        self._concerned[host] = None

    def _leave(self, host: str, key: str, scope: str) -> None:
        known = self._hosts[host]
        known.machines.pop(key)
        known.scopes[scope] -= 1
        if not known.scopes[scope]:
            del known.scopes[scope]
            self._having.drop(scope, host)
        self._concerned[host] = None

    def _concern(self, key: str) -> None:
        self._concerned.update(dict.fromkeys(self._places.get(key, ("", ()))[1]))

    def _change_scope(self, key: str) -> None:
        self._encoded.pop(key, None)
        self._concerned.update(dict.fromkeys(self._having.of(key)))

    def _operations_of(self, key: str) -> Iterator[Operation]:
        return map(self._visible.__getitem__, self._of_machine.of(key))

    # What is asked.

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return sum(len(host.waiting) for host in self._hosts.values())

    def has_all(self, host: str, etag: str) -> bool:
        """Return True if a relay with this ETag has everything of its host."""
        known = self._hosts.get(host)
        digest = known.digest if known is not None and known.digest else self._document(host)[0]
        return tag_of(etag).digest == digest

    def machine(self, host: str, key: str) -> Machine | None:
        """Return a machine of a host; None if it is not there."""
        known = self._hosts.get(host)
        return self.machines.get(key) if known is not None and key in known.machines else None

    def has_scope(self, host: str, key: str) -> bool:
        """Return True if a host has machines of a scope."""
        known = self._hosts.get(host)
        return known is not None and key in known.scopes

    def is_busy(self, host: str) -> bool:
        """Return True if an operation of the host's machines is Scheduled."""
        known = self._hosts.get(host)
        return known is not None and any(
            operation.pending for key in known.machines for operation in self._operations_of(key)
        )

    def changed(self, host: str, etag: str) -> tuple[str, bytes] | None:
        """Return a host's ETag and encoded document, None for a relay that has to wait for it.

        It waits if it has all of it, or knows of changes that this replica does not know yet.
        """
        has = tag_of(etag)
        if has.epoch == self._epoch and has.number > self._sequence and not self.alone:
            return None
        known = self._hosts.get(host)
        if known is not None and known.digest and known.digest == has.digest:
            return None
        digest, body = self._document(host)
        tag = HostTag(self._epoch, self._sequence, digest)
        return None if digest == has.digest else (str(tag), body)

    def _document(self, host: str) -> tuple[str, bytes]:
        """Return the digest and the encoded document of a host."""
        known = self._hosts.get(host) or _Host()
        machines = sorted(known.machines)
        concerning = {name for key in machines for name in self._of_machine.of(key)}
        awaited = set[str]().union(*(_awaited_of(self._visible[name]) for name in concerning))
        document = EncodedHost(
            host=host,
            machines=tuple(self.machines[key] for key in machines),
            scopes=tuple(map(self._encode, sorted(known.scopes))),
            rules=self.rules,
            awaited=tuple(key for key in machines if key in awaited),
        )
        body = relay_feed.encode(document)
        known.digest = hashlib.blake2b(body, digest_size=DIGEST_BYTES).hexdigest()
        return known.digest, body

    async def wait(self, host: str, seconds: float, lost: "asyncio.Future[None]") -> bool:
        """Wait until something of a host changes; return True if it did in time.

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
            self._forget_if_empty(host)

    def wake(self, host: str) -> None:
        """End the waits of a host: something changed there, or a token is no longer valid."""
        known = self._hosts.get(host)
        if known is None:
            return
        for waiting in known.waiting:
            if not waiting.done():
                waiting.set_result(True)
        known.waiting.clear()
        self._forget_if_empty(host)

    def wake_all(self) -> None:
        """End all waits, in turn."""
        self._wake_in_turn(self._hosts)

    def _wake_in_turn(self, hosts: Iterable[str]) -> None:
        is_under_way = bool(self._woken)
        waiting = (host for host in hosts if host in self._hosts and self._hosts[host].waiting)
        self._woken.update(dict.fromkeys(waiting))
        if not is_under_way:
            self._wake_some()

    def _wake_some(self) -> None:
        hosts = [*itertools.islice(self._woken, WOKEN_AT_ONCE)]
        for host in hosts:
            del self._woken[host]
        if self._woken:  # first, as a fault with one host must not be the end of the others' turns
            asyncio.get_running_loop().call_soon(self._wake_some)
        for host in hosts:
            self.wake(host)

    def claim(self, host: str, listener: str, address: str) -> bool:
        """Count a machine on its way to an unknown host as this host's; False if there is none.

        Its relay has heard from that address: until the operation is over, the machine is there.
        """
        if len(self._claimed) >= MAX_CLAIMED:
            return False
        for operation in self._moving.values():
            for name in operation.machines:
                machine = self.machines.get(model.key(name))
                if machine is None or (machine.listener, machine.address) != (listener, address):
                    continue
                self._claimed[machine.key] = host
                self._place(machine.key)
                known = self._hosts[host]
                known.digest = ""  # no row of the outbox tells it
                self.wake(host)
                return True
        return False

    def _encode(self, key: str) -> msgspec.Raw:
        encoded = self._encoded.get(key)
        if encoded is None:
            encoded = self._encoded[key] = msgspec.Raw(relay_feed.encode(self.whole(key)))
        return encoded


def _moves(operation: Operation) -> bool:
    """Return True if it is moving its machines to hosts that nobody knows yet."""
    moves = operation.event_type is EventType.REDEPLOY or operation.live_migration
    return moves and not operation.to_host and not operation.pending


def _machines_of(operation: Operation | None) -> dict[str, None]:
    return dict.fromkeys(map(model.key, operation.machines if operation else ()))


def _awaited_of(operation: Operation | None) -> set[str]:
    returns = operation is not None and operation.status is EventStatus.RETURNING
    return set(map(model.key, operation.awaited)) if operation and returns else set()


def _end(waiting: "asyncio.Future[bool]") -> None:
    if not waiting.done():
        waiting.set_result(False)
