"""What one transaction has read, and what it is going to save.

The requests of a batch share one. Each is decided by itself, in the order of arrival, on what the
ones before it led to; a value is read from the store once, and the last value of each is saved
once, at the end (by `writer`; `store.postgresql` says what becomes of a COMMIT whose answer is
lost). What cannot be answered from memory is asked of the store after a save.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from operator import attrgetter
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar

import msgspec

from forewarn.control import tombstones
from forewarn.maintenance import news
from forewarn.maintenance.accounts import AuditRecord, Token
from forewarn.maintenance.model import (
    Changes,
    Drain,
    Hold,
    Machine,
    Maintenance,
    Operation,
    Scope,
    Snapshot,
)
from forewarn.maintenance.news import NewsItem
from forewarn.maintenance.rollout_model import Rollout
from forewarn.maintenance.transitions import Decision, Transitions
from forewarn.store.port import Transaction

K = TypeVar("K")
P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")


_KEYS: Final[dict[str, Callable[[Any], Any]]] = {
    "scopes": attrgetter("key"),
    "machines": attrgetter("key"),
    "operations": attrgetter("id"),
    "maintenances": attrgetter("number"),
    "tombstones": attrgetter("key"),
    "drains": attrgetter("host"),
    "rollouts": attrgetter("number"),
}
"""The fields of Changes of which the last value of each key is saved at the end."""

_ALONE = (
    "removed_rollouts",
    "removed_scopes",
    "holds",
    "released",
    "revived",
    "tokens",
    "revoked_tokens",
    "relay_tokens",
    "void_relay_tokens",
)
"""The fields of Changes of which one value is saved at a time."""


class Work(msgspec.Struct, Generic[T], frozen=True):
    """What a job came to: what to answer, and what to save."""

    result: T
    changes: Changes = Changes()


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What a job is going to ask for, so that a whole batch is read at once. Only ever a hint."""

    scopes: tuple[str, ...] = ()
    """Keys: what is live there."""
    events: tuple[str, ...] = ()
    """Ids, in upper case."""
    operations: tuple[str, ...] = ()
    ending: bool = False
    """Whether these operations may end, which lets rolling updates go on."""


