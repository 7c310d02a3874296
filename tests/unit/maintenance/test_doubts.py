"""Doubts, what resolves them, and the hosts that an outcome names."""

from typing import Any

import msgspec
import pytest

from builders import MINUTE, SECOND, Bench
from forewarn.maintenance import commands, invariants
from forewarn.maintenance.model import Refused, Verdict
from forewarn.maintenance.transitions import MAX_OUTCOME
from forewarn.vocabulary import ErrorCode, EventStatus, EventType

REBOOT = EventType.REBOOT


def started(event_type: EventType = REBOOT, *machines: str) -> Bench:
    bench = Bench()
    deletes = event_type is EventType.PREEMPT
    bench.ask(event_type, *(machines or ("web-0", "web-3")), no_notice=not deletes)
    bench.let_pass(MINUTE)
    bench.claim("1.1")
    return bench


def doubt(bench: Bench, message: str = "its runner was lost", attempt: int = 1) -> None:
    bench.decide(
        commands.report_unknown_outcome, operation_id="1.1", attempt=attempt, message=message
    )


def resolve(bench: Bench, verdict: Verdict, by: str = "ann") -> Any:
    return bench.decide(commands.resolve_outcomes, operations=["1.1"], verdict=verdict, by=by)


def ended(bench: Bench, hosts: dict[str, str], *, succeeded: bool = True) -> Any:
    return bench.decide(
        commands.finish_task,
        operation_id="1.1",
        attempt=1,
        succeeded=succeeded,
        message="so",
        hosts=hosts,
    )


def hosts(bench: Bench, *names: str) -> list[str]:
    return [bench.snapshot.machines[name].host for name in names]


def test_what_is_in_doubt_stays_started_and_nobody_claims_it() -> None:
    bench = started()
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
    bench = started()
    doubt(bench, "")
    assert bench.operation("1.1").outcome_unknown == "nobody knows whether it was carried out"
    doubt(bench, "x" * MAX_OUTCOME + "end")
    assert len(bench.operation("1.1").outcome_unknown) == MAX_OUTCOME
    assert bench.operation("1.1").outcome_unknown.endswith("xend")


@pytest.mark.parametrize("attempt", [0, 2])
def test_only_the_current_attempt_may_doubt(attempt: int) -> None:
    bench = started()
    with pytest.raises(Refused) as refused:
        doubt(bench, attempt=attempt)
    assert refused.value.code is ErrorCode.STALE


def test_what_is_over_is_beyond_doubt() -> None:
    bench = started()
    bench.finish("1.1")
    with pytest.raises(Refused) as refused:
        doubt(bench)
    assert refused.value.code is ErrorCode.STALE


@pytest.mark.parametrize(
    ("verdict", "status"),
    [(Verdict.SUCCEEDED, EventStatus.COMPLETED), (Verdict.FAILED, EventStatus.FAILED)],
)
@pytest.mark.parametrize(("by", "spoken"), [("ann", "ann"), ("", "an operator")])
def test_an_operators_word_ends_it_and_is_kept(
    verdict: Verdict, status: EventStatus, by: str, spoken: str
) -> None:
    bench = started()
    doubt(bench)
    assert [o.id for o in resolve(bench, verdict, by).operations] == ["1.1"]
    operation = bench.operation("1.1")
    assert (operation.status, operation.ended_at) == (status, bench.now)
    assert (operation.outcome_unknown, operation.lease_until) == ("", None)
    assert operation.outcome == f"{verdict}, says {spoken}; before that: its runner was lost"


def test_what_is_to_be_repeated_can_be_claimed_again_at_once() -> None:
    bench = started()
    doubt(bench)
    assert [o.id for o in resolve(bench, Verdict.REPEAT).operations] == ["1.1"]
    operation = bench.operation("1.1")
    assert (operation.status, operation.outcome_unknown) == (EventStatus.STARTED, "")
    assert (operation.attempt, operation.repeat_after) == (1, 1)
    bench.claim("1.1")
    assert bench.operation("1.1").attempt == 2
    assert bench.operation("1.1").repeat_after == 1


def test_a_lease_that_was_renewed_in_doubt_does_not_hold_the_repetition_up() -> None:
    bench = started()
    doubt(bench)
    bench.decide(commands.renew_lease, operation_id="1.1", attempt=1, lease=MINUTE)
    resolve(bench, Verdict.REPEAT)
    assert bench.operation("1.1").lease_until is None
    bench.claim("1.1")
    assert bench.operation("1.1").attempt == 2


