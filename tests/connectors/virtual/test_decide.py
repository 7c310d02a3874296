"""From what is seen to the next step: faults, refusals, and who else is at work."""

from dataclasses import replace
from typing import Any

import pytest

from connectors.virtual.hosts import EARLY, VM_ID, Copy, Host, Hosts, Timer, order, pair
from forewarn.connectors.libvirt import program
from forewarn.connectors.libvirt.decide import PRESS_EVERY_SECONDS, TRIES, Do
from forewarn.connectors.libvirt.facts import (
    Act,
    DomainState,
    Marker,
    MarkerPhase,
    MoveBy,
    Order,
    marker_of,
    order_of,
)
from forewarn.connectors.libvirt.program import End

LATE = "2026-03-02T12:00:01.000000Z"


def run(hosts: Hosts, asked: Order) -> End:
    return program.carry_out(asked, hosts, hosts.timer)


def steps(hosts: Hosts) -> list[Do]:
    return [step.do for step in hosts.done]


def marker(operation: str = "1.1", attempt: int = 1, **more: Any) -> Marker:
    usual = Marker(operation=operation, started_at=EARLY, attempt=attempt, phase=MarkerPhase.BEGUN)
    return replace(usual, **more)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (
            order(Act.PAUSE),
            [Do.MARK, Do.SUSPEND, Do.MARK, Do.RESUME, Do.SYNC_TIME, Do.MARK],
        ),
        (order(Act.REBOOT), [Do.MARK, Do.PRESS, Do.START]),
        (order(Act.MOVE), [Do.MARK, Do.MIGRATE]),
        (
            order(Act.MOVE, way=MoveBy.COLD),
            [Do.MARK, Do.PRESS, Do.MOVE_DEFINITION, Do.START],
        ),
        (order(Act.DELETE), [Do.MARK, Do.POWER_OFF, Do.UNDEFINE]),
        (
            order(Act.DELETE, delete_disks=True),
            [Do.MARK, Do.POWER_OFF, Do.DELETE_DISKS, Do.UNDEFINE],
        ),
    ],
    ids=["freeze", "reboot", "live", "cold", "delete", "delete-disks"],
)
def test_nothing_in_the_way_is_a_few_steps(asked: Order, expected: list[Do]) -> None:
    hosts = pair()
    assert run(hosts, asked).do is Do.DONE
    assert steps(hosts) == expected


def test_the_outcome_names_the_host_where_the_machine_is() -> None:
    assert run(pair(), order(Act.MOVE)).host == "h2"
    assert run(pair(), order(Act.REBOOT)).host == "h1"
    assert run(pair(), order(Act.DELETE)).host == ""


def test_a_freeze_lasts_as_long_as_it_should() -> None:
    hosts = pair()
    run(hosts, order(Act.PAUSE, pause_seconds=9.0))
    assert 9.0 <= hosts.timer.time < 10.0


def test_the_power_button_is_pressed_again() -> None:
    hosts = pair(presses_ignored=2)
    assert run(hosts, order(Act.REBOOT)).do is Do.DONE
    assert steps(hosts).count(Do.PRESS) == 3
    assert hosts.timer.time >= 2 * PRESS_EVERY_SECONDS


@pytest.mark.parametrize("act", [Act.REBOOT, Act.MOVE])
def test_a_guest_that_ignores_its_button_is_powered_off_or_left_alone(act: Act) -> None:
    asked = order(act, way=MoveBy.COLD, shutdown_seconds=120.0)
    refused = {Do.PRESS: [(84, "this machine has no button")] * 1000}
    for refusals in ({}, refused):
        hosts = Hosts(pair(presses_ignored=1000).hosts, refusals=refusals)
        assert run(hosts, asked).do is Do.DONE
        assert steps(hosts).count(Do.POWER_OFF) == 1
        assert asked.shutdown_seconds <= hosts.timer.time < asked.shutdown_seconds + 5
        hosts = Hosts(pair(presses_ignored=1000).hosts, refusals=refusals)
        end = run(hosts, replace(asked, force=False))
        assert (end.do, "no button" in end.message) == (Do.FAIL, bool(refusals))
        assert (hosts.running, hosts.copies[0][1].boots) == (["h1"], 0)


