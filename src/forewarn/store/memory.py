"""The store in plain dictionaries, for the emulator, tests and the simulation.

It keeps every promise of the port, but is gone with its process. Readers take turns with the
writer, so a view needs no copy. The writer copies every dictionary before it begins, and puts the
copies back if it raises: what is in them is frozen. What is live has an index; the rest is searched
from end to end.
"""

import heapq
import itertools
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TypeVar

import msgspec

from forewarn.maintenance.accounts import AuditRecord, Token
from forewarn.maintenance.model import (
    Changes,
    Drain,
    Hold,
    Machine,
    Maintenance,
    Operation,
    Scope,
    Tombstone,
    key,
    mapped,
)
from forewarn.maintenance.relays import Relay, RelayToken
from forewarn.maintenance.rollout_model import Rollout
from forewarn.maintenance.webhooks import Webhook
from forewarn.store.port import (
    AuditQuery,
    ChangeRecord,
    HistoryQuery,
    Membership,
    NewChange,
    NewsRecord,
    Page,
    Position,
    Reading,
    Replica,
    SeenMachine,
    StoreUnusable,
    Transaction,
    WriterTurn,
    refuse_nul,
)
from forewarn.vocabulary import EventStatus

K = TypeVar("K")
V = TypeVar("V")


class MemoryStore:
    """`port.Store`, and its own one view and transaction: `port` has the docstrings."""

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = shared
        self.all_scopes: dict[str, Scope] = {}
        self.all_machines: dict[str, Machine] = {}
        self.all_operations: dict[str, Operation] = {}
        """In the order of first saving."""
        self.all_maintenances: dict[int, Maintenance] = {}
        self.all_tombstones: dict[str, Tombstone] = {}
        self.all_drains: dict[str, Drain] = {}
        self.all_rollouts: dict[int, Rollout] = {}
        self.all_settings: dict[str, str] = {}
        self.live: dict[str, Operation] = {}
        self._all_holds: tuple[Hold, ...] = ()
        self._last_number = 0
        self._sequences: dict[str, int] = {}
        """The order of first saving, by operation."""
        self._last_sequence = 0
        self._by_event: dict[str, str] = {}
        self.all_changes: dict[int, ChangeRecord] = {}
        """The outbox, in order."""
        self.all_news: dict[int, NewsRecord] = {}
        """In order."""
        self._trimmed_news = 0
        self.all_replicas: dict[str, Replica] = {}
        self.all_tokens: dict[str, Token] = {}
        self.all_relay_tokens: dict[str, RelayToken] = {}
        self.all_relays: dict[str, Relay] = {}
        self.all_webhooks: dict[str, Webhook] = {}
        self.all_audit: dict[int, AuditRecord] = {}
        """The audit log, in order."""
        self.all_sightings: dict[str, tuple[datetime, SeenMachine]] = {}
        """What was seen of machines, and when that was written."""
        self._begun_at = Position()
        """The last change before this transaction."""
        self._turn = WriterTurn("the store in memory")
        self._members = _Members()

    @property
    def shared(self) -> bool:
        return self._shared

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        with self._turn.taken():
            self._begun_at = self.position()
            before = {n: v.copy() if isinstance(v, dict) else v for n, v in vars(self).items()}
            try:
                yield self
            except BaseException:
                vars(self).update(before)
                raise
            if self.position() != self._begun_at:
                self._members.tell(self.position().sequence)

    @contextmanager
    def read(self) -> Iterator[Reading]:
        with self._turn.taken():
            yield self

    def beat(self, replica: Replica, seen: Iterable[SeenMachine] = ()) -> datetime:
        with self.write():
            self.all_replicas[replica.name] = replica
            self._see(seen, replica.beat_at)
        return replica.beat_at

    def see(self, seen: Iterable[SeenMachine], at: datetime) -> None:
        with self.write():
            self._see(seen, at)

    def _see(self, seen: Iterable[SeenMachine], at: datetime) -> None:
        for one in (one for one in seen if one.machine in self.all_machines):
            _, known = self.all_sightings.get(one.machine, (None, one))
            if known.asked_at <= one.asked_at:
                kept = known if one.agent is None else one
                latest = msgspec.structs.replace(one, agent=kept.agent, reason=kept.reason)
                self.all_sightings[one.machine] = at, latest

    def hear(self, relays: Iterable[Relay], at: datetime | None = None) -> None:
        with self.write():
            refuse_nul(relays := list(relays))
            for one in relays:
                known = self.all_relays.get(one.host)
                if known is None or known.heard_at <= one.heard_at:
                    held_for = one.held_for if known is None else known.held_for
                    self.all_relays[one.host] = msgspec.structs.replace(one, held_for=held_for)

    def join(self, name: str) -> Membership:
        return _Member(self._members, name)

    def close(self) -> None:
        """Do nothing: nothing is open."""

    # Reading.

    def scopes(self, keys: Collection[str] | None = None) -> dict[str, Scope]:
        return _picked(self.all_scopes, keys)

    def machines(self, keys: Collection[str] | None = None) -> dict[str, Machine]:
        return _picked(self.all_machines, keys)

    def operations(self, ids: Collection[str]) -> dict[str, Operation]:
        return _picked(self.all_operations, ids)

    def operations_of_maintenance(self, number: int) -> dict[str, Operation]:
        return {k: o for k, o in self.all_operations.items() if o.maintenance == number}

    def operations_of_events(self, event_ids: Collection[str]) -> dict[str, Operation]:
        return self.operations([self._by_event[i] for i in event_ids if i in self._by_event])

    def live_operations(self) -> dict[str, Operation]:
        return dict(self.live)

    def maintenances(self, numbers: Collection[int]) -> dict[int, Maintenance]:
        return _picked(self.all_maintenances, numbers)

    def open_maintenances(self) -> dict[int, Maintenance]:
        return {n: one for n, one in sorted(self.all_maintenances.items()) if one.open}

    def latest_maintenances(self, before: int | None, limit: int) -> list[Maintenance]:
        numbers = (n for n in self.all_maintenances if before is None or n < before)
        return [self.all_maintenances[n] for n in heapq.nlargest(limit, numbers)]

    def maintenance_of_key(self, idempotency_key: str) -> Maintenance | None:
        asked = [m for m in self.all_maintenances.values() if m.idempotency_key]
        found = (m for m in asked if m.idempotency_key == idempotency_key)
        return max(found, key=lambda m: m.number, default=None)

    def next_wakeup(self) -> datetime | None:
        return min((at for at, *_ in self._wakeups()), default=None)

    def unacknowledged_failures(self, limit: int) -> dict[str, Operation]:
        known = self.all_operations.values()
        failed = [o for o in known if o.status is EventStatus.FAILED and not o.acknowledged_by]
        failed.sort(key=lambda o: (o.ended_at, self._sequences[o.id]), reverse=True)
        return {o.id: o for o in failed[:limit]}

    def holds(self) -> tuple[Hold, ...]:
        return self._all_holds

    def tombstones(self) -> dict[str, Tombstone]:
        return dict(self.all_tombstones)

    def rollouts(self, numbers: Collection[int] | None = None) -> dict[int, Rollout]:
        return dict(sorted(_picked(self.all_rollouts, numbers).items()))

    def drains(self) -> dict[str, Drain]:
        return dict(self.all_drains)

    def history(self, query: HistoryQuery) -> Page:
        found = [
            (operation.announced_at, self._sequences[operation.id])
            for operation in self.all_operations.values()
            if _is_asked_for(operation, query)
        ]
        by_sequence = {sequence: id_ for id_, sequence in self._sequences.items()}
        found = sorted((p for p in found if query.after is None or p < query.after), reverse=True)
        page = found[: query.limit]
        return Page(
            operations=tuple(self.all_operations[by_sequence[sequence]] for _, sequence in page),
            next=page[-1] if len(found) > query.limit else None,
        )

    def tokens(self) -> dict[str, Token]:
        return dict(sorted(self.all_tokens.items()))

    def webhooks(self) -> dict[str, Webhook]:
        return dict(sorted(self.all_webhooks.items()))

    def relay_tokens(self, hosts: Collection[str] | None = None) -> dict[str, RelayToken]:
        every = self.all_relay_tokens.values()
        found = [token for token in every if hosts is None or token.host in hosts]
        oldest_first = sorted(found, key=lambda token: (token.created_at, token.digest))
        return {token.digest: token for token in oldest_first}

    def relays(
        self, hosts: Collection[str] | None = None, since: datetime | None = None
    ) -> dict[str, Relay]:
        found = _picked(self.all_relays, hosts)
        return {k: one for k, one in found.items() if since is None or one.heard_at >= since}

    def audit(self, query: AuditQuery) -> list[AuditRecord]:
        found = (
            one
            for one in reversed(self.all_audit.values())
            if (not query.by or one.by == query.by)
            and (query.since is None or one.at >= query.since)
            and (query.until is None or one.at < query.until)
            and (query.before is None or one.sequence < query.before)
        )
        return list(itertools.islice(found, query.limit))

    def setting(self, name: str) -> str | None:
        return self.all_settings.get(name)

    def position(self) -> Position:
        last = next(reversed(self.all_changes.values()), None)
        return Position() if last is None else last.position

    def changes_after(self, sequence: int, limit: int) -> list[ChangeRecord]:
        following = (one for number, one in self.all_changes.items() if number > sequence)
        return list(itertools.islice(following, limit))

    def news_after(self, sequence: int, limit: int) -> list[NewsRecord]:
        following = (one for number, one in self.all_news.items() if number > sequence)
        return list(itertools.islice(following, limit))

    def news_trimmed(self) -> int:
        return self._trimmed_news

    def outcomes(self, numbers: Collection[int]) -> dict[int, dict[EventStatus, int]]:
        found: dict[int, dict[EventStatus, int]] = {}
        for operation in self.all_operations.values():
            if operation.maintenance in numbers:
                counts = found.setdefault(operation.maintenance, {})
                counts[operation.status] = counts.get(operation.status, 0) + 1
        return found

    def replicas(self) -> dict[str, Replica]:
        return dict(self.all_replicas)

    def sightings(self, since: datetime | None = None) -> dict[str, SeenMachine]:
        return {
            machine: seen
            for machine, (saved_at, seen) in self.all_sightings.items()
            if since is None or saved_at >= since
        }

    # Writing.

    def save(self, changes: Changes) -> None:
        refuse_nul(changes)
        self.all_scopes |= {scope.key: scope for scope in changes.scopes}
        self.all_machines |= {machine.key: machine for machine in changes.machines}
        self.all_maintenances |= {one.number: one for one in changes.maintenances}
        self._last_number = max([self._last_number, *(one.number for one in changes.maintenances)])
        for operation in changes.operations:
            self._save_operation(operation)
        gone = {(hold.kind, hold.name) for hold in changes.released}
        holds = [hold for hold in self._all_holds if (hold.kind, hold.name) not in gone]
        holds.extend(changes.holds)
        assert len({(hold.kind, hold.name) for hold in holds}) == len(holds), "held twice"
        self._all_holds = tuple(sorted(holds, key=lambda hold: (hold.at, hold.kind, hold.name)))
        _remove(self.all_tombstones, changes.revived)
        self.all_tombstones |= {tombstone.key: tombstone for tombstone in changes.tombstones}
        self.all_drains |= {drain.host: drain for drain in changes.drains}
        self.all_rollouts |= {rollout.number: rollout for rollout in changes.rollouts}
        _remove(self.all_rollouts, changes.removed_rollouts)
        _remove(self.all_tokens, changes.revoked_tokens)
        for token in changes.tokens:
            assert token.name not in self.all_tokens, "a name has one token"
            self.all_tokens[token.name] = token
        _remove(self.all_relay_tokens, changes.void_relay_tokens)
        self.all_relay_tokens |= {token.digest: token for token in changes.relay_tokens}
        _remove(self.all_machines, changes.removed_machines)
        _remove(self.all_sightings, changes.removed_machines)
        _remove(self.all_scopes, changes.removed_scopes)
        for machine in changes.machines:
            assert machine.scope in self.all_scopes or machine.key not in self.all_machines

    def next_maintenance_number(self) -> int:
        return self._last_number + 1

    def skip_maintenance_numbers(self, count: int) -> None:
        self._last_number += count

    def purge(self, ended_before: datetime, limit: int) -> int:
        old = [
            (operation.ended_at, self._sequences[operation.id], operation)
            for operation in self.all_operations.values()
            if operation.ended_at is not None
            and operation.ended_at < ended_before
            and not operation.live
            and not self.all_maintenances[operation.maintenance].open
        ]
        gone = [operation for *_, operation in heapq.nsmallest(limit, old)]
        _remove(self.all_operations, (operation.id for operation in gone))
        _remove(self._sequences, (operation.id for operation in gone))
        events = (event for o in gone for event in (*o.events, *o.dropped))
        _remove(self._by_event, (event.id for event in events))
        left = {operation.maintenance for operation in self.all_operations.values()}
        _remove(self.all_maintenances, {operation.maintenance for operation in gone} - left)
        return len(gone)

    def record(self, records: Sequence[AuditRecord]) -> None:
        refuse_nul(records)
        last = next(reversed(self.all_audit), 0)
        for number, one in enumerate(records, last + 1):
            self.all_audit[number] = msgspec.structs.replace(one, sequence=number)

    def purge_audit(self, before: datetime, limit: int, *, refusals: int) -> int:
        known = itertools.islice(self.all_audit.values(), limit)
        old = [one.sequence for one in itertools.takewhile(lambda one: one.at < before, known)]
        refused = (n for n in reversed(self.all_audit) if not self.all_audit[n].done)
        old += itertools.islice(refused, refusals, refusals + limit - len(old))
        _remove(self.all_audit, old)
        return len(set(old))

    def put_webhooks(self, webhooks: Iterable[Webhook]) -> None:
        refuse_nul(webhooks := list(webhooks))
        self.all_webhooks |= {webhook.name: webhook for webhook in webhooks}

    def remove_webhooks(self, names: Iterable[str]) -> None:
        _remove(self.all_webhooks, names)

    def put_setting(self, name: str, value: str) -> None:
        refuse_nul(name, value)
        self.all_settings[name] = value

    def now(self) -> datetime | None:
        return None

    def append(self, change: NewChange, news: bytes = b"", skip: int = 0) -> Position:
        assert self.position() == self._begun_at, "a transaction has one change"
        sequence = self.position().sequence + 1 + skip
        row = mapped(ChangeRecord, change, sequence=sequence)
        self.all_changes[sequence] = row
        if news:
            self.all_news[sequence] = NewsRecord(sequence=sequence, at=change.at, items=news)
        return row.position

    def trim(self, before: datetime, limit: int) -> int:
        oldest = list(itertools.islice(self.all_changes.values(), limit + 1))[:-1]
        old = list(itertools.takewhile(lambda change: change.at < before, oldest))
        _remove(self.all_changes, (change.sequence for change in old))
        return len(old)

    def trim_news(self, before: datetime, limit: int) -> int:
        oldest = itertools.islice(self.all_news.values(), limit)
        old = list(itertools.takewhile(lambda news: news.at < before, oldest))
        for news in old:
            del self.all_news[news.sequence]
            self._trimmed_news = news.sequence
        return len(old)

    def set_back(self, now: datetime, at: datetime) -> None:
        replace = msgspec.structs.replace
        for name, (saved_at, seen) in self.all_sightings.items():
            dated = replace(seen, asked_at=min(seen.asked_at, now))
            self.all_sightings[name] = min(saved_at, at), dated
        for host, relay in self.all_relays.items():
            dates = {"heard_at": min(relay.heard_at, now), "due_at": min(relay.due_at, now)}
            held_for = None if relay.held_for is None else min(relay.held_for, now)
            self.all_relays[host] = replace(relay, **dates, held_for=held_for)
        for digest, token in self.all_relay_tokens.items():
            used_at = None if token.used_at is None else min(token.used_at, now)
            made_at = min(token.created_at, now)
            self.all_relay_tokens[digest] = replace(token, created_at=made_at, used_at=used_at)
        for name, row in self.all_replicas.items():
            self.all_replicas[name] = replace(row, beat_at=min(row.beat_at, at))

    def mark_relay(self, host: str, held_for: datetime | None) -> None:
        if (known := self.all_relays.get(host)) is not None:
            self.all_relays[host] = msgspec.structs.replace(known, held_for=held_for)

    def forget_relay(self, host: str) -> None:
        _remove(self.all_relays, [host])

    def _save_operation(self, operation: Operation) -> None:
        assert operation.maintenance in self.all_maintenances
        if operation.id not in self.all_operations:
            self._last_sequence += 1
            self._sequences[operation.id] = self._last_sequence
            events = (*operation.events, *operation.dropped)
            self._by_event |= {event.id: operation.id for event in events}
        self.all_operations[operation.id] = operation
        if operation.live:
            self.live[operation.id] = operation
        else:
            self.live.pop(operation.id, None)

    def _wakeups(self) -> Iterator[tuple[datetime, int, str]]:
        for name, operation in self.live.items():
            if (at := operation.wakeup_at) is not None:
                yield at, self._sequences[name], name


