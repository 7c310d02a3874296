"""What every store must answer after any changes: the same as `remembered.Remembered`."""

from datetime import datetime

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forewarn.maintenance import decide
from forewarn.maintenance.model import (
    Approval,
    Changes,
    Event,
    Hold,
    HoldKind,
    Lost,
    Machine,
    Operation,
    StartCause,
)
from forewarn.store.port import HistoryQuery, Reading, Store
from forewarn.vocabulary import ApproverKind, EventStatus, EventType
from store import values
from store.conformance_history import all_pages
from store.engines import Engine
from store.remembered import Remembered
from store.values import BATCH, GOING, MINUTE, NOW, OVER, STOPPED, WEB

# Few of everything, so that changes meet.
MOMENTS = st.integers(0, 4).map(lambda minutes: NOW + minutes * MINUTE)
NAMES = st.sampled_from(["Web-0", "web-1", "WEB-0", "b_0"])
SCOPES = st.sampled_from(["web", "batch"])
HOSTS = st.sampled_from(["h1", "H1", "h2", ""])
WALKS = st.sampled_from([(), (), (GOING,), (OVER,), (OVER, STOPPED)])
HOLDS = st.builds(
    Hold,
    kind=st.sampled_from([HoldKind.HOST, HoldKind.MACHINE]),
    name=st.sampled_from(["h1", "web-0"]),
    reason=st.sampled_from(["one", "two"]),
    by=st.just("ops"),
    at=MOMENTS,
)
LOST = st.builds(
    Lost, name=NAMES, event_type=st.just(EventType.PREEMPT), operation=st.just("1.1"), at=MOMENTS
)
IDS = [f"{number}.{n}" for number in (1, 2, 3) for n in (1, 2)]


@st.composite
def operations(draw: st.DrawFn) -> Operation:
    id_ = draw(st.sampled_from(IDS))
    status = draw(st.sampled_from(EventStatus))
    started = status not in {EventStatus.SCHEDULED, EventStatus.CANCELED}
    approval = Approval(kind=ApproverKind.OPERATOR, by="ops", at=NOW)
    events = st.builds(
        Event,
        id=st.sampled_from([f"{id_}-{letter}" for letter in "AB"]),
        scope=SCOPES,
        update_domain=st.integers(0, 2),
        machines=st.lists(NAMES, max_size=2).map(tuple),
        published=st.integers(1, 3),
        approval=st.sampled_from([None, approval]),
        silent=st.sampled_from([False, False, True]),
    )
    shown = draw(st.lists(events, min_size=1, max_size=2, unique_by=lambda e: e.id))
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
        maintenances=tuple(values.maintenance(n, *draw(WALKS)) for n in sorted(numbers)),
        operations=tuple(changed),
        holds=tuple(draw(st.lists(HOLDS, max_size=2, unique_by=lambda h: (h.kind, h.name)))),
        released=tuple(draw(st.lists(HOLDS, max_size=2))),
        lost=tuple(draw(st.lists(LOST, max_size=2, unique_by=lambda lost: lost.key))),
        found=tuple(draw(st.lists(NAMES.map(str.lower), max_size=2))),
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


class Any:
    """The answers after any changes."""

    @settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(changes() | MOMENTS, max_size=6), st.lists(QUERIES, max_size=4), MOMENTS)
    def test_any_changes_leave_the_answers_that_follow_from_them(
        self,
        engine: Engine,
        tmp_path_factory: pytest.TempPathFactory,
        steps: list[Changes | datetime],
        queries: list[HistoryQuery],
        now: datetime,
    ) -> None:
        store = engine.open(tmp_path_factory.mktemp("any"))
        expected = Remembered()
        self._both(store, expected, Changes(scopes=(WEB, BATCH)))
        for step in steps:
            self._both(store, expected, step)
            with store.read() as reading:
                self._compare(reading, expected, now)
        for query in queries:
            assert all_pages(store, query) == expected.history(query)
        store.close()

    @staticmethod
    def _both(store: Store, expected: Remembered, step: Changes | datetime) -> None:
        with store.write() as transaction:
            if isinstance(step, Changes):
                released = {(h.kind, h.name) for h in step.released}
                standing = set(expected.holds) - released
                new = tuple(h for h in step.holds if (h.kind, h.name) not in standing)
                step = msgspec.structs.replace(step, holds=new)
                transaction.save(step)
                expected.save(step)
            else:
                assert transaction.purge(step, 2) == expected.purge(step, 2)

    @staticmethod
    def _compare(reading: Reading, expected: Remembered, now: datetime) -> None:
        assert reading.scopes() == expected.scopes
        assert reading.machines() == expected.machines
        assert reading.machines_of(["web"]) == {
            name: m for name, m in expected.machines.items() if m.scope == "web"
        }
        for hosts in (["h1"], ["", "H1"], ["H2", "none"]):
            assert reading.machines_on(hosts) == {
                name: m for name, m in expected.machines.items() if m.host in hosts
            }
        assert reading.lost() == expected.lost
        oldest_first = sorted(expected.holds.values(), key=lambda h: (h.at, h.kind, h.name))
        assert reading.holds() == tuple(oldest_first)
        assert reading.maintenances([1, 2, 3]) == expected.maintenances
        assert list(reading.open_maintenances().items()) == [
            (number, m) for number, m in sorted(expected.maintenances.items()) if m.open
        ]
        assert reading.operations(IDS) == expected.operations
        for number in (1, 2, 3):
            assert reading.operations_of_maintenance(number) == {
                id_: o for id_, o in expected.operations.items() if o.maintenance == number
            }
        for name in ("web-0", "web-1", "b_0"):
            query = HistoryQuery(machine=name)
            found = [o.id for o in reading.history(query).operations]
            assert found == expected.history(query)
        owners = {e.id: o.id for o in expected.operations.values() for e in o.events}
        for id_ in IDS:
            assert set(reading.operations_of_events([f"{id_}-A"])) == {
                owner for event, owner in owners.items() if event == f"{id_}-A"
            }
        assert set(reading.live_operations()) == expected.live()
        assert set(reading.live_operations(["web"])) == expected.live({"web"})
        assert list(reading.due(now, 99)) == expected.due(now)
        assert list(reading.claimable(now, 99)) == expected.claimable(now)
        assert list(reading.unnoted_failures(99)) == expected.unnoted_failures()
        waking = [decide.wakeup_at(o) for o in expected.operations.values()]
        assert reading.next_wakeup() == min((at for at in waking if at), default=None)
        leases = [
            o.lease_until
            for o in expected.operations.values()
            if o.status is EventStatus.STARTED
            and not o.outcome_unknown
            and o.lease_until is not None
        ]
        assert reading.next_lease_end() == min(leases, default=None)