@pytest.mark.parametrize(
    ("copy", "why"),
    [
        ({"state": DomainState.OFF}, "off"),
        ({"state": DomainState.PAUSED}, "paused"),
        ({"defined": False}, "transient"),
        ({"restarts_on_poweroff": True}, "on_poweroff"),
    ],
)
def test_a_machine_that_cannot_be_rebooted_is_not_touched(copy: dict[str, Any], why: str) -> None:
    hosts = pair(**copy)
    end = run(hosts, order(Act.REBOOT))
    assert end.do is Do.FAIL
    assert why in end.message
    assert hosts.done == []


def test_a_machine_that_crashed_is_rebooted_by_force() -> None:
    hosts = pair(state=DomainState.CRASHED)
    assert run(hosts, order(Act.REBOOT)).do is Do.DONE
    assert (hosts.running, Do.PRESS in steps(hosts)) == (["h1"], False)


def test_a_machine_that_failed_is_started_if_it_is_off_and_left_alone_if_it_runs() -> None:
    asked = order(Act.REBOOT, unforeseen=True)
    hosts = pair(state=DomainState.OFF)
    assert (run(hosts, asked).do, hosts.running) == (Do.DONE, ["h1"])
    hosts = pair()
    assert (run(hosts, asked).do, hosts.done) == (Do.DONE, [])
    hosts = pair(state=DomainState.CRASHED)
    assert (run(hosts, asked).do, hosts.running) == (Do.DONE, ["h1"])


def test_a_reboot_with_its_host_starts_the_machine_after_the_hosts_boot() -> None:
    asked = order(Act.REBOOT, host_boot_id="boot-1")
    hosts = pair()

    class HostBoots(Timer):
        def wait(self, seconds: float) -> None:
            super().wait(seconds)
            hosts["h1"].answers = not 100 < self.time < 1000
            if self.time >= 1000:
                hosts["h1"].boot_id = "boot-2"

    hosts.timer = HostBoots()
    assert run(hosts, asked).do is Do.DONE
    assert hosts.timer.time >= 1000
    assert hosts.copies[0][1].boots == 1


def test_a_reboot_with_its_host_is_over_when_somebody_has_started_the_machine() -> None:
    asked = order(Act.REBOOT, host_boot_id="boot-1")
    hosts = pair()

    class Autostart(Timer):
        def wait(self, seconds: float) -> None:
            super().wait(seconds)
            copy = hosts.copies[0][1]
            if self.time > 50 and copy.state is DomainState.OFF:
                copy.state, copy.live = DomainState.RUNNING, copy.config

    hosts.timer = Autostart()
    assert run(hosts, asked).do is Do.DONE
    assert Do.START not in steps(hosts)


# Moves.


@pytest.mark.parametrize("way", list(MoveBy))
@pytest.mark.parametrize(
    ("second", "why"),
    [
        ({"answers": False}, "does not answer"),
        ({"free_memory_mib": 100}, "100 MiB free of 500"),
        ({"copy": Copy(state=DomainState.OFF)}, "definition"),
        ({"name_taken": True}, "named"),
        ({"target": False}, "target"),
        ({"host_id": "same"}, "current host"),
    ],
)
def test_a_machine_without_a_fit_target_is_not_touched(
    second: dict[str, Any], why: str, way: MoveBy
) -> None:
    hosts = Hosts([Host("h1", Copy(), host_id="same"), Host("h2", **second)])
    end = run(hosts, order(Act.MOVE, way=way))
    assert end.do is Do.FAIL
    assert why in end.message
    assert (hosts.done, hosts.running) == ([], ["h1"])


def test_a_machine_moves_to_the_host_with_the_most_memory_unless_one_is_named() -> None:
    def three() -> Hosts:
        return Hosts(
            [
                Host("h1", Copy()),
                Host("h2", free_memory_mib=900),
                Host("h3", free_memory_mib=1500),
            ]
        )

    assert run(three(), order(Act.MOVE)).host == "h3"
    assert run(three(), order(Act.MOVE, to_host="h2")).host == "h2"
    assert run(three(), order(Act.MOVE, closed_hosts=frozenset({"h3"}))).host == "h2"
    for wrong in ("h4", "h3"):
        hosts = three()
        asked = order(Act.MOVE, to_host=wrong, closed_hosts=frozenset({"h3"}))
        assert (run(hosts, asked).do, hosts.done) == (Do.FAIL, [])


