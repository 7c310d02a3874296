"""What follows from causes, where no story of tests/scenarios tells it: by the rules alone."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from builders import FLEET, MINUTE, NOW, SECOND, Bench, applied, maintenance, mint
from forewarn.maintenance import commands, fleet_file, invariants, planner, turns, units
from forewarn.maintenance.model import (
    AT_ONCE,
    Changes,
    Enablement,
    Maintenance,
    Policy,
    Queueing,
    Refused,
    Sighting,
    Verdict,
)
from forewarn.maintenance.transitions import MAX_OUTCOME, Decision
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.units import MaintenanceState, TurnPolicy, Unit, UnitKind, UnitState
from forewarn.vocabulary import (
    AgentStatus,
    ErrorCode,
    EventSource,
    EventStatus,
    EventType,
    TargetKind,
)
from stories import Told, elapsed, elapsed_at, stories_beside

REBOOT = EventType.REBOOT
HOUR = timedelta(hours=1)
OPENS, CLOSES = NOW + HOUR, NOW + 2 * HOUR
AHEAD = HOUR - 15 * MINUTE - SECOND
"""How long until guests hear of what is asked for now, so that their notice ends at OPENS."""
FIRST_REQUEST = Policy(enablement=Enablement.FIRST_REQUEST)
DONE, WAITING, RUNNING = UnitState.DONE, UnitState.WAITING, UnitState.RUNNING


class BenchStory(Told):
    """A fleet in memory, and the last decision about it."""

    decision: Decision

    def __init__(self) -> None:
        self.bench = Bench()

    def decide(self, rule: Callable[..., Any], *given: Any, **named: Any) -> None:
        self.decision = self.bench.decide(rule, *given, **named)

    def policy(
        self, queue: str = "announcement", starts: str = "", enablement: str = "always"
    ) -> None:
        self.bench.policy = Policy(
            queue=Queueing(queue), starts=starts != "no", enablement=Enablement(enablement)
        )

    def schedule(
        self, kind: str, *machines: str, no_notice: str = "", source: str = "Platform"
    ) -> None:
        more = {"no_notice": no_notice == "yes", "source": EventSource(source)}
        self.bench.ask(EventType(kind), *machines, **more)

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
        self.decide(commands.renew_lease, operation, int(attempt), MINUTE)

    def release_leases(self, *operations: str) -> None:
        self.decide(commands.release_leases, operations)

    def end(self, operation: str, attempt: str) -> None:
        self.decide(commands.finish_task, operation, int(attempt), succeeded=True, message="")

    def finish(self, operation: str) -> None:
        self.bench.finish(operation)

    def fail(self, operation: str) -> None:
        self.bench.finish(operation, succeeded=False)

    def doubt(self, operation: str, attempt: str, message: str) -> None:
        self.decide(commands.report_unknown_outcome, operation, int(attempt), message)

    def repeat(self, operation: str) -> None:
        self.decide(commands.resolve_outcomes, [operation], Verdict.REPEAT, "ann")

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
        seen = Sighting(asked_at=self.bench.now, version="2020-07-01", agent=status)
        self.bench.sightings |= dict.fromkeys(machines, seen)

    def forget_sightings(self) -> None:
        self.bench.sightings.clear()

    def look(self, operation: str) -> None:
        """Look whether its machines are back."""
        self.decide(commands.record_returns, (operation,))

    # What must be so.

    def decided(self, *operations: str) -> None:
        assert [each.id for each in self.decision.operations] == [*operations]

    def changed(self, what: str) -> None:
        assert (what, self.decision.changes) == ("nothing", Changes())

    def returned(self, operation: str, how: str) -> None:
        found = commands.has_returned(self.bench.operation(operation), self.bench.sightings.get)
        assert found is (how == "yes")

    def incarnation(self, scope: str, number: str) -> None:
        assert self.bench.scope(scope).incarnation == int(number)

    def asked(self, scope: str, at: str) -> None:
        assert elapsed_at(self.bench.scope(scope).asked_at) == elapsed(at)

    def operation(self, name: str, status: str, **told: str) -> None:
        found = self.bench.operation(name)
        assert found.status == status
        for field, expected in told.items():
            fact: Any = getattr(found, field)
            if isinstance(fact, datetime):
                assert elapsed_at(fact) == elapsed(expected), field
                continue
            shown = ",".join(fact) if isinstance(fact, tuple) else str(fact)
            assert {"None": "none", "True": "yes"}.get(shown, shown) == expected, field


setattr(BenchStory, "pass", BenchStory.pass_)


@pytest.mark.parametrize("rows", stories_beside(__file__, "decisions.txt"))
def test_the_story_holds(rows: list[tuple[int, str]]) -> None:
    assert BenchStory().play("decisions.txt", rows)


# Tasks.


def test_a_failed_operation_keeps_the_end_of_its_complaint() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", no_notice=True)
    bench.finish("1.1", succeeded=False, message="x" * 5000 + "END")
    operation = bench.operation("1.1")
    assert operation.status is EventStatus.FAILED
    assert len(operation.outcome) == 2000
    assert operation.outcome.endswith("xEND")


def test_what_is_approved_and_waits_for_nothing_is_due_at_once() -> None:
    bench = Bench()
    bench.ask_each_domain()
    approved = msgspec.structs.replace(
        bench.operation("2.1"),
        waits_for="",
        events=(msgspec.structs.replace(bench.event("2.1"), approval=bench.word()),),
    )
    assert approved.wakeup_at == AT_ONCE


# Clocks, outages and what is looked at.


def test_cancelling_a_maintenance_that_is_not_open_still_takes_what_is_pending() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.snapshot = msgspec.structs.replace(bench.snapshot, maintenances={})
    bench.cancel(maintenance=1)
    assert bench.operation("1.1").status is EventStatus.CANCELED
    with pytest.raises(Refused) as refusal:
        bench.cancel(maintenance=1)
    assert refusal.value.code is ErrorCode.TOO_LATE


# Doubts.


def claimed() -> Bench:
    bench = Bench()
    bench.ask(REBOOT, "web-0", "web-3", no_notice=True)
    bench.let_pass(MINUTE)
    bench.claim("1.1")
    return bench


def doubt(bench: Bench, message: str = "its runner was lost") -> None:
    bench.decide(commands.report_unknown_outcome, "1.1", 1, message)


def ended(bench: Bench, hosts: dict[str, str]) -> None:
    bench.decide(commands.finish_task, "1.1", 1, succeeded=True, message="so", hosts=hosts)


def test_a_doubt_without_a_reason_is_one_all_the_same_and_a_long_one_keeps_its_end() -> None:
    bench = claimed()
    doubt(bench, "")
    assert bench.operation("1.1").outcome_unknown == "nobody knows whether it was carried out"
    doubt(bench, "x" * MAX_OUTCOME + "end")
    assert len(bench.operation("1.1").outcome_unknown) == MAX_OUTCOME
    assert bench.operation("1.1").outcome_unknown.endswith("xend")


def test_a_doubt_about_what_has_not_started_breaks_an_invariant() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    doubtful = msgspec.structs.replace(bench.operation("1.1"), outcome_unknown="why")
    with pytest.raises(invariants.InvariantBroken, match="outcome is unknown"):
        invariants.check_operation(doubtful)


def test_hosts_of_machines_that_the_operation_does_not_have_are_said_and_ignored() -> None:
    bench = claimed()
    ended(bench, {"web-1": "h9", "stranger": "h9"})
    assert bench.snapshot.machines["web-1"].host == "h1"
    outcome = bench.operation("1.1").outcome
    assert outcome.startswith("so\n")
    assert "web-1, stranger" in outcome


def test_of_many_strangers_the_first_five_are_named() -> None:
    bench = claimed()
    ended(bench, {f"x{n}": "h" for n in range(11)})
    assert "x3, x4 and 6 more:" in bench.operation("1.1").outcome
    other = claimed()
    ended(other, {f"x{n}": "h" for n in range(5)})
    assert "x3, x4:" in other.operation("1.1").outcome


@pytest.mark.parametrize("given", [{"not_before": NOW + MINUTE}, {"notice_seconds": 900}], ids=str)
def test_a_failure_that_has_happened_is_announced_for_no_time(given: dict[str, Any]) -> None:
    with pytest.raises(Refused) as refused:
        Bench().ask(REBOOT, "web-0", no_notice=True, **given)
    assert refused.value.code is ErrorCode.INVALID


# Windows.


def asked(*machines: str, **more: Any) -> Bench:
    bench = Bench()
    bench.ask(REBOOT, *machines, **({"opens_at": OPENS, "closes_at": CLOSES} | more))
    return bench


def test_a_window_without_a_zone_is_refused() -> None:
    for name, moment in (("opens_at", OPENS), ("closes_at", CLOSES)):
        with pytest.raises(Refused) as refused:
            asked("web-0", **{name: moment.replace(tzinfo=None)})
        assert refused.value.code is ErrorCode.INVALID


def test_the_invariants_see_a_start_outside_its_window() -> None:
    bench = asked("web-0")
    bench.let_pass(AHEAD)
    bench.let_pass(HOUR - AHEAD)
    operation = bench.operation("1.1")
    for wrong in (
        {"opens_at": NOW + HOUR + SECOND},
        {"closes_at": NOW + HOUR},
    ):
        with pytest.raises(invariants.InvariantBroken):
            invariants.check_operation(msgspec.structs.replace(operation, **wrong))
    announced = asked("web-0")
    announced.let_pass(AHEAD)
    early = msgspec.structs.replace(announced.operation("1.1"), not_before=OPENS - SECOND)
    with pytest.raises(invariants.InvariantBroken):
        invariants.check_operation(early)


# Units.


def carry_out(bench: Bench, operation_id: str) -> None:
    bench.approve(*(event.id for event in bench.operation(operation_id).events))
    bench.finish(operation_id)


def of_scopes(bench: Bench, *names: str, **policy: str) -> None:
    """Start a maintenance of whole scopes by a policy."""
    of = msgspec.structs.replace(
        maintenance(),
        target=TargetKind.SCOPE,
        targets=names,
        units=tuple(
            Unit(name=f"{name}/{n}", kind=UnitKind.UPDATE_DOMAIN, scope=name, update_domain=n)
            for name in names
            for n in range(bench.scope(name).update_domains)
        ),
        policy=TurnPolicy(**policy),
    )
    bench.decide(commands.start_maintenance, of, next(bench.numbers))


@pytest.mark.parametrize("count", [1, 2])
def test_a_maintenance_over_many_scopes_announces_one_domain_of_each_that_its_policy_allows(
    count: int,
) -> None:
    bench = Bench()
    of_scopes(bench, "batch", "web", at_once=str(count))
    first = [("batch_0", "batch_2"), ("web-0", "web-3")]
    assert [o.machines for o in bench.snapshot.operations.values()] == first[:count]
    carry_out(bench, "1.1")
    assert bench.unit("batch/0").state is DONE
    running = [unit.name for unit in bench.maintenance().units if unit.state is RUNNING]
    assert running == ["batch/1", "web/0"][:count]


def test_no_more_maintenances_with_units_are_open_than_the_limit_and_others_are_not_counted() -> (
    None
):
    bench = Bench()
    bench.ask(REBOOT, scope="batch")
    one = bench.maintenance()
    many = {n: msgspec.structs.replace(one, number=n) for n in range(1, units.MAX_OPEN + 1)}
    bench.snapshot = msgspec.structs.replace(bench.snapshot, maintenances=many)
    with pytest.raises(Refused) as refusal:
        bench.ask(REBOOT, scope="web")
    assert refusal.value.code is ErrorCode.LIMIT
    assert refusal.value.facts == {"most": units.MAX_OPEN}
    number = units.MAX_OPEN + 7
    request = planner.Request(event_type=REBOOT, machines=("web-0",))
    decision = bench.decide(commands.request_maintenance, request, number)
    assert [operation.machines for operation in decision.operations] == [("web-0",)]


def test_a_maintenance_that_was_halted_elsewhere_recalls_what_has_not_started() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    halted = turns.recalled(
        msgspec.structs.replace(
            bench.maintenance(), state=MaintenanceState.HALTED, reason="the tail is lost"
        )
    )
    bench.snapshot = applied(bench.snapshot, Changes(maintenances=(halted,)))
    bench.take_turns()
    assert bench.operation("1.1").status is EventStatus.CANCELED
    assert {unit.state for unit in bench.maintenance().units} == {WAITING}


def test_a_maintenance_is_open_until_its_state_and_each_unit_are_over() -> None:
    closed = Maintenance(
        number=1, event_type=REBOOT, source=EventSource.USER, targets=(), requested_by="",
        requested_at=NOW, description="", duration_seconds=-1,
        target=TargetKind.MACHINES, live_migration=False,
    )  # fmt: skip
    assert not closed.open
    under_way = (Unit(name="h1", kind=UnitKind.HOST, state=RUNNING),)
    over = {MaintenanceState.ANNOUNCED, MaintenanceState.STOPPED, MaintenanceState.DONE}
    for state in MaintenanceState:
        of = msgspec.structs.replace(closed, state=state)
        assert of.open is (state not in over)
        assert msgspec.structs.replace(of, units=under_way).open


# Scopes that are off, and services that may start nothing.


def off() -> Bench:
    bench = Bench()
    bench.policy = FIRST_REQUEST
    return bench


def test_a_fleet_file_does_not_turn_a_scope_off() -> None:
    bench = off()
    bench.decide(commands.record_requests, ("web",))
    bench.now += MINUTE
    applied = fleet_file.apply(bench.snapshot.world(), FLEET, prune=False, mint=bench.mint)
    assert not [scope for scope in applied.changes.scopes if scope.key == "web"]


# Requests.


def refusal_of(bench: Bench, event_type: EventType, *machines: str, **more: object) -> Refused:
    before = bench.snapshot
    with pytest.raises(Refused) as refusal:
        bench.ask(event_type, *machines, **more)
    assert bench.snapshot is before
    return refusal.value


def test_an_event_id_is_an_upper_case_guid_of_its_own() -> None:
    bench = Bench()
    bench.mint = mint("c")
    bench.ask(EventType.REBOOT, "bastion", "web-1")
    assert bench.event("1.1").id == "CCCCCCCC-0000-4000-8000-000000000001"
    assert bench.event("1.2").id == "CCCCCCCC-0000-4000-8000-000000000002"


def test_every_type_from_every_source_has_a_description() -> None:
    every = {(event_type, source) for event_type in EventType for source in EventSource}
    assert set(planner.DESCRIPTIONS) == every


def test_unknown_names_are_all_named() -> None:
    refused = refusal_of(Bench(), EventType.REBOOT, "nobody", "web-0", "noone")
    assert refused.code is ErrorCode.NOT_FOUND
    assert refused.facts == {"what": "machine", "name": "nobody"}
    six = [f"x{n}" for n in range(6)]
    assert (
        "'x0', 'x1', 'x2', 'x3', 'x4' and 1 more:"
        in refusal_of(Bench(), EventType.REBOOT, *six).message
    )
    many = [f"x{n}" for n in range(8)]
    assert (
        "'x0', 'x1', 'x2', 'x3', 'x4' and 3 more:"
        in refusal_of(Bench(), EventType.REBOOT, *many).message
    )
    five = [f"x{n}" for n in range(5)]
    assert "'x3', 'x4': see" in refusal_of(Bench(), EventType.REBOOT, *five).message
    refused = refusal_of(Bench(), EventType.REBOOT, scope="nowhere")
    assert refused.facts == {"what": "scope", "name": "nowhere"}


@pytest.mark.parametrize("text", ["x" * 501, "two\nlines", "\x00"])
def test_a_description_is_one_printable_line(text: str) -> None:
    refused = refusal_of(Bench(), EventType.REBOOT, "web-0", description=text)
    assert refused.code is ErrorCode.INVALID
    assert refused.facts == {"where": "description", "length": len(text)}


def test_a_description_of_500_characters_is_taken() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0", description="x" * 500)
    assert len(bench.operation("1.1").description) == 500


def test_a_time_without_a_zone_is_refused() -> None:
    refused = refusal_of(Bench(), EventType.REBOOT, "web-0", not_before=datetime(2026, 3, 3))
    assert refused.code is ErrorCode.INVALID


def test_ten_thousand_machines_are_the_most_of_one_request() -> None:
    def bench_of(count: int) -> Bench:
        members = [{"name": f"m{n}"} for n in range(count)]
        group = {"name": "big", "update_domains": 1, "machines": members}
        return Bench(msgspec.convert({"availability_set": [group]}, fleet_file.Fleet))

    assert len(bench_of(10_000).ask(EventType.FREEZE, scope="big").operations) == 1
    refused = refusal_of(bench_of(10_001), EventType.FREEZE, scope="big")
    assert refused.code is ErrorCode.LIMIT
    assert refused.facts == {"machines": 10_001, "most": 10_000}
