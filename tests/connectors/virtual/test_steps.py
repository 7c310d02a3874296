"""One step by itself: what is remembered of it, how long is waited, and what the operator reads."""

from dataclasses import replace
from typing import Any

import pytest

from connectors.virtual.hosts import EARLY, Copy, Host, Hosts, order, pair
from forewarn.connectors.libvirt import decide
from forewarn.connectors.libvirt.decide import (
    JOB_IN_THE_WAY,
    LOOK_AGAIN_SECONDS,
    LOOKS,
    MAX_FAILURES,
    PRESS_EVERY_SECONDS,
    RETRY_EVERY_SECONDS,
    TRIES,
    TRIES_ELSE,
    Do,
    Failure,
    Past,
    Step,
)
from forewarn.connectors.libvirt.facts import Act, DomainState, Marker, MarkerPhase, MoveBy, Order

NOW = 100.0


def marker(phase: MarkerPhase = MarkerPhase.BEGUN, **more: Any) -> Marker:
    usual = Marker(operation="1.1", started_at=EARLY, attempt=1, phase=phase, source="h1")
    return replace(usual, **more)


def marked(phase: MarkerPhase, state: DomainState = DomainState.RUNNING, **more: Any) -> Copy:
    return Copy(state, live=marker(phase, **more), config=marker(phase, **more))


def after_look(hosts: Hosts, asked: Order, **past: Any) -> Step:
    return decide.decide(asked, hosts.look(asked), Past(**{"now": NOW, **past}))


# What a run remembers.


@pytest.mark.parametrize(
    ("step", "act", "more"),
    [
        (Do.MARK, Act.PAUSE, {"marked_on": "h1"}),
        (Do.SUSPEND, Act.PAUSE, {"paused_at": NOW}),
        (Do.SYNC_TIME, Act.PAUSE, {"time_set": True}),
        (Do.DELETE_DISKS, Act.DELETE, {"disks_deleted": True}),
        (Do.MIGRATE, Act.MOVE, {"moved": True}),
        (Do.MOVE_DEFINITION, Act.MOVE, {"moved": True}),
        (Do.START, Act.MOVE, {"started_on": "h1"}),
        (Do.START, Act.REBOOT, {}),
        (Do.PRESS, Act.REBOOT, {"pressed_first": NOW, "pressed_last": NOW}),
        (Do.POWER_OFF, Act.DELETE, {}),
    ],
)
def test_what_was_done_is_remembered(step: Do, act: Act, more: dict[str, Any]) -> None:
    past = Past(now=NOW, waiting_since=90.0)
    expected = replace(past, waiting_since=None, acted=True, **more)
    assert decide.after(past, Step(do=step, host="h1"), order(act)) == expected


def test_a_look_changes_nothing_but_since_when_something_is_waited_for() -> None:
    for acted in (False, True):
        past = Past(now=NOW, acted=acted)
        asked_again = decide.after(past, Step(do=Do.ASK_AGAIN), order(Act.PAUSE))
        assert asked_again == replace(past, waiting_since=NOW)
        later = replace(asked_again, now=NOW + 5)
        assert decide.after(later, Step(do=Do.ASK_AGAIN), order(Act.PAUSE)) == later
        for look in LOOKS - {Do.ASK_AGAIN}:
            kept = decide.after(later, Step(do=look), order(Act.PAUSE))
            assert kept == replace(later, waiting_since=None)


def test_a_second_press_does_not_begin_the_time_to_shut_down_again() -> None:
    press = Step(do=Do.PRESS, host="h1")
    once = decide.after(Past(now=NOW), press, order(Act.REBOOT))
    twice = decide.after(replace(once, now=NOW + 8), press, order(Act.REBOOT))
    assert (twice.pressed_first, twice.pressed_last) == (NOW, NOW + 8)
    refused = decide.refused(Past(now=NOW), press, 38, "cut")
    again = decide.refused(replace(refused, now=NOW + 8), press, 38, "cut")
    assert (again.pressed_first, again.pressed_last) == (NOW, NOW + 8)
    assert len(again.failures) == 2


def test_what_libvirt_refused_is_remembered_with_its_reason() -> None:
    past = decide.refused(Past(now=NOW), Step(do=Do.RESUME, host="h2"), 38, "cut")
    failure = Failure(do=Do.RESUME, host="h2", code=38, message="cut", at=NOW)
    assert past == Past(now=NOW, acted=True, failures=(failure,))
    migrate = Step(do=Do.MIGRATE, host="h1")
    assert decide.refused(Past(), migrate, JOB_IN_THE_WAY, "busy") == Past(acted=True)
    assert len(decide.refused(Past(), migrate, 1, "no").failures) == 1
    assert len(decide.refused(Past(), replace(migrate, do=Do.MARK), 68, "busy").failures) == 1
    full = replace(past, failures=(failure,) * MAX_FAILURES)
    latest = decide.refused(full, migrate, 1, "no").failures
    assert (len(latest), latest[-1].do) == (MAX_FAILURES, Do.MIGRATE)