def test_a_machine_that_is_on_the_named_host_is_left_there() -> None:
    hosts = pair()
    end = run(hosts, order(Act.MOVE, to_host="h1"))
    assert (end.do, end.host, hosts.done) == (Do.DONE, "h1", [])


@pytest.mark.parametrize("code", [1, 9, 49, 78, 81])
def test_a_live_migration_that_is_refused_leaves_the_machine_at_its_source(code: int) -> None:
    hosts = pair()
    hosts.refusals = {Do.MIGRATE: [(code, "for a reason")]}
    end = run(hosts, order(Act.MOVE, way=MoveBy.LIVE))
    assert (end.do, end.host, hosts.running) == (Do.FAIL, "h1", ["h1"])
    assert "for a reason" in end.message
    assert steps(hosts).count(Do.MIGRATE) == 1


def test_a_redeploy_may_go_cold_where_a_live_migration_is_refused() -> None:
    hosts = pair()
    hosts.refusals = {Do.MIGRATE: [(81, "unsafe")]}
    end = run(hosts, order(Act.MOVE, way=MoveBy.LIVE_OR_COLD))
    assert (end.do, hosts.running, hosts.copies[0][1].boots) == (Do.DONE, ["h2"], 1)


def test_a_job_in_the_way_of_a_migration_is_waited_for() -> None:
    hosts = pair()
    hosts.refusals = {Do.MIGRATE: [(68, "cannot acquire state change lock")] * 3}
    assert (run(hosts, order(Act.MOVE)).do, hosts.running) == (Do.DONE, ["h2"])


def test_a_target_that_is_lost_while_the_machine_shuts_down_has_it_started_again() -> None:
    class Lost(Hosts):
        def look(self, asked: Order) -> Any:
            self["h2"].answers = self["h2"].answers and self.running != []
            return super().look(asked)

    hosts = Lost(pair().hosts)
    end = run(hosts, order(Act.MOVE, way=MoveBy.COLD))
    assert (end.do, end.host, hosts.running) == (Do.FAIL, "h1", ["h1"])


@pytest.mark.parametrize("code", [1, 9, 49])
def test_a_cold_move_that_is_refused_has_the_machine_started_again(code: int) -> None:
    hosts = pair()
    hosts.refusals = {Do.MOVE_DEFINITION: [(code, "for a reason")]}
    end = run(hosts, order(Act.MOVE, way=MoveBy.COLD))
    assert (end.do, end.host, hosts.running) == (Do.FAIL, "h1", ["h1"])
    assert "for a reason" in end.message


