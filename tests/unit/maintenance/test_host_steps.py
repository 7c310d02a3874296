"""Each state of a drain by itself: what it asks for, when it is asked again, and what stops it."""

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from builders import MINUTE, NOW, SECOND
from forewarn.maintenance import host_drain, host_plan
from forewarn.maintenance.host_drain import DrainOrder, DrainStep, DrainView
from forewarn.maintenance.host_plan import HostSurvey
from forewarn.maintenance.model import (
    Drain,
    DrainGuest,
    GuestFacts,
    Hold,
    HoldKind,
    HostFacts,
    HostState,
    Machine,
    Operation,
    Refused,
    Way,
)
from forewarn.maintenance.planner import Request
from forewarn.maintenance.relays import Relay
from forewarn.vocabulary import ErrorCode, EventSource, EventStatus, EventType, TargetKind

BEFORE = NOW - 2 * MINUTE
HOST_BACK = 30 * MINUTE
LOOK_AGAIN = NOW + host_drain.LOOK_EVERY
ASK_AGAIN = NOW + host_drain.ASK_AGAIN_AFTER

replace = msgspec.structs.replace


def drain(state: HostState = HostState.DRAINING, host: str = "h1", **more: Any) -> Drain:
    usual = Drain(host=host, state=state, requested_at=BEFORE, changed_at=BEFORE)
    return replace(usual, **more)


def stuck(stuck_in: HostState, **more: Any) -> Drain:
    return drain(HostState.STUCK, stuck_in=stuck_in, reason="something", **more)


def guest(name: str = "db-0", way: Way = Way.LIVE, **more: Any) -> DrainGuest:
    return DrainGuest(name=name, vm_id=f"id-{name}", memory_mib=1024, way=way, **more)


def operation(
    number: int = 1, status: EventStatus = EventStatus.COMPLETED, **more: Any
) -> Operation:
    return Operation(
        id=f"{number}.1",
        maintenance=number,
        event_type=EventType.FREEZE,
        source=EventSource.PLATFORM,
        target=TargetKind.MACHINES,
        live_migration=False,
        description="",
        duration_seconds=-1,
        status=status,
        announced_at=BEFORE,
        not_before=BEFORE,
        events=(),
        **more,
    )


def machine(name: str, host: str, scope: str = "", update_domain: int = 0) -> Machine:
    return Machine(
        name=name,
        scope=scope or name,
        update_domain=update_domain,
        fault_domain=0,
        vm_id=f"id-{name}",
        host=host,
    )


def facts(*running: str, off: tuple[str, ...] = (), **more: Any) -> HostFacts:
    guests = tuple(
        GuestFacts(vm_id=f"id-{name}", name=name, running=name not in off, memory_mib=1024)
        for name in (*running, *off)
    )
    usual = HostFacts(
        answers=True, boot_id="boot-1", free_memory_mib=9000, can_reboot=True, guests=guests
    )
    return replace(usual, **more)


SILENT = HostFacts(answers=False, why="no route")


def look(h1: HostFacts, began_at: datetime = NOW) -> HostSurvey:
    return HostSurvey(began_at=began_at, hosts={"h1": h1, "h2": facts()}, keys={})


def view(
    of: Drain,
    *operations: Operation,
    survey: HostSurvey | None = None,
    others: tuple[Drain, ...] = (),
    holds: tuple[Hold, ...] = (),
    machines: tuple[Machine, ...] = (),
    relay: Relay | None = None,
) -> DrainView:
    return DrainView(
        drain=of,
        machines={each.vm_id: each for each in machines},
        operations={each.maintenance: each for each in operations},
        drains={each.host: each for each in (of, *others)},
        holds=holds,
        survey=survey,
        relay=relay,
    )


def step(of: DrainView) -> DrainStep:
    return host_drain.step(of, NOW, HOST_BACK)


def is_stuck(following: DrainStep, of: Drain, *words: str) -> bool:
    """Tell whether a drain got stuck in its state just now, for a reason that has these words."""
    after = following.drain
    expected = {"stuck_in": of.state, "reason": after.reason, "guests": after.guests}
    return (
        after == entered(of, HostState.STUCK, **expected)
        and all(word in after.reason for word in words)
        and following == DrainStep(drain=after, cancel=following.cancel)
    )


