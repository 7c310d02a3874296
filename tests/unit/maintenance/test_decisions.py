"""What follows from causes, where no story of tests/scenarios tells it: by the rules alone."""

from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec
import pytest

import turn_world
from builders import FLEET, MINUTE, NOW, SECOND, Bench, applied, mint
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
    StartCause,
    Verdict,
)
from forewarn.maintenance.transitions import MAX_OUTCOME
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

REBOOT = EventType.REBOOT
HOUR = timedelta(hours=1)
OPENS, CLOSES = NOW + HOUR, NOW + 2 * HOUR
AHEAD = HOUR - 15 * MINUTE - SECOND
"""How long until guests hear of what is asked for now, so that their notice ends at OPENS."""
FIRST_REQUEST = Policy(enablement=Enablement.FIRST_REQUEST)
HALTED = Policy(starts=False)
DONE, WAITING, RUNNING = UnitState.DONE, UnitState.WAITING, UnitState.RUNNING


# Tasks.


def test_a_claim_is_a_lease_with_a_fencing_number() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.let_pass(15 * MINUTE)
    (claimed,) = bench.claim("1.1").operations
    assert (claimed.attempt, claimed.executor) == (1, "here")
    assert claimed.lease_until == bench.now + MINUTE
    with pytest.raises(Refused) as refusal:
        bench.claim("1.1")
    assert refusal.value.code is ErrorCode.CONFLICT
    assert refusal.value.facts == {"operation": "1.1"}
    assert "leased to here" in refusal.value.message
    bench.now += MINUTE
    (again,) = bench.claim("1.1").operations
    assert again.attempt == 2
    assert bench.scope("web").incarnation == 2


def test_an_operation_remembers_who_claimed_it_until_an_operator_has_it_repeated() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.let_pass(15 * MINUTE)
    for executor in ("here", "there", "here"):
        bench.decide(commands.claim_tasks, operations=["1.1"], executor=executor, lease=MINUTE)
        bench.now += MINUTE
    assert bench.operation("1.1").claimed_by == ("here", "there")
    bench.decide(commands.report_unknown_outcome, "1.1", 3, "lost")
    repeat(bench)
    bench.decide(commands.claim_tasks, operations=["1.1"], executor="there", lease=MINUTE)
    assert bench.operation("1.1").claimed_by == ("there",)


def test_only_what_has_started_can_be_claimed() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    with pytest.raises(Refused) as refusal:
        bench.claim("1.1")
    assert refusal.value.code is ErrorCode.CONFLICT
    assert refusal.value.message.endswith("it is Scheduled")


def test_a_renewal_lengthens_the_lease_and_a_release_ends_it() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.let_pass(15 * MINUTE)
    bench.claim("1.1")
    bench.now += 30 * SECOND
    renewed = partial(commands.renew_lease, operation_id="1.1", attempt=1, lease=MINUTE)
    assert bench.decide(renewed).operations == (bench.operation("1.1"),)
    assert bench.operation("1.1").lease_until == bench.now + MINUTE
    released = bench.decide(commands.release_leases, operations=("1.1",))
    assert released.operations[0].lease_until is None
    assert bench.claim("1.1").operations[0].attempt == 2


def test_a_stale_attempt_is_refused_whatever_it_wants() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.let_pass(15 * MINUTE)
    bench.claim("1.1")
    bench.now += 2 * MINUTE
    bench.claim("1.1")
    stale = [
        partial(commands.finish_task, operation_id="1.1", attempt=1, succeeded=True, message=""),
        partial(commands.renew_lease, operation_id="1.1", attempt=1, lease=MINUTE),
    ]
    for cause in stale:
        with pytest.raises(Refused) as refusal:
            bench.decide(cause)
        assert refusal.value.code is ErrorCode.STALE
        assert refusal.value.facts == {"operation": "1.1", "attempt": 1}
    assert bench.operation("1.1").status is EventStatus.STARTED


def test_a_failed_operation_keeps_the_end_of_its_complaint() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", no_notice=True)
    bench.finish("1.1", succeeded=False, message="x" * 5000 + "END")
    operation = bench.operation("1.1")
    assert operation.status is EventStatus.FAILED
    assert len(operation.outcome) == 2000
    assert operation.outcome.endswith("xEND")


