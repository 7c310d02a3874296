"""A maintenance whose units take turns: turns.txt, what tables tell better, and large plans."""

import itertools
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partialmethod
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import pytest

from builders import MINUTE, NOW, SECOND, Bench, maintenance, survey_of
from forewarn.control.maintenances import Asked, UnitTargets, prepared
from forewarn.maintenance import (
    commands,
    fleet_file,
    footprints,
    host_drain,
    model,
    time_windows,
    turn_check,
    turn_forecast,
    turn_orders,
    turn_plan,
    turns,
    units,
)
from forewarn.maintenance.commands import ALWAYS_ON
from forewarn.maintenance.footprints import SEVERAL, Footprint, UnitsInWorld
from forewarn.maintenance.planner import Request
from forewarn.maintenance.time_windows import Span
from forewarn.maintenance.turn_check import CheckResult, CheckRun
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.turns import MAX_DRAINED, Ask, Check, Obstacle, Wait
from forewarn.maintenance.units import (
    CONFIRM,
    MaintenanceState,
    MaintenanceTrigger,
    TurnOrder,
    TurnPolicy,
    Unit,
    UnitKind,
    UnitState,
)
from forewarn.maintenance.world import NOTHING, LiveState, World
from forewarn.vocabulary import ErrorCode, EventStatus, EventType, ScopeKind
from store.values import drain
from stories import Told, elapsed, elapsed_at, stories_beside

TIMES: Final = ("opens_at", "closes_at", "approval_until")
RUNNING, WAITING, FAILED = UnitState.RUNNING, UnitState.WAITING, UnitState.FAILED
HOUR = timedelta(hours=1)
ALWAYS = Span(time_windows.FIRST, time_windows.ENDLESS)
replace = msgspec.structs.replace


