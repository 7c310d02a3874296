"""What every store must answer after any changes, as the model does. Apart: it takes longest."""

from collections.abc import Callable
from datetime import datetime

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forewarn.maintenance.accounts import AuditRecord
from forewarn.maintenance.model import (
    Approval,
    Changes,
    Hold,
    HoldKind,
    HostState,
    Machine,
    Operation,
    OperationEvent,
    StartCause,
    Tombstone,
)
from forewarn.maintenance.relays import Relay
from forewarn.maintenance.webhooks import Webhook
from forewarn.store.port import AuditQuery, HistoryQuery
from forewarn.store.queries import Reading
from forewarn.store.sql import Store
from forewarn.vocabulary import ApproverKind, EventStatus, EventType
from store import values
from store.engines import NewStore
from store.model import Model
from store.test_conformance import all_pages
from store.values import BATCH, ENDING, GOING, HALTED, MINUTE, NOW, OVER, WEB

# Few of everything, so that changes meet.
MOMENTS = st.integers(0, 4).map(lambda minutes: NOW + minutes * MINUTE)
NAMES = st.sampled_from(["Web-0", "web-1", "WEB-0", "b_0"])
SCOPES = st.sampled_from(["web", "batch"])
HOSTS = st.sampled_from(["h1", "H1", "h2", ""])
STATES = st.sampled_from([(), (), GOING, OVER, HALTED, ENDING])
DRAINS = st.builds(values.drain, HOSTS, state=st.sampled_from(HostState))
HOLDS = st.builds(
    Hold,
    kind=st.sampled_from([HoldKind.HOST, HoldKind.MACHINE]),
    name=st.sampled_from(["h1", "web-0"]),
    reason=st.sampled_from(["one", "two"]),
    by=st.just("ops"),
    at=MOMENTS,
)
TOMBSTONES = st.builds(
    Tombstone,
    name=NAMES,
    event_type=st.just(EventType.PREEMPT),
    operation=st.just("1.1"),
    at=MOMENTS,
    scope=st.just("web"),
)
IDS = [f"{number}.{n}" for number in (1, 2, 3) for n in (1, 2)]


PLACES = (("A", "web", ("Web-0", "web-1")), ("B", "batch", ("b_0",)), ("C", "web", ("Web-0",)))
"""The events of an operation, the first of them: they stay where they are."""


@st.composite
def operations(draw: st.DrawFn) -> Operation:
    id_ = draw(st.sampled_from(IDS))
    status = draw(st.sampled_from(EventStatus))
    started = status not in {EventStatus.SCHEDULED, EventStatus.CANCELED}
    approval = Approval(kind=ApproverKind.OPERATOR, by="ops", at=NOW)
    shown = [
        OperationEvent(
            id=f"{id_}-{letter}",
            scope=scope,
            update_domain=draw(st.integers(0, 2)),
            machines=machines,
            published=draw(st.integers(1, 3)),
            approval=draw(st.sampled_from([None, approval])),
            silent=draw(st.sampled_from([False, False, True])),
        )
        for letter, scope, machines in PLACES[: 1 + IDS.index(id_) % 3]
    ]
    return values.operation(
        id_,
        *shown,
        event_type=draw(st.sampled_from([EventType.FREEZE, EventType.REBOOT])),
        status=status,
        announced_at=draw(MOMENTS),
        not_before=draw(MOMENTS),
        started_at=draw(MOMENTS) if started else None,
        start_cause=StartCause.APPROVED if started else None,
        ended_at=draw(MOMENTS) if status.over else None,
        lease_until=draw(st.none() | MOMENTS),
        waits_for=draw(st.sampled_from(["", "", "9.9"])),
        held_at=draw(st.none() | MOMENTS),
        outcome_unknown=draw(st.sampled_from(["", "", "who knows"])),
        acknowledged_by=draw(st.sampled_from(["", "ann"])),
        repeat_after=draw(st.integers(0, 3)),
    )


@st.composite
def changes(draw: st.DrawFn) -> Changes:
    changed = draw(st.lists(operations(), max_size=4, unique_by=lambda o: o.id))
    numbers = {o.maintenance for o in changed} | draw(st.sets(st.sampled_from([1, 2, 3])))
    machine = st.builds(values.machine, NAMES, SCOPES, host=HOSTS)
    machines: list[Machine] = draw(st.lists(machine, max_size=2))
    kept = {m.key for m in machines}
    removed = draw(st.lists(NAMES.map(str.lower), max_size=1))
    return Changes(
        maintenances=tuple(values.maintenance(n, *draw(STATES)) for n in sorted(numbers)),
        operations=tuple(changed),
        holds=tuple(draw(st.lists(HOLDS, max_size=2, unique_by=lambda h: (h.kind, h.name)))),
        released=tuple(draw(st.lists(HOLDS, max_size=2))),
        tombstones=tuple(draw(st.lists(TOMBSTONES, max_size=2, unique_by=lambda t: t.key))),
        drains=tuple(draw(st.lists(DRAINS, max_size=2, unique_by=lambda d: d.host))),
        revived=tuple(draw(st.lists(NAMES.map(str.lower), max_size=2))),
        machines=tuple(machines),
        removed_machines=tuple(name for name in removed if name not in kept),
    )


