"""Each state of a drain by itself: drains.txt, and what becomes of its requests and its command."""

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from builders import MINUTE, NOW
from forewarn.maintenance import host_drain
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
from forewarn.maintenance.world import LiveState, World
from forewarn.vocabulary import ErrorCode, EventStatus, EventType
from house import tree
from store import values
from store.story import relay as relay_heard
from stories import Told, elapsed, listed, stories_beside
from unit.maintenance.test_lifecycle import drawn

BEFORE = NOW - 2 * MINUTE
HOST_BACK = 30 * MINUTE
GUEST_FIELDS = {"to": "to_host", "leaves": "leaves_by", "returns": "returns_by", "way": "way"}

replace = msgspec.structs.replace


def drain(state: HostState = HostState.DRAINING, host: str = "h1", **more: Any) -> Drain:
    usual = Drain(host=host, state=state, requested_at=BEFORE, changed_at=BEFORE)
    return replace(usual, **more)


def guest(name: str = "db-0", way: Way = Way.LIVE, **more: Any) -> DrainGuest:
    return DrainGuest(name=name, vm_id=f"id-{name}", memory_mib=1024, way=way, **more)


def entered(of: Drain, state: HostState, **more: Any) -> Drain:
    """Return a drain that has just got into a state."""
    usual = {"stuck_in": None, "reason": "", "silent_since": None}
    return replace(of, **{**usual, **more}, state=state, changed_at=NOW)


def moment(told: str) -> datetime | None:
    """Return a time that is told by its distance from now: `-2m`."""
    return NOW + elapsed(told) if told else None


def fields_of(told: dict[str, str]) -> dict[str, Any]:
    """Return the fields of a drain that a line tells."""
    times = {"changed": "changed_at", "reboot_asked": "reboot_asked_at", "silent": "silent_since"}
    times["booted"] = "booted_at"
    names = {"boot": "boot_id", "by": "requested_by", "in": "stuck_in"} | times
    found: dict[str, Any] = {names.get(name, name): value for name, value in told.items()}
    for name in found.keys() & {"reboot", "bring_home", "without_notice"}:
        found[name] = found[name] == "yes"
    for name in found.keys() & {*times.values()}:
        found[name] = moment(found[name])
    return found