def test_a_clock_that_was_not_set_is_noted_and_not_tried_again() -> None:
    past = decide.refused(Past(), Step(do=Do.SYNC_TIME, host="h1"), 74, "no agent")
    assert past.time_set
    (note,) = past.notes
    assert "no agent" in note


# How long is waited, and how often is tried.


@pytest.mark.parametrize(
    ("hosts", "act", "do"),
    [
        (pair(), Act.PAUSE, Do.MARK),
        (Hosts([Host("h1", marked(MarkerPhase.RESTARTED, DomainState.OFF))]), Act.REBOOT, Do.START),
        (Hosts([Host("h1", marked(MarkerPhase.PAUSED, DomainState.PAUSED))]), Act.PAUSE, Do.RESUME),
    ],
)
def test_a_step_that_failed_waits_a_moment_and_is_given_up_after_its_tries(
    hosts: Hosts, act: Act, do: Do
) -> None:
    tries = TRIES.get(do, TRIES_ELSE)
    old = Failure(do=do, host="h1", code=1, message="it is stuck", at=0.0)
    assert after_look(hosts, order(act), failures=(old,) * (tries - 1)).do is do
    end = after_look(hosts, order(act), failures=(old,) * tries)
    assert end.do is Do.FAIL
    assert "it is stuck" in end.message
    assert "h1" in end.message
    for ago, expected in ((RETRY_EVERY_SECONDS - 0.1, Do.WAIT), (RETRY_EVERY_SECONDS, do)):
        step = after_look(hosts, order(act), failures=(old, replace(old, at=NOW - ago)))
        assert step.do is expected
        if expected is Do.WAIT:
            assert step == Step(do=Do.WAIT, seconds=LOOK_AGAIN_SECONDS, message="it is stuck")
    for other in (replace(old, do=Do.PRESS), replace(old, host="h2")):
        assert after_look(hosts, order(act), failures=(other,) * tries).do is do


@pytest.mark.parametrize(
    ("pressed", "last", "force", "expected"),
    [
        (None, None, True, Do.PRESS),
        (30.0, 1.0, True, Do.POWER_OFF),
        (29.9, 7.9, True, Do.WAIT),
        (29.9, PRESS_EVERY_SECONDS, True, Do.PRESS),
        (30.0, 1.0, False, Do.FAIL),
    ],
)
@pytest.mark.parametrize("act", [Act.REBOOT, Act.MOVE])
def test_a_guest_is_asked_again_and_powered_off_when_its_time_is_over(
    act: Act, pressed: float | None, last: float | None, force: bool, expected: Do
) -> None:
    phase = MarkerPhase.COLD if act is Act.MOVE else MarkerPhase.BEGUN
    target = "h2" if act is Act.MOVE else ""
    hosts = Hosts([Host("h1", marked(phase, target=target)), Host("h2")])
    asked = order(act, force=force, way=MoveBy.COLD)
    ago = {"pressed_first": pressed, "pressed_last": last}
    past = {key: NOW - each for key, each in ago.items() if each is not None}
    step = after_look(hosts, asked, **past)
    assert step.do is expected
    if expected is Do.WAIT:
        assert step.seconds == LOOK_AGAIN_SECONDS
    elif expected is Do.FAIL:
        assert "h1" in step.message
        assert "30 s" in step.message
    else:
        assert step.host == "h1"


def test_a_pause_lasts_as_long_as_it_should_and_ends_at_once_when_the_time_is_over() -> None:
    hosts = Hosts([Host("h1", marked(MarkerPhase.PAUSED, DomainState.PAUSED))])
    asked = order(Act.PAUSE, pause_seconds=5.0)
    waits = after_look(hosts, asked, paused_at=NOW - 4.5)
    assert (waits.do, waits.seconds) == (Do.WAIT, 0.5)
    resume = Step(do=Do.RESUME, host="h1")
    assert after_look(hosts, asked, paused_at=NOW - 5) == resume
    assert after_look(hosts, asked) == resume
    assert after_look(hosts, asked, paused_at=NOW, stopping=True) == resume


def test_a_machine_is_started_when_its_host_has_another_boot_id() -> None:
    def off(boot_id: str) -> Hosts:
        copy = marked(MarkerPhase.RESTARTED, DomainState.OFF)
        return Hosts([Host("h1", copy, boot_id=boot_id)])

    asked = order(Act.REBOOT, host_boot_id="boot-1")
    start = Step(do=Do.START, host="h1")
    for boot_id in ("boot-1", ""):
        waits = after_look(off(boot_id), asked)
        assert (waits.do, waits.seconds) == (Do.WAIT, RETRY_EVERY_SECONDS)
        assert after_look(off(boot_id), asked, stopping=True) == start
    assert after_look(off("boot-2"), asked) == start
    assert after_look(off(""), order(Act.REBOOT)) == start