@pytest.mark.parametrize("verdict", list(Verdict))
def test_where_there_is_no_doubt_there_is_nothing_to_resolve(verdict: Verdict) -> None:
    bench = started()
    with pytest.raises(Refused) as refused:
        resolve(bench, verdict)
    assert refused.value.code is ErrorCode.CONFLICT
    assert refused.value.facts == {"operation": "1.1"}
    doubt(bench)
    resolve(bench, Verdict.FAILED)
    with pytest.raises(Refused, match="Failed"):
        resolve(bench, verdict)


def test_what_there_is_not_cannot_be_resolved() -> None:
    with pytest.raises(Refused) as refused:
        Bench().decide(commands.resolve_outcomes, operations=["9.9"], verdict=Verdict.FAILED, by="")
    assert refused.value.code is ErrorCode.NOT_FOUND


def test_a_late_outcome_of_the_same_attempt_ends_the_doubt() -> None:
    bench = started()
    doubt(bench)
    ended(bench, {})
    assert (bench.operation("1.1").status, bench.operation("1.1").outcome_unknown) == (
        EventStatus.COMPLETED,
        "",
    )


def test_a_doubt_about_what_has_not_started_breaks_an_invariant() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    doubtful = msgspec.structs.replace(bench.operation("1.1"), outcome_unknown="why")
    with pytest.raises(invariants.InvariantBroken, match="outcome is unknown"):
        invariants.check_operation(doubtful)


@pytest.mark.parametrize("event_type", [REBOOT, EventType.FREEZE, EventType.REDEPLOY])
def test_named_machines_are_on_their_new_hosts(event_type: EventType) -> None:
    bench = started(event_type)
    decision = ended(bench, {"WEB-0": "h7", "web-3": "h8"})
    assert hosts(bench, "web-0", "web-3") == ["h7", "h8"]
    assert {machine.name for machine in decision.changes.machines} == {"web-0", "web-3"}


@pytest.mark.parametrize(
    ("event_type", "succeeded", "left"),
    [
        (EventType.REDEPLOY, True, ""),
        (EventType.REDEPLOY, False, "h0"),
        (REBOOT, True, "h0"),
    ],
)
def test_a_machine_that_is_not_named_is_lost_from_sight_by_a_redeploy_only(
    event_type: EventType, succeeded: bool, left: str
) -> None:
    bench = started(event_type)
    decision = ended(bench, {"web-0": "h7"}, succeeded=succeeded)
    assert hosts(bench, "web-0", "web-3", "web-1") == ["h7", left, "h1"]
    assert len(decision.changes.machines) == (1 if left else 2)


def test_a_redeploy_that_an_operator_calls_done_leaves_its_machines_on_unknown_hosts() -> None:
    bench = started(EventType.REDEPLOY)
    doubt(bench)
    resolve(bench, Verdict.SUCCEEDED)
    assert hosts(bench, "web-0", "web-3") == ["", ""]


def test_an_outcome_without_hosts_changes_no_machine() -> None:
    bench = started()
    assert ended(bench, {}).changes.machines == ()
    assert bench.operation("1.1").outcome == "so"


def test_hosts_of_machines_that_the_operation_does_not_have_are_said_and_ignored() -> None:
    bench = started()
    ended(bench, {"web-1": "h9", "stranger": "h9"})
    assert hosts(bench, "web-1") == ["h1"]
    outcome = bench.operation("1.1").outcome
    assert outcome.startswith("so\n")
    assert "web-1, stranger" in outcome


def test_of_many_strangers_the_first_five_are_named() -> None:
    bench = started()
    ended(bench, {f"x{n}": "h" for n in range(11)})
    assert "x3, x4 and 6 more:" in bench.operation("1.1").outcome
    other = started()
    ended(other, {f"x{n}": "h" for n in range(5)})
    assert "x3, x4:" in other.operation("1.1").outcome


@pytest.mark.parametrize("verdict", [None, Verdict.SUCCEEDED])
def test_a_machine_that_was_deleted_is_gone_whatever_host_is_named(verdict: Verdict | None) -> None:
    bench = started(EventType.PREEMPT, "batch_0")
    if verdict is None:
        decision = ended(bench, {"batch_0": "h7"})
    else:
        doubt(bench)
        decision = resolve(bench, verdict)
    assert decision.changes.removed_machines == ("batch_0",)
    assert decision.changes.machines == ()
    assert [lost.operation for lost in decision.changes.tombstones] == ["1.1"]


def test_a_deletion_that_failed_leaves_its_machine_where_it_is() -> None:
    bench = started(EventType.PREEMPT, "batch_0")
    doubt(bench)
    assert resolve(bench, Verdict.FAILED).changes.removed_machines == ()
