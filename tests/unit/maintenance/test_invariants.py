"""The invariants notice each breach: a check that cannot fail is none."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from builders import MINUTE, NOW, Bench, Snapshot, succeed
from forewarn.maintenance import invariants
from forewarn.maintenance.model import Changes, Operation, StartCause
from forewarn.vocabulary import EventStatus, EventType

replace = msgspec.structs.replace
Damage = Callable[[Operation], Operation]


def started() -> Bench:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0", "web-3")
    bench.let_pass(15 * MINUTE)
    return bench


def with_event(operation: Operation, **changes: object) -> Operation:
    (event,) = operation.events
    return replace(operation, events=(replace(event, **changes),))


DAMAGES: list[tuple[Damage, str]] = [
    (lambda o: replace(o, events=()), "it has no event"),
    (lambda o: with_event(o, machines=()), "has no machine"),
    (lambda o: replace(o, events=o.events * 2), "two events in one update domain"),
    (
        lambda o: replace(o, not_before=o.not_before + timedelta(microseconds=1)),
        "NotBefore is not a whole second",
    ),
    (lambda o: replace(o, started_at=None), "its start and its start cause disagree"),
    (lambda o: replace(o, start_cause=None), "its start and its start cause disagree"),
    (
        lambda o: replace(o, started_at=None, start_cause=None),
        "its start and its start cause disagree",
    ),
    (lambda o: replace(o, status=EventStatus.COMPLETED), "its status and its end disagree"),
    (lambda o: replace(o, status=EventStatus.FAILED), "its status and its end disagree"),
    (lambda o: replace(o, ended_at=NOW), "its status and its end disagree"),
    (lambda o: replace(o, waits_for="9.1"), "it waits although it has started"),
    (
        lambda o: replace(o, started_at=o.not_before - timedelta(microseconds=1)),
        "it started before its NotBefore",
    ),
    (
        lambda o: replace(o, start_cause=StartCause.APPROVED),
        "it started as approved without an approval",
    ),
    (
        lambda o: replace(o, start_cause=StartCause.SILENT),
        "it started as silent although guests see it",
    ),
    (
        lambda o: replace(o, held_at=NOW),
        "it is held although it has started, or waits besides",
    ),
    (
        lambda o: replace(
            o, status=EventStatus.SCHEDULED, started_at=None, start_cause=None, hosts=("h2",)
        ),
        "its machines are on other hosts",
    ),
    (lambda o: with_event(o, published=3), "was published at 3, and its scope is at 2"),
    (lambda o: with_event(o, published=0), "was published at 0, and its scope is at 2"),
]


@pytest.mark.parametrize(("damage", "told"), DAMAGES, ids=[told for _, told in DAMAGES])
def test_a_damaged_operation_is_noticed(damage: Damage, told: str) -> None:
    snapshot = started().snapshot
    invariants.check(snapshot.world())
    damaged = damage(snapshot.operations["1.1"])
    broken_one = replace(snapshot, operations={"1.1": damaged})
    for changed in (None, [damaged]):
        with pytest.raises(invariants.InvariantBroken, match=rf"\b{told}$") as broken:
            invariants.check(broken_one.world(), changed)
        assert str(broken.value).startswith("operation 1.1: ")


def test_what_is_scheduled_is_not_held_and_waiting_at_once() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0")
    scheduled = bench.operation("1.1")
    invariants.check_operation(replace(scheduled, held_at=NOW))
    with pytest.raises(invariants.InvariantBroken, match="or waits besides"):
        invariants.check_operation(replace(scheduled, held_at=NOW, waits_for="2.1"))


def test_a_started_one_without_notice_may_be_as_early_as_it_was() -> None:
    bench = Bench(now=NOW + timedelta(microseconds=1))
    bench.ask(EventType.REBOOT, "web-0", no_notice=True)
    assert bench.operation("1.1").started_at < bench.operation("1.1").not_before
    invariants.check(bench.snapshot.world())


def both(first: Operation, second: Operation, snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, operations={o.id: o for o in (first, second)})


def test_two_domains_of_a_scope_down_at_once_are_noticed() -> None:
    snapshot = started().snapshot
    first = snapshot.operations["1.1"]
    second = replace(first, id="2.1", hosts=("h1",))
    second = with_event(second, update_domain=1, machines=("web-1",), id="OTHER")
    with pytest.raises(invariants.InvariantBroken, match=r"1\.1: 2\.1 has another .* of web down"):
        invariants.check(both(first, second, snapshot).world())
    for harmless in (
        replace(second, event_type=EventType.PREEMPT),
        replace(second, event_type=EventType.TERMINATE),
        replace(second, start_cause=StartCause.NO_NOTICE),
        replace(second, status=EventStatus.SCHEDULED, started_at=None, start_cause=None),
        replace(second, status=EventStatus.COMPLETED, ended_at=NOW),
        with_event(second, scope="batch"),
        with_event(second, update_domain=0),
    ):
        scopes = {k: replace(s, incarnation=2) for k, s in snapshot.scopes.items()}
        invariants.check(replace(both(first, harmless, snapshot), scopes=scopes).world())


def test_a_scheduled_one_before_them_hides_no_two_domains() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-2")
    bench.ask(EventType.REBOOT, "web-0", no_notice=True)
    due = replace(bench.operation("2.1"), start_cause=StartCause.NOTICE_OVER, not_before=NOW)
    other = with_event(replace(due, id="3.1"), update_domain=1, machines=("web-1",))
    snapshot = replace(
        bench.snapshot, operations={"1.1": bench.operation("1.1"), "2.1": due, "3.1": other}
    )
    with pytest.raises(invariants.InvariantBroken, match=r"2\.1: 3\.1 has another .* of web down"):
        invariants.check(snapshot.world())


def test_what_changed_is_judged_with_all_that_shares_its_scopes_and_nothing_else() -> None:
    snapshot = started().snapshot
    first = snapshot.operations["1.1"]
    second = with_event(replace(first, id="2.1"), update_domain=1, machines=("web-1",), id="OTHER")
    shared = both(first, second, snapshot)
    for changed in (first, second):
        with pytest.raises(
            invariants.InvariantBroken, match="has another update domain of web down"
        ):
            invariants.check(shared.world(), [changed])
    elsewhere = with_event(replace(first, id="3.1"), scope="batch", machines=("batch_0",))
    apart = replace(
        shared,
        operations=shared.operations | {"3.1": elsewhere},
        scopes=snapshot.scopes | {"batch": replace(snapshot.scopes["batch"], incarnation=2)},
    )
    invariants.check(apart.world(), [elsewhere])


def test_a_machine_in_two_live_events_is_noticed() -> None:
    snapshot = started().snapshot
    first = snapshot.operations["1.1"]
    second = with_event(replace(first, id="2.1"), machines=("web-6", "web-3"))
    with pytest.raises(invariants.InvariantBroken, match=r"1\.1: web-3 is also in operation 2\.1"):
        invariants.check(both(first, second, snapshot).world())


def test_a_step_back_is_noticed() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0")
    before = bench.snapshot
    bench.let_pass(15 * MINUTE)
    middle = bench.snapshot
    bench.finish("1.1")
    after = bench.snapshot
    succeed(before, middle)
    succeed(middle, after)
    succeed(before, after)
    with pytest.raises(invariants.InvariantBroken, match="went from Started to Scheduled"):
        succeed(middle, before)
    with pytest.raises(invariants.InvariantBroken, match="went from Completed to Started"):
        succeed(after, middle)


def test_a_not_before_that_goes_back_is_noticed() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0")
    before = bench.snapshot
    earlier = replace(bench.operation("1.1"), not_before=NOW + 14 * MINUTE)
    with pytest.raises(invariants.InvariantBroken) as broken:
        succeed(before, replace(before, operations={"1.1": earlier}))
    assert str(broken.value) == (
        f"operation 1.1: its NotBefore went from {NOW + 15 * MINUTE} back to {NOW + 14 * MINUTE}"
    )


def test_of_a_succession_only_what_the_changes_name_is_looked_at() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0")
    before = bench.snapshot
    bench.let_pass(15 * MINUTE)
    (new,) = bench.snapshot.operations.values()
    web, still = bench.scope("web"), before.scopes["web"]
    whole = Changes(operations=(new,), scopes=(web,))
    succeed(before, bench.snapshot, whole)
    unmoved = replace(bench.snapshot, scopes=bench.snapshot.scopes | {"web": still})
    with pytest.raises(invariants.InvariantBroken, match="web: its events changed and"):
        succeed(before, unmoved, Changes(operations=(new,)))
    moved = replace(before, scopes=before.scopes | {"web": web})
    with pytest.raises(invariants.InvariantBroken, match="web: its events did not change and"):
        succeed(before, moved, Changes(scopes=(web,)))
    succeed(before, unmoved, Changes())


def test_an_operation_that_takes_a_machine_which_its_decision_removes_is_noticed() -> None:
    before = Bench().snapshot
    bench = Bench()
    entered = bench.ask(EventType.REBOOT, "web-0", "web-3").changes
    succeed(before, bench.snapshot, entered)
    other = replace(entered, removed_machines=("web-1",))
    succeed(before, bench.snapshot, other)
    removing = replace(entered, removed_machines=("web-3",))
    with pytest.raises(invariants.InvariantBroken, match="that the same decision removes"):
        succeed(before, bench.snapshot, removing)


def test_a_fencing_number_that_goes_back_is_noticed() -> None:
    bench = started()
    before = bench.snapshot
    bench.claim("1.1")
    with pytest.raises(invariants.InvariantBroken, match=r" its fencing number went back$"):
        succeed(bench.snapshot, before)


@pytest.mark.parametrize("changes", [{"id": "another"}, {"machines": ("web-1",)}, None])
def test_an_event_that_becomes_another_is_noticed(changes: dict[str, Any] | None) -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0")
    before = bench.snapshot
    was = bench.operation("1.1")
    now = replace(was, events=()) if changes is None else with_event(was, **changes)
    after = replace(before, operations={"1.1": now})
    with pytest.raises(invariants.InvariantBroken, match="its events or their machines changed"):
        succeed(before, after)


def test_a_lost_approval_is_noticed() -> None:
    bench = Bench()
    bench.ask_each_domain()
    bench.approve(*[bench.event(f"{n}.1").id for n in (1, 2)])
    waiting = bench.operation("2.1")
    assert waiting.status is EventStatus.SCHEDULED
    lost = replace(
        bench.snapshot,
        operations=bench.snapshot.operations | {"2.1": with_event(waiting, approval=None)},
    )
    with pytest.raises(invariants.InvariantBroken, match=r"2\.1: an approval was lost"):
        succeed(bench.snapshot, lost)


@pytest.mark.parametrize(("moved_to", "told"), [(1, "changed"), (3, "changed"), (0, "changed")])
def test_an_incarnation_moves_with_the_events_and_only_up(moved_to: int, told: str) -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0")
    before = bench.snapshot
    bench.let_pass(15 * MINUTE)
    web = replace(bench.scope("web"), incarnation=moved_to)
    after = replace(bench.snapshot, scopes=bench.snapshot.scopes | {"web": web})
    if moved_to > 1:
        succeed(before, after)
        return
    with pytest.raises(invariants.InvariantBroken) as broken:
        succeed(before, after)
    assert str(broken.value) == (
        f"scope web: its events {told} and its incarnation moved by {moved_to - 1}"
    )


def test_an_incarnation_stays_where_the_events_do() -> None:
    before = started().snapshot
    web = replace(before.scopes["web"], incarnation=3)
    after = replace(before, scopes=before.scopes | {"web": web})
    with pytest.raises(invariants.InvariantBroken) as broken:
        succeed(before, after)
    assert str(broken.value) == (
        "scope web: its events did not change and its incarnation moved by 1"
    )


def test_only_the_events_of_its_own_scope_move_a_scope() -> None:
    bench = Bench()
    before = bench.snapshot
    bench.ask(EventType.REBOOT, "bastion")
    web = replace(bench.scope("web"), incarnation=1)
    after = replace(bench.snapshot, scopes=bench.snapshot.scopes | {"web": web})
    with pytest.raises(invariants.InvariantBroken, match="scope web: its events did not change"):
        succeed(before, after)


def test_a_scope_outside_the_snapshot_is_not_judged() -> None:
    snapshot = started().snapshot
    invariants.check(replace(snapshot, scopes={}).world())