def entered(of: Drain, state: HostState, **more: Any) -> Drain:
    """Return a drain that has just got into a state."""
    usual = {"stuck_in": None, "reason": "", "silent_since": None}
    return replace(of, **{**usual, **more}, state=state, changed_at=NOW)


# Up, stuck, waiting.


# Draining.


def asked(name: str, event_type: EventType, **more: Any) -> Request:
    usual = Request(
        event_type=event_type, machines=(name,), without_notice=True, requested_by="ann"
    )
    return replace(usual, **more)


def test_a_maintenance_is_asked_for_each_machine_that_moves_and_has_none() -> None:
    guests = (
        guest("db-0", to_host="h2", leaves_by=1),
        guest("db-1", to_host="h2"),
        guest("db-2", Way.REDEPLOY, to_host="h3"),
        guest("db-3", Way.STOP),
        guest("db-4", Way.SKIP),
    )
    of = drain(guests=guests, without_notice=True, requested_by="ann", boot_id="boot-0")
    following = step(view(of, operation(1, EventStatus.SCHEDULED), survey=look(facts())))
    assert following == DrainStep(
        drain=of,
        asks=(
            asked("db-1", EventType.FREEZE, live_migration=True, to_host="h2"),
            asked("db-2", EventType.REDEPLOY, to_host="h3"),
        ),
        wake_at=ASK_AGAIN,
    )


@pytest.mark.parametrize(
    ("way", "status", "waits"),
    [
        (Way.LIVE, EventStatus.SCHEDULED, True),
        (Way.LIVE, EventStatus.STARTED, True),
        (Way.LIVE, EventStatus.RETURNING, True),
        (Way.LIVE, EventStatus.COMPLETED, False),
        (Way.STOP, EventStatus.QUEUED, True),
        (Way.STOP, EventStatus.SCHEDULED, True),
        (Way.STOP, EventStatus.STARTED, False),
    ],
)
def test_the_host_is_looked_at_when_all_moves_are_over_and_all_shutdowns_have_started(
    way: Way, status: EventStatus, waits: bool
) -> None:
    of = drain(guests=(guest(way=way, leaves_by=1),), reason="had to wait")
    following = step(view(of, operation(1, status)))
    resting = DrainStep(drain=replace(of, reason=""))
    assert following == (resting if waits else DrainStep(drain=of, survey=True))


@pytest.mark.parametrize(
    ("began_at", "fresh"),
    [(BEFORE - SECOND, False), (BEFORE, False), (NOW - SECOND, False), (NOW, True)],
)
def test_a_look_counts_if_it_began_after_everything_that_is_known_to_have_happened(
    began_at: datetime, fresh: bool
) -> None:
    of = drain(guests=(guest(leaves_by=1),))
    ended = operation(1, started_at=BEFORE, ended_at=NOW)
    following = step(view(of, ended, survey=look(facts(), began_at)))
    empty = DrainStep(drain=entered(of, HostState.EMPTY))
    assert following == (empty if fresh else DrainStep(drain=of, survey=True))


def test_a_look_counts_from_the_instant_on_in_which_the_state_changed() -> None:
    of = drain()
    for began_at, fresh in ((BEFORE, True), (BEFORE - SECOND, False)):
        following = step(view(of, survey=look(facts(), began_at)))
        assert (following.drain.state is HostState.EMPTY) == fresh
        assert following.survey != fresh


@pytest.mark.parametrize(
    ("state", "reason"),
    [(HostState.DRAINING, True), (HostState.EMPTY, True), (HostState.REBOOTING, False)],
)
def test_a_clock_that_was_set_back_is_waited_for_and_no_host_is_looked_at_meanwhile(
    state: HostState, reason: bool
) -> None:
    of = drain(state, reboot=True, changed_at=NOW + MINUTE, reboot_asked_at=BEFORE)
    following = step(view(of, survey=look(facts(), NOW)))
    assert (following.survey, following.wake_at) == (False, NOW + MINUTE)
    assert bool(following.drain.reason) == reason, "a reason of REBOOTING is the command's"
    assert replace(following.drain, reason="") == of


def test_of_two_machines_of_one_name_the_order_is_about_the_one_that_is_there() -> None:
    old, new = replace(guest(way=Way.GONE), vm_id="id-old"), guest()
    of = stuck(HostState.DRAINING, guests=(old, new))
    there = (machine(new.name, "h1"),)
    following = host_drain.look_after(view(of, machines=there), new.name, Way.SKIP, NOW)
    ways = {each.vm_id: each.way for each in following.drain.guests}
    assert ways[new.vm_id] is Way.SKIP
    assert ways["id-old"] is not Way.SKIP


