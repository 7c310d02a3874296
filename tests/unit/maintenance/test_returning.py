"""An update domain counts as down until its machines have recovered (protocol.md section 6)."""

from datetime import timedelta

import msgspec
import pytest

from builders import MINUTE, NOW, Bench, applied
from forewarn.maintenance import commands, fleet_file
from forewarn.maintenance.model import Queueing, Refused, Sighting, StartCause, Verdict
from forewarn.vocabulary import AgentStatus, ErrorCode, EventSource, EventStatus, EventType

REBOOT = EventType.REBOOT
SECOND = timedelta(seconds=1)
replace = msgspec.structs.replace


def saw(bench: Bench, *machines: str, agent: AgentStatus | None = None) -> None:
    for machine in machines:
        bench.sightings[machine] = Sighting(asked_at=bench.now, version="2020-07-01", agent=agent)


def look(bench: Bench, *operations: str) -> None:
    bench.decide(commands.record_returns, operations)


def acknowledge(bench: Bench, operation: str, *, even_if_down: bool = False) -> None:
    bench.decide(commands.acknowledge_failures, (operation,), by="ann", even_if_down=even_if_down)


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


def test_an_operation_is_over_when_each_machine_that_listened_has_asked_again() -> None:
    bench = listened()
    incarnation = bench.scope("web").incarnation
    bench.finish("1.1", message="started again")
    assert status(bench, "1.1") is EventStatus.RETURNING
    assert bench.operation("1.1").awaited == ("web-0", "web-3")
    assert bench.operation("1.1").lease_until is None
    assert bench.scope("web").incarnation == incarnation
    bench.now += SECOND
    saw(bench, "web-0")
    look(bench, "1.1")
    assert bench.operation("1.1").awaited == ("web-3",)
    saw(bench, "web-3")
    look(bench, "1.1")
    assert status(bench, "1.1") is EventStatus.COMPLETED
    assert bench.operation("1.1").outcome == "started again"
    assert not bench.operation("1.1").down
    assert bench.scope("web").incarnation == incarnation + 1


def test_a_request_in_the_second_of_the_connectors_return_is_none_after_it() -> None:
    bench = listened()
    bench.finish("1.1")
    saw(bench, "web-0", "web-3")
    look(bench, "1.1")
    assert status(bench, "1.1") is EventStatus.RETURNING


def test_what_an_operator_calls_done_is_not_unknown_while_its_machines_return() -> None:
    bench = listened()
    bench.claim("1.1")
    bench.decide(commands.report_unknown_outcome, "1.1", 1, "lost")
    bench.decide(commands.resolve_outcomes, ["1.1"], Verdict.SUCCEEDED, "ann")
    assert status(bench, "1.1") is EventStatus.RETURNING
    assert bench.operation("1.1").outcome_unknown == ""


def test_a_machine_that_did_not_listen_goes_by_the_connectors_word() -> None:
    bench = Bench()
    saw(bench, "web-0")
    bench.now += 5 * MINUTE
    saw(bench, "web-3")
    bench.ask(REBOOT, "web-0", "web-3")
    bench.approve(bench.event("1.1").id)
    assert bench.operation("1.1").awaited == ("web-3",)
    bench.ask(REBOOT, "web-1")
    bench.finish("1.1")
    bench.now += SECOND
    saw(bench, "web-3")
    look(bench, "1.1")
    assert status(bench, "1.1") is EventStatus.COMPLETED


def test_a_deleted_machine_is_not_awaited() -> None:
    bench = Bench()
    saw(bench, "batch_0", agent=AgentStatus.READY)
    bench.ask(EventType.PREEMPT, "batch_0")
    bench.let_pass(MINUTE)
    bench.finish("1.1")
    assert status(bench, "1.1") is EventStatus.COMPLETED
    assert not bench.operation("1.1").down


def test_a_machine_that_asked_in_time_is_seen_before_its_operation_fails() -> None:
    bench = listened()
    bench.finish("1.1")
    bench.now += SECOND
    saw(bench, "web-0", "web-3")
    bench.let_pass(10 * MINUTE)
    assert status(bench, "1.1") is EventStatus.COMPLETED