def test_a_dark_host_is_asked_again_for_a_while() -> None:
    hosts = Hosts([Host("h1", answers=False), Host("h2")])
    asked = order(Act.PAUSE)
    for since, expected in (
        (None, Do.ASK_AGAIN),
        (NOW - asked.retry_seconds + 0.1, Do.ASK_AGAIN),
        (NOW - asked.retry_seconds, Do.UNKNOWN),
    ):
        step = after_look(hosts, asked, acted=True, waiting_since=since)
        assert step.do is expected
        assert "h1" in step.message
        assert "connection refused" in step.message
        assert step.seconds == (RETRY_EVERY_SECONDS if expected is Do.ASK_AGAIN else 0)
    assert after_look(hosts, asked, acted=True, stopping=True).do is Do.UNKNOWN
    of_host = order(Act.REBOOT, host_boot_id="boot-1")
    waits = after_look(hosts, of_host, acted=True)
    assert (waits.do, waits.seconds) == (Do.WAIT, RETRY_EVERY_SECONDS)
    assert after_look(hosts, of_host, acted=True, stopping=True).do is Do.UNKNOWN
    assert after_look(hosts, of_host).do is Do.FAIL


def test_a_job_is_waited_for_and_told_by_its_host_when_the_time_is_over() -> None:
    hosts = pair(job=True)
    waits = after_look(hosts, order(Act.PAUSE))
    assert (waits.do, waits.seconds) == (Do.WAIT, LOOK_AGAIN_SECONDS)
    end = after_look(hosts, order(Act.PAUSE), stopping=True)
    assert end.do is Do.UNKNOWN
    assert "h1" in end.message


# What ends a run.


@pytest.mark.parametrize("act", [Act.PAUSE, Act.REBOOT, Act.DELETE, Act.MOVE])
def test_nothing_is_begun_when_the_time_is_over(act: Act) -> None:
    for copy in (Copy(), marked(MarkerPhase.BEGUN)):
        end = after_look(Hosts([Host("h1", copy), Host("h2")]), order(act), stopping=True)
        assert end.do is Do.FAIL
        assert end.message


def test_a_pause_that_is_over_is_marked_done_when_there_is_no_time_to_set_the_clock() -> None:
    hosts = Hosts([Host("h1", marked(MarkerPhase.PAUSED))])
    done = marker(MarkerPhase.DONE)
    for past in ({"stopping": True}, {"time_set": True}):
        step = after_look(hosts, order(Act.PAUSE), **past)
        assert step == Step(do=Do.MARK, host="h1", live=done, config=done)
    assert after_look(hosts, order(Act.PAUSE)).do is Do.SYNC_TIME


@pytest.mark.parametrize("act", [Act.PAUSE, Act.REBOOT, Act.MOVE])
def test_a_machine_that_is_off_and_defined_on_several_hosts_is_told_by_their_names(
    act: Act,
) -> None:
    hosts = Hosts([Host("h1", Copy(DomainState.OFF)), Host("h2", Copy(DomainState.OFF))])
    end = after_look(hosts, order(act))
    assert end.do is Do.FAIL
    assert all(name in end.message for name in ("h1", "h2"))


def test_who_has_taken_over_is_told_and_the_same_instant_is_no_later_one() -> None:
    later = marker(operation="2.1", started_at="2026-03-02T12:00:01.000000Z")
    for other, word in ((marker(attempt=2), "2"), (later, "2.1")):
        end = after_look(pair(live=other, config=other), order(Act.PAUSE))
        assert end.do is Do.FENCED
        assert word in end.message
    same = marker(operation="0.9")
    assert after_look(pair(live=same, config=same), order(Act.PAUSE)).do is Do.MARK
    mine = after_look(pair(live=same, config=same), order(Act.PAUSE), marked_on="h1")
    assert mine.do is Do.FENCED


def test_what_was_not_as_expected_is_told_at_the_end() -> None:
    done = Hosts([Host("h1", marked(MarkerPhase.DONE))])
    assert after_look(done, order(Act.PAUSE), notes=("its clock is wrong",)).message == (
        "its clock is wrong"
    )
    moved = Hosts([Host("h1"), Host("h2", marked(MarkerPhase.BEGUN))])
    end = after_look(moved, order(Act.MOVE), notes=("its clock is wrong",))
    assert end.do is Do.DONE
    assert all(word in end.message for word in ("h2", "its clock is wrong"))
    off = Hosts([Host("h1"), Host("h2", marked(MarkerPhase.OFFLINE, DomainState.OFF))])
    end = after_look(off, order(Act.MOVE))
    assert (end.do, "h2" in end.message) == (Do.DONE, True)


