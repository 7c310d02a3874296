"""What follows from causes, where no story of tests/scenarios tells it: by the rules alone."""

import typing
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from builders import MINUTE, NOW, Bench, Snapshot, applied, maintenance, succeed
from forewarn.maintenance import commands, fleet_file, invariants, model, planner, turns, units
from forewarn.maintenance.accounts import Token
from forewarn.maintenance.relays import new_token
from forewarn.maintenance.transitions import MAX_OUTCOME, Decision, Transitions
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.units import MaintenanceState, UnitState
from forewarn.maintenance.world import LiveState, World
from forewarn.vocabulary import (
    AgentStatus,
    ErrorCode,
    EventSource,
    EventStatus,
    EventType,
)
from stories import Told, elapsed, elapsed_at, stories_beside

REBOOT = EventType.REBOOT
HOUR = timedelta(hours=1)
replace = msgspec.structs.replace
OPENS, CLOSES = NOW + HOUR, NOW + 2 * HOUR


def raises_broken(words: str) -> Any:
    return pytest.raises(invariants.InvariantBroken, match=words)


class BenchStory(Told):
    """A fleet in memory, and the last decision about it."""

    decision: Decision

    def __init__(self) -> None:
        self.bench = Bench()
        self.kept: dict[str, Snapshot] = {}

    def decide(self, rule: Callable[..., Any], *given: Any, **named: Any) -> None:
        self.decision = self.bench.decide(rule, *given, **named)

    def policy(
        self, queue: str = "announcement", starts: str = "", enablement: str = "always"
    ) -> None:
        self.bench.policy = model.Policy(
            queue=model.Queueing(queue),
            starts=starts != "no",
            enablement=model.Enablement(enablement),
        )

    def schedule(
        self,
        kind: str,
        *machines: str,
        no_notice: str = "",
        source: str = "Platform",
        **times: str,
    ) -> None:
        more = {"no_notice": no_notice == "yes", "source": EventSource(source)}
        window = {name: self.moment(told) for name, told in times.items()}
        self.bench.ask(EventType(kind), *machines, **more, **window)

    def each_domain(self) -> None:
        self.bench.ask_each_domain()

    def later(self, span: str) -> None:
        self.bench.now += elapsed(span)

    def earlier(self, span: str) -> None:
        self.bench.now -= elapsed(span)

    def pass_(self, span: str) -> None:
        self.decision = self.bench.let_pass(elapsed(span))

    def approve(self, operation: str, scope: str | None = None) -> None:
        self.bench.approve(self.bench.event(operation).id, scope=scope)

    def cancel(self, operation: str) -> None:
        self.bench.cancel(operation)

    def pause(self, number: str) -> None:
        self.bench.order(MaintenanceOrder.PAUSE, number=int(number))

    def claim(self, operation: str, by: str = "here") -> None:
        self.decide(commands.claim_tasks, operations=[operation], executor=by, lease=MINUTE)

    def renew(self, operation: str, attempt: str) -> None:
        self.decide(commands.renew_leases, {operation: int(attempt)}, MINUTE)

    def release_leases(self, *operations: str, heir: str = "") -> None:
        self.decide(commands.release_leases, operations, heir)

    def end(self, operation: str, attempt: str) -> None:
        self.decide(commands.finish_task, operation, int(attempt), succeeded=True, message="")

    def finish(self, operation: str) -> None:
        self.bench.finish(operation)

    def fail(self, operation: str) -> None:
        self.bench.finish(operation, succeeded=False)

    def doubt(self, operation: str, attempt: str, message: str) -> None:
        self.decide(commands.report_unknown_outcome, operation, int(attempt), message)

    def repeat(self, operation: str) -> None:
        self.decide(commands.resolve_outcomes, [operation], model.Verdict.REPEAT, "ann")

    def advance(self, *operations: str) -> None:
        """Start what is due, of these operations if any are named."""
        self.decide(commands.advance_time, **({"ids": operations} if operations else {}))

    def extend(self, span: str) -> None:
        self.decide(commands.extend_notices, elapsed(span))

    def request(self, scope: str) -> None:
        """A machine of a scope asks for events."""
        self.decide(commands.record_requests, (scope,))

    def saw(self, *machines: str, agent: str = "") -> None:
        status = AgentStatus(agent) if agent else None
        seen = model.Sighting(asked_at=self.bench.now, version="2020-07-01", agent=status)
        self.bench.sightings |= dict.fromkeys(machines, seen)

    def forget_sightings(self) -> None:
        self.bench.sightings.clear()

    def look(self, operation: str) -> None:
        """Look whether its machines are back."""
        self.decide(commands.record_returns, (operation,))

    # The invariants: operations that no rule leads to, and what follows what.

    def altered(self, name: str, of: str = "", twice: str = "", **told: str) -> model.Operation:
        """An operation with other values; those of its event begin with `event_`."""
        fields = msgspec.to_builtins(self.bench.operation(of or name)) | {"id": name}
        (event,) = fields["events"]
        for field, text in told.items():
            value: Any = {"nothing": None, "none": []}.get(text, text)
            if field.endswith(("_at", "not_before")) and value is not None:
                value = (NOW + elapsed(text)).isoformat()
            elif field.removeprefix("event_") in {"machines", "hosts"} and value:
                value = text.split(",")
            into = event if field.startswith("event_") and field != "event_type" else fields
            into[field.removeprefix("event_") if into is event else field] = value
        if twice:
            fields["events"] *= 2
        return msgspec.convert(fields, model.Operation, strict=False)

    def another(self, name: str, **told: str) -> None:
        """There is another operation, like one that is there."""
        made = self.altered(name, **told)
        self.bench.snapshot = applied(self.bench.snapshot, model.Changes(operations=(made,)))

    def incarnations(self, number: str) -> None:
        scopes = self.bench.snapshot.scopes.values()
        same = tuple(replace(scope, incarnation=int(number)) for scope in scopes)
        self.bench.snapshot = applied(self.bench.snapshot, model.Changes(scopes=same))

    def sound(self, name: str = "", **told: str) -> None:
        """Nothing is broken: of all, or of what has changed."""
        if told:
            invariants.check_operation(self.altered(name, **told))
        else:
            changed = [self.bench.operation(name)] if name else None
            invariants.check(self.bench.snapshot.world(), changed)

    def breaks(self, says: str, name: str, **told: str) -> None:
        """An altered operation breaks an invariant, by itself or among all."""
        damaged = self.altered(name, **told)
        world = applied(self.bench.snapshot, model.Changes(operations=(damaged,))).world()
        for changed in (None, [damaged]):
            with raises_broken(rf"^operation {name}: .*{says}"):
                invariants.check(world, changed)

    def broken(self, says: str, *names: str) -> None:
        """An invariant is broken: by all, and by what has changed."""
        for changed in (None, *([self.bench.operation(name)] for name in names)):
            with raises_broken(says):
                invariants.check(self.bench.snapshot.world(), changed)

    def keep(self, name: str) -> None:
        self.kept[name] = self.bench.snapshot

    def follows(self, before: str, after: str, says: str = "") -> None:
        """One snapshot may follow another, or breaks an invariant."""
        with raises_broken(says) if says else nullcontext():
            succeed(self.kept[before], self.kept[after])

    def follows_altered(self, before: str, says: str, name: str, **told: str) -> None:
        """No snapshot with an altered operation may follow."""
        known = self.kept[before]
        after = applied(known, model.Changes(operations=(self.altered(name, **told),)))
        with raises_broken(rf"{name}: .*{says}"):
            succeed(known, after)

    # What must be so.

    def decided(self, *operations: str) -> None:
        assert [each.id for each in self.decision.operations] == [*operations]

    def changed(self, what: str) -> None:
        assert (what, self.decision.changes) == ("nothing", model.Changes())

    def returned(self, operation: str, how: str) -> None:
        found = commands.has_returned(self.bench.operation(operation), self.bench.sightings.get)
        assert found is (how == "yes")

    def incarnation(self, scope: str, number: str) -> None:
        assert self.bench.scope(scope).incarnation == int(number)

    def asked(self, scope: str, at: str) -> None:
        assert elapsed_at(self.bench.scope(scope).asked_at) == elapsed(at)

    def operation(self, name: str, status: str, **told: str) -> None:
        self.compare(self.bench.operation(name), {"status": status, **told})