def test_time_alone_wakes_what_is_scheduled_and_waits_for_nothing() -> None:
    bench = Bench()
    bench.ask_each_domain()
    assert bench.operation("1.1").wakeup_at == NOW + 15 * MINUTE
    bench.let_pass(15 * MINUTE)
    assert bench.operation("1.1").wakeup_at is None
    assert bench.operation("2.1").wakeup_at is None
    approved = msgspec.structs.replace(
        bench.operation("2.1"),
        waits_for="",
        events=(msgspec.structs.replace(bench.event("2.1"), approval=bench.word()),),
    )
    assert approved.wakeup_at == AT_ONCE


# Clocks, outages and what is looked at.


def test_what_waited_and_is_no_longer_due_by_a_clock_set_back_starts_at_its_not_before() -> None:
    bench = Bench(queue=Queueing.START)
    bench.ask(REBOOT, "web-0", no_notice=True)
    bench.ask(REBOOT, "web-1")
    bench.let_pass(15 * MINUTE)
    assert bench.operation("2.1").waits_for == "1.1"
    bench.now -= 10 * MINUTE
    bench.finish("1.1")
    freed = bench.operation("2.1")
    assert (freed.status, freed.waits_for) == (EventStatus.SCHEDULED, "")
    assert freed.wakeup_at == NOW + 15 * MINUTE
    bench.let_pass(10 * MINUTE)
    assert bench.operation("2.1").start_cause is StartCause.NOTICE_OVER


def test_time_starts_only_what_is_looked_at() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.ask(REBOOT, "bastion")
    bench.now += 15 * MINUTE
    decision = bench.decide(commands.advance_time, ids=("2.1",))
    assert [operation.id for operation in decision.operations] == ["2.1"]
    assert bench.operation("1.1").status is EventStatus.SCHEDULED
    assert bench.operation("2.1").status is EventStatus.STARTED


def test_cancelling_a_maintenance_that_is_not_open_still_takes_what_is_pending() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.snapshot = msgspec.structs.replace(bench.snapshot, maintenances={})
    bench.cancel(maintenance=1)
    assert bench.operation("1.1").status is EventStatus.CANCELED
    with pytest.raises(Refused) as refusal:
        bench.cancel(maintenance=1)
    assert refusal.value.code is ErrorCode.TOO_LATE


def test_a_lapse_that_ends_at_this_instant_leaves_what_waits_waiting() -> None:
    bench = Bench(queue=Queueing.START)
    bench.ask(REBOOT, "web-0", no_notice=True)
    bench.ask(REBOOT, "web-1")
    bench.let_pass(15 * MINUTE)
    bench.now += 5 * MINUTE
    bench.decide(commands.extend_notices, 5 * MINUTE)
    waiting = bench.operation("2.1")
    assert (waiting.not_before, waiting.waits_for) == (NOW + 20 * MINUTE, "1.1")


def test_an_operation_or_a_maintenance_that_is_unknown_is_named() -> None:
    with pytest.raises(Refused) as operation:
        Bench().cancel("9.1")
    with pytest.raises(Refused) as maintenance:
        Bench().order(MaintenanceOrder.PAUSE, number=7)
    for refusal, facts in ((operation, {"operation": "9.1"}), (maintenance, {"maintenance": 7})):
        assert (refusal.value.code, refusal.value.facts) == (ErrorCode.NOT_FOUND, facts)


# Doubts.


def claimed() -> Bench:
    bench = Bench()
    bench.ask(REBOOT, "web-0", "web-3", no_notice=True)
    bench.let_pass(MINUTE)
    bench.claim("1.1")
    return bench


def doubt(bench: Bench, message: str = "its runner was lost") -> None:
    bench.decide(commands.report_unknown_outcome, "1.1", 1, message)


def repeat(bench: Bench) -> None:
    bench.decide(commands.resolve_outcomes, ["1.1"], Verdict.REPEAT, "ann")


def ended(bench: Bench, hosts: dict[str, str]) -> None:
    bench.decide(commands.finish_task, "1.1", 1, succeeded=True, message="so", hosts=hosts)


def test_what_is_in_doubt_stays_started_and_nobody_claims_it() -> None:
    bench = claimed()
    incarnation = bench.scope("web").incarnation
    doubt(bench)
    operation = bench.operation("1.1")
    assert operation.status is EventStatus.STARTED
    assert (operation.outcome_unknown, operation.lease_until) == ("its runner was lost", None)
    assert bench.scope("web").incarnation == incarnation
    bench.now += MINUTE + SECOND
    with pytest.raises(Refused, match="Started") as refused:
        bench.claim("1.1")
    assert refused.value.code is ErrorCode.CONFLICT
    assert "outcome is unknown" in refused.value.message
    assert "leased" not in refused.value.message


