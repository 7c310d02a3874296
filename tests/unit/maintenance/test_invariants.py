"""The invariants notice each breach: a check that cannot fail is none."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from builders import MINUTE, NOW, Bench, Snapshot, succeed
from forewarn.maintenance import invariants
from forewarn.maintenance.model import Changes, Operation, StartCause
from forewarn.vocabulary import EventStatus, EventType

replace = msgspec.structs.replace

DUE = NOW + 15 * MINUTE
INSTANT = timedelta(microseconds=1)
UNSTARTED = {"status": EventStatus.SCHEDULED, "started_at": None, "start_cause": None}


def raises_broken(words: str) -> Any:
    return pytest.raises(invariants.InvariantBroken, match=words)


def asked(*machines: str) -> Bench:
    bench = Bench()
    bench.ask(EventType.REBOOT, *machines)
    return bench


def started() -> Bench:
    bench = asked("web-0", "web-3")
    bench.let_pass(15 * MINUTE)
    return bench


def with_event(operation: Operation, **changes: object) -> Operation:
    (event,) = operation.events
    return replace(operation, events=(replace(event, **changes),))


def of(snapshot: Snapshot, *operations: Operation) -> Snapshot:
    """A snapshot that has these operations, and no other."""
    return replace(snapshot, operations={o.id: o for o in operations})


@pytest.mark.parametrize(
    ("fields", "event", "told"),
    [
        ({"events": ()}, {}, "no event"),
        ({}, {"machines": ()}, "no machine"),
        ({"not_before": DUE + INSTANT}, {}, "whole second"),
        ({"started_at": None}, {}, "start cause"),
        ({"start_cause": None}, {}, "start cause"),
        ({"started_at": None, "start_cause": None}, {}, "start cause"),
        ({"status": EventStatus.COMPLETED}, {}, "its end"),
        ({"status": EventStatus.FAILED}, {}, "its end"),
        ({"ended_at": NOW}, {}, "its end"),
        ({"waits_for": "9.1"}, {}, "waits although"),
        ({"started_at": DUE - INSTANT}, {}, "before its NotBefore"),
        ({"start_cause": StartCause.APPROVED}, {}, "without an approval"),
        ({"start_cause": StartCause.SILENT}, {}, "silent"),
        ({"held_at": NOW}, {}, "held although"),
        ({**UNSTARTED, "hosts": ("h2",)}, {}, "other hosts"),
        ({}, {"published": 3}, "published at 3"),
        ({}, {"published": 0}, "published at 0"),
    ],
)
def test_a_damaged_operation_is_noticed(
    fields: dict[str, Any], event: dict[str, Any], told: str
) -> None:
    snapshot = started().snapshot
    invariants.check(snapshot.world())
    damaged = with_event(snapshot.operations["1.1"], **event)
    damaged = replace(damaged, **fields)
    for changed in (None, [damaged]):
        with raises_broken(rf"^operation 1\.1: .*{told}"):
            invariants.check(of(snapshot, damaged).world(), changed)


def test_what_is_scheduled_is_not_held_and_waiting_at_once_and_has_an_event_in_each_domain() -> (
    None
):
    scheduled = asked("web-0").operation("1.1")
    invariants.check_operation(replace(scheduled, held_at=NOW))
    with raises_broken("waits besides"):
        invariants.check_operation(replace(scheduled, held_at=NOW, waits_for="2.1"))
    with raises_broken("two events"):
        invariants.check_operation(replace(scheduled, events=scheduled.events * 2))


def test_a_started_one_without_notice_may_be_as_early_as_it_was() -> None:
    bench = Bench(now=NOW + INSTANT)
    bench.ask(EventType.REBOOT, "web-0", no_notice=True)
    assert bench.operation("1.1").started_at < bench.operation("1.1").not_before
    invariants.check(bench.snapshot.world())


def test_two_domains_of_a_scope_down_at_once_are_noticed() -> None:
    snapshot = started().snapshot
    first = snapshot.operations["1.1"]
    second = replace(first, id="2.1", hosts=("h1",))
    second = with_event(second, update_domain=1, machines=("web-1",), id="OTHER")
    both = of(snapshot, first, second).world()
    for changed in (None, [first], [second]):
        with raises_broken(r"[12]\.1: [12]\.1 has another .* of web down"):
            invariants.check(both, changed)
    scopes = {k: replace(s, incarnation=2) for k, s in snapshot.scopes.items()}
    for harmless in (
        replace(second, event_type=EventType.PREEMPT),
        replace(second, event_type=EventType.TERMINATE),
        replace(second, start_cause=StartCause.NO_NOTICE),
        replace(second, **UNSTARTED),
        replace(second, status=EventStatus.COMPLETED, ended_at=NOW),
        with_event(second, scope="batch"),
        with_event(second, update_domain=0),
    ):
        invariants.check(replace(of(snapshot, first, harmless), scopes=scopes).world())
    elsewhere = with_event(replace(first, id="3.1"), scope="batch", machines=("batch_0",))
    others = replace(of(snapshot, first, second, elsewhere), scopes=scopes)
    invariants.check(others.world(), [elsewhere])  # what changed is judged, and nothing else


def test_a_scheduled_one_before_them_hides_no_two_domains() -> None:
    bench = asked("web-2")
    bench.ask(EventType.REBOOT, "web-0", no_notice=True)
    due = replace(bench.operation("2.1"), start_cause=StartCause.NOTICE_OVER, not_before=NOW)
    other = with_event(replace(due, id="3.1"), update_domain=1, machines=("web-1",))
    with raises_broken(r"2\.1: 3\.1 has another .* of web down"):
        invariants.check(of(bench.snapshot, bench.operation("1.1"), due, other).world())


def test_a_machine_in_two_live_events_is_noticed() -> None:
    snapshot = started().snapshot
    first = snapshot.operations["1.1"]
    second = with_event(replace(first, id="2.1"), machines=("web-6", "web-3"))
    with raises_broken(r"1\.1: web-3 is also in operation 2\.1"):
        invariants.check(of(snapshot, first, second).world())


# One snapshot follows another.


def test_a_step_back_is_noticed() -> None:
    bench = asked("web-0")
    before = bench.snapshot
    bench.let_pass(15 * MINUTE)
    middle = bench.snapshot
    bench.claim("1.1")
    claimed = bench.snapshot
    bench.finish("1.1")
    after = bench.snapshot
    for first, second in ((before, middle), (middle, claimed), (claimed, after), (before, after)):
        succeed(first, second)
    for first, second, told in (
        (middle, before, "from Started to Scheduled"),
        (after, middle, "from Completed to Started"),
        (claimed, middle, "fencing number"),
    ):
        with raises_broken(told):
            succeed(first, second)


@pytest.mark.parametrize(
    ("fields", "event", "told"),
    [
        ({"not_before": DUE - MINUTE}, {}, f"NotBefore .* back to {DUE - MINUTE:%Y-%m-%d %H:%M}"),
        ({}, {"id": "another"}, "events or their machines"),
        ({}, {"machines": ("web-1",)}, "events or their machines"),
        ({"events": ()}, {}, "events or their machines"),
        ({}, {"approval": None}, "approval was lost"),
    ],
)
def test_what_guests_have_read_and_said_does_not_change(
    fields: dict[str, Any], event: dict[str, Any], told: str
) -> None:
    bench = Bench()
    bench.ask_each_domain()
    bench.approve(*[bench.event(f"{n}.1").id for n in (1, 2)])
    was = bench.operation("2.1")
    assert was.status is EventStatus.SCHEDULED
    now = replace(with_event(was, **event), **fields)
    operations = bench.snapshot.operations | {"2.1": now}
    with raises_broken(rf"2\.1: .*{told}"):
        succeed(bench.snapshot, replace(bench.snapshot, operations=operations))


def test_of_a_succession_only_what_the_changes_name_is_looked_at() -> None:
    bench = asked("web-0")
    before = bench.snapshot
    bench.let_pass(15 * MINUTE)
    (new,) = bench.snapshot.operations.values()
    web, still = bench.scope("web"), before.scopes["web"]
    succeed(before, bench.snapshot, Changes(operations=(new,), scopes=(web,)))
    unmoved = replace(bench.snapshot, scopes=bench.snapshot.scopes | {"web": still})
    with raises_broken("web: its events changed and"):
        succeed(before, unmoved, Changes(operations=(new,)))
    moved = replace(before, scopes=before.scopes | {"web": web})
    with raises_broken("web: its events did not change and"):
        succeed(before, moved, Changes(scopes=(web,)))
    succeed(before, unmoved, Changes())


def test_an_operation_that_takes_a_machine_which_its_decision_removes_is_noticed() -> None:
    before, bench = Bench().snapshot, Bench()
    entered = bench.ask(EventType.REBOOT, "web-0", "web-3").changes
    for harmless in ((), ("web-1",)):
        succeed(before, bench.snapshot, replace(entered, removed_machines=harmless))
    with raises_broken("that the same decision removes"):
        succeed(before, bench.snapshot, replace(entered, removed_machines=("web-3",)))


def test_an_incarnation_moves_with_the_events_of_its_scope_and_only_up() -> None:
    bench = asked("web-0")
    first = bench.snapshot
    bench.let_pass(15 * MINUTE)
    second = bench.snapshot
    bench.ask(EventType.REBOOT, "bastion")
    third = bench.snapshot

    def moved(snapshot: Snapshot, to: int) -> Snapshot:
        web = replace(snapshot.scopes["web"], incarnation=to)
        return replace(snapshot, scopes=snapshot.scopes | {"web": web})

    succeed(first, moved(second, 3))
    for before, after, told in (
        (first, moved(second, 1), "changed .* by 0"),
        (first, moved(second, 0), "changed .* by -1"),
        (second, moved(second, 3), "did not change .* by 1"),
        (second, moved(third, 3), "did not change .* by 1"),
    ):
        with raises_broken(f"scope web: its events {told}$"):
            succeed(before, after)
    invariants.check(replace(second, scopes={}).world())  # a scope outside of it is not judged