class TurnStory(Told):
    """A maintenance whose units take what a story says, and are carried out by hand.

    `runs` has the checks that were begun, by the names that the story gives.
    """

    of: model.Maintenance

    def __init__(self) -> None:
        self.now = NOW
        self.taken: dict[str, dict[str, int]] = {}
        self.places: dict[str, set[str]] = {}
        self.other: dict[str, str] = {}
        self.runs: dict[str, CheckRun] = {}

    def footprint(self, unit: Unit) -> Footprint:
        return Footprint(
            machines=(f"on-{unit.name}",),
            domains=self.taken.get(unit.name, {}),
            places=frozenset(self.places.get(unit.name, ())),
        )

    def occupied(self, unit: Unit, _: Footprint) -> str:
        return self.other.get(unit.name, "")

    def grown(self, of: model.Maintenance, *_: object, **__: object) -> model.Maintenance:
        return of

    def step(self) -> turns.Step | None:
        self.of, step = turns.step(self.of, self, self.now)
        return step

    def units(self, *names: str, waves: str = "", blackout: str = "", **policy: str) -> None:
        given: dict[str, Any] = dict(policy)
        for name in given.keys() & {*TIMES}:
            given[name] = self.moment(given[name])
        if "windows" in given:
            given["windows"] = (given["windows"],)
        if given.get("pause_seconds") == "confirm":
            given["pause_seconds"] = CONFIRM
        if blackout:
            given["blackouts"] = (Span(NOW, self.moment(blackout)),)
        window = {name: given.pop(name) for name in ("opens_at", "closes_at") if name in given}
        policed = msgspec.convert(given, TurnPolicy, strict=False)
        of = maintenance(*names, waves=dict.fromkeys(filter(None, waves.split(",")), 1))
        self.of = replace(of, policy=policed, **window)

    def policy(self, **options: str) -> None:
        given = {**options, **({"windows": (options["windows"],)} if "windows" in options else {})}
        self.of = replace(self.of, policy=replace(self.of.policy, **given))

    def takes(self, name: str, **domains: str) -> None:
        self.taken[name] = {
            scope: SEVERAL if n == "several" else int(n) for scope, n in domains.items()
        }

    def is_in(self, name: str, *places: str) -> None:
        self.places[name] = {*places}

    def blocked(self, name: str, why: str = "") -> None:
        self.other[name] = why

    free = blocked

    def drained(self, *names: str) -> None:
        units = tuple(replace(unit, drain=unit.name in names) for unit in self.of.units)
        self.of = replace(self.of, units=units)

    def refuse(self, code: str, *names: str) -> None:
        refusal = model.Refused(ErrorCode(code), f"refused as {code}")
        found = {index: refusal for index, unit in enumerate(self.of.units) if unit.name in names}
        self.of = turns.refused(self.of, found, self.now)

    def end(self, name: str, state: str = "done", reason: str = "") -> None:
        """A unit ends, as `follow` sees it."""
        units = tuple(
            replace(u, state=UnitState(state), reason=reason) if u.name == name else u
            for u in self.of.units
        )
        self.of = turn_check.needed(replace(self.of, units=units))

    def order(self, kind: MaintenanceOrder, unit: str = "") -> None:
        self.of = turn_orders.order(self.of, kind, unit, "bob", self.now)

    def asks(self, *names: str) -> None:
        """Take a step, and note that the units were asked for."""
        step = self.step()
        asked = step.units if isinstance(step, Ask) else ()
        for index in asked:
            self.of = turns.asked(self.of, {index: index + 1}, self.now)
        found = [self.of.units[index].name for index in asked] or ["nothing"]
        assert found == [*names]

    def waits(self, obstacle: str, until: str = "", because: str = "", **reason: str) -> None:
        step = self.step()
        assert isinstance(step, Wait), step
        assert step.obstacle == obstacle
        assert not until or elapsed_at(step.until) == elapsed(until)
        assert because in step.why
        assert reason.get("reason", step.why) == step.why
        assert not step.why or self.of.reason == step.why

    def halts(self, because: str = "") -> None:
        assert self.step() is None
        assert self.of.state is MaintenanceState.HALTED
        assert because in self.of.reason

    def finishes(self) -> None:
        assert self.step() is None
        assert self.of.state.over

    def recalls(self, *operations: str) -> None:
        assert turns.to_recall(self.of) == [*operations]

    def checks(self, name: str, /, **told: str) -> None:
        step = self.step()
        assert isinstance(step, Check), step
        self.of = turn_check.begun(self.of, step.run, "r1", 30 * SECOND)
        self.runs[name] = step.run
        assert {each: str(getattr(step.run, each)) for each in told} == told

    def checked(self, name: str, verdict: str, message: str = "") -> None:
        result = CheckResult(passed=verdict == "passed", message=message)
        self.of = turn_check.ended(self.of, self.runs[name].number, result)

    def release_checks(self) -> None:
        self.of = turn_check.released(self.of)

    def unit(self, name: str, state: str, because: str = "", **told: str) -> None:
        found = next(unit for unit in self.of.units if unit.name == name)
        assert because in found.reason
        self.compare(found, {"state": state, **told})

    def maintenance(self, state: str, because: str = "", **told: str) -> None:
        assert because in self.of.reason
        self.compare(self.of, {"state": state, **told})

    def begins(self, opens: str = "", closes: str = "", **told: str) -> None:
        """A unit that is asked for now: its NotBefore, and its own longer notice."""
        span = Span(self.moment(opens), self.moment(closes)) if opens else ALWAYS
        found = turns.start_of(self.of, span, self.now)
        times = [elapsed_at(at) if at else None for at in (found.opens_at, found.closes_at)]
        assert times == [elapsed(told_at) if told_at else None for told_at in (opens, closes)]
        self.compare(found, told)

    def notice(self, event_type: str, span: str) -> None:
        of = replace(self.of, event_type=EventType(event_type))
        assert turns.notice_of(of) == elapsed(span)

    def follows(
        self, name: str, drain: str = "", reason: str = "", before: str = "running", **told: str
    ) -> None:
        """A unit follows the drain of its host as that is now, or else its lost operation."""
        (unit,) = (unit for unit in self.of.units if unit.name == name)
        as_before = {"state": UnitState(before), "accepted": before == "failed", "operation": 1}
        unit = replace(unit, drain="operation" not in told, reason="as before", **as_before)
        at = {"requested_at": NOW, "changed_at": NOW}
        at |= {"reboot_asked_at": NOW} if "asked" in told else {}
        at |= {"booted_at": NOW} if "booted" in told else {}
        drains = (
            {name: model.Drain(host=name, state=model.HostState(drain), reason=reason, **at)}
            if drain
            else {}
        )
        of = replace(self.of, units=(unit,))
        lost = {"1.1"} if told.get("operation") == "lost" else ()
        self.of = followed(of, self.now, drains, lost=lost)

    def progress(self, **told: str) -> None:
        self.compare(self.of.check, told)