def test_a_deletion_tells_whether_anything_was_left_to_delete() -> None:
    hosts = Hosts([Host("h1"), Host("h2")])
    assert after_look(hosts, order(Act.DELETE)).message
    assert after_look(hosts, order(Act.DELETE), acted=True) == Step(do=Do.DONE)


@pytest.mark.parametrize(
    ("state", "word"), [(DomainState.RUNNING, "runs"), (DomainState.OFF, "off")]
)
def test_a_machine_that_finds_no_target_is_told_by_its_state_and_host(
    state: DomainState, word: str
) -> None:
    hosts = Hosts([Host("h1", Copy(state)), Host("h2", target=False)])
    end = after_look(hosts, order(Act.MOVE))
    assert end.do is Do.FAIL
    assert all(each in end.message for each in ("h1", "h2", word))
    alone = after_look(Hosts([Host("h1", Copy(state))]), order(Act.MOVE))
    assert (alone.do, "h1" in alone.message) == (Do.FAIL, True)


def test_a_transient_machine_is_not_shut_down_to_move() -> None:
    hosts = pair(defined=False)
    end = after_look(hosts, order(Act.MOVE, way=MoveBy.COLD))
    assert (end.do, "transient" in end.message) == (Do.FAIL, True)
    assert after_look(hosts, order(Act.MOVE, way=MoveBy.LIVE)).do is Do.MARK


def test_a_machine_that_is_off_and_cannot_move_is_told_why() -> None:
    copy = marked(MarkerPhase.OFFLINE, DomainState.OFF, target="h2")
    dark = Hosts([Host("h1", copy), Host("h2", answers=False)])
    end = after_look(dark, order(Act.MOVE))
    assert (end.do, "connection refused" in end.message) == (Do.FAIL, True)
    there = Hosts([Host("h1", copy), Host("h2")])
    end = after_look(there, order(Act.MOVE), stopping=True)
    assert (end.do, "time" in end.message) == (Do.FAIL, True)
    failure = Failure(do=Do.MOVE_DEFINITION, host="h1", code=9, message="exists", at=0.0)
    end = after_look(there, order(Act.MOVE), failures=(failure,))
    assert (end.do, "exists" in end.message) == (Do.FAIL, True)


def test_copies_that_a_migration_left_are_touched_only_where_one_of_them_is_proven() -> None:
    def two(there: DomainState, source: str = "h1") -> Hosts:
        mine = marker(source=source, target="h2")
        left = Copy(DomainState.PAUSED, mine, mine, handed_over=True)
        return Hosts([Host("h1", left), Host("h2", Copy(there, mine, mine))])

    step = after_look(two(DomainState.RUNNING), order(Act.MOVE))
    assert step == Step(do=Do.POWER_OFF, host="h1")
    for unproven in (two(DomainState.PAUSED), two(DomainState.RUNNING, source="h3")):
        assert after_look(unproven, order(Act.MOVE)).do is Do.ASK_AGAIN
    kept = two(DomainState.RUNNING)
    assert kept["h2"].copy is not None
    kept["h2"].copy.live = None
    assert after_look(kept, order(Act.MOVE)).do is Do.ASK_AGAIN


def test_a_marker_without_a_source_is_of_the_host_where_it_is() -> None:
    mine = marker(source="")
    step = after_look(pair(live=mine, config=mine), order(Act.MOVE))
    assert (step.do, step.host) == (Do.MARK, "h1")
    assert step.live == marker(target="h2")


def test_a_check_of_what_cannot_be_done_any_more_is_exact() -> None:
    hosts = pair(state=DomainState.CRASHED)
    asked = order(Act.PAUSE)
    found = decide.verdict(asked, hosts.look(asked))
    assert (found.do, "crashed" in found.message) == (Do.FAIL, True)


def test_a_machine_that_is_off_is_not_started_while_a_host_that_may_run_it_is_dark() -> None:
    asked = order(Act.MOVE, way=MoveBy.COLD)
    off = marked(MarkerPhase.COLD, DomainState.OFF, target="h2")
    here = Hosts([Host("h1", off), Host("h2", answers=False)])
    tried = Failure(do=Do.START, host="h2", code=38, message="end of file", at=0.0)
    assert after_look(here, asked, failures=(tried,)).do is Do.ASK_AGAIN
    moved = Failure(do=Do.MOVE_DEFINITION, host="h1", code=38, message="end of file", at=0.0)
    assert after_look(here, asked, failures=(moved,)).do is Do.START
    there = Hosts([Host("h1", answers=False), Host("h2", off)])
    assert after_look(there, asked, moved=False).do is Do.ASK_AGAIN
    assert after_look(there, asked, moved=True).do is Do.START
    assert after_look(there, asked, moved=True, started_on="h1").do is Do.ASK_AGAIN