@pytest.mark.parametrize("reboot", [False, True])
@pytest.mark.parametrize("way", [Way.LIVE, Way.SKIP])
def test_a_host_on_which_nothing_runs_any_more_is_empty(reboot: bool, way: Way) -> None:
    of = drain(guests=(guest(way=way, leaves_by=1),), reboot=reboot, silent_since=BEFORE)
    following = step(view(of, operation(), survey=look(facts(off=("db-0",)))))
    assert following == DrainStep(drain=entered(of, HostState.EMPTY), survey=reboot)


@pytest.mark.parametrize(
    ("way", "running"), [(Way.LIVE, "db-0"), (Way.SKIP, "db-0"), (Way.LIVE, "a-stranger")]
)
def test_what_runs_on_a_host_that_should_be_empty_stops_its_drain(way: Way, running: str) -> None:
    of = drain(guests=(guest(way=way, leaves_by=1), guest("db-1", leaves_by=1)))
    seen = facts(running, off=("db-1",))
    following = step(view(of, operation(), survey=look(seen), machines=(machine("db-0", "h1"),)))
    assert is_stuck(following, of, running)
    assert "db-1" not in following.drain.reason


def test_a_machine_whose_move_went_wrong_stops_the_drain_unless_it_is_skipped() -> None:
    for status in (EventStatus.FAILED, EventStatus.CANCELED):
        of = drain(guests=(guest(leaves_by=1), guest("db-1", Way.STOP, leaves_by=2)))
        ended = operation(1, status, outcome="no memory")
        pending = operation(2, EventStatus.SCHEDULED)
        following = step(view(of, ended, pending))
        assert is_stuck(following, of, "db-0", "1.1", "no memory")
        assert following.cancel == ("2.1",)
        of = drain(guests=(guest(way=Way.SKIP, leaves_by=1),))
        assert step(view(of, ended)) == DrainStep(drain=of, survey=True)


def test_what_is_decided_at_a_look_is_asked_for_at_once() -> None:
    of = drain(reason="waited", silent_since=BEFORE)
    known = (machine("db-0", "h1"),)
    following = step(view(of, survey=look(facts("db-0")), machines=known))
    planned = replace(of, guests=(guest(to_host="h2"),), silent_since=None, reason="")
    assert following == DrainStep(drain=planned, survey=True)
    closed = drain(HostState.EMPTY, "h2")
    following = step(view(of, survey=look(facts("db-0")), machines=known, others=(closed,)))
    assert is_stuck(following, of, "db-0")
    assert [each.to_host for each in following.drain.guests] == [""]


def test_a_machine_that_is_to_be_shut_down_and_is_off_already_is_gone() -> None:
    of = drain(guests=(guest(way=Way.STOP), guest("db-1", Way.STOP)))
    known = (machine("db-0", "h1"), machine("db-1", "h1"))
    following = step(view(of, survey=look(facts("db-1", off=("db-0",))), machines=known))
    ways = {each.name: each.way for each in following.drain.guests}
    assert (ways, following.survey) == ({"db-0": Way.GONE, "db-1": Way.STOP}, True)
    assert following.drain.state is HostState.DRAINING


def test_machines_are_shut_down_with_their_host_if_it_tells_its_boot_id() -> None:
    of = drain(guests=(guest(way=Way.STOP),), requested_by="ann", without_notice=True)
    known = (machine("db-0", "h1"),)
    following = step(view(of, survey=look(facts("db-0")), machines=known))
    assert following == DrainStep(
        drain=replace(of, boot_id="boot-1"),
        asks=(asked("db-0", EventType.REBOOT, host_boot_id="boot-1"),),
        wake_at=ASK_AGAIN,
    )
    following = step(view(of, survey=look(facts("db-0", boot_id="")), machines=known))
    assert is_stuck(following, of, "h1", "boot id")


def test_a_machine_that_is_shut_down_is_waited_for_and_may_not_run_again() -> None:
    of = drain(guests=(guest(way=Way.STOP, leaves_by=1),), reboot=True)
    known = (machine("db-0", "h1"),)
    started = operation(1, EventStatus.STARTED, started_at=BEFORE)
    following = step(view(of, started, survey=look(facts("db-0")), machines=known))
    assert following == DrainStep(drain=of, wake_at=LOOK_AGAIN)
    following = step(view(of, started, survey=look(facts(off=("db-0",))), machines=known))
    assert following == DrainStep(drain=entered(of, HostState.EMPTY), survey=True)
    following = step(view(of, operation(), survey=look(facts("db-0")), machines=known))
    assert is_stuck(following, of, "h1", "db-0")