for each in MaintenanceOrder:
    setattr(TurnStory, each.value.replace("-", "_"), partialmethod(TurnStory.order, each))


@pytest.mark.parametrize("rows", stories_beside(__file__, "turns.txt"))
def test_the_story_holds(rows: list[tuple[int, str]]) -> None:
    assert TurnStory().play("turns.txt", rows)


# What became of units.


def followed(
    of: model.Maintenance,
    now: datetime = NOW,
    drains: Mapping[str, model.Drain] = NOTHING,
    **about: Any,
) -> model.Maintenance:
    its = UnitsInWorld(of, World(LiveState(drains=drains)), lambda _: True)
    return turns.follow(of, its, now, **about)


def of_units(*units: Unit, **policy: Any) -> model.Maintenance:
    return replace(maintenance(**policy), units=units)


def under_way(name: str, **more: Any) -> Unit:
    return Unit(name=name, kind=UnitKind.HOST, state=RUNNING, **more)


def test_only_the_units_that_are_concerned_are_followed() -> None:
    drained = [under_way(name, drain=True) for name in ("h0", "h1", "h2")]
    of = of_units(replace(drained[0], state=WAITING), *drained[1:])
    following = followed(of, concerned=[0, 2])
    assert [unit.state for unit in following.units] == [WAITING, RUNNING, FAILED]
    assert followed(following, concerned=[0, 2]) is following


def test_a_unit_that_is_retried_or_asked_for_has_nothing_of_before() -> None:
    new = Unit(name="h0", kind=UnitKind.HOST, changed_at=NOW + HOUR)
    old = {"reason": "no power", "recalled": True, "retry_at": NOW, "changed_at": NOW}
    failed = of_units(replace(new, state=FAILED, accepted=True, **old))
    retried = turn_orders.order(failed, MaintenanceOrder.RETRY, "h0", "bob", NOW + HOUR)
    assert retried.units == (new,)
    asked = turns.asked(of_units(replace(new, **old)), {0: 7}, NOW + HOUR)
    assert asked.units == (replace(new, state=RUNNING, operation=7),)


class Alone(SimpleNamespace):
    """Units that have nothing in their way, and one footprint."""

    def __init__(self, footprint: Footprint) -> None:
        super().__init__(
            footprint=lambda _: footprint, occupied=lambda *_: "", grown=lambda of, *_, **__: of
        )


def test_units_without_machines_are_left_out_with_a_reason_and_the_next_step_follows_at_once() -> (
    None
):
    def step(unit: Unit) -> Unit:
        nothing = Footprint(machines=(), domains={})
        of, step = turns.step(of_units(unit), Alone(nothing), NOW)
        assert step == Wait(obstacle=Obstacle.UNITS, until=NOW)
        return of.units[0]

    left_out = step(Unit(name="h0", kind=UnitKind.HOST))
    assert (left_out.state, left_out.changed_at) == (UnitState.SKIPPED, NOW)
    assert left_out.reason
    partly = step(Unit(name="h0", kind=UnitKind.HOST, done=("web-0",)))
    assert (partly.state, partly.reason) == (UnitState.DONE, "")


@pytest.mark.parametrize("state", [each for each in MaintenanceState if not each.over])
@pytest.mark.parametrize("trigger", MaintenanceTrigger)
def test_what_the_table_lacks_is_refused(
    state: MaintenanceState, trigger: MaintenanceTrigger
) -> None:
    before = replace(maintenance(), state=state)
    following = units.TRANSITIONS.get((state, trigger))
    if following is not None:
        assert turns.entered(before, trigger, NOW).state is following
        return
    with pytest.raises(model.Refused) as refusal:
        turns.entered(before, trigger, NOW)
    assert refusal.value.code is ErrorCode.CONFLICT