def test_time_in_which_nobody_could_ask_is_no_time_to_come_back() -> None:
    bench = listened()
    bench.finish("1.1")
    bench.decide(commands.extend_notices, 10 * MINUTE)
    bench.let_pass(19 * MINUTE)
    assert status(bench, "1.1") is EventStatus.RETURNING
    bench.let_pass(MINUTE)
    assert status(bench, "1.1") is EventStatus.FAILED


def test_another_domain_is_not_announced_until_the_first_is_up() -> None:
    bench = listened()
    bench.ask(REBOOT, "web-1")
    assert status(bench, "2.1") is EventStatus.QUEUED
    assert bench.operation("2.1").waits_for == "1.1"
    assert bench.event("2.1").published == 0
    incarnation = bench.scope("web").incarnation
    bench.finish("1.1")
    bench.now += SECOND
    saw(bench, "web-0", "web-3")
    look(bench, "1.1")
    announced = bench.operation("2.1")
    assert announced.status is EventStatus.SCHEDULED
    assert (announced.announced_at, announced.waits_for) == (bench.now, "")
    assert announced.not_before == bench.now + 15 * MINUTE
    assert bench.event("2.1").published == bench.scope("web").incarnation == incarnation + 1


def test_what_is_queued_first_is_announced_first() -> None:
    bench = Bench()
    for machine in ("web-0", "web-1", "web-2", "web-4"):
        bench.ask(REBOOT, machine)
        bench.now += SECOND
    bench.cancel("1.1")
    assert [status(bench, f"{n}.1") for n in (2, 3, 4)] == [
        EventStatus.SCHEDULED,
        EventStatus.QUEUED,
        EventStatus.QUEUED,
    ]
    bench.cancel("2.1")
    assert status(bench, "3.1") is EventStatus.SCHEDULED
    assert bench.operation("4.1").waits_for == "3.1"


def test_what_is_queued_keeps_the_later_time_that_was_asked_for() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.ask(REBOOT, "web-1", not_before=NOW + 60 * MINUTE)
    bench.now += MINUTE
    bench.cancel("1.1")
    assert bench.operation("2.1").not_before == NOW + 60 * MINUTE


def test_nobody_approves_what_is_not_announced() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.ask(REBOOT, "web-1")
    with pytest.raises(Refused) as unknown:
        bench.approve(bench.event("2.1").id, scope="web")
    assert unknown.value.code is ErrorCode.NOT_FOUND
    with pytest.raises(Refused) as early:
        bench.approve(bench.event("2.1").id)
    assert early.value.code is ErrorCode.CONFLICT
    assert early.value.facts == {"operation": "2.1"}


def test_what_is_queued_can_be_cancelled_postponed_and_superseded() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.ask(REBOOT, "web-1")
    bench.postpone("2.1", to=NOW + 60 * MINUTE)
    assert status(bench, "2.1") is EventStatus.QUEUED
    bench.ask(REBOOT, "web-2")
    bench.cancel("3.1")
    bench.ask(REBOOT, "web-1", no_notice=True)
    assert [status(bench, f"{n}.1") for n in (2, 3, 4)] == [
        EventStatus.CANCELED,
        EventStatus.CANCELED,
        EventStatus.STARTED,
    ]


def test_an_automatic_approval_begins_when_what_is_queued_is_announced() -> None:
    bench = Bench()
    bench.ask(REBOOT, "FrontEnd_IN_0", no_notice=True)
    bench.ask(REBOOT, "FrontEnd_IN_1", source=EventSource.USER)
    assert status(bench, "2.1") is EventStatus.QUEUED
    bench.finish("1.1")
    assert bench.operation("2.1").start_cause is StartCause.APPROVED


def test_a_scope_may_announce_and_wait_to_start_only() -> None:
    bench = Bench()
    web = replace(bench.scope("web"), queue=Queueing.START)
    bench.snapshot = replace(bench.snapshot, scopes=bench.snapshot.scopes | {"web": web})
    bench.ask(REBOOT, "web-0")
    bench.ask(REBOOT, "web-1")
    assert status(bench, "2.1") is EventStatus.SCHEDULED
    bench.approve(bench.event("1.1").id)
    bench.approve(bench.event("2.1").id)
    assert bench.operation("2.1").waits_for == "1.1"