class DrainStory(Told):
    """What a drain of h1 is decided on, and its next step."""

    of: Drain

    def __init__(self) -> None:
        self.guests: dict[str, DrainGuest] = {}
        self.coming: dict[str, DrainGuest] = {}
        """What is to become of its machines in the next step."""
        self.operations: dict[int, Operation] = {}
        self.machines: dict[str, Machine] = {}
        self.drains: dict[str, Drain] = {}
        self.holds: tuple[Hold, ...] = ()
        self.survey: HostSurvey | None = None
        self.asked: Relay | None = None

    @property
    def view(self) -> DrainView:
        live = LiveState(
            machines={one.key: one for one in self.machines.values()},
            operations={one.id: one for one in self.operations.values()},
            drains={"h1": self.of, **self.drains},
            holds={(one.kind, one.name): one for one in self.holds},
        )
        return DrainView(world=World(live), drain=self.of, survey=self.survey, relay=self.asked)

    def drain(self, state: str, asked: str = "", **told: str) -> None:
        if asked:
            told |= {"changed": asked, "reboot_asked": asked}
        fields = fields_of(told)
        if state == HostState.STUCK:
            fields |= {"stuck_in": HostState(told["in"]), "reason": "something"}
        self.of = drain(HostState(state), **fields, guests=(*self.guests.values(),))

    def guest(self, name: str, way: str, obstacle: str = "", **told: str) -> None:
        more = self.fields(told) | {"obstacles": (obstacle,) if obstacle else ()}
        self.guests[name] = guest(name, Way(way), **more)
        self.of = replace(self.of, guests=(*self.guests.values(),))

    def no_guest(self, name: str) -> None:
        del self.guests[name]

    def becomes(self, name: str, **told: str) -> None:
        known = self.guests.get(name, guest(name, Way.UNDECIDED))
        self.coming[name] = replace(known, **self.fields(told))

    def fields(self, told: dict[str, str]) -> dict[str, Any]:
        types = {"way": Way, "leaves": int, "returns": int}
        return {GUEST_FIELDS[name]: types.get(name, str)(text) for name, text in told.items()}

    def operation(self, number: str, status: str, **told: str) -> None:
        times = {
            f"{name}_at": moment(told.pop(name)) for name in told.keys() & {"started", "ended"}
        }
        made = values.operation(f"{number}.1", status=EventStatus(status), **times, **told)
        self.operations[int(number)] = made

    def machine(self, name: str, host: str, scope: str = "", domain: str = "0") -> None:
        there = {"host": host, "update_domain": int(domain), "vm_id": f"id-{name}"}
        self.machines[f"id-{name}"] = values.machine(name, scope or name, **there)

    def no_machine(self, name: str) -> None:
        del self.machines[f"id-{name}"]

    def other(self, host: str, state: str) -> None:
        self.drains[host] = drain(HostState(state), host)

    def hold(self, kind: str, name: str = "") -> None:
        self.holds = (Hold(kind=HoldKind(kind), name=name, reason="", by="ann", at=BEFORE),)

    def relay(self, heard: str) -> None:
        self.asked = relay_heard("h1", self.moment(heard), started_at=BEFORE, due_at=NOW)

    def look(self, silent: str = "", running: str = "", off: str = "", **told: str) -> None:
        """The hosts were looked at; `silent` is a host that does not answer."""
        guests = [
            GuestFacts(vm_id=f"id-{name}", name=name, running=runs, memory_mib=1024)
            for names, runs in ((running, True), (off, False))
            for name in listed(names)
        ]
        seen = HostFacts(
            answers=not silent and told.get("answers") != "no",
            why="no route" if silent else "",
            boot_id="" if silent else told.get("boot", "boot-1"),
            free_memory_mib=9000,
            can_reboot=told.get("can_reboot") != "no",
            guests=tuple(guests),
        )
        began_at = moment(told.get("began", "0s")) or NOW
        hosts = {"h1": seen, "h2": replace(seen, answers=True, boot_id="boot-1", guests=())}
        keys = {each.vm_id: each.name for each in guests}
        self.survey = HostSurvey(began_at=began_at, hosts=hosts, keys=keys)

    def step(self, **expected: str) -> None:
        self.compare(host_drain.step(self.view, NOW, HOST_BACK), **expected)

    def order(self, kind: str, machine: str = "", **expected: str) -> None:
        self.compare(host_drain.order(self.view, DrainOrder(kind), NOW, machine), **expected)

    def compare(
        self,
        found: DrainStep,
        *,
        asks: str = "",
        cancels: str = "",
        wakes: str = "",
        because: str = "",
        without: str = "",
        **told: str,
    ) -> None:
        """Compare a step with what a line tells of it: nothing else may be in it."""
        expected = DrainStep(
            drain=self.expected(found, because, told),
            asks=tuple(map(self.request, listed(asks))),
            cancel=tuple(listed(cancels)),
            survey=told.get("survey") == "yes",
            reboot=told.get("reboot") == "yes",
            wake_at=moment(wakes),
        )
        self.coming.clear()
        assert found == expected, found.drain.guests
        assert [word for word in listed(because) if word not in found.drain.reason] == []
        assert not without or without not in found.drain.reason

    def expected(self, found: DrainStep, because: str, told: dict[str, str]) -> Drain:
        fields = fields_of({n: each for n, each in told.items() if n not in {"survey", "reboot"}})
        fields["guests"] = (*(self.guests | self.coming).values(),)
        state = fields.pop("state", "")
        if because:
            fields["reason"] = found.drain.reason
        if state == HostState.STUCK:
            fields["stuck_in"] = self.of.state
        return entered(self.of, HostState(state), **fields) if state else replace(self.of, **fields)

    def request(self, told: str) -> Request:
        """What is asked for, told as `name:type:live:to`; who stays has a boot id."""
        name, event_type, *more = told.split(":")
        live = "live" in more
        (place,) = {*more} - {"live"}
        return Request(
            event_type=EventType(event_type),
            machines=(name,),
            live_migration=live,
            to_host="" if place.startswith("boot") else place,
            host_boot_id=place if place.startswith("boot") else "",
            without_notice=self.of.without_notice,
            requested_by=self.of.requested_by,
        )


@pytest.mark.parametrize("rows", stories_beside(__file__, "drains.txt"))
def test_the_story_holds(rows: list[tuple[int, str]]) -> None:
    assert DrainStory().play("drains.txt", rows)