@pytest.mark.parametrize("rows", stories_beside(__file__, "decisions.txt"))
def test_the_story_holds(rows: list[tuple[int, str]]) -> None:
    assert BenchStory().play("decisions.txt", rows)


def refusal_of(*machines: str, bench: Bench | None = None, **more: Any) -> model.Refused:
    """The refusal of a reboot, which changes nothing."""
    bench = bench or Bench()
    before = bench.snapshot
    with pytest.raises(model.Refused) as refusal:
        bench.ask(REBOOT, *machines, **more)
    assert bench.snapshot is before
    return refusal.value


# Tasks.


def claimed() -> Bench:
    bench = Bench()
    bench.ask(REBOOT, "web-0", "web-3", no_notice=True)
    bench.let_pass(MINUTE)
    bench.claim("1.1")
    return bench


def test_of_a_long_complaint_or_doubt_the_end_is_kept_and_one_without_words_is_one() -> None:
    bench = claimed()
    for given, told in (("", "nobody knows whether"), ("x" * 5000 + "end", "xend")):
        bench.decide(commands.report_unknown_outcome, "1.1", 1, given)
        unknown = bench.operation("1.1").outcome_unknown
        assert told in unknown
        assert len(unknown) <= MAX_OUTCOME
    bench = claimed()
    bench.finish("1.1", succeeded=False, message="x" * 5000 + "end")
    outcome = bench.operation("1.1").outcome
    assert (len(outcome), outcome[-4:]) == (MAX_OUTCOME, "xend")


