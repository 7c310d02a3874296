"""One cause that is about several operations: each gets its due, whatever the first was."""

import msgspec
import pytest

from builders import MINUTE, NOW, Bench
from forewarn.maintenance import commands
from forewarn.maintenance.model import Queueing, Refused
from forewarn.vocabulary import ErrorCode, EventStatus, EventType

REBOOT = EventType.REBOOT


def test_a_scope_moves_although_what_changed_before_it_shows_nothing() -> None:
    bench = Bench(queue=Queueing.START)
    bench.ask(REBOOT, "web-0", no_notice=True)
    bench.ask(REBOOT, "web-1")
    bench.ask(REBOOT, "bastion")
    bench.approve(bench.event("2.1").id, bench.event("3.1").id)
    assert bench.operation("2.1").waits_for == "1.1"
    assert bench.operation("3.1").status is EventStatus.STARTED
    assert (bench.scope("web").incarnation, bench.scope("bastion").incarnation) == (2, 2)


def test_an_approval_reaches_what_is_named_after_one_that_has_started() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", no_notice=True)
    bench.ask(REBOOT, "bastion")
    decision = bench.approve(bench.event("1.1").id, bench.event("2.1").id)
    assert [operation.id for operation in decision.operations] == ["1.1", "2.1"]
    assert bench.event("1.1").approval is None
    assert bench.operation("2.1").status is EventStatus.STARTED


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


def test_what_has_started_is_named_where_it_can_not_be_cancelled() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", no_notice=True)
    with pytest.raises(Refused, match="Started") as refusal:
        bench.cancel("1.1")
    assert refusal.value.facts["operation"] == "1.1"


def test_a_lapse_that_ends_at_this_instant_leaves_what_waits_waiting() -> None:
    bench = Bench(queue=Queueing.START)
    bench.ask(REBOOT, "web-0", no_notice=True)
    bench.ask(REBOOT, "web-1")
    bench.let_pass(15 * MINUTE)
    bench.now += 5 * MINUTE
    bench.decide(commands.extend_notices, 5 * MINUTE)
    waiting = bench.operation("2.1")
    assert (waiting.not_before, waiting.waits_for) == (NOW + 20 * MINUTE, "1.1")