# What is in the way.


def test_the_footprint_of_machines_is_their_domains_and_places() -> None:
    machines = Bench().snapshot.machines
    takes = footprints.footprint([machines[n] for n in ("web-0", "web-3", "batch_0")], "host")
    assert takes.domains == {"web": 0, "batch": machines["batch_0"].update_domain}
    assert takes.places == {"h0"}
    several = footprints.footprint([machines["web-0"], machines["web-1"]], "fault-domain")
    assert several.domains == {"web": SEVERAL}
    assert several.places == {f"web/{machines[name].fault_domain}" for name in ("web-0", "web-1")}
    tagged = replace(machines["web-0"], tags=(("role", "leader"), ("x", "y")))
    assert footprints.footprint([tagged], "tag:role").places == {"leader"}


def test_live_operations_of_its_machines_and_of_other_domains_are_in_the_way() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0")
    (live,) = bench.snapshot.operations.values()
    unit = Unit(name="x", kind=UnitKind.MACHINES)

    def in_the_way(*machines: str, by: EventStatus = live.status, **domains: int) -> str:
        takes = Footprint(machines=machines, domains=domains)
        return footprints.in_the_way(unit, takes, [replace(live, status=by)], domains)

    assert "1.1" in in_the_way("web-0", web=0)
    assert "1.1" in in_the_way("web-1", web=1)
    assert in_the_way("web-3", web=0) == ""
    assert in_the_way("batch_0", batch=0) == ""
    assert in_the_way("web-0", by=EventStatus.COMPLETED) == ""


def drained(host: str, state: model.HostState, **guests: str) -> model.Drain:
    moved = tuple(
        model.DrainGuest(way=model.Way.LIVE, name=name, vm_id=name, to_host=to)
        for name, to in guests.items()
    )
    return drain(host, state=state, reboot=True, guests=moved)


@pytest.mark.parametrize(
    "state", [model.HostState.DRAINING, model.HostState.REBOOTING, model.HostState.RETURNING]
)
def test_a_host_waits_for_drains_whose_machines_it_has_or_will_have(state: model.HostState) -> None:
    unit = Unit(name="h2", kind=UnitKind.HOST, drain=True)
    takes = Footprint(machines=("own", "guest"), domains={})

    def in_the_way(*drains: model.Drain, of: Unit = unit) -> str:
        world = World(LiveState(drains={one.host: one for one in drains}))
        return UnitsInWorld(maintenance(), world, lambda _: True).occupied(of, takes)

    coming = drained("h1", state, other="h2")
    elsewhere = drained("h1", state, other="h3")
    assert "h1" in in_the_way(coming)
    assert "h1" in in_the_way(elsewhere, drained("h1", state, Guest="h3"))
    assert in_the_way(elsewhere, drained("h2", state, own="h3")) == ""
    ended = [drained("h1", end, guest="h2") for end in (model.HostState.UP, model.HostState.STUCK)]
    assert in_the_way(*ended) == ""
    assert in_the_way(coming, of=replace(unit, drain=False)) == ""


@pytest.mark.parametrize("state", model.HostState)
def test_a_host_has_the_machines_that_come_home_to_it_whoever_drained_it(
    state: model.HostState,
) -> None:
    world, away = Bench().world(), drained("h9", state, **{"web-0": "h3"})
    world.drains["h9"] = away
    its = UnitsInWorld(maintenance(), world, lambda _: True)
    for drains in (True, False):
        found = its.machines(Unit(name="h9", kind=UnitKind.HOST, drain=drains))
        comes = drains and state is not model.HostState.UP
        assert [machine.name for machine in found] == ["web-0"] * comes