@pytest.mark.parametrize("state", [HostState.DRAINING, HostState.EMPTY])
def test_a_host_that_does_not_answer_has_a_minute(state: HostState) -> None:
    of = drain(state, reboot=True)
    following = step(view(of, survey=look(SILENT)))
    assert following == DrainStep(drain=replace(of, silent_since=NOW), wake_at=LOOK_AGAIN)
    of = replace(of, silent_since=NOW - host_drain.SILENT_LIMIT + SECOND)
    assert step(view(of, survey=look(SILENT))) == DrainStep(drain=of, wake_at=LOOK_AGAIN)
    of = replace(of, silent_since=NOW - host_drain.SILENT_LIMIT)
    assert is_stuck(step(view(of, survey=look(SILENT))), of, "h1", "no route")


# Empty.


def test_an_empty_host_that_is_not_to_be_rebooted_rests() -> None:
    of = drain(HostState.EMPTY)
    assert step(view(of)) == DrainStep(drain=of, survey=True)
    for facts_ in (facts(), facts(off=("db-0",)), SILENT):
        assert step(view(of, survey=look(facts_))) == DrainStep(drain=of)


def test_an_empty_host_on_which_a_machine_runs_again_needs_an_operator() -> None:
    of = drain(HostState.EMPTY)
    assert is_stuck(step(view(of, survey=look(facts("db-0")))), of, "db-0")
    old = look(facts("db-0"), BEFORE - SECOND)
    assert step(view(of, survey=old)) == DrainStep(drain=of)


@pytest.mark.parametrize(
    ("kind", "name", "holds"),
    [
        (HoldKind.EVERYTHING, "", True),
        (HoldKind.HOST, "h1", True),
        (HoldKind.HOST, "h2", False),
        (HoldKind.SCOPE, "h1", False),
        (HoldKind.MACHINE, "h1", False),
    ],
)
def test_a_hold_keeps_a_host_from_its_reboot(kind: HoldKind, name: str, holds: bool) -> None:
    of = drain(HostState.EMPTY, reboot=True)
    hold = Hold(kind=kind, name=name, reason="", by="ann", at=BEFORE)
    following = step(view(of, survey=look(facts()), holds=(hold,)))
    assert following.reboot != holds
    if holds:
        reason = following.drain.reason
        assert following == DrainStep(drain=replace(of, reason=reason))
        assert str(hold) in reason


@pytest.mark.parametrize(("age", "fresh"), [(0, True), (60, True), (61, False)])
def test_a_host_is_rebooted_once_by_a_look_of_the_last_minute(age: int, fresh: bool) -> None:
    of = drain(HostState.EMPTY, reboot=True, boot_id="boot-1", reason="held: everything")
    following = step(view(of, survey=look(facts(off=("db-0",)), NOW - age * SECOND)))
    if not fresh:
        assert following == DrainStep(drain=of, survey=True)
        return
    assert following == DrainStep(
        drain=entered(of, HostState.REBOOTING, boot_id="boot-1", reboot_asked_at=NOW),
        reboot=True,
        wake_at=LOOK_AGAIN,
    )


def test_an_empty_host_that_has_rebooted_by_itself_is_back() -> None:
    of = drain(HostState.EMPTY, reboot=True, boot_id="boot-0")
    following = step(view(of, survey=look(facts("db-0"))))
    assert following == DrainStep(drain=entered(of, HostState.BACK))
    following = step(view(replace(of, boot_id=""), survey=look(facts())))
    assert following.reboot


def test_a_machine_that_was_started_on_an_empty_host_has_to_leave_it() -> None:
    of = drain(HostState.EMPTY, reboot=True)
    following = step(view(of, survey=look(facts("db-0"))))
    assert following == DrainStep(drain=entered(of, HostState.DRAINING), survey=True)


@pytest.mark.parametrize("seen", [facts(can_reboot=False), facts(boot_id="")])
def test_a_host_that_cannot_be_rebooted_provably_is_not(seen: HostFacts) -> None:
    of = drain(HostState.EMPTY, reboot=True, boot_id="boot-1")
    assert is_stuck(step(view(of, survey=look(seen))), of, "h1")


