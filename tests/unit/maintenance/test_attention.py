"""What an operator must know: each kind, when it appears and when it is gone."""

import re
from datetime import timedelta

import msgspec
import pytest

from builders import MINUTE, NOW, SECOND, Bench
from forewarn.maintenance import alerts, commands, turns
from forewarn.maintenance.alerts import AlertKind, Audience
from forewarn.maintenance.model import HoldKind, Maintenance, Refused
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.vocabulary import ErrorCode, EventType
from turn_world import maintenance

REBOOT = EventType.REBOOT


def listed(bench: Bench, **sights: Audience) -> list[tuple[AlertKind, str]]:
    return [(item.kind, item.about) for item in items(bench, **sights)]


def items(bench: Bench, **sights: Audience) -> list[alerts.Alert]:
    snapshot = bench.snapshot
    return alerts.items(
        snapshot.operations.values(),
        snapshot.maintenances.values(),
        snapshot.holds,
        {name.replace("_", "."): sight for name, sight in sights.items()},
        bench.now,
        up_since=NOW - 60 * MINUTE,
    )


def test_a_quiet_fleet_needs_nobody() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    assert listed(bench) == []


def test_a_failure_is_listed_until_somebody_takes_note() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", "bastion", no_notice=True)
    bench.now += MINUTE
    bench.finish("1.1", succeeded=False, message="no such domain")
    bench.finish("1.2", succeeded=False)
    first, second = items(bench)
    assert (first.kind, first.about, first.since) == (AlertKind.FAILED, "1.1", NOW + MINUTE)
    assert first.message == "Reboot failed: no such domain"
    assert second.message == "Reboot failed"
    both = "1.1", "1.2"
    bench.decide(commands.acknowledge_failures, operations=both, by="ann", even_if_down=True)
    assert listed(bench) == []


def test_that_the_store_is_down_comes_first() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", no_notice=True)
    bench.finish("1.1", succeeded=False)
    down = alerts.store_down("the disk is full", NOW + MINUTE)
    found = alerts.items(
        bench.snapshot.operations.values(), (), (), {}, bench.now, up_since=NOW, observed=(down,)
    )
    assert [item.kind for item in found] == [AlertKind.STORE_DOWN, AlertKind.FAILED]
    assert "the disk is full" in down.message
    assert alerts.remedy(down) == ""


def test_a_failure_names_what_waits_for_it() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", no_notice=True)
    bench.ask(REBOOT, "web-1")
    bench.ask(REBOOT, "bastion", no_notice=True)
    bench.finish("1.1", succeeded=False)
    bench.finish("3.1", succeeded=False)
    first, other = items(bench)
    assert (first.about, other.about) == ("1.1", "3.1")
    assert first.message.endswith("; 2.1 waits")
    assert other.message == "Reboot failed"
    bench.ask(REBOOT, "web-2")
    assert items(bench)[0].message.endswith("; 2.1, 4.1 wait")


def test_a_halted_maintenance_is_listed_until_it_is_resumed_or_cancelled() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    bench.cancel("1.1")
    (item,) = items(bench)
    assert (item.kind, item.about, item.since) == (AlertKind.HALTED, "1", NOW)
    assert "1.1 is Canceled: not now" in item.message
    assert alerts.remedy(item) == "maintenance resume 1"
    bench.order(MaintenanceOrder.RESUME)
    assert listed(bench) == []
    bench.snapshot = bench.with_hosts({"web-1": "h0"})
    bench.cancel(maintenance=1)
    bench.ask(REBOOT, host="h0")
    bench.cancel("2.1")
    assert listed(bench) == [(AlertKind.HALTED, "2")]
    assert "h0" in items(bench)[0].message
    bench.cancel(maintenance=2)
    assert listed(bench) == []


def test_units_that_the_rules_refuse_are_listed_after_ten_minutes_until_they_go() -> None:
    refusal = Refused(ErrorCode.LIMIT, "no room")
    of = maintenance("h0", "h1")
    first = turns.refused(of, {0: refusal, 1: refusal}, NOW)
    again = turns.refused(first, {0: refusal, 1: refusal}, NOW + 9 * MINUTE)

    def found(of: Maintenance, after: timedelta) -> list[alerts.Alert]:
        return alerts.items([], [of], [], {}, NOW + after, up_since=NOW)

    assert found(again, 9 * MINUTE) == []
    (item,) = found(again, 10 * MINUTE)
    assert (item.kind, item.about, item.since) == (AlertKind.REFUSED, "1", NOW)
    assert "h0, h1: no room" in item.message
    assert alerts.remedy(item) == "maintenance show 1"
    assert found(turns.asked(again, {0: 1, 1: 2}, NOW + 10 * MINUTE), 20 * MINUTE) == []


def test_one_that_an_operator_paused_needs_nobody() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    bench.order(MaintenanceOrder.PAUSE)
    assert listed(bench) == []


