"""All live state, as values in memory, with its indexes.

A decision looks at the World and nothing else, so it cannot miss what nobody thought of reading. It
has every scope, machine, hold, drain and token; the operations that are live, and the maintenance
that is open. The rest is history: a command that names such a value recalls it until the
transaction ends.

Each table notes in one journal the values that a change replaces, so that a decision or a whole
transaction can be undone. A World belongs to one thread. The order of its values and names means
nothing: code that picks one of several sorts first.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from datetime import UTC, datetime
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, NoReturn, TypeAlias, TypeVar

import msgspec

from forewarn.maintenance.accounts import Token
from forewarn.maintenance.model import (
    HOLD_ORDER,
    Changes,
    Drain,
    Hold,
    HoldKind,
    Machine,
    Maintenance,
    Operation,
    Scope,
    Tombstone,
    key,
)
from forewarn.vocabulary import EventStatus

K = TypeVar("K")
V = TypeVar("V")

NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})

MAX_RETIRED: Final = 10_000
"""The most removed scopes whose last incarnations are kept: a fleet that grows and shrinks by ever
new names must not be remembered for ever. Of the lowest a tenth goes at once."""

OTHERS: Final = ""
"""The key in `retired` of all removed scopes that are not kept: the highest of their incarnations,
above which every new scope begins from then on."""

Name: TypeAlias = "tuple[str, Any]"
"""The identity of one value of the World: its table and its key."""


class IndexBroken(Exception):  # noqa: N818 - what happened: the World is to be filled again
    """An index failed half way, because of a defect: the earlier values cannot be restored."""


class Index(dict[Any, Any]):
    """The keys that share a name: the key itself where it is alone, else a dict of them.

    A fleet of single machines has as many scopes as machines, and needs no dict for each.
    """

    def add(self, name: object, one: object) -> None:
        """Add a key to a name."""
        had = self.setdefault(name, one)
        if type(had) is dict:
            had[one] = None
        elif had != one:
            self[name] = {had: None, one: None}

    def drop(self, name: object, one: object) -> None:
        """Take a key from a name that has it."""
        had = self[name]
        if type(had) is dict:
            del had[one]
            if len(had) == 1:
                self[name] = next(iter(had))
        else:
            assert had == one
            del self[name]

    def move(self, one: object, before: Set[str], after: Set[str]) -> None:
        """Give a key these names instead of those that it has."""
        for name in before - after:
            self.drop(name, one)
        for name in after - before:
            self.add(name, one)

    def of(self, name: object) -> tuple[Any, ...]:
        """Return the keys that have a name."""
        had = self.get(name)
        return () if had is None else tuple(had) if type(had) is dict else (had,)


class Table(dict[K, V]):
    """The values of one kind by key."""

    def __init__(
        self,
        kind: str,
        journal: list[Any],
        index: Callable[[Any, Any], None],
    ) -> None:
        super().__init__()
        self.kind = kind
        self._journal = journal
        self._index = index

    def fill(self, values: Mapping[K, V]) -> None:
        """Take over what the store has, without a note."""
        super().update(values)
        for value in values.values():
            self._index(None, value)

    def __setitem__(self, name: K, value: V) -> None:
        """Set a value."""
        old = self.get(name)
        self._journal.append((self, name, old))
        super().__setitem__(name, value)
        self._find(old, value)

    def __delitem__(self, name: K) -> None:
        """Take a value out."""
        old = self[name]
        self._journal.append((self, name, old))
        super().__delitem__(name)
        self._find(old, None)

    def put_back(self, name: K, old: V | None) -> None:
        """Set the value that there was, or none, without a note."""
        found = self.get(name)
        if old is None:
            dict.pop(self, name, None)
        else:
            super().__setitem__(name, old)
        if found is not old:
            self._index(found, old)

    def _find(self, old: V | None, new: V | None) -> None:
        try:
            self._index(old, new)
        except BaseException:
            self._journal.append(None)
            raise

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("set and delete one value at a time: the journal has to know")

    pop = popitem = update = setdefault = clear = __ior__ = _refuse


class Times(Generic[K, V]):
    """The values of a table that have a time of some kind, by that time."""

    def __init__(self, values: Mapping[K, V], at_of: Callable[[V], datetime | None]) -> None:
        self._values = values
        self._at_of = at_of
        self._heap: list[tuple[datetime, K]] = []
        """An entry counts while its value still has that time."""

    def note(self, name: K, value: V) -> None:
        """Take over a value's time."""
        if (at := self._at_of(value)) is not None:
            heapq.heappush(self._heap, (at, name))
        if len(self._heap) > 4 * len(self._values) + 1000:
            known = ((self._at_of(each), name) for name, each in self._values.items())
            self._heap = [(at, name) for at, name in known if at is not None]
            heapq.heapify(self._heap)

    def first(self) -> datetime | None:
        """Return the earliest time."""
        while self._heap and not self._counts(*self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: datetime, limit: int) -> list[K]:
        """Return the keys of up to `limit` values whose time has come, the earliest first."""
        found: dict[K, datetime] = {}
        while self._heap and self._heap[0][0] <= now and len(found) < limit:
            at, name = heapq.heappop(self._heap)
            if self._counts(at, name):
                found[name] = at
        for name, at in found.items():  # until it has gone on
            heapq.heappush(self._heap, (at, name))
        return [*found]

    def _counts(self, at: datetime, name: K) -> bool:
        value = self._values.get(name)
        return value is not None and self._at_of(value) == at