class UnitOfWork:
    """One transaction of the writer: the store as it will be if this is committed."""

    def __init__(self, transaction: Transaction, now: datetime) -> None:
        self.now = now
        self.may_start: bool | None = None
        """Whether anything may start in this transaction; None until it was asked."""
        self.saved: list[Changes] = []
        """What was saved so far; to be told once it is committed."""
        self._transaction = transaction
        # A key that leads to None is known not to be there.
        self._scopes: dict[str, Scope | None] = {}
        self._machines: dict[str, Machine | None] = {}
        self._operations: dict[str, Operation | None] = {}
        self._order: dict[str, int] = {}
        """Of operations, as they were met."""
        self._by_event: dict[str, str | None] = {}
        # Known operations and machines by place; whole for the places that are in `_whole`.
        self._in_scope: dict[str, dict[str, None]] = {}
        self._members: dict[str, dict[str, None]] = defaultdict(dict)
        self._on_host: dict[str, dict[str, None]] = defaultdict(dict)
        self._whole: dict[str, set[str]] = {"live": set(), "members": set(), "on host": set()}
        self._open: dict[int, Maintenance] | None = None
        self._holds: tuple[Hold, ...] | None = None
        self._drains: dict[str, Drain] | None = None
        self._rollouts: dict[int, Rollout | None] = {}
        self._notes: list[AuditRecord] = []
        self._new_numbers: set[int] = set()
        """Those given to maintenances in this transaction."""
        self._news: list[NewsItem] = []
        self._closed: set[int] = set()
        """The maintenances that were open and are not any more."""
        self._begin()

    # Answered from memory, as far as it goes. Keys that are not there are left out.

    def scopes(self, keys: Collection[str]) -> dict[str, Scope]:
        """Return these scopes by key."""
        if missing := _missing(self._scopes, keys):
            self._scopes.update(dict.fromkeys(missing) | self._transaction.scopes(missing))
        return _known(self._scopes, keys)

    def machines(self, keys: Collection[str]) -> dict[str, Machine]:
        """Return these machines by key."""
        if missing := _missing(self._machines, keys):
            self._learn_machines(self._transaction.machines(missing), missing)
        return _known(self._machines, keys)

    def machines_of(self, scopes: Collection[str]) -> dict[str, Machine]:
        """Return the machines of these scopes, by key."""
        return self._machines_at("members", self._members, scopes, self._transaction.machines_of)

    def machines_on(self, hosts: Collection[str]) -> dict[str, Machine]:
        """Return the machines on these hosts, by key."""
        return self._machines_at("on host", self._on_host, hosts, self._transaction.machines_on)

    def operations(self, ids: Collection[str]) -> dict[str, Operation]:
        """Return these operations, live or over, by id."""
        if missing := _missing(self._operations, ids):
            self._learn_operations(self._transaction.operations(missing), missing)
        return _known(self._operations, ids)

    def operations_of_events(self, event_ids: Collection[str]) -> dict[str, Operation]:
        """Return the operations, live or over, that these events (upper-case ids) belong to."""
        if missing := _missing(self._by_event, event_ids):
            self._learn_operations(self._transaction.operations_of_events(missing))
            for event_id in missing:
                self._by_event.setdefault(event_id, None)
        return self.operations([i for e in event_ids if (i := self._by_event[e]) is not None])

    def live_operations(self, scopes: Collection[str] | None = None) -> dict[str, Operation]:
        """Return what is live in these scopes, or anywhere, by id."""
        if scopes is None:
            return self.learn(self.store.live_operations())
        if missing := _missing(self._whole["live"], scopes):
            self._learn_operations(self._transaction.live_operations(missing))
            self._whole["live"].update(missing)
        ids: Collection[str] = [id_ for scope in scopes for id_ in self._in_scope.get(scope, ())]
        if len(ids) > 1 and len(scopes) > 1:  # in the order of reading: a set of scopes has none
            ids = sorted(set(ids), key=self._order.__getitem__)
        known = self._operations
        return {i: found for i in ids if (found := known[i]) is not None and found.live}

    def open_maintenances(self) -> dict[int, Maintenance]:
        """Return the maintenances that are open, by number, the oldest first."""
        if self._open is None:
            self._open = dict(self.store.open_maintenances())
        return self._open

    def holds(self) -> tuple[Hold, ...]:
        """Return all holds."""
        if self._holds is None:
            self._holds = self._transaction.holds()
        return self._holds

    def drains(self) -> dict[str, Drain]:
        """Return the latest drain of each host."""
        if self._drains is None:
            self._drains = self._transaction.drains() | self._unsaved["drains"]
        return self._drains

    def rollout(self, number: int) -> Rollout | None:
        """Return a rollout."""
        if number not in self._rollouts:
            self._rollouts[number] = self._transaction.rollouts([number]).get(number)
        return self._rollouts[number]

    def tokens(self) -> dict[str, Token]:
        """Return the tokens of operators, by name; new ones are saved at once."""
        return self._transaction.tokens()

    # Everything else.

    def next_maintenance_number(self) -> int:
        """Return the number of the next maintenance; it is taken when that is saved."""
        unsaved = max(self._unsaved["maintenances"], default=0)
        number = max(self._transaction.next_maintenance_number(), unsaved + 1)
        self._new_numbers.add(number)
        return number

    def learn(self, operations: dict[str, Operation]) -> dict[str, Operation]:
        """Take over what was just read of the store: what a decision changes has to be known."""
        self._learn_operations(operations)
        return operations

    @property
    def store(self) -> Transaction:
        """The store, with all that was decided so far saved: for any other question."""
        self.save()
        return self._transaction

    def apply(self, changes: Changes) -> None:
        """Take over what a job came to."""
        self._tell(changes)
        # Of these only one change is saved at a time: a hold may be put and released in one batch.
        alone = {name: value for name in _ALONE if (value := getattr(changes, name))}
        if alone:
            self.save()
        for kind, key_of in _KEYS.items():
            self._unsaved[kind] |= {key_of(value): value for value in getattr(changes, kind)}
        self._scopes |= {scope.key: scope for scope in changes.scopes}
        self._scopes |= dict.fromkeys(changes.removed_scopes)
        for operation in changes.operations:
            if self._operations.get(operation.id) is None:
                self._operations.pop(operation.id, None)
                self._learn_operations({operation.id: operation})
            else:  # its events never change, so it is indexed already
                self._operations[operation.id] = operation
        self._replace_machines({machine.key: machine for machine in changes.machines})
        self._replace_machines(dict.fromkeys(changes.removed_machines))
        if self._drains is not None:
            self._drains |= self._unsaved["drains"]
        self._rollouts |= self._unsaved["rollouts"]
        if self._open is not None and changes.maintenances:
            known = self._open | {one.number: one for one in changes.maintenances}
            self._open = {number: one for number, one in sorted(known.items()) if one.open}
        if alone:
            self._save(msgspec.structs.replace(self._changes(), **alone))
            self._holds = None

    def note(self, record: AuditRecord) -> None:
        """Have a record in the audit log, which is saved with what it is about."""
        self._notes.append(record)

    def told(self) -> bytes:
        """Return the news of all that was saved, as it is stored."""
        if ended := self._closed | news.ended(self._news):
            outcomes = self.store.outcomes(ended - self.open_maintenances().keys())
            self._news += news.finished(outcomes, self.now)
        return news.encode(self._news)

    def _tell(self, changes: Changes) -> None:
        known = self._operations
        unknown = [o.id for o in changes.operations if o.id not in known]
        if unknown := [name for name in unknown if not self._is_new(name)]:
            self.operations(unknown)
        if _has_others(changes):
            # Read, not only what happens to be known: what was there before is no news.
            before = news.Before(
                maintenances=self.open_maintenances() if changes.maintenances else {},
                drains=self.drains() if changes.drains else {},
                rollouts={one.number: self.rollout(one.number) for one in changes.rollouts},
            )
            self._news += news.of_others(before, changes, self._new_numbers, self.now)
            self._closed |= news.closed(before.maintenances, changes.maintenances)
            self._new_numbers.difference_update(one.number for one in changes.maintenances)
        self._news += news.of_operations(known, changes.operations, self.now)

    def _is_new(self, operation: str) -> bool:
        maintenance, _, ordinal = operation.partition(".")
        known = (self._open or {}).get(int(maintenance))
        if known is not None:
            return int(ordinal) > known.announced
        return int(maintenance) in self._new_numbers

    def save(self) -> None:
        """Save what is not saved yet."""
        if changes := self._changes():
            self._save(changes)
        if self._notes:
            self._transaction.record(self._notes)
            self._notes = []

    def _save(self, changes: Changes) -> None:
        self._transaction.save(tombstones.record(self._transaction, changes, self.now))
        self.saved.append(changes)
        self._begin()

    def _begin(self) -> None:
        self._unsaved: dict[str, dict[Any, Any]] = {kind: {} for kind in _KEYS}
        self._removed: dict[str, None] = {}
        """The keys of machines."""

    def _changes(self) -> Changes:
        unsaved = {kind: tuple(values.values()) for kind, values in self._unsaved.items()}
        return Changes(removed_machines=tuple(self._removed), **unsaved)

    # What is known already is newer than what the store has.

    def _learn_operations(self, found: dict[str, Operation], asked: Iterable[str] = ()) -> None:
        for id_, operation in found.items():
            if id_ not in self._operations:
                self._operations[id_] = operation
                self._order.setdefault(id_, len(self._order))
                for event in (*operation.events, *operation.dropped):
                    self._by_event[event.id] = id_
                    self._in_scope.setdefault(event.scope, {})[id_] = None
        for id_ in asked:
            self._operations.setdefault(id_, None)

    def _learn_machines(self, found: dict[str, Machine], asked: Iterable[str] = ()) -> None:
        for key, machine in found.items():
            if key not in self._machines:
                self._machines[key] = machine
                self._members[machine.scope][key] = None
                self._on_host[machine.host][key] = None
        self._machines.update((key, None) for key in asked if key not in self._machines)

    def _replace_machines(self, new: dict[str, Machine] | dict[str, None]) -> None:
        for key, machine in new.items():
            old = self._machines.pop(key, None)
            if old is not None:
                self._members[old.scope].pop(key, None)
                self._on_host[old.host].pop(key, None)
            if machine is None:
                self._unsaved["machines"].pop(key, None)
                self._removed[key] = None
            else:
                self._removed.pop(key, None)
            self._learn_machines({} if machine is None else {key: machine}, (key,))

    def _machines_at(
        self,
        what: str,
        known: dict[str, dict[str, None]],
        places: Collection[str],
        read: Callable[[list[str]], dict[str, Machine]],
    ) -> dict[str, Machine]:
        if missing := _missing(self._whole[what], places):
            self._learn_machines(read(missing))
            self._whole[what].update(missing)
        return self.machines([key for place in places for key in known.get(place, ())])


def _has_others(changes: Changes) -> bool:
    """Tell whether there may be news but of operations; this runs for each approval."""
    return bool(
        changes.maintenances
        or changes.holds
        or changes.released
        or changes.machines
        or changes.removed_machines
        or changes.drains
        or changes.rollouts
    )


def _missing(known: Collection[K], keys: Iterable[K]) -> list[K]:
    return [key for key in keys if key not in known]


def _known(known: dict[K, V | None], keys: Iterable[K]) -> dict[K, V]:
    return {key: value for key in keys if (value := known[key]) is not None}


class Decide(Protocol):
    """Decides on a command, and checks what it leads to (`Plane`)."""

    def __call__(
        self,
        unit: UnitOfWork,
        snapshot: Snapshot,
        command: Callable[Concatenate[Transitions, P], Iterable[str]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Decision:
        """Return what follows; Refused where the rules do not allow it."""