def test_the_writer_begins_a_limited_number_of_drains_in_one_transaction() -> None:
    hosts = (Unit(name=f"h{n}", kind=UnitKind.HOST, drain=True) for n in range(3 * MAX_DRAINED))
    of, places = of_units(*hosts, at_once="100%"), []
    free = Footprint(machines=(), domains={})
    for _ in range(4):
        of, step = turns.step(of, Alone(free), NOW)
        if isinstance(step, Ask):
            assert len(step.units) == MAX_DRAINED
            places += step.units
            of = turns.asked(of, dict.fromkeys(step.units, 0), NOW)
    assert places == [*range(3 * MAX_DRAINED)]


def test_the_hosts_that_have_their_turn_soon_are_those_next_in_order() -> None:
    names = [f"h{n}" for n in range(8)]
    units = [Unit(name=name, kind=UnitKind.HOST, drain=True) for name in names]
    units[0] = replace(units[0], state=RUNNING)
    of = of_units(*units, at_once="2")
    assert turn_plan.drained_soon(of, units[1]) == ("h2", "h3", "h4", "h5")
    assert turn_plan.drained_soon(of_units(), units[1]) == ()


@pytest.mark.parametrize("lost", [(0, 1), (0,), (1,)])
def test_hosts_whose_machines_only_a_look_has_found_are_drained_apart(lost: Sequence[int]) -> None:
    machines = [
        {"name": f"m{n}", "update_domain": n, "host": f"h{n}" * (n not in lost)} for n in range(2)
    ]
    group = {"name": "web", "update_domains": 2, "machines": machines}
    world = Bench(msgspec.convert({"availability_set": [group]}, fleet_file.Fleet)).world()
    of = maintenance("h0", "h1", at_once="100%")
    world.maintenances[1] = replace(of, units=tuple(replace(u, drain=True) for u in of.units))
    survey = survey_of({f"h{n}": [world.machines[f"m{n}"]] for n in range(2)} | {"h2": []})
    assert len([*turn_plan.drain(world, 1, range(2), survey, NOW)]) == 2
    first, second = world.maintenances[1].units
    assert first.state is UnitState.RUNNING
    assert (second.state, second.name in world.drains) == (UnitState.WAITING, False)
    assert second.retry_at is not None


def test_a_host_that_is_not_to_be_drained_is_asked_for_beside_one_that_is() -> None:
    hosts = [{"name": f"m{n}", "host": f"h{n}"} for n in range(2)]
    bench = Bench(msgspec.convert({"machine": hosts}, fleet_file.Fleet))
    of = maintenance("h0", "h1", at_once="2")
    of = replace(of, units=(of.units[0], replace(of.units[1], drain=True)))
    step = bench.decide(commands.start_maintenance, of, 1).steps[1]
    assert isinstance(step, Ask)
    assert step.units == (1,)
    assert bench.operation("1.1").machines == ("m0",)


def arranged(count: int, *waves: str) -> list[int]:
    """The waves of so many hosts, each of which has a scope of its own."""
    units = maintenance(*(f"h{n}" for n in range(count))).units
    alone = [Footprint(machines=(u.name,), domains={u.name: 0}) for u in units]
    takes = dict(zip((unit.key for unit in units), alone, strict=True))
    given = turn_plan.arranged(units, lambda unit: takes[unit.key], TurnPolicy(waves=waves))
    return [unit.wave for unit in given]


def test_units_are_dealt_to_waves_by_number_and_by_part() -> None:
    assert arranged(20, "1", "10%", "rest") == [0] + [1] * 2 + [2] * 17
    assert arranged(20, "5") == [0] * 5 + [1] * 15
    assert arranged(20, "100%", "5") == [0] * 20


def test_hosts_go_rack_by_rack_where_update_domains_are_racks() -> None:
    chance, units = Random(1), maintenance(*(f"h{n}" for n in range(300))).units
    takes = {
        unit.key: Footprint(
            machines=(), domains={f"s{chance.randrange(40)}": n % 5 for _ in range(4)}
        )
        for n, unit in enumerate(units)
    }
    given = turn_plan.arranged(units, lambda unit: takes[unit.key], TurnPolicy())
    racks = [int(unit.name[1:]) % 5 for unit in given]
    assert len([*itertools.groupby(racks)]) == 5