class Kind(NamedTuple):
    """A kind of value in Changes: its key, and the field for those that are removed."""

    key_of: Callable[[Any], Any]
    gone: str = ""


KINDS: Final[Mapping[str, Kind]] = {
    "scopes": Kind(attrgetter("key"), "removed_scopes"),
    "machines": Kind(attrgetter("key"), "removed_machines"),
    "maintenances": Kind(attrgetter("number")),
    "operations": Kind(attrgetter("id")),
    "holds": Kind(attrgetter("kind", "name"), "released"),
    "tombstones": Kind(attrgetter("key"), "revived"),
    "drains": Kind(attrgetter("host")),
    "tokens": Kind(attrgetter("name"), "revoked_tokens"),
}
"""By the field of Changes for new values, and the table of the World."""


class LiveState(msgspec.Struct, frozen=True):
    """All live state as plain tables, by key: the content of a World."""

    scopes: Mapping[str, Scope] = NOTHING
    machines: Mapping[str, Machine] = NOTHING
    operations: Mapping[str, Operation] = NOTHING
    maintenances: Mapping[int, Maintenance] = NOTHING
    """Those that are open."""
    holds: Mapping[tuple[HoldKind, str], Hold] = NOTHING
    drains: Mapping[str, Drain] = NOTHING
    tokens: Mapping[str, Token] = NOTHING
    tombstones: Mapping[str, Tombstone] = NOTHING
    retired: Mapping[str, int] = NOTHING
    """The last incarnations of removed scopes that ever had an event, and of OTHERS."""