QUERIES = st.builds(
    HistoryQuery,
    machine=st.sampled_from(["", "web-0", "b_0"]),
    scope=st.sampled_from(["", "web"]),
    maintenance=st.sampled_from([None, None, 1, 2]),
    event_types=st.sampled_from([(), (EventType.FREEZE,)]),
    statuses=st.sampled_from([(), (EventStatus.STARTED, EventStatus.SCHEDULED)]),
    since=st.none() | MOMENTS,
    until=st.none() | MOMENTS,
    limit=st.integers(1, 3),
)


class TestValues:
    """What is saved is what is read."""

    @settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
    @given(values.CHANGES, values.RECORDS, values.WEBHOOKS, values.RELAYS)
    def test_what_is_saved_is_read_back_exactly(
        self, new: NewStore, saved: Changes, written: AuditRecord, hook: Webhook, heard: Relay
    ) -> None:
        store = new()
        with store.write() as transaction:
            transaction.save(saved)
            transaction.record([written])
            transaction.put_webhooks([hook])
        store.hear([heard])
        (maintenance,), (operation,) = saved.maintenances, saved.operations
        with store.read() as reading:
            for kind in ("scopes", "machines", "tombstones"):
                assert getattr(reading, kind)() == {one.key: one for one in getattr(saved, kind)}
            assert reading.maintenances([maintenance.number]) == {maintenance.number: maintenance}
            assert reading.operations([operation.id]) == {operation.id: operation}
            assert reading.holds() == saved.holds
            assert reading.drains() == {drain.host: drain for drain in saved.drains}
            assert reading.tokens() == {token.name: token for token in saved.tokens}
            assert reading.audit(AuditQuery()) == [written]
            assert reading.webhooks() == {hook.name: hook}
            assert reading.relays() == {heard.host: heard}


class TestAny:
    """The answers after any changes: each store gives those that the model gives."""

    @settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
    @given(
        st.lists(st.lists(changes(), min_size=1, max_size=2) | MOMENTS, max_size=5),
        st.lists(QUERIES, max_size=4),
    )
    def test_any_changes_leave_the_answers_that_follow_from_them(
        self,
        new: NewStore,
        steps: list[list[Changes] | datetime],
        queries: list[HistoryQuery],
    ) -> None:
        store, model = new(), Model()
        self._both(store, model, [Changes(scopes=(WEB, BATCH))])
        for step in steps:
            self._both(store, model, step)
            with store.read() as reading:
                for question in QUESTIONS:
                    assert question(reading) == question(model)
        for query in queries:
            assert all_pages(store, query) == model.history(query)

    @staticmethod
    def _both(store: Store, model: Model, step: list[Changes] | datetime) -> None:
        with store.write() as transaction:
            if isinstance(step, datetime):
                assert transaction.purge(step, 2) == model.purge(step, 2)
                return
            for changes in step:
                released = {(h.kind, h.name) for h in changes.released}
                standing = {(h.kind, h.name) for h in model.holds()} - released
                new = tuple(h for h in changes.holds if (h.kind, h.name) not in standing)
                saved = msgspec.structs.replace(changes, holds=new)
                transaction.save(saved)
                model.save(saved)
            assert transaction.machines() == model.machines()


def in_order(found: dict[str, Operation]) -> list[tuple[str, Operation]]:
    return list(found.items())


QUESTIONS: list[Callable[[Reading | Model], object]] = [
    lambda r: r.scopes(),
    lambda r: r.machines(),
    lambda r: r.tombstones(),
    lambda r: r.holds(),
    lambda r: r.drains(),
    lambda r: r.maintenances([1, 2, 3]),
    lambda r: list(r.open_maintenances().items()),
    lambda r: [r.latest_maintenances(before, 2) for before in (None, 3)],
    lambda r: [r.maintenance_of_key(asked) for asked in ("", "none")],
    lambda r: r.operations(IDS),
    lambda r: [in_order(r.operations_of_maintenance(number)) for number in (1, 2, 3)],
    lambda r: [r.operations_of_events([f"{id_}-A"]) for id_ in IDS],
    lambda r: in_order(r.live_operations()),
    lambda r: in_order(r.unacknowledged_failures(99)),
]