def test_a_doubt_without_a_reason_is_one_all_the_same_and_a_long_one_keeps_its_end() -> None:
    bench = claimed()
    doubt(bench, "")
    assert bench.operation("1.1").outcome_unknown == "nobody knows whether it was carried out"
    doubt(bench, "x" * MAX_OUTCOME + "end")
    assert len(bench.operation("1.1").outcome_unknown) == MAX_OUTCOME
    assert bench.operation("1.1").outcome_unknown.endswith("xend")


def test_a_lease_that_was_renewed_in_doubt_does_not_hold_the_repetition_up() -> None:
    bench = claimed()
    doubt(bench)
    bench.decide(commands.renew_lease, operation_id="1.1", attempt=1, lease=MINUTE)
    repeat(bench)
    assert bench.operation("1.1").lease_until is None
    bench.claim("1.1")
    assert bench.operation("1.1").attempt == 2


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
        turn_world.maintenance(),
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


def test_a_clock_that_was_set_back_makes_a_request_for_events_no_older() -> None:
    bench = off()
    bench.decide(commands.record_requests, ("web",))
    bench.now -= HOUR
    assert not bench.decide(commands.record_requests, ("web",)).changes
    assert bench.scope("web").asked_at == NOW
    bench.now += HOUR + SECOND
    bench.decide(commands.record_requests, ("web",))
    assert bench.scope("web").asked_at == NOW + SECOND


def test_an_outage_moves_every_notice_by_its_length_and_starts_nothing() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", "bastion")
    bench.ask(REBOOT, "batch_0", no_notice=True)
    bench.decide(commands.record_requests, ("web",))
    bench.now += 2 * HOUR
    length = 2 * HOUR - timedelta(milliseconds=500)
    decision = bench.decide(commands.extend_notices, length)
    assert [o.id for o in decision.operations] == ["1.1", "1.2"]
    assert bench.operation("1.2").not_before == NOW + 2 * HOUR + 15 * MINUTE
    assert bench.scope("web").incarnation == 2
    assert bench.scope("batch").incarnation == 1
    assert bench.scope("web").asked_at == NOW + length
    assert not bench.decide(commands.advance_time).operations
    bench.let_pass(15 * MINUTE)
    assert bench.operation("1.2").start_cause is StartCause.NOTICE_OVER


def test_after_an_outage_what_waited_has_its_notice_back_but_for_what_is_approved() -> None:
    bench = Bench()
    bench.ask_each_domain()
    bench.approve(bench.event("1.1").id)
    bench.approve(bench.event("2.1").id)
    bench.let_pass(15 * MINUTE)
    bench.decide(commands.extend_notices, HOUR)
    assert bench.operation("2.1").waits_for == "1.1"
    assert bench.operation("3.1").waits_for == ""
    bench.finish("1.1")
    assert bench.operation("2.1").status is EventStatus.STARTED
    assert bench.operation("3.1").status is EventStatus.SCHEDULED


def test_a_fleet_file_does_not_turn_a_scope_off() -> None:
    bench = off()
    bench.decide(commands.record_requests, ("web",))
    bench.now += MINUTE
    applied = fleet_file.apply(bench.snapshot.world(), FLEET, prune=False, mint=bench.mint)
    assert not [scope for scope in applied.changes.scopes if scope.key == "web"]


def test_while_nothing_may_start_what_gets_ready_stays_due() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", "bastion")
    bench.policy = HALTED
    bench.approve(bench.event("1.2").id, scope="web")
    assert bench.operation("1.2").approved
    assert bench.operation("1.2").status is EventStatus.SCHEDULED
    assert not bench.let_pass(20 * MINUTE).changes
    bench.policy = Policy()
    bench.let_pass(SECOND)
    assert bench.operation("1.1").start_cause is StartCause.NOTICE_OVER
    assert bench.operation("1.2").start_cause is StartCause.APPROVED