class World:
    """All live state."""

    def __init__(self, state: LiveState = LiveState()) -> None:  # noqa: B008 - frozen
        self._journal: list[tuple[Table[Any, Any], Any, Any] | None] = []
        self._recalled: dict[str, Operation] = {}
        """The operations that were recalled in this transaction, as they were then."""
        self.members, self.on_host = Index(), Index()
        """The keys of machines by their scope; by their host, as it is written."""
        self.live_in_scope, self.live_of_machine, self.live_of_host = Index(), Index(), Index()
        """The ids of live operations by scope; by machine, its own and those that keep it from
        starting; by the host that was ordered."""
        self.down_in_scope = Index()
        """The ids of the operations that are down (`Operation.down`) by scope."""
        self.of_event, self.of_maintenance = Index(), Index()
        """The ids of operations by their events, also dropped ones; by maintenance."""
        self.waiting_for = Index()
        """The ids of operations that wait for one."""
        self.started: dict[str, None] = {}
        self.tally = 0
        """The number of live values, and the sum of all incarnations: Worlds that are equal have
        the same."""
        self.scopes: Table[str, Scope] = self._table("scopes")
        self.machines: Table[str, Machine] = self._table("machines", self._index_machine)
        self.operations: Table[str, Operation] = self._table("operations", self._index_operation)
        self._wakeups = Times(self.operations, attrgetter("wakeup_at"))
        self._leases = Times(self.operations, attrgetter("lease_until"))
        self._unclaimed = Times(self.operations, _free_since)
        self.maintenances: Table[int, Maintenance] = self._table("maintenances")
        self.holds: Table[tuple[HoldKind, str], Hold] = self._table("holds", self._index_hold)
        self._hold_ends = Times(self.holds, attrgetter("until"))
        self.tombstones: Table[str, Tombstone] = self._table("tombstones")
        self.retired: Table[str, int] = self._table("retired")
        self.drain_of_machine, self.drain_to_host = Index(), Index()
        """The hosts whose drains go on, by the machines (keys) that leave them; by the hosts that
        these move to."""
        self.drains: Table[str, Drain] = self._table("drains", self._index_drain)
        self.tokens_of_host = Index()
        """The names of relays' tokens by host."""
        self.tokens: Table[str, Token] = self._table("tokens", self._index_token)
        for kind in state.__struct_fields__:
            getattr(self, kind).fill(getattr(state, kind))

    def _table(
        self, kind: str, index: Callable[[Any, Any], None] = lambda _, __: None
    ) -> Table[Any, Any]:
        weigh = _WEIGHTS.get(kind, _one)

        def find(old: Any, new: Any) -> None:  # noqa: ANN401 - of that kind
            index(old, new)
            self.tally += (new is not None and weigh(new)) - (old is not None and weigh(old))

        return Table(kind, self._journal, find)

    # Where things are found.

    def live_in(self, scope: str) -> list[Operation]:
        """Return the live operations of a scope, by its key."""
        return [self.operations[name] for name in self.live_in_scope.of(scope)]

    def down_in(self, scope: str) -> list[Operation]:
        """Return the operations whose update domains of a scope, by its key, are down."""
        return [self.operations[name] for name in self.down_in_scope.of(scope)]

    def live_on(self, machine: str) -> list[Operation]:
        """Return the live operations of a machine, by its key, and those it keeps from starting."""
        return [self.operations[name] for name in self.live_of_machine.of(machine)]

    def machines_of(self, scope: str) -> list[Machine]:
        """Return the machines of a scope, by its key."""
        return [self.machines[name] for name in self.members.of(scope)]

    def machines_on(self, host: str) -> list[Machine]:
        """Return the machines on a host; `""` finds those whose host is unknown."""
        return [self.machines[name] for name in self.on_host.of(host)]

    def tokens_of(self, host: str) -> list[Token]:
        """Return the tokens of a host's relay."""
        return [self.tokens[name] for name in self.tokens_of_host.of(host)]

    def latest_incarnation(self, scope: str) -> int:
        """Return the incarnation of a scope, by its key: its last one where it was removed.

        Of a scope that is not known, it is at least that; 0 where it never had an event.
        """
        known = self.scopes.get(scope)
        others = self.retired.get(OTHERS, 0)
        return self.retired.get(scope, others) if known is None else known.incarnation

    def next_wakeup(self) -> datetime | None:
        """Return the earliest time at which an operation is due, or a hold ends."""
        return min(filter(None, (self._wakeups.first(), self._hold_ends.first())), default=None)

    def due(self, now: datetime, limit: int) -> list[str]:
        """Return up to `limit` operations whose time has come, the earliest first."""
        return self._wakeups.due(now, limit)

    def holds_in_order(self) -> tuple[Hold, ...]:
        """Return all holds, the oldest first, those of one instant by kind and name."""
        return tuple(sorted(self.holds.values(), key=HOLD_ORDER))

    def expired_holds(self, now: datetime) -> list[Hold]:
        """Return the holds whose time is over, the first to end first."""
        return [self.holds[name] for name in self._hold_ends.due(now, len(self.holds))]

    def claimable(self, now: datetime, limit: int) -> list[str]:
        """Return up to `limit` operations that may be claimed, the first started first.

        They are Started and not under an unexpired lease, and their outcome is not in doubt: an
        executor may claim one in doubt only after an operator has resolved it.
        """
        free = (*self._leases.due(now, limit), *self._unclaimed.due(_EVER, limit))
        return sorted(free, key=lambda name: _claim_order(self.operations[name]))[:limit]

    # What a decision and a transaction do.

    def recall(self, operation: Operation) -> None:
        """Put an operation of the history into the World until the transaction ends."""
        if operation.id not in self.operations:
            self._recalled[operation.id] = operation
            self.operations[operation.id] = operation

    def mark(self) -> int:
        """Return the place of the journal, for `since` and `undo`."""
        return len(self._journal)

    @contextmanager
    def supposing(self) -> Iterator[None]:
        """Undo every change of the block at its end."""
        mark = self.mark()
        try:
            yield
        finally:
            self.undo(mark)

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Undo every change of the block if it raises."""
        mark = self.mark()
        try:
            yield
        except BaseException:
            self.undo(mark)
            raise

    def since(self, mark: int) -> dict[Name, Any]:
        """Return the earlier value of all that has changed since a mark; None for a new one."""
        first: dict[Name, Any] = {}
        for entry in self._journal[mark:]:
            if entry is None:
                raise IndexBroken
            table, name, old = entry
            first.setdefault((table.kind, name), old)
        differs = {}
        for (kind, name), old in first.items():
            if kind == "operations" and old is None:
                old = self._recalled.get(name)  # noqa: PLW2901 - recalled since then
            if getattr(self, kind).get(name) != old:
                differs[kind, name] = old
        return differs

    def changes(self, before: Mapping[Name, Any]) -> Changes:
        """Return the changes that lead to now from the values of `since`, except `retired`."""
        found: dict[str, list[Any]] = {}
        for (kind, name), old in before.items():
            new = getattr(self, kind).get(name)
            if kind == "retired":
                continue
            if old is not None and (new is None or kind == "holds"):
                found.setdefault(KINDS[kind].gone, []).append(old if kind == "holds" else name)
            if new is not None:
                found.setdefault(kind, []).append(new)
        return Changes(**{kind: tuple(values) for kind, values in found.items()})

    def take(self, changes: Changes) -> None:
        """Take over what a decision, or another process, has changed."""
        _remove(self.retired, [scope.key for scope in changes.scopes])
        _remove(self.holds, map(KINDS["holds"].key_of, changes.released))
        _remove(self.tombstones, changes.revived)
        _remove(self.tokens, changes.revoked_tokens)
        for kind, (key_of, _) in KINDS.items():
            table: Table[Any, Any] = getattr(self, kind)
            for value in getattr(changes, kind):
                table[key_of(value)] = value
        _remove(self.machines, changes.removed_machines)
        for name in changes.removed_scopes:
            if (gone := self.scopes.get(name)) is not None:
                if gone.incarnation > 0:
                    self.retired[name] = gone.incarnation
                del self.scopes[name]
        if len(self.retired) > MAX_RETIRED:  # each replica forgets the same
            others = self.retired.get(OTHERS, 0)
            lowest = sorted((last, name) for name, last in self.retired.items() if name != OTHERS)
            for last, name in lowest[: len(lowest) - MAX_RETIRED * 9 // 10]:
                del self.retired[name]
                others = max(others, last)
            self.retired[OTHERS] = others

    def undo(self, mark: int = 0) -> None:
        """Put back what was there at a mark.

        Raises:
            IndexBroken: By a defect that cannot be done: fill another World.
        """
        while len(self._journal) > mark:
            entry = self._journal.pop()
            if entry is None:
                raise IndexBroken
            table, name, old = entry
            table.put_back(name, old)
            if table is self.operations and old is None:
                self._recalled.pop(name, None)

    def before(self) -> LiveState:
        """Return the state before this transaction; the indexes may be broken."""
        found: dict[str, dict[Any, Any]] = {
            kind: {**getattr(self, kind)} for kind in LiveState.__struct_fields__
        }
        for table, name, old in filter(None, reversed(self._journal)):
            found[table.kind][name] = old
        return LiveState(
            **{
                kind: {name: one for name, one in values.items() if one is not None}
                for kind, values in found.items()
            }
        )

    def settle(self) -> None:
        """Keep what was changed: it is committed. What is over is history from now on."""
        touched = {(table.kind, name) for table, name, _ in filter(None, self._journal)}
        for kind, name in touched:
            if kind == "operations":
                operation = self.operations.get(name)
                if operation is not None and not operation.live:
                    self.operations.put_back(name, None)
            elif kind == "maintenances":
                maintenance = self.maintenances.get(name)
                if maintenance is not None and not maintenance.open:
                    self.maintenances.put_back(name, None)
        self._journal.clear()
        self._recalled.clear()

    # The indexes.

    def _index_machine(self, old: Machine | None, new: Machine | None) -> None:
        if old and new and old.scope == new.scope and old.host == new.host:
            return
        for change, one in ((Index.drop, old), (Index.add, new)):
            if one:
                name = one.key
                change(self.members, one.scope, name)
                change(self.on_host, one.host, name)

    def _index_hold(self, _: Hold | None, new: Hold | None) -> None:
        if new:
            self._hold_ends.note((new.kind, new.name), new)

    def _index_token(self, old: Token | None, new: Token | None) -> None:
        if old and old.host:
            self.tokens_of_host.drop(old.host, old.name)
        if new and new.host:
            self.tokens_of_host.add(new.host, new.name)

    def _index_drain(self, old: Drain | None, new: Drain | None) -> None:
        one = new or old
        assert one is not None
        places = (self.drain_of_machine, self.drain_to_host)
        for place, before, after in zip(places, _guests(old), _guests(new), strict=True):
            place.move(one.host, before, after)

    def _index_operation(self, old: Operation | None, new: Operation | None) -> None:
        one = new or old
        assert one is not None
        if old is None or new is None:  # its events never change, some drop out
            change = Index.add if new else Index.drop
            for event in (*one.events, *one.dropped):
                change(self.of_event, event.id, one.id)
            change(self.of_maintenance, one.maintenance, one.id)
        if old is None or new is None or not _in_one_place(old, new):
            places = (self.live_in_scope, self.live_of_machine, self.live_of_host, self.waiting_for)
            for place, was, now in zip(places, _live_places(old), _live_places(new), strict=True):
                place.move(one.id, was, now)
        self.down_in_scope.move(one.id, _scopes_down(old), _scopes_down(new))
        if new is not None and new.status is EventStatus.STARTED:
            self.started[new.id] = None
        else:
            self.started.pop(one.id, None)
        if new:
            for times in (self._wakeups, self._leases, self._unclaimed):
                times.note(new.id, new)


def _one(_: object) -> int:
    return 1


_WEIGHTS: Final[Mapping[str, Callable[[Any], int]]] = {
    "scopes": lambda scope: 1 + scope.incarnation,
    "operations": attrgetter("live"),  # what is over leaves the World at the end of a transaction
    "maintenances": attrgetter("open"),
}

_EVER: Final = datetime.max.replace(tzinfo=UTC)

_NOWHERE: Final[tuple[frozenset[str], ...]] = (frozenset(),) * 4


def _in_one_place(old: Operation, new: Operation) -> bool:
    return (
        old.live is new.live
        and old.waits_for == new.waits_for
        and old.arrived == new.arrived
        and (old.events is new.events or _machines(old) == _machines(new))
    )


def _machines(operation: Operation) -> list[tuple[str, ...]]:
    return [event.machines for event in operation.events]


def _live_places(operation: Operation | None) -> tuple[frozenset[str], ...]:
    """Return the index keys of a live operation: scopes, machines, host, predecessor."""
    if operation is None or not operation.live:
        return _NOWHERE
    return (
        frozenset(event.scope for event in operation.events),
        frozenset(map(key, (*operation.machines, *operation.arrived))),
        frozenset((operation.on_host,)) if operation.on_host else frozenset(),
        frozenset((operation.waits_for,)) if operation.waits_for else frozenset(),
    )


def _guests(drain: Drain | None) -> tuple[set[str], set[str]]:
    """Return the index keys of a drain that goes on: its machines, and where these move to."""
    its = drain.guests if drain is not None and drain.goes_on else ()
    return {key(guest.name) for guest in its}, {guest.to_host for guest in its if guest.to_host}


def _scopes_down(operation: Operation | None) -> frozenset[str]:
    if operation is None or not operation.down:
        return frozenset()
    return frozenset(event.scope for event in operation.events)


def _free_since(operation: Operation) -> datetime | None:
    """Return the start of a Started operation without a lease, and not in doubt; else None."""
    is_started = operation.status is EventStatus.STARTED
    is_free = is_started and operation.lease_until is None and not operation.outcome_unknown
    return operation.started_at if is_free else None


def _claim_order(operation: Operation) -> tuple[datetime, int, int]:
    assert operation.started_at is not None
    return operation.started_at, operation.maintenance, operation.ordinal


def _remove(table: Table[K, Any], names: Iterable[K]) -> None:
    for name in names:
        if name in table:
            del table[name]