def test_what_is_approved_and_waits_for_nothing_is_due_at_once() -> None:
    bench = Bench()
    bench.ask_each_domain()
    event = replace(bench.event("2.1"), approval=bench.word())
    approved = replace(bench.operation("2.1"), waits_for="", events=(event,))
    assert approved.wakeup_at == model.AT_ONCE


def test_cancelling_a_maintenance_that_is_not_open_still_takes_what_is_pending() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.snapshot = replace(bench.snapshot, maintenances={})
    bench.cancel(maintenance=1)
    assert bench.operation("1.1").status is EventStatus.CANCELED
    with pytest.raises(model.Refused) as refusal:
        bench.cancel(maintenance=1)
    assert refusal.value.code is ErrorCode.TOO_LATE


def test_of_a_succession_only_what_the_changes_name_is_looked_at() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    before = bench.snapshot
    bench.let_pass(15 * MINUTE)
    (new,) = bench.snapshot.operations.values()
    web, still = bench.scope("web"), before.scopes["web"]
    succeed(before, bench.snapshot, model.Changes(operations=(new,), scopes=(web,)))
    unmoved = replace(bench.snapshot, scopes=bench.snapshot.scopes | {"web": still})
    with raises_broken("web: its events changed and"):
        succeed(before, unmoved, model.Changes(operations=(new,)))
    moved = replace(before, scopes=before.scopes | {"web": web})
    with raises_broken("web: its events did not change and"):
        succeed(before, moved, model.Changes(scopes=(web,)))
    succeed(before, unmoved, model.Changes())


def test_an_operation_that_takes_a_machine_which_its_decision_removes_is_noticed() -> None:
    before, bench = Bench().snapshot, Bench()
    entered = bench.ask(REBOOT, "web-0", "web-3").changes
    for harmless in ((), ("web-1",)):
        succeed(before, bench.snapshot, replace(entered, removed_machines=harmless))
    with raises_broken("that the same decision removes"):
        succeed(before, bench.snapshot, replace(entered, removed_machines=("web-3",)))


def test_an_incarnation_moves_with_the_events_of_its_scope_and_only_up() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    first = bench.snapshot
    bench.let_pass(15 * MINUTE)
    second = bench.snapshot
    bench.ask(REBOOT, "bastion")
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


# Units.


def test_no_more_maintenances_with_units_are_open_than_the_limit_and_others_are_not_counted() -> (
    None
):
    bench = Bench()
    bench.ask(REBOOT, scope="batch")
    one = bench.maintenance()
    many = {n: replace(one, number=n) for n in range(1, units.MAX_OPEN + 1)}
    bench.snapshot = replace(bench.snapshot, maintenances=many)
    refused = refusal_of(bench=bench, scope="web")
    assert (refused.code, refused.facts) == (ErrorCode.LIMIT, {"most": units.MAX_OPEN})
    request = planner.Request(event_type=REBOOT, machines=("web-0",))
    decision = bench.decide(commands.request_maintenance, request, units.MAX_OPEN + 7)
    assert [operation.machines for operation in decision.operations] == [("web-0",)]


def test_a_maintenance_that_was_halted_elsewhere_recalls_what_has_not_started() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    halted = replace(bench.maintenance(), state=MaintenanceState.HALTED, reason="the tail is lost")
    bench.snapshot = applied(bench.snapshot, model.Changes(maintenances=(turns.recalled(halted),)))
    bench.decide(commands.take_turns, 1)
    assert bench.operation("1.1").status is EventStatus.CANCELED
    assert {unit.state for unit in bench.maintenance().units} == {UnitState.WAITING}


def test_a_maintenance_is_open_until_its_state_and_each_unit_are_over() -> None:
    waiting = maintenance("h1")
    running = (replace(waiting.units[0], state=UnitState.RUNNING),)
    over = {MaintenanceState.ANNOUNCED, MaintenanceState.STOPPED, MaintenanceState.DONE}
    for state in MaintenanceState:
        of = replace(waiting, state=state, units=())
        assert of.open is (state not in over)
        assert replace(of, units=running).open