def test_a_domain_is_up_when_the_agents_that_speak_have_said_that_they_are_back() -> None:
    bench = listened()
    bench.ask(REBOOT, "web-1")
    saw(bench, "web-0", agent=AgentStatus.READY)
    bench.finish("1.1")
    bench.now += SECOND
    saw(bench, "web-0", agent=AgentStatus.READY)
    saw(bench, "web-3")
    look(bench, "1.1")
    assert status(bench, "1.1") is EventStatus.COMPLETED
    assert bench.operation("1.1").awaited == ("web-0",)
    assert status(bench, "2.1") is EventStatus.QUEUED
    saw(bench, "web-0", agent=AgentStatus.RECOVERING)
    look(bench, "1.1")
    assert status(bench, "2.1") is EventStatus.QUEUED
    saw(bench, "web-0", agent=AgentStatus.BACK)
    look(bench, "1.1")
    assert status(bench, "2.1") is EventStatus.SCHEDULED


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


def test_a_domain_settles_before_it_is_up() -> None:
    bench = listened()
    bench.policy = replace(bench.policy, settle=MINUTE)
    bench.ask(REBOOT, "web-1")
    bench.finish("1.1")
    bench.now += SECOND
    saw(bench, "web-0", "web-3")
    look(bench, "1.1")
    assert status(bench, "1.1") is EventStatus.COMPLETED
    assert bench.operation("1.1").wakeup_at == bench.now + MINUTE
    bench.let_pass(59 * SECOND)
    assert status(bench, "2.1") is EventStatus.QUEUED
    bench.let_pass(SECOND)
    assert status(bench, "2.1") is EventStatus.SCHEDULED


def test_a_domain_that_settles_is_up_when_somebody_acknowledges_it() -> None:
    bench = Bench()
    bench.policy = replace(bench.policy, settle=MINUTE)
    bench.ask(REBOOT, "web-0", no_notice=True)
    bench.ask(REBOOT, "web-1")
    bench.finish("1.1")
    acknowledge(bench, "1.1")
    assert status(bench, "2.1") is EventStatus.SCHEDULED
    assert bench.operation("1.1").wakeup_at is None


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


def test_a_failure_is_not_acknowledged_before_its_machines_have_asked_since() -> None:
    bench = listened()
    bench.ask(REBOOT, "web-1")
    saw(bench, "web-0", "web-3")  # as long as they still run
    bench.now += MINUTE
    bench.finish("1.1", succeeded=False)
    bench.now += SECOND
    saw(bench, "web-0")
    with pytest.raises(Refused) as unheard:
        acknowledge(bench, "1.1")
    assert unheard.value.code is ErrorCode.CONFLICT
    assert unheard.value.facts["machine"] == "web-3"
    assert "web-0" not in unheard.value.message
    assert status(bench, "2.1") is EventStatus.QUEUED
    saw(bench, "web-3")
    acknowledge(bench, "1.1")
    assert status(bench, "2.1") is EventStatus.SCHEDULED


def test_a_machine_that_came_back_before_its_operation_failed_has_asked_since() -> None:
    bench = listened()
    bench.finish("1.1")
    bench.now += SECOND
    saw(bench, "web-0")
    look(bench, "1.1")
    bench.let_pass(10 * MINUTE)
    assert status(bench, "1.1") is EventStatus.FAILED
    with pytest.raises(Refused) as unheard:
        acknowledge(bench, "1.1")
    assert unheard.value.facts["machine"] == "web-3"
    assert "web-0" not in unheard.value.message


def test_nobody_knows_that_a_machine_is_back_which_never_asked() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", no_notice=True)
    bench.finish("1.1", succeeded=False)
    with pytest.raises(Refused) as unheard:
        acknowledge(bench, "1.1")
    assert unheard.value.facts["machine"] == "web-0"
    removed = fleet_file.remove(bench.snapshot.world(), ["web-0"])
    bench.snapshot = applied(bench.snapshot, removed.changes)
    acknowledge(bench, "1.1")
    assert not bench.operation("1.1").down