# Rebooting, back, returning.


def rebooting(waited: timedelta, **more: Any) -> Drain:
    at = NOW - waited
    return drain(HostState.REBOOTING, boot_id="boot-0", reboot_asked_at=at, changed_at=at, **more)


def test_only_a_look_after_the_command_and_another_boot_id_prove_a_reboot() -> None:
    of = rebooting(MINUTE)
    assert step(view(of)) == DrainStep(drain=of, survey=True)
    assert step(view(of, survey=look(facts(), BEFORE))) == DrainStep(drain=of, survey=True)
    proven = DrainStep(drain=entered(of, HostState.BACK))
    assert step(view(of, survey=look(facts()))) == proven
    assert step(view(rebooting(2 * HOST_BACK), survey=look(facts()))).drain.state is HostState.BACK
    waits = DrainStep(drain=of, wake_at=LOOK_AGAIN)
    for seen in (SILENT, facts(boot_id=""), facts(boot_id="boot-0"), facts(answers=False)):
        assert step(view(of, survey=look(seen))) == waits


@pytest.mark.parametrize(
    ("waited", "reason", "answers", "ends"),
    [
        (host_drain.COMMAND_LIMIT, "denied", True, True),
        (host_drain.COMMAND_LIMIT - SECOND, "denied", True, False),
        (host_drain.COMMAND_LIMIT, "denied", False, False),
        (host_drain.COMMAND_LIMIT, "", True, False),
        (HOST_BACK - SECOND, "", True, False),
        (HOST_BACK, "", True, True),
        (HOST_BACK, "denied", False, True),
    ],
)
def test_a_reboot_that_is_not_seen_ends_after_its_time(
    waited: timedelta, reason: str, answers: bool, ends: bool
) -> None:
    of = rebooting(waited, reason=reason)
    seen = facts(boot_id="boot-0") if answers else SILENT
    following = step(view(of, survey=look(seen)))
    if not ends:
        assert following == DrainStep(drain=of, wake_at=LOOK_AGAIN)
    elif waited == HOST_BACK:
        assert is_stuck(following, of, "1800 s", "boot id" if answers else "no route")
    else:
        assert is_stuck(following, of, "denied")


@pytest.mark.parametrize("bring_home", [False, True])
def test_a_host_is_open_when_what_was_shut_down_runs_again(bring_home: bool) -> None:
    guests = (
        guest("db-0", Way.STOP, leaves_by=1),
        guest("db-1", Way.STOP),
        guest("db-2", leaves_by=2),
    )
    of = drain(HostState.BACK, guests=guests, bring_home=bring_home)
    others = operation(2, EventStatus.FAILED)
    waits = step(view(of, operation(1, EventStatus.STARTED), others))
    assert waits == DrainStep(drain=of)
    state = HostState.RETURNING if bring_home else HostState.UP
    assert step(view(of, operation(), others)) == DrainStep(drain=entered(of, state))
    failed = operation(1, EventStatus.FAILED)
    assert is_stuck(step(view(of, failed, others)), of, "db-0", "1.1")


@pytest.mark.parametrize("bring_home", [False, True])
def test_a_host_is_not_open_before_its_relay_has_asked_since_the_reboot(bring_home: bool) -> None:
    of = drain(HostState.BACK, guests=(guest("db-0", leaves_by=1),), bring_home=bring_home)
    relay = Relay(
        host="h1",
        replica="a",
        version="1",
        started_at=BEFORE,
        heard_at=of.changed_at - SECOND,
        due_at=NOW,
        etag="",
        machines=0,
    )
    waits = step(view(of, operation(), relay=relay))
    assert waits == DrainStep(drain=replace(of, reason=waits.drain.reason), wake_at=LOOK_AGAIN)
    assert "relay" in waits.drain.reason
    heard = replace(relay, heard_at=of.changed_at)
    assert step(view(of, operation(), relay=heard)).drain.state is not HostState.BACK
    long_ago = replace(of, changed_at=NOW - HOST_BACK)
    lost = replace(relay, heard_at=long_ago.changed_at - SECOND)
    assert is_stuck(step(view(long_ago, operation(), relay=lost)), long_ago, "relay")