def test_while_nothing_may_start_what_approves_itself_is_only_announced() -> None:
    bench = Bench()
    bench.policy = HALTED
    bench.ask(REBOOT, "FrontEnd_IN_0", source=EventSource.USER)
    assert bench.operation("1.1").status is EventStatus.SCHEDULED
    assert bench.operation("1.1").approved
    bench.ask(REBOOT, "web-0", no_notice=True)
    assert bench.operation("2.1").status is EventStatus.STARTED
    bench.policy = Policy()
    bench.let_pass(SECOND)
    assert bench.operation("1.1").start_cause is StartCause.APPROVED


def test_while_nothing_may_start_the_end_of_one_frees_the_next_and_starts_it_later() -> None:
    bench = Bench()
    bench.ask_each_domain()
    bench.let_pass(15 * MINUTE)
    bench.policy = HALTED
    bench.finish("1.1")
    assert bench.operation("2.1").waits_for == ""
    assert bench.operation("2.1").status is EventStatus.SCHEDULED
    bench.policy = Policy()
    bench.let_pass(SECOND)
    assert bench.operation("2.1").status is EventStatus.STARTED
    assert bench.operation("3.1").waits_for == "2.1"


# Machines that return.


def saw(bench: Bench, *machines: str, agent: AgentStatus | None = None) -> None:
    for machine in machines:
        bench.sightings[machine] = Sighting(asked_at=bench.now, version="2020-07-01", agent=agent)


def look(bench: Bench, *operations: str) -> None:
    bench.decide(commands.record_returns, operations)


def carried_out(bench: Bench, operation: str, *, agent: AgentStatus | None = None) -> None:
    """Start and finish an operation whose machines listened; they have not asked again."""
    saw(bench, *bench.operation(operation).machines, agent=agent)
    bench.approve(*(event.id for event in bench.operation(operation).events))
    bench.finish(operation)


def listened() -> Bench:
    bench = Bench()
    saw(bench, "web-0", "web-3")
    bench.ask(REBOOT, "web-0", "web-3")
    bench.approve(bench.event("1.1").id)
    bench.now += MINUTE
    return bench


def status(bench: Bench, operation: str) -> EventStatus:
    return bench.operation(operation).status


def test_a_machine_that_asked_in_time_is_seen_before_its_operation_fails() -> None:
    bench = listened()
    bench.finish("1.1")
    bench.now += SECOND
    saw(bench, "web-0", "web-3")
    bench.let_pass(10 * MINUTE)
    assert status(bench, "1.1") is EventStatus.COMPLETED


def test_the_word_of_an_agent_is_awaited_though_another_client_asked_first() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    saw(bench, "web-0", agent=AgentStatus.READY)
    bench.approve(bench.event("1.1").id)
    bench.finish("1.1")
    bench.now += SECOND
    saw(bench, "web-0")  # the service forgot the word when it was restarted
    look(bench, "1.1")
    assert bench.operation("1.1").awaited == ("web-0",)


def returned(bench: Bench) -> bool:
    return commands.has_returned(bench.operation("1.1"), bench.sightings.get)


def test_a_machine_has_returned_when_it_asks_after_it_was_carried_out() -> None:
    bench = listened()
    bench.finish("1.1")
    bench.sightings.clear()
    assert not returned(bench)
    saw(bench, "web-3")
    assert not returned(bench)
    bench.now += SECOND
    saw(bench, "web-3")
    assert returned(bench)
    look(bench, "1.1")
    assert not returned(bench)


def test_a_machine_whose_agent_is_awaited_has_returned_when_the_agent_says_so() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    carried_out(bench, "1.1", agent=AgentStatus.READY)
    bench.now += SECOND
    saw(bench, "web-0", agent=AgentStatus.RECOVERING)
    look(bench, "1.1")
    assert status(bench, "1.1") is EventStatus.COMPLETED
    bench.now += SECOND
    saw(bench, "web-0", agent=AgentStatus.RECOVERING)
    assert not returned(bench)
    saw(bench, "web-0", agent=AgentStatus.BACK)
    assert returned(bench)
    look(bench, "1.1")
    assert not returned(bench)


def test_no_machine_returns_from_a_failure_by_its_agents_word() -> None:
    bench = listened()
    bench.finish("1.1", succeeded=False)
    saw(bench, "web-0", agent=AgentStatus.BACK)
    assert not returned(bench)
    look(bench, "1.1")
    assert bench.operation("1.1").awaited == ("web-0", "web-3")


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
    assert refused.facts == {"length": len(text)}


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