class _Members:
    """Which names are taken, and the number of the last change."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.last = 0
        self.told = threading.Condition()

    def tell(self, sequence: int) -> None:
        with self.told:
            self.last = sequence
            self.told.notify_all()


class _Member:
    """`port.Membership` of a store in memory."""

    def __init__(self, members: _Members, name: str) -> None:
        self._members = members
        self._name = name
        with members.told:
            if name in members.names:
                raise StoreUnusable(f"another replica has the name {name!r}: give each its own")
            members.names.add(name)
            self._seen = members.last

    def wait(self, seconds: float) -> int:
        with self._members.told:
            self._members.told.wait_for(lambda: self._members.last != self._seen, seconds)
            before, self._seen = self._seen, self._members.last
        return self._seen if self._seen != before else 0

    def close(self) -> None:
        with self._members.told:
            self._members.names.discard(self._name)


def _picked(known: dict[K, V], keys: Collection[K] | None) -> dict[K, V]:
    if keys is None:
        return dict(known)
    return {k: known[k] for k in keys if k in known}


def _remove(table: dict[K, V], names: Iterable[K]) -> None:
    for name in names:
        table.pop(name, None)


def _is_asked_for(operation: Operation, query: HistoryQuery) -> bool:
    return (
        (not query.machine or query.machine in map(key, operation.machines))
        and (not query.scope or query.scope in {event.scope for event in operation.events})
        and query.maintenance in {None, operation.maintenance}
        and (not query.event_types or operation.event_type in query.event_types)
        and (not query.statuses or operation.status in query.statuses)
        and (query.since is None or operation.announced_at >= query.since)
        and (query.until is None or operation.announced_at < query.until)
    )