def test_machines_come_home_live_or_as_they_left() -> None:
    guests = (
        guest("db-0", leaves_by=1),
        guest("db-1", Way.REDEPLOY, obstacles=("a device",)),
        guest("db-2", Way.SKIP),
        guest("db-3", returns_by=2),
        guest("db-4"),
        guest("db-5"),
    )
    away = [machine(f"db-{n}", "h2") for n in range(4)]
    machines = (*away, machine("db-4", "h1"))
    of = drain(
        HostState.RETURNING, guests=guests, without_notice=True, requested_by="ann", reason="waited"
    )
    under_way = operation(2, EventStatus.SCHEDULED)
    following = step(view(of, operation(1), under_way, machines=machines))
    first = asked("db-0", EventType.FREEZE, live_migration=True, to_host="h1")
    second = asked("db-1", EventType.REDEPLOY, to_host="h1")
    assert following == DrainStep(drain=of, asks=(first, second), wake_at=ASK_AGAIN)
    resting = DrainStep(drain=replace(of, reason=""))
    leaving = operation(1, EventStatus.STARTED)
    assert step(view(of, leaving, under_way, machines=machines)) == resting
    stays = replace(of, bring_home=False)
    following = step(view(stays, operation(1), under_way, machines=machines))
    assert following == DrainStep(drain=replace(stays, reason=""))
    following = step(view(stays, operation(1), operation(2), machines=machines))
    assert following == DrainStep(drain=entered(stays, HostState.UP))


def test_a_machine_that_does_not_come_home_stops_the_return() -> None:
    of = drain(HostState.RETURNING, guests=(guest(returns_by=1),))
    failed = operation(1, EventStatus.FAILED, outcome="no memory")
    assert is_stuck(step(view(of, failed)), of, "db-0", "1.1", "no memory")
    assert step(view(of, operation())).drain.state is HostState.UP


# What became of a request, and of the command.


def test_the_number_of_a_maintenance_is_noted_at_its_machine() -> None:
    guests = guest("db-0"), guest("db-1")
    request = asked("db-1", EventType.FREEZE)
    for state, field in ((HostState.DRAINING, "leaves_by"), (HostState.RETURNING, "returns_by")):
        of = drain(state, guests=guests, reason="had to wait")
        noted = (of.guests[0], replace(of.guests[1], **{field: 7}))
        after = host_drain.asked(of, request, 7)
        assert after == replace(of, guests=noted, reason="")


def test_a_live_event_is_waited_for_and_any_other_refusal_stops_the_drain() -> None:
    of = drain()
    live, other = Refused(ErrorCode.CONFLICT, "busy"), Refused(ErrorCode.NOT_ELIGIBLE, "never")
    waits = host_drain.refused(view(of), [live, Refused(ErrorCode.CONFLICT, "also")], NOW)
    told = Refused(ErrorCode.CONFLICT, "cancel it first", machine="web-0", operation="7.1")
    reason = host_drain.refused(view(of), [told], NOW).drain.reason
    assert "web-0" in reason
    assert "7.1" in reason
    assert "cancel" not in reason
    assert waits == DrainStep(drain=replace(of, reason="busy"), wake_at=ASK_AGAIN)
    assert is_stuck(host_drain.refused(view(of), [live, other], NOW), of, "never")


def test_a_command_that_reports_a_failure_is_remembered_while_the_host_reboots() -> None:
    of = rebooting(MINUTE)
    assert host_drain.reboot_failed(of, "denied") == replace(of, reason="denied")
    assert host_drain.reboot_failed(of, "").reason
    back = drain(HostState.BACK)
    assert host_drain.reboot_failed(back, "denied") is back


# What operators order.