def test_a_failure_leaves_its_domain_down_until_a_later_operation_completes_there() -> None:
    bench = listened()
    bench.ask(REBOOT, "web-1")
    bench.finish("1.1", succeeded=False)
    bench.sightings.clear()
    bench.ask(REBOOT, "web-0", no_notice=True)
    bench.finish("3.1")
    assert bench.operation("1.1").awaited == ("web-3",)
    bench.ask(EventType.REDEPLOY, "web-3", no_notice=True)
    bench.finish("4.1")
    assert not bench.operation("1.1").down
    assert status(bench, "2.1") is EventStatus.SCHEDULED


def test_what_may_repair_a_failure_goes_ahead_of_what_is_queued_behind_it() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.ask(REBOOT, "web-1")
    bench.approve(bench.event("1.1").id)
    bench.finish("1.1", succeeded=False)
    bench.ask(REBOOT, "web-3")  # of the same domain, and not what has failed
    assert bench.operation("3.1").waits_for == "2.1"
    bench.ask(REBOOT, "WEB-0")
    assert status(bench, "4.1") is EventStatus.SCHEDULED
    acknowledge(bench, "1.1", even_if_down=True)
    assert bench.operation("2.1").waits_for == "4.1"
    bench.approve(bench.event("4.1").id)
    bench.finish("4.1")
    assert status(bench, "2.1") is EventStatus.SCHEDULED
    assert status(bench, "3.1") is EventStatus.QUEUED


def test_a_repair_also_goes_ahead_in_scopes_that_the_failure_is_not_in() -> None:
    on_hosts = [{"update_domain": n, "host": f"h{n}"} for n in range(2)]
    sets = [
        {"name": name, "machines": [{"name": f"{name}-{n}", **on} for n, on in enumerate(on_hosts)]}
        for name in ("db", "web")
    ]
    bench = Bench(msgspec.convert({"availability_set": sets}, fleet_file.Fleet))
    bench.ask(REBOOT, "web-0")
    bench.ask(REBOOT, host="h1")
    bench.approve(bench.event("1.1").id)
    bench.finish("1.1", succeeded=False)
    assert bench.operation("2.1").waits_for == "1.1"
    bench.ask(REBOOT, host="h0")  # in db it would be behind 2.1, which waits for web-0
    assert status(bench, "3.1") is EventStatus.SCHEDULED


def test_a_failure_leaves_its_domain_down_until_its_machines_are_removed() -> None:
    bench = listened()
    bench.ask(REBOOT, "web-1")
    bench.finish("1.1", succeeded=False)
    removed = fleet_file.remove(bench.snapshot.world(), ["web-0", "web-3"])
    bench.snapshot = applied(bench.snapshot, removed.changes)
    look(bench, "1.1")
    assert status(bench, "2.1") is EventStatus.SCHEDULED


def test_an_agents_word_is_awaited_no_longer_when_its_scope_is_gone() -> None:
    bench = Bench()
    bench.policy = replace(bench.policy, settle=MINUTE)
    bench.ask(REBOOT, "bastion")
    carried_out(bench, "1.1", agent=AgentStatus.READY)
    bench.now += SECOND
    saw(bench, "bastion", agent=AgentStatus.RECOVERING)
    look(bench, "1.1")
    assert bench.operation("1.1").awaited == ("bastion",)
    removed = fleet_file.remove(bench.snapshot.world(), ["bastion"])
    bench.snapshot = applied(bench.snapshot, removed.changes)
    assert "bastion" not in bench.snapshot.scopes
    look(bench, "1.1")
    assert not bench.operation("1.1").down


def test_what_is_queued_waits_for_a_repair_that_has_started_too() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.ask(REBOOT, "web-1")
    bench.approve(bench.event("1.1").id)
    bench.finish("1.1", succeeded=False)
    bench.now += SECOND
    bench.ask(REBOOT, "web-0")
    bench.approve(bench.event("3.1").id)
    assert status(bench, "3.1") is EventStatus.STARTED
    acknowledge(bench, "1.1", even_if_down=True)
    assert status(bench, "2.1") is EventStatus.QUEUED
    assert bench.operation("2.1").waits_for == "3.1"


def test_an_unforeseen_failure_of_another_domain_waits_for_nothing() -> None:
    bench = listened()
    bench.ask(REBOOT, "web-1", no_notice=True)
    assert status(bench, "2.1") is EventStatus.STARTED