def test_of_two_machines_of_one_name_the_order_is_about_the_one_that_is_there() -> None:
    told = DrainStory()
    told.drain("stuck", **{"in": "draining"})
    told.machine("db-0", "h1")
    old, new = replace(guest(way=Way.GONE), vm_id="id-old"), guest()
    told.of = replace(told.of, guests=(old, new))
    following = host_drain.look_after(told.view, new.name, Way.SKIP, NOW)
    ways = {each.vm_id: each.way for each in following.drain.guests}
    assert ways[new.vm_id] is Way.SKIP
    assert ways["id-old"] is not Way.SKIP


def test_the_number_of_a_maintenance_is_noted_at_its_machine() -> None:
    guests = guest("db-0"), guest("db-1")
    asked = Request(event_type=EventType.FREEZE, machines=("db-1",))
    for state, field in ((HostState.DRAINING, "leaves_by"), (HostState.RETURNING, "returns_by")):
        of = drain(state, guests=guests, reason="had to wait")
        noted = (of.guests[0], replace(of.guests[1], **{field: 7}))
        assert host_drain.asked(of, asked, 7) == replace(of, guests=noted, reason="")


def test_a_live_event_is_waited_for_and_any_other_refusal_stops_the_drain() -> None:
    told = DrainStory()
    told.drain("draining")
    live, other = Refused(ErrorCode.CONFLICT, "busy"), Refused(ErrorCode.NOT_ELIGIBLE, "never")
    also = Refused(ErrorCode.CONFLICT, "also")
    told.compare(host_drain.refused(told.view, [live, also], NOW), reason="busy", wakes="5s")
    named = Refused(ErrorCode.CONFLICT, "cancel it first", machine="web-0", operation="7.1")
    waits = host_drain.refused(told.view, [named], NOW)
    told.compare(waits, because="web-0,7.1", without="cancel", wakes="5s")
    stops = host_drain.refused(told.view, [live, other], NOW)
    told.compare(stops, state="stuck", because="never")
    assert stops.drain.stuck_in is HostState.DRAINING


def test_a_command_that_reports_a_failure_is_remembered_while_the_host_reboots() -> None:
    of = drain(HostState.REBOOTING, boot_id="boot-0", reboot_asked_at=NOW - timedelta(minutes=1))
    assert host_drain.reboot_failed(of, "denied") == replace(of, reason="denied")
    assert host_drain.reboot_failed(of, "").reason
    back = drain(HostState.BACK)
    assert host_drain.reboot_failed(back, "denied") is back


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


@pytest.mark.parametrize("reboot", [False, True])
@pytest.mark.parametrize("is_stuck", [False, True])
@pytest.mark.parametrize(
    "state", [each for each in HostState if each not in {HostState.UP, HostState.STUCK}]
)
def test_asking_again_changes_what_becomes_of_the_host_or_is_refused_where_that_is_too_late(
    state: HostState, is_stuck: bool, reboot: bool
) -> None:
    before = drain(state, guests=(guest(),), requested_by="ann", reboot=True)
    if is_stuck:
        before = replace(before, state=HostState.STUCK, stuck_in=state)
    wanted = drain(HostState.UP, reboot=reboot, bring_home=False, requested_by="eve")
    if state in {HostState.DRAINING, HostState.EMPTY} or (state is HostState.REBOOTING and reboot):
        expected = replace(before, reboot=reboot, bring_home=False)
        assert host_drain.request(before, wanted, NOW) == expected
        return
    with pytest.raises(Refused) as caught:
        host_drain.request(before, wanted, NOW)
    assert caught.value.code is ErrorCode.CONFLICT
    assert caught.value.facts == {"host": "h1", "state": str(before.state)}


def test_every_transition_leads_to_a_state_that_is_left_again() -> None:
    for state in HostState:
        assert any(before is state for before, _ in host_drain.TRANSITIONS)
        assert state in host_drain.TRANSITIONS.values()
    assert {trigger for _, trigger in host_drain.TRANSITIONS} == set(host_drain.HostTrigger)


def test_the_guide_draws_the_table_and_nothing_else() -> None:
    page = "guides/hosts.md"
    table = {
        (before.value, after.value, trigger.value)
        for (before, trigger), after in host_drain.TRANSITIONS.items()
    }
    assert drawn(0, page) == table
    text = (tree.ROOT / "docs" / page).read_text(encoding="utf-8")
    assert [state for state in HostState if f"| `{state.value}` |" not in text] == []