def refusal(order: Any, of: DrainView, *arguments: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        order(of, *arguments, NOW)
    return caught.value


@pytest.mark.parametrize(
    ("kind", "machine", "expected"),
    [
        (DrainOrder.UNDRAIN, "", host_drain.undrain),
        (DrainOrder.RETURN, "", host_drain.bring_home),
        (DrainOrder.RETRY, "", host_drain.retry),
        (
            DrainOrder.SKIP,
            "db-0",
            lambda of, now: host_drain.look_after(of, "db-0", Way.SKIP, now),
        ),
        (
            DrainOrder.STOP,
            "db-0",
            lambda of, now: host_drain.look_after(of, "db-0", Way.STOP, now),
        ),
    ],
)
def test_each_order_does_what_it_says(kind: DrainOrder, machine: str, expected: Any) -> None:
    of = view(stuck(HostState.DRAINING, guests=(guest(to_host="h2", leaves_by=9),)))
    assert host_drain.order(of, kind, NOW, machine) == expected(of, NOW)


def test_no_machine_may_move_to_the_hosts_that_are_being_drained() -> None:
    drains = [
        drain(HostState.EMPTY, "h3"),
        drain(HostState.UP, "h2"),
        drain(HostState.DRAINING, "h1"),
    ]
    assert host_plan.closed(drains) == {"h1", "h3"}


def test_a_transition_that_the_table_has_not_is_refused_with_the_host_and_its_state() -> None:
    with pytest.raises(Refused) as caught:
        host_drain.after("h1", HostState.UP, host_drain.HostTrigger.REBOOT)
    assert caught.value.code is ErrorCode.CONFLICT
    assert caught.value.facts == {"host": "h1", "state": "up"}
    assert all(word in caught.value.message for word in ("reboot", "h1", "up"))


@pytest.mark.parametrize("before", [None, drain(HostState.UP, reason="it was undrained")])
def test_a_drain_begins_at_once(before: Drain | None) -> None:
    wanted = drain(HostState.UP, reboot=True)
    assert host_drain.request(before, wanted, NOW) == entered(wanted, HostState.DRAINING)


@pytest.mark.parametrize("state", [each for each in HostState if each is not HostState.UP])
def test_asking_again_changes_only_what_becomes_of_the_host(state: HostState) -> None:
    before = drain(state, guests=(guest(),), requested_by="ann")
    wanted = drain(HostState.UP, reboot=True, bring_home=False, requested_by="eve")
    changes = state in {HostState.DRAINING, HostState.EMPTY}
    expected = replace(before, reboot=True, bring_home=False) if changes else before
    assert host_drain.request(before, wanted, NOW) == expected


def test_an_undrained_host_is_open_and_what_has_not_started_is_cancelled() -> None:
    guests = (
        guest("db-0", leaves_by=1, returns_by=4),
        guest("db-1", leaves_by=2, returns_by=5),
        guest("db-2", Way.STOP, leaves_by=3, returns_by=6),
    )
    of = drain(HostState.BACK, guests=guests, bring_home=False)
    operations = (
        operation(1, EventStatus.STARTED),
        operation(2, EventStatus.QUEUED),
        operation(3, EventStatus.SCHEDULED),
        operation(4, EventStatus.FAILED),
        operation(5, EventStatus.STARTED),
    )
    left = tuple(
        replace(each, returns_by=number) for each, number in zip(guests, (0, 5, 0), strict=True)
    )
    up = entered(of, HostState.UP, guests=left)
    cancel = ("2.1", "3.1")
    assert host_drain.undrain(view(of, *operations), NOW) == DrainStep(drain=up, cancel=cancel)
    home = replace(up, state=HostState.RETURNING, bring_home=True)
    assert host_drain.bring_home(view(of, *operations), NOW) == DrainStep(drain=home, cancel=cancel)


@pytest.mark.parametrize("order", [host_drain.undrain, host_drain.bring_home])
def test_a_host_whose_machines_are_off_until_its_reboot_stays_closed(order: Any) -> None:
    guests = (guest("db-0", leaves_by=1), guest("db-1", Way.STOP, leaves_by=2))
    of = drain(HostState.EMPTY, guests=guests)
    started = (operation(1, EventStatus.STARTED), operation(2, EventStatus.STARTED))
    refused = refusal(order, view(of, *started))
    assert refused.code is ErrorCode.CONFLICT
    assert refused.facts == {"host": "h1", "machine": "db-1"}
    assert order(view(of, started[0], operation(2)), NOW).drain.state is not HostState.EMPTY


@pytest.mark.parametrize("state", [each for each in HostState if each is not HostState.STUCK])
def test_only_what_is_stuck_can_be_retried(state: HostState) -> None:
    refused = refusal(host_drain.retry, view(drain(state)))
    assert refused.code is ErrorCode.CONFLICT
    assert refused.facts == {"host": "h1", "state": str(state)}


def test_a_retry_looks_again_at_what_is_over_and_leaves_the_rest() -> None:
    guests = (
        guest("db-0", to_host="h2", leaves_by=1),
        guest("db-1", to_host="h2", leaves_by=2),
        guest("db-2", Way.STOP, leaves_by=1),
        guest("db-3", Way.SKIP, leaves_by=1),
        guest("db-4", to_host="h2", leaves_by=9),
    )
    of = stuck(HostState.DRAINING, guests=guests)
    operations = (operation(1, EventStatus.FAILED), operation(2, EventStatus.STARTED))
    left = (
        replace(guests[0], way=Way.UNDECIDED, to_host="", leaves_by=0),
        guests[1],
        replace(guests[2], leaves_by=0),
        guests[3],
        replace(guests[4], way=Way.UNDECIDED, to_host="", leaves_by=0),
    )
    again = DrainStep(drain=entered(of, HostState.DRAINING, guests=left))
    assert host_drain.retry(view(of, *operations), NOW) == again


@pytest.mark.parametrize("stuck_in", [HostState.BACK, HostState.RETURNING])
def test_a_retry_of_a_return_asks_again_for_what_is_over(stuck_in: HostState) -> None:
    guests = (
        guest("db-0", leaves_by=3, returns_by=1),
        guest("db-1", leaves_by=4, returns_by=2),
    )
    of = stuck(stuck_in, guests=guests)
    operations = (operation(1, EventStatus.FAILED), operation(2, EventStatus.STARTED))
    left = (replace(guests[0], returns_by=0), guests[1])
    again = DrainStep(drain=entered(of, HostState.RETURNING, guests=left))
    assert host_drain.retry(view(of, *operations), NOW) == again


def test_a_machine_that_an_operator_looks_after_is_named_and_has_nothing_under_way() -> None:
    of = stuck(HostState.DRAINING, guests=(guest("db-0", leaves_by=1, returns_by=2),))
    unknown = refusal(host_drain.look_after, view(of), "db-9", Way.SKIP)
    assert unknown.code is ErrorCode.NOT_FOUND
    assert unknown.facts == {"host": "h1", "machine": "db-9"}
    assert "db-9" in unknown.message
    for live, over in ((1, 2), (2, 1)):
        operations = (operation(live, EventStatus.STARTED), operation(over, EventStatus.FAILED))
        refused = refusal(host_drain.look_after, view(of, *operations), "db-0", Way.SKIP)
        assert refused.code is ErrorCode.CONFLICT
        assert refused.facts == {"machine": "db-0", "operation": f"{live}.1"}
        assert f"{live}.1" in refused.message


@pytest.mark.parametrize("stuck_in", [HostState.BACK, HostState.RETURNING])
def test_nothing_is_shut_down_on_a_host_that_has_rebooted(stuck_in: HostState) -> None:
    of = stuck(stuck_in, guests=(guest(),))
    refused = refusal(host_drain.look_after, view(of), "db-0", Way.STOP)
    assert refused.code is ErrorCode.CONFLICT
    assert refused.facts == {"host": "h1", "machine": "db-0"}
    assert host_drain.look_after(view(of), "db-0", Way.SKIP, NOW).drain.state is HostState.RETURNING


@pytest.mark.parametrize("way", [Way.SKIP, Way.STOP])
def test_a_machine_that_an_operator_looks_after_is_the_only_one_that_changes(way: Way) -> None:
    guests = (
        guest("db-0", to_host="h2", leaves_by=1),
        guest("db-1", to_host="h2", leaves_by=2),
    )
    of = stuck(HostState.DRAINING, guests=guests)
    operations = (operation(1, EventStatus.FAILED), operation(2, EventStatus.STARTED))
    left = (replace(guests[0], way=way, to_host="", leaves_by=0), guests[1])
    following = host_drain.look_after(view(of, *operations), "DB-0", way, NOW)
    assert following == DrainStep(drain=entered(of, HostState.DRAINING, guests=left))


def test_machines_of_two_update_domains_are_not_shut_down_one_by_one_either() -> None:
    guests = (guest("web-0"), guest("web-1", Way.STOP, leaves_by=1))
    of = stuck(HostState.DRAINING, guests=guests)
    machines = (machine("web-0", "h1", "web", 0), machine("web-1", "h1", "web", 1))
    refused = refusal(host_drain.look_after, view(of, machines=machines), "web-0", Way.STOP)
    assert refused.code is ErrorCode.NOT_ELIGIBLE
    assert refused.facts == {"machine": "web-0"}
    alone = view(of, machines=machines[:1])
    assert host_drain.look_after(alone, "web-0", Way.STOP, NOW).drain.state is HostState.DRAINING
