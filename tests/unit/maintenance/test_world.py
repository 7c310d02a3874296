"""The World: what it finds, and that whatever is undone leaves no trace."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import FLEET, MINUTE, NOW, Bench, mint
from forewarn.maintenance import commands, fleet_file
from forewarn.maintenance.model import AT_ONCE, Changes, HoldKind, Operation, Scope
from forewarn.maintenance.world import (
    MAX_RETIRED,
    OTHERS,
    Index,
    IndexBroken,
    LiveState,
    Table,
    World,
)
from forewarn.vocabulary import EventStatus, EventType, ScopeKind

replace = msgspec.structs.replace
REBOOT = EventType.REBOOT


def content(world: World) -> dict[str, Any]:
    """Its tables and indexes; the heap of wakeups may have entries that count no more."""
    return {name: value for name, value in vars(world).items() if isinstance(value, dict)}


def busy() -> Bench:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    bench.ask(REBOOT, "bastion", "batch_0")
    bench.ask(REBOOT, "FrontEnd_IN_0", no_notice=True)
    bench.hold(HoldKind.MACHINE, "bastion")
    return bench


class Broken(Exception):  # noqa: N818 - it is meant to happen
    pass


STEPS: tuple[Callable[[Bench], Changes], ...] = (
    lambda bench: bench.approve(bench.event("1.1").id).changes,
    lambda bench: bench.let_pass(20 * MINUTE).changes,
    lambda bench: bench.finish("3.1").changes,
    lambda bench: bench.cancel("2.1").changes,
    lambda bench: Changes(machines=(replace(bench.snapshot.machines["web-0"], host="h9"),)),
    lambda bench: bench.ask(EventType.PREEMPT, "batch_1").changes,
    lambda _: Changes(removed_machines=("bastion", "firm_0"), removed_scopes=("bastion",)),
)


@pytest.mark.parametrize("step", STEPS)
def test_what_a_change_leads_to_is_what_is_filled_and_to_undo_it_leaves_nothing(
    step: Callable[[Bench], Changes],
) -> None:
    world, bench = busy().snapshot.world(), busy()
    before = content(busy().snapshot.world())
    changes = step(bench)
    world.take(changes)
    tables = {name: getattr(world, name) for name in LiveState.__struct_fields__}
    filled = World(LiveState(**tables))
    assert content(world) == content(filled)
    assert world.changes(world.since(0)).operations == changes.operations
    world.undo()
    assert content(world) == before
    assert not world.since(0)


class Failing(Table[str, Operation]):
    """Takes so many values, and then fails."""

    left = 0

    def __setitem__(self, name: str, value: Operation) -> None:
        if self.left == 0:
            raise Broken
        self.left -= 1
        super().__setitem__(name, value)


def test_whatever_fails_half_way_is_undone_whole() -> None:
    bench = busy()
    due = list(bench.snapshot.operations)
    failed = 0
    for left in range(30):
        world = bench.snapshot.world()
        world.operations.__class__ = Failing
        world.operations.left = left
        try:
            commands.decide(
                world, lambda on: commands.advance_time(on, due), NOW + 16 * MINUTE, bench.mint
            )
        except Broken:
            failed += 1
            assert content(world) == content(bench.snapshot.world())
    assert 1 < failed < 30


def test_an_index_that_fails_cannot_be_undone_but_the_values_are_known() -> None:
    world, whole = busy().snapshot.world(), busy().snapshot.world()
    world.of_event.clear()
    del world.scopes["web"]
    with pytest.raises(KeyError):
        del world.operations["1.1"]
    with pytest.raises(IndexBroken):
        world.undo()
    assert content(World(world.before())) == content(whole)


def test_a_table_takes_no_change_that_passes_its_journal() -> None:
    world = busy().snapshot.world()
    for change in (
        lambda: world.scopes.update({}),
        lambda: world.scopes.pop("web"),
        world.scopes.clear,
        lambda: world.scopes.setdefault("web", world.scopes["web"]),
    ):
        with pytest.raises(TypeError, match="one value at a time"):
            change()


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3))))
def test_an_index_has_each_key_of_a_name_once(given: list[tuple[str, int]]) -> None:
    index, known = Index(), set[tuple[str, int]]()
    for name, one in given:
        if (name, one) in known:
            index.drop(name, one)
        else:
            index.add(name, one)
        known ^= {(name, one)}
        for each in "ab":
            assert sorted(index.of(each)) == sorted(key for name, key in known if name == each)
        assert index.keys() == {name for name, _ in known}


def test_what_is_over_leaves_the_world_with_the_commit_and_may_be_recalled() -> None:
    bench = busy()
    world = bench.snapshot.world()
    world.take(bench.cancel("2.1").changes)
    event = world.operations["2.1"].events[0].id
    assert world.of_event.of(event) == ("2.1",)
    world.settle()
    assert "2.1" not in world.operations
    assert world.of_event.of(event) == ()
    world.recall(bench.operation("2.1"))
    assert world.of_event.of(event) == ("2.1",)
    assert world.live_in("bastion") == []
    assert not world.since(0)
    world.settle()
    assert "2.1" not in world.operations


def operations(**changes: Any) -> World:
    """1.1, 2.1 and 3.1 of three scopes, of which the second is changed."""
    bench = Bench()
    for machine in ("web-0", "bastion", "batch_0"):
        bench.ask(REBOOT, machine)
    world = bench.snapshot.world()
    world.operations["2.1"] = replace(world.operations["2.1"], **changes)
    return world


def test_what_is_due_comes_earliest_first_and_not_before_its_time() -> None:
    world = operations(not_before=NOW + 10 * MINUTE)
    assert world.due(NOW + 10 * MINUTE - MINUTE / 60, 9) == []
    assert world.due(NOW + 10 * MINUTE, 9) == ["2.1"]
    assert world.due(NOW + 15 * MINUTE, 9) == ["2.1", "1.1", "3.1"]
    assert world.due(NOW + 15 * MINUTE, 2) == ["2.1", "1.1"]
    world.operations["2.1"] = replace(world.operations["2.1"], waits_for="1.1")
    assert world.due(NOW + 15 * MINUTE, 9) == ["1.1", "3.1"]
    approved = operations(events=(replace(operations().operations["2.1"].events[0], silent=True),))
    assert approved.due(AT_ONCE, 9) == []


def test_old_times_are_forgotten() -> None:
    world = operations()
    for minute in range(2000):
        later = NOW + minute * MINUTE
        world.operations["1.1"] = replace(world.operations["1.1"], not_before=later)
    assert len(world._wakeups._heap) < 1100
    assert world.due(NOW + 2000 * MINUTE, 9) == ["2.1", "3.1", "1.1"]


def started(operation: Operation, **changes: Any) -> Operation:
    given = {"status": EventStatus.STARTED, "started_at": NOW} | changes
    return replace(operation, **given)


def test_only_what_is_started_and_nobodys_is_claimable_what_was_left_first() -> None:
    world = operations()
    for name, changes in {
        "1.1": {"started_at": NOW + MINUTE},
        "2.1": {"lease_until": NOW + MINUTE},
        "3.1": {"outcome_unknown": "nobody knows"},
    }.items():
        world.operations[name] = started(world.operations[name], **changes)
    assert world.claimable(NOW, 9) == ["1.1"]
    assert world.claimable(NOW + MINUTE, 9) == ["2.1", "1.1"]
    assert world.claimable(NOW + MINUTE, 1) == ["2.1"]


def test_a_removed_scope_leaves_its_incarnation_until_it_is_added_again() -> None:
    bench = Bench(FLEET)
    bench.ask(REBOOT, "bastion")
    world = bench.snapshot.world()
    web, bastion = world.scopes["web"], world.scopes["bastion"]
    world.take(Changes(removed_scopes=("bastion", "web")))
    assert world.retired == {"bastion": 1}
    world.take(Changes(scopes=(bastion, web)))
    assert world.retired == {}


def test_scopes_of_ever_new_names_are_forgotten_and_no_incarnation_comes_again() -> None:
    one = Scope(name="spot-0", kind=ScopeKind.MACHINE, update_domains=1, incarnation=5)
    names = [f"spot-{n}" for n in range(MAX_RETIRED)]
    retired = {name: 5 + (name == "spot-1") for name in names[1:]}
    world = World(LiveState(scopes={one.key: one}, retired=retired | {OTHERS: 4}))
    mark = world.mark()
    world.take(Changes(removed_scopes=("spot-0",)))
    assert len(world.retired) <= MAX_RETIRED
    assert world.retired["spot-1"] == 6
    assert {world.latest_incarnation(name) for name in (*names, "new")} == {5, 6}
    fleet = fleet_file.Fleet(machine=(fleet_file.StandaloneMachine(name="new"),))
    (scope,) = fleet_file.apply(world, fleet, prune=False, mint=mint()).changes.scopes
    assert scope.incarnation == 6
    world.undo(mark)
    assert world.retired == retired | {OTHERS: 4}