# Requests.


def test_every_type_from_every_source_has_a_description() -> None:
    every = {(event_type, source) for event_type in EventType for source in EventSource}
    assert set(planner.DESCRIPTIONS) == every


@pytest.mark.parametrize(
    "more",
    [
        {"opens_at": OPENS.replace(tzinfo=None), "closes_at": CLOSES},
        {"opens_at": OPENS, "closes_at": CLOSES.replace(tzinfo=None)},
        {"not_before": datetime(2026, 3, 3)},
        {"description": "two\nlines"},
        {"description": "\x00"},
    ],
    ids=str,
)
def test_a_time_without_a_zone_and_a_text_that_is_no_line_are_refused(
    more: dict[str, Any],
) -> None:
    refused = refusal_of("web-0", **more)
    assert refused.code is ErrorCode.INVALID
    if text := more.get("description"):
        assert refused.facts == {"where": "description", "length": len(text)}


def test_ten_thousand_machines_are_the_most_of_one_request() -> None:
    def bench_of(count: int) -> Bench:
        members = [{"name": f"m{n}"} for n in range(count)]
        group = {"name": "big", "update_domains": 1, "machines": members}
        return Bench(msgspec.convert({"availability_set": [group]}, fleet_file.Fleet))

    assert len(bench_of(10_000).ask(EventType.FREEZE, scope="big").operations) == 1
    refused = refusal_of(bench=bench_of(10_001), scope="big")
    assert refused.code is ErrorCode.LIMIT
    assert refused.facts == {"machines": 10_001, "most": 10_000}


def test_a_maintenance_dates_from_the_transaction_that_starts_it() -> None:
    bench = Bench()
    wanted = replace(maintenance(), requested_at=NOW - HOUR, changed_at=NOW - HOUR, units=())
    bench.decide(commands.start_maintenance, wanted, 1)
    assert (bench.maintenance().requested_at, bench.maintenance().changed_at) == (NOW, NOW)


SET_BACK: dict[type[msgspec.Struct], dict[str, str]] = {
    model.Operation: {
        "earlier": "back_by up_at lease_until",
        "capped": "carried_out_at ended_at",
        "kept": "announced_at not_before opens_at closes_at started_at held_at",
    },
    model.Maintenance: {"earlier": "requested_at wave_at", "kept": "opens_at closes_at changed_at"},
    units.CheckProgress: {"earlier": "began_at lease_until passed_at"},
    units.Unit: {"earlier": "retry_at refused_at", "capped": "changed_at"},
    model.Drain: {
        "earlier": "reboot_asked_at booted_at silent_since",
        "capped": "requested_at changed_at",
    },
    Token: {"capped": "created_at used_at", "kept": "expires_at"},
}
"""How a clock that was set back treats each time of what a decision looks at."""


def times_of(kind: type[msgspec.Struct]) -> set[str]:
    fields = msgspec.structs.fields(kind)
    return {one.name for one in fields if datetime in {one.type, *typing.get_args(one.type)}}


def dated(value: Any, at: datetime) -> Any:
    return replace(value, **dict.fromkeys(times_of(type(value)), at))


def test_a_clock_that_is_set_back_leaves_no_time_as_it_was_by_oversight() -> None:
    bench, later = Bench(), NOW + HOUR / 2
    bench.ask(REBOOT, "web-0")
    (operation,) = bench.snapshot.operations.values()
    unit = dated(units.Unit(name="h0", kind=units.UnitKind.HOST), later)
    check = dated(units.CheckProgress(), later)
    drain = model.Drain(host="h0", state=model.HostState.UP, requested_at=NOW, changed_at=NOW)
    state = LiveState(
        operations={operation.id: dated(operation, later)},
        maintenances={1: replace(dated(maintenance(), later), units=(unit,), check=check)},
        drains={"h0": dated(drain, later)},
        tokens={"t": dated(new_token("h0", "digest", by="ann", at=NOW), later)},
    )
    world = World(state)
    commands.set_back(Transitions(world, NOW, bench.mint, bench.policy, model.unseen), HOUR)
    (after,) = world.maintenances.values()
    values = [after, after.check, *after.units]
    values += [*world.operations.values(), *world.drains.values(), *world.tokens.values()]
    assert {type(value) for value in values} == SET_BACK.keys()
    for value in values:
        expected = {
            name: {"earlier": later - HOUR, "capped": NOW, "kept": later}[how]
            for how, names in SET_BACK[type(value)].items()
            for name in names.split()
        }
        assert {name: getattr(value, name) for name in times_of(type(value))} == expected