def test_a_hold_is_listed_with_who_and_why() -> None:
    bench = Bench()
    bench.hold(HoldKind.SCOPE, "web")
    (item,) = items(bench)
    assert (item.kind, item.about, item.since) == (AlertKind.HELD, "scope web", NOW)
    assert "ann: storm" in item.message
    hold = msgspec.structs.replace(bench.snapshot.holds[0], by="", reason="", name="")
    bench.snapshot = msgspec.structs.replace(bench.snapshot, holds=(hold,))
    (item,) = items(bench)
    assert item.about == "scope"
    assert "by somebody;" in item.message


def test_what_is_not_approved_is_listed_when_its_notice_is_nearly_over() -> None:
    bench = Bench()
    bench.ask_each_domain()
    bench.now += 13 * MINUTE - SECOND
    assert listed(bench) == []
    bench.now += SECOND
    assert listed(bench) == [(AlertKind.UNAPPROVED, f"{n}.1") for n in (1, 2, 3)]
    assert items(bench)[0].since == NOW
    assert "soon" in items(bench)[0].message
    bench.approve(bench.event("1.1").id)
    assert listed(bench) == [(AlertKind.UNAPPROVED, f"{n}.1") for n in (2, 3)]
    bench.let_pass(2 * MINUTE)
    assert ["over" in item.message for item in items(bench)] == [True, True]
    bench.hold(HoldKind.EVERYTHING)
    assert listed(bench) == [(AlertKind.HELD, "everything")]


@pytest.mark.parametrize(
    ("duration", "patience"),
    [(-1, 60 * MINUTE), (0, 60 * MINUTE), (1, 10 * MINUTE), (120, 10 * MINUTE),
     (121, timedelta(seconds=605)), (3600, 300 * MINUTE)],
)  # fmt: skip
def test_an_act_that_lasts_far_too_long_is_stuck(duration: int, patience: timedelta) -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", no_notice=True, duration_seconds=duration)
    assert alerts.patience(bench.operation("1.1")) == patience
    bench.now += patience
    assert listed(bench) == []
    bench.now += SECOND
    (item,) = items(bench)
    assert (item.kind, item.about, item.since) == (AlertKind.STUCK, "1.1", NOW)
    assert "12:00:00Z" in item.message


def test_a_doubt_is_listed_instead_of_a_stuck_act() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", no_notice=True)
    doubtful = msgspec.structs.replace(bench.operation("1.1"), outcome_unknown="nobody knows")
    bench.snapshot = msgspec.structs.replace(bench.snapshot, operations={"1.1": doubtful})
    bench.now += timedelta(days=1)
    (item,) = items(bench)
    assert (item.kind, item.about, item.since) == (AlertKind.UNKNOWN, "1.1", NOW)
    assert item.message == "Reboot of web-0: nobody knows"


@pytest.mark.parametrize(
    ("count", "named"),
    [(5, "b_0, b_1, b_2, b_3, b_4"), (6, "b_0, b_1, b_2, b_3, b_4 and 1 more")],
)
def test_a_doubt_names_the_machines_that_it_is_about_as_far_as_a_line_holds(
    count: int, named: str
) -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", no_notice=True)
    operation = bench.operation("1.1")
    event = msgspec.structs.replace(
        operation.events[0], machines=tuple(f"b_{n}" for n in range(count))
    )
    doubtful = msgspec.structs.replace(operation, outcome_unknown="nobody knows", events=(event,))
    bench.snapshot = msgspec.structs.replace(bench.snapshot, operations={"1.1": doubtful})
    assert items(bench)[0].message == f"Reboot of {named}: nobody knows"


def test_an_event_that_machines_cannot_see_is_listed_until_they_can() -> None:
    bench = Bench()
    bench.ask(EventType.PREEMPT, "batch_0", "batch_2")
    bench.ask(REBOOT, "web-0")
    (item,) = items(bench, **{"1_1": Audience(2, 2, 1), "2_1": Audience(1, 1, 1)})[1:]
    assert (item.kind, item.about, item.since) == (AlertKind.UNSEEN, "1.1", NOW)
    assert "1 of 2 machines" in item.message
    bench.approve(bench.event("1.1").id)
    assert listed(bench, **{"1_1": Audience(2, 2, 0)}) == []


@pytest.mark.parametrize(("up", "silent"), [(119, ""), (120, "2 of 3 machines")])
def test_machines_that_do_not_ask_are_listed_once_they_have_had_the_time_to(
    up: int, silent: str
) -> None:
    bench = Bench()
    bench.ask(EventType.PREEMPT, "batch_0", "batch_2")
    (operation,) = bench.snapshot.operations.values()
    found = alerts.items(
        [operation], (), (), {"1.1": Audience(3, 1, 0)}, NOW, up_since=NOW - up * SECOND
    )
    (message,) = [item.message for item in found if item.kind is AlertKind.UNSEEN]
    assert re.findall(r"\d of \d machines", message) == [
        *([silent] if silent else ()),
        "1 of 3 machines",
    ]


def test_the_oldest_is_first() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.now += MINUTE
    bench.hold(HoldKind.MACHINE, "bastion")
    bench.now += 13 * MINUTE
    assert listed(bench) == [(AlertKind.UNAPPROVED, "1.1"), (AlertKind.HELD, "machine bastion")]
