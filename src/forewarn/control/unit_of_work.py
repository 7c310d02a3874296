"""The input of one transaction of the writer: the World, and the store beside it.

The World has all live state, so a decision asks the store for nothing, and changes the World alone.
The jobs of a batch share one transaction, in the order of arrival; one that is refused is undone.
The last value of each key is saved once, at the end (`outbox.Follower.transact` has the whole path
of a transaction). The store is asked for history alone, after a save.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Concatenate, Final, ParamSpec, TypeAlias

from forewarn.maintenance import news
from forewarn.maintenance.accounts import AuditRecord
from forewarn.maintenance.commands import Command
from forewarn.maintenance.model import (
    Changes,
    Maintenance,
    Operation,
    Refused,
)
from forewarn.maintenance.news import NewsItem
from forewarn.maintenance.transitions import Decision, Transitions
from forewarn.maintenance.world import LiveState, Name, World
from forewarn.store.sql import Transaction

P = ParamSpec("P")


class UnitOfWork:
    """One transaction of the writer: the live state, and the store as it will be when committed."""

    decided: Callable[["UnitOfWork", Command], Decision]
    """Decides by the rules of the plane whose job it is."""

    def __init__(self, transaction: Transaction, world: World, now: datetime) -> None:
        self.world = world
        self.now = now
        self.may_start: bool | None = None
        """True if anything may start in this transaction; None until it was asked."""
        self.saved: list[Changes] = []
        """The changes saved so far; to be published once they are committed."""
        self._transaction = transaction
        self._mark = self._told = world.mark()
        """All before `_mark` is saved, and of all before `_told` there is news."""
        self._last_number = 0
        """The highest number of the maintenances that are not saved yet."""
        self._notes: list[AuditRecord] = []
        self._new_numbers: set[int] = set()
        """Those given to maintenances in this transaction."""
        self._news: list[NewsItem] = []
        self._closed: set[int] = set()
        """The maintenances that were open and are not any more."""

    # What is alive, or history; keys that are not there are left out. Operations are recalled: a
    # decision may concern them.

    def operations(self, ids: Collection[str]) -> dict[str, Operation]:
        """Return these operations, live or over, by id."""
        if over := [name for name in ids if name not in self.world.operations]:
            self._recall(self._transaction.operations(over))
        return self._live(ids)

    def operations_of_events(self, event_ids: Collection[str]) -> dict[str, Operation]:
        """Return the operations, live or over, that these events (upper-case ids) belong to."""
        of_event = self.world.of_event
        if over := [name for name in event_ids if name not in of_event]:
            self._recall(self._transaction.operations_of_events(over))
        return self.operations([one for name in event_ids for one in of_event.of(name)])

    def operations_of_maintenance(self, number: int) -> dict[str, Operation]:
        """Return a maintenance's operations, live or over, by id."""
        self._recall(self.store.operations_of_maintenance(number))
        return self._live(self.world.of_maintenance.of(number))

    def maintenance(self, number: int) -> Maintenance | None:
        """Return a maintenance, open or over; None where history has none of that number."""
        known = self.world.maintenances.get(number)
        return known or self._transaction.maintenances([number]).get(number)

    def _live(self, ids: Iterable[str]) -> dict[str, Operation]:
        known = self.world.operations
        return {name: known[name] for name in ids if name in known}

    def _recall(self, found: Mapping[str, Operation]) -> None:
        for operation in found.values():
            self.world.recall(operation)

    # Everything else.

    def next_maintenance_number(self) -> int:
        """Return the number of the next maintenance; it is taken when that is saved."""
        number = max(self._transaction.next_maintenance_number(), self._last_number + 1)
        self._new_numbers.add(number)
        return number

    @property
    def store(self) -> Transaction:
        """The store, with all decisions so far saved: for any other question."""
        self.save()
        return self._transaction

    def answer(self, job: "Job") -> Any:  # noqa: ANN401 - whatever the job returns
        """Run a job and return its result, or its refusal: then it has changed nothing.

        A refusal is raised where a part of its changes was saved: nothing of the transaction stays.
        """
        mark, told, last_number = self.world.mark(), len(self._news), self._last_number
        try:
            result = job(self)
            self.tell()
        except Refused as refusal:
            if self._mark > mark:
                raise
            self.world.undo(mark)
            self._told, self._last_number = mark, last_number
            del self._news[told:]
            # Its traceback leads to the job and its batch: a circle that would keep a refused
            # fleet in memory until the collector finds it.
            return refusal.with_traceback(None)
        return result

    def decide(
        self,
        command: Callable[Concatenate[Transitions, P], Iterable[str]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Decision:
        """Return the decision on a command, which the World has; Refused if it is not allowed."""
        self.tell()
        decision = self.decided(self, lambda working: command(working, *args, **kwargs))
        self.tell(decision)
        return decision

    def take(self, changes: Changes) -> None:
        """Change values of the World, with news of that."""
        self.world.take(changes)
        self.tell()

    def tell(self, decision: Decision | None = None) -> None:
        """Note the news of all that has changed since the last call; of a decision that made it."""
        world = self.world
        if self._told == world.mark():
            return
        before = world.since(self._told) if decision is None else decision.before
        changes = world.changes(before) if decision is None else decision.changes
        self._told = world.mark()
        if changes:
            self._tell(before, changes)

    def note(self, record: AuditRecord) -> None:
        """Add a record to the audit log, which is saved together with its subject."""
        self._notes.append(record)

    def told(self) -> bytes:
        """Return the news of everything saved, as it is stored."""
        if ended := self._closed | news.ended(self._news):
            known = self.world.maintenances
            over = {number for number in ended if number not in known or not known[number].open}
            self._news += news.finished(over, self.store.outcomes(over), self.now)
        return news.encode(self._news)

    def _tell(self, before: Mapping[Name, Any], changes: Changes) -> None:
        if not {kind for kind, _ in before} <= _OFTEN:  # this runs for each approval
            numbers = [one.number for one in changes.maintenances]
            self._last_number = max(self._last_number, *numbers, 0)
            known = {number: before["maintenances", number] for number in numbers}
            hosts = [one.host for one in changes.drains]
            were = LiveState(
                maintenances={number: one for number, one in known.items() if one and one.open},
                drains={host: old for host in hosts if (old := before["drains", host])},
            )
            self._news += news.of_others(were, changes, self._new_numbers, self.now)
            self._closed |= news.closed(were.maintenances, changes.maintenances, self._new_numbers)
            self._new_numbers.difference_update(numbers)
        known_operations = {one.id: before["operations", one.id] for one in changes.operations}
        live, holds = self.world.operations, self.world.holds.values()
        self._news += news.of_operations(
            known_operations, changes.operations, self.now, live, holds
        )

    def save(self) -> None:
        """Save the changes that are not saved yet."""
        self.tell()
        world = self.world
        before = world.since(self._mark)
        changes = world.changes(before)
        retired = {key: world.retired.get(key) for kind, key in before if kind == "retired"}
        if changes or retired:
            self._transaction.save(changes, before, retired)
            self.saved.append(changes)
            self._mark = self._told = world.mark()
        if self._notes:
            self._transaction.record(self._notes)
            self._notes = []


Job: TypeAlias = Callable[[UnitOfWork], Any]
"""Decides within a transaction. It may be run twice: it has no effect of its own."""

_OFTEN: Final = frozenset(("operations", "scopes"))
"""The tables whose changes have no news beside those of operations."""