def test_units_without_machines_are_named() -> None:
    takes = {"h9": (), "h0": ("a",), "h1": ("b",)}
    alone = [{"name": name, "host": host} for host, names in takes.items() for name in names]
    bench = Bench(msgspec.convert({"machine": alone}, fleet_file.Fleet))

    def footprint(unit: Unit) -> Footprint:
        return Footprint(machines=takes[unit.name], domains=dict.fromkeys(takes[unit.name], 0))

    of = maintenance(*takes, at_once="2", order=TurnOrder.LISTED)
    of = replace(of, units=turn_plan.arranged(of.units, footprint, of.policy))
    plan = turn_forecast.planned(of, footprint, bench.snapshot.world, ALWAYS_ON, NOW)
    assert (plan.without_machines, plan.first, plan.units) == (("h9",), ("h0", "h1"), 2)


def test_a_plan_foresees_that_a_machine_is_off_while_the_host_of_another_drain_reboots() -> None:
    machines = [{"name": f"m{n}", "update_domain": n, "host": f"h{n}"} for n in range(2)]
    group = {"name": "web", "update_domains": 2, "machines": machines}
    world = Bench(msgspec.convert({"availability_set": [group]}, fleet_file.Fleet)).world()
    survey = survey_of({f"h{n}": [world.machines[f"m{n}"]] for n in range(2)})
    (guest,) = survey.of("h0").guests
    fixed = replace(survey.of("h0"), guests=(replace(guest, obstacles=("a device",)),))
    survey = replace(survey, hosts={**survey.hosts, "h0": fixed})
    terms = {"reboot": True, "stay": model.Stay.STOP, "requested_at": NOW, "changed_at": NOW}
    begun = model.Drain(host="h0", state=model.HostState.UP, **terms)
    host_drain.begin(world, begun, survey, NOW)
    world.settle()
    of = maintenance("h1", windows=("daily 13:00-14:00",))
    course = turn_forecast.play(world, of, ALWAYS_ON, NOW, approving=False, survey=survey)
    assert course.ended is not None
    assert course.ended.state is MaintenanceState.DONE
    assert world.drains["h0"].booted_at == NOW + 15 * MINUTE


@pytest.mark.parametrize(
    ("at_once", "drain", "groups"), [("1", True, 400), ("10%", False, 400), ("10%", False, 1)]
)
def test_ten_thousand_machines_on_a_thousand_hosts_are_planned(
    at_once: str, groups: int, *, drain: bool
) -> None:
    """The hosts are in 20 racks; a scope's domain is its host's rack.

    One scope has all its domains on each host, so that each is in the way of all others.
    """
    chance = Random(1)
    machines = {}
    for number in range(10_000):
        host, scope = number // 10, f"s{chance.randrange(groups)}"
        place = {
            "update_domain": (number if groups == 1 else host) % 5,
            "fault_domain": 0,
            "host": f"h{host}",
        }
        one = model.Machine(name=f"m{number}", scope=scope, vm_id=f"id-{number}", **place)
        machines[one.key] = one
    kind = {"kind": ScopeKind.AVAILABILITY_SET, "update_domains": 5}
    scopes = {one.scope: model.Scope(name=one.scope, **kind) for one in machines.values()}
    asked = Asked(
        request=Request(event_type=EventType.REBOOT),
        targets=UnitTargets(all_hosts=True),
        policy=TurnPolicy(at_once=at_once),
        draining=model.DrainOptions(reboot=True) if drain else None,
    )
    there: dict[str, list[model.Machine]] = {}
    for one in machines.values():
        there.setdefault(one.host, []).append(one)
    live = LiveState(scopes=scopes, machines=machines)
    survey = survey_of(there) if drain else None
    plan = prepared(live, asked, model.Policy(), now=NOW, survey=survey)[1]()
    assert plan.machines == 10_000
    assert plan.first
    # That would be 20,000 moves, or 5,000 operations one after another: it is not foreseen.
    assert (plan.earliest is None) == (drain or groups == 1)