def test_a_machine_that_the_target_cannot_start_comes_back_and_is_started() -> None:
    hosts = pair()
    hosts.refusals = {Do.START: [(1, "cannot set up guest memory")] * (TRIES[Do.START] // 2)}
    end = run(hosts, order(Act.MOVE, way=MoveBy.COLD))
    assert (end.do, end.host, hosts.running, hosts.defined) == (Do.FAIL, "h1", ["h1"], ["h1"])


def test_a_machine_that_is_off_moves_and_stays_off() -> None:
    hosts = pair(state=DomainState.OFF)
    end = run(hosts, order(Act.MOVE))
    assert (end.do, end.host) == (Do.DONE, "h2")
    assert (hosts.defined, hosts.active) == (["h2"], [])


def test_a_definition_that_a_move_left_behind_is_removed() -> None:
    mine = marker(source="h1", target="h2")
    hosts = Hosts(
        [Host("h1", Copy(DomainState.OFF, config=mine)), Host("h2", Copy(live=mine, config=mine))]
    )
    assert run(hosts, order(Act.MOVE, again=True)).do is Do.DONE
    assert hosts.defined == ["h2"]


def test_a_copy_that_a_migration_paused_is_left_alone_while_the_other_host_is_dark() -> None:
    mine = marker(source="h1", target="h2")
    for paused, dark in (("h1", "h2"), ("h2", "h1")):
        hosts = Hosts([Host("h1"), Host("h2")])
        hosts[paused].copy = Copy(DomainState.PAUSED, mine, mine, handed_over=True)
        hosts[dark].answers = False
        end = run(hosts, order(Act.MOVE, again=True))
        assert (end.do, hosts.done) == (Do.UNKNOWN, [])
        hosts[dark].answers = True
        assert run(hosts, order(Act.MOVE, again=True)).do is Do.DONE
        assert hosts.running == ["h2"]


def test_a_migration_that_is_under_way_is_waited_for_and_cancelled_when_the_time_is_over() -> None:
    mine = marker(source="h1", target="h2")

    class Migrating(Hosts):
        def do(self, asked: Order, step: Any) -> Any:
            self["h2"].copy = None
            return super().do(asked, step)

    def under_way() -> Hosts:
        target = Host(
            "h2", Copy(DomainState.PAUSED, mine, job=True, handed_over=True, defined=False)
        )
        return Migrating([target, Host("h1", Copy(live=mine, config=mine, job=True))])

    hosts = under_way()
    hosts.timer = Timer(over=60.0)
    end = run(hosts, order(Act.MOVE, again=True))
    assert (end.do, end.host, hosts.running, hosts.active) == (Do.FAIL, "h1", ["h1"], ["h1"])
    assert [(step.do, step.host) for step in hosts.done] == [(Do.ABORT, "h1")]
    assert hosts.timer.time >= 60.0
    hosts = under_way()
    hosts.timer = Timer(over=0.0)
    hosts.refusals = {Do.ABORT: [(55, "no job")]}
    assert run(hosts, order(Act.MOVE, again=True)).do is Do.UNKNOWN


# Whose machine it is.


@pytest.mark.parametrize("act", list(Act))
def test_a_machine_that_runs_on_two_hosts_is_touched_on_neither(act: Act) -> None:
    hosts = Hosts([Host("h1", Copy()), Host("h2", Copy())])
    end = run(hosts, order(act))
    assert (end.do, hosts.done) == (Do.FAIL, [])
    assert all(name in end.message for name in ("h1", "h2"))
    assert program.check_done(order(act), hosts, hosts.timer).do is Do.UNKNOWN


@pytest.mark.parametrize("act", list(Act))
def test_a_later_attempt_or_operation_has_the_machine(act: Act) -> None:
    for other in (marker(attempt=2), marker("2.1", started_at=LATE)):
        hosts = pair(live=other, config=other)
        assert (run(hosts, order(act)).do, hosts.done) == (Do.FENCED, [])
        assert program.check_done(order(act), hosts, hosts.timer).do is Do.UNKNOWN


@pytest.mark.parametrize("act", list(Act))
def test_an_earlier_operation_has_it_no_more(act: Act) -> None:
    older = marker("0.9", started_at="2026-03-02T12:00:00.000000Z", phase=MarkerPhase.DONE)
    hosts = pair(live=older, config=older)
    assert run(hosts, order(act)).do is Do.DONE


@pytest.mark.parametrize("act", list(Act))
def test_an_operation_of_before_the_clock_was_set_back_has_it_no_more(act: Act) -> None:
    older = marker("9.2", started_at=LATE, phase=MarkerPhase.DONE)
    hosts = pair(live=older, config=older)
    assert run(hosts, order(act, operation="10.1")).do is Do.DONE


def test_an_operation_that_takes_over_meanwhile_stops_the_run() -> None:
    hosts = pair(presses_ignored=1)

    class TakenOver(Timer):
        def wait(self, seconds: float) -> None:
            super().wait(seconds)
            hosts.copies[0][1].live = marker("0.9", started_at="2026-01-01T00:00:00.000000Z")

    hosts.timer = TakenOver()
    assert run(hosts, order(Act.REBOOT)).do is Do.FENCED
    assert steps(hosts) == [Do.MARK, Do.PRESS]


# Hosts that do not answer.


@pytest.mark.parametrize("act", list(Act))
def test_nothing_is_touched_while_a_host_that_may_have_the_machine_is_dark(act: Act) -> None:
    hosts = Hosts([Host("h1", answers=False), Host("h2")])
    end = run(hosts, order(act))
    assert end.do is Do.FAIL
    assert "h1" in end.message
    assert program.check_done(order(act), hosts, hosts.timer).do is Do.UNKNOWN
    assert run(hosts, order(act, again=True)).do is Do.UNKNOWN


@pytest.mark.parametrize("act", [Act.PAUSE, Act.REBOOT, Act.MOVE])
@pytest.mark.parametrize("unforeseen", [False, True])
def test_an_old_definition_is_left_alone_while_a_dark_host_may_run_the_machine(
    act: Act, *, unforeseen: bool
) -> None:
    hosts = Hosts([Host("h1", Copy(DomainState.OFF)), Host("h2", Copy()), Host("h3")])
    hosts["h2"].answers = False
    asked = order(act, unforeseen=unforeseen, host="h2")
    end = run(hosts, asked)
    assert (end.do, hosts.done) == (Do.UNKNOWN if unforeseen else Do.FAIL, [])
    assert "h2" in end.message
    again = replace(asked, again=True, attempt=2)
    assert program.check_done(again, hosts, hosts.timer).do is Do.UNKNOWN
    assert (run(hosts, again).do, hosts.done) == (Do.UNKNOWN, [])


def test_a_machine_that_failed_waits_for_a_dark_host_before_it_is_started() -> None:
    class Dark(Timer):
        def wait(self, seconds: float) -> None:
            super().wait(seconds)
            hosts["h2"].answers = self.time > 10

    hosts = pair(state=DomainState.OFF)
    hosts["h2"].answers = False
    hosts.timer = Dark()
    assert run(hosts, order(Act.REBOOT, unforeseen=True)).do is Do.DONE
    assert (hosts.running, hosts.timer.time > 10) == (["h1"], True)


def test_a_machine_that_failed_where_the_fleet_has_it_is_started_though_another_host_is_dark() -> (
    None
):
    hosts = pair(state=DomainState.OFF)
    hosts["h2"].answers = False
    assert run(hosts, order(Act.REBOOT, unforeseen=True, host="h1")).do is Do.DONE
    assert (hosts.running, hosts.timer.time < 10) == (["h1"], True)


def test_a_machine_that_was_shut_down_is_started_though_another_host_is_dark() -> None:
    hosts = pair()
    hosts["h2"].answers = False
    assert (run(hosts, order(Act.REBOOT)).do, hosts.running) == (Do.DONE, ["h1"])


def test_a_move_is_over_only_where_its_source_is_known_to_be_free_of_the_machine() -> None:
    mine = marker(source="h1", target="h2")
    hosts = Hosts([Host("h1", Copy(DomainState.OFF, config=mine)), Host("h2", Copy(live=mine))])
    hosts["h1"].answers = False
    assert run(hosts, order(Act.MOVE, again=True)).do is Do.UNKNOWN
    hosts["h1"].answers = True
    assert run(hosts, order(Act.MOVE, again=True)).do is Do.DONE
    assert [name for name, _ in hosts.copies] == ["h2"]

    class Dark(Hosts):
        def do(self, asked: Order, step: Any) -> Any:
            refused = super().do(asked, step)
            self["h1"].answers = step.do is not Do.MIGRATE
            return refused

    gone = Dark([Host("h1", Copy()), Host("h2")])
    end = run(gone, order(Act.MOVE))
    assert (end.do, end.host) == (Do.DONE, "h2")


@pytest.mark.parametrize("act", list(Act))
def test_a_host_that_goes_dark_in_the_middle_is_asked_again(act: Act) -> None:
    class Dark(Timer):
        def wait(self, seconds: float) -> None:
            super().wait(seconds)
            hosts["h1"].answers = self.time > 15

    hosts = pair()
    hosts.timer = Dark()
    hosts.refusals = {do: [(38, "end of file")] for do in (Do.RESUME, Do.PRESS, Do.POWER_OFF)}
    assert run(hosts, order(act)).do is Do.DONE


@pytest.mark.parametrize("act", [Act.PAUSE, Act.REBOOT, Act.MOVE])
def test_a_machine_that_is_on_no_host_is_not_found(act: Act) -> None:
    end = run(Hosts([Host("h1"), Host("h2")]), order(act))
    assert end.do is Do.FAIL
    assert all(text in end.message for text in (VM_ID, "h1", "h2"))
    assert run(pair(), order(act, vm_id="")).do is Do.FAIL


def test_a_machine_that_is_on_no_host_has_been_deleted() -> None:
    hosts = Hosts([Host("h1"), Host("h2")])
    assert run(hosts, order(Act.DELETE)).do is Do.DONE
    assert program.check_done(order(Act.DELETE), hosts, hosts.timer).do is Do.DONE


def test_disks_that_nothing_names_any_more_are_left_to_an_operator() -> None:
    gone = Hosts([Host("h1"), Host("h2")])
    assert "disks" in run(gone, order(Act.DELETE, delete_disks=True)).message
    assert "disks" not in run(gone, order(Act.DELETE)).message


@pytest.mark.parametrize("transient", [False, True])
def test_the_disks_of_a_machine_are_deleted_with_it(*, transient: bool) -> None:
    hosts = pair(defined=not transient)
    end = run(hosts, order(Act.DELETE, delete_disks=True))
    assert (end.do, end.message) == (Do.DONE, "")
    assert (hosts.copies, hosts.disks_deleted) == ([], True)


def test_no_end_is_decided_on_one_look() -> None:
    hosts = pair()
    look = hosts.look

    class Moving(Hosts):
        def look(self, asked: Order) -> Any:
            sights = look(asked)
            self.looks += 1
            if self.looks == 1:  # it moved between the look at the one host and at the other
                return tuple(replace(sight, domain=None) for sight in sights)
            return sights

    moving = Moving(hosts.hosts, hosts.timer)
    assert run(moving, order(Act.DELETE)).do is Do.DONE
    assert hosts.copies == []


def test_a_marker_is_read_as_it_was_written() -> None:
    mine = marker(source="h1", target='a "<&> name', phase=MarkerPhase.COLD)
    assert marker_of(mine.xml()) == mine
    for strange in ("", "<task/>", mine.xml().replace("cold", "warm"), "<task attempt='x'/>"):
        assert marker_of(strange) is None


@pytest.mark.parametrize(
    ("event_type", "live_migration", "given", "expected"),
    [
        ("Freeze", False, {}, (Act.PAUSE, MoveBy.COLD)),
        ("Freeze", True, {}, (Act.MOVE, MoveBy.LIVE)),
        ("Freeze", False, {"freeze": "migrate"}, (Act.MOVE, MoveBy.LIVE)),
        ("Reboot", False, {}, (Act.REBOOT, MoveBy.COLD)),
        ("Redeploy", False, {}, (Act.MOVE, MoveBy.COLD)),
        ("Preempt", False, {}, (Act.DELETE, MoveBy.COLD)),
        ("Terminate", False, {}, (Act.DELETE, MoveBy.COLD)),
    ],
)
def test_an_event_type_is_an_act(
    event_type: str, live_migration: bool, given: dict[str, Any], expected: tuple[Act, MoveBy]
) -> None:
    settings = {
        "redeploy": "cold",
        "freeze": "suspend",
        "freeze_seconds": 5.0,
        "shutdown_seconds": 120.0,
        "force": True,
        "retry_seconds": 300.0,
        "delete_disks": False,
        "migration": {},
        "hosts": [],
    }
    asked = order_of(
        {
            "operation": "1.1",
            "started_at": "2026-03-02T12:00:00.25Z",
            "attempt": 1,
            "machine": "web-0",
            "vm_id": VM_ID,
            "host": "h1",
            "event_type": event_type,
            "live_migration": live_migration,
            "duration_seconds": 3,
            "unforeseen": False,
            "to_host": "",
            "closed_hosts": [],
            "host_boot_id": "",
            "again": False,
            "libvirt": settings | given,
        }
    )
    assert (asked.host, asked.act, asked.way) == ("h1", *expected)
    assert (asked.started_at, asked.pause_seconds) == (EARLY, 3)
