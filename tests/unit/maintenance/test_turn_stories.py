"""Stories of units that take turns, one verb a line: turns.txt, played by the decider alone."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import msgspec
import pytest

from builders import NOW
from forewarn.maintenance import turn_check, turns
from forewarn.maintenance.footprints import SEVERAL
from forewarn.maintenance.model import Refused
from forewarn.maintenance.turn_check import CheckResult, CheckRun
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.turns import Done, Stop, Wait
from forewarn.maintenance.units import CONFIRM, TurnPolicy, UnitState
from forewarn.vocabulary import ErrorCode
from stories import Told, elapsed, elapsed_at, stories_beside
from turn_world import World, maintenance

TIMES: Final = ("opens_at", "closes_at", "approval_until")
replace = msgspec.structs.replace


class TurnStory(Told):
    """A maintenance so far, and the checks that were begun, by the names that the story gives."""

    world: World

    def __init__(self) -> None:
        self.runs: dict[str, CheckRun] = {}

    def go_to(self, elapsed: timedelta) -> None:
        self.world.now = NOW + elapsed

    def units(self, *names: str, waves: str = "", **policy: str) -> None:
        given: dict[str, Any] = dict(policy)
        for name in given.keys() & {*TIMES}:
            given[name] = NOW + elapsed(given[name])
        if "windows" in given:
            given["windows"] = (given["windows"],)
        if given.get("pause_seconds") == "confirm":
            given["pause_seconds"] = CONFIRM
        window = {name: given.pop(name) for name in ("opens_at", "closes_at") if name in given}
        policed = msgspec.convert(given, TurnPolicy, strict=False)
        of = maintenance(*names, waves=dict.fromkeys(filter(None, waves.split(",")), 1))
        self.world = World(replace(of, policy=policed, **window))

    def policy(self, **options: str) -> None:
        given = {**options, **({"windows": (options["windows"],)} if "windows" in options else {})}
        of = self.world.maintenance
        self.world.maintenance = replace(of, policy=replace(of.policy, **given))

    def takes(self, name: str, **domains: str) -> None:
        taken = {scope: SEVERAL if n == "several" else int(n) for scope, n in domains.items()}
        self.world.takes[name] = taken

    def is_in(self, name: str, *places: str) -> None:
        self.world.places[name] = {*places}

    def blocked(self, name: str, why: str = "") -> None:
        self.world.other[name] = why

    free = blocked

    def drained(self, *names: str) -> None:
        of = self.world.maintenance
        units = tuple(replace(unit, drain=unit.name in names) for unit in of.units)
        self.world.maintenance = replace(of, units=units)

    def refuse(self, code: str, *names: str) -> None:
        refusal = Refused(ErrorCode(code), f"refused as {code}")
        of = self.world.maintenance
        found = {index: refusal for index, unit in enumerate(of.units) if unit.name in names}
        self.world.maintenance = turns.refused(of, found, self.world.now)

    def end(self, name: str, state: str = "done", reason: str = "") -> None:
        self.world.end(name, UnitState(state), reason)
        self.world.maintenance = turn_check.needed(self.world.maintenance)

    def asks(self, *names: str) -> None:
        assert self.world.asked() == ([] if names == ("nothing",) else [*names])

    def waits(self, obstacle: str, until: str = "", because: str = "", **reason: str) -> None:
        step = self.world.step()
        assert isinstance(step, Wait), step
        assert step.obstacle == obstacle
        assert not until or elapsed_at(step.until) == elapsed(until)
        assert because in step.why
        assert reason.get("reason", step.why) == step.why
        assert not step.why or self.world.maintenance.reason == step.why

    def halts(self, because: str = "") -> None:
        step = self.world.step()
        assert isinstance(step, Stop), step
        assert because in step.reason

    def finishes(self) -> None:
        step = self.world.step()
        assert isinstance(step, Done), step

    def recalls(self, *operations: str) -> None:
        assert turns.to_recall(self.world.maintenance) == [*operations]

    def checks(self, name: str, /, **told: str) -> None:
        run = self.runs[name] = self.world.begins_check()
        assert {each: str(getattr(run, each)) for each in told} == told

    def checked(self, name: str, verdict: str, message: str = "") -> None:
        result = CheckResult(passed=verdict == "passed", message=message)
        self.world.check_ends(self.runs[name], result)

    def release_checks(self) -> None:
        self.world.maintenance = turn_check.released(self.world.maintenance)

    def unit(self, name: str, state: str, **told: str) -> None:
        self.compare(self.world.unit(name), state, **told)

    def maintenance(self, state: str, **told: str) -> None:
        self.compare(self.world.maintenance, state, **told)

    def compare(self, found: Any, state: str, because: str = "", **told: str) -> None:
        assert found.state == state
        assert because in found.reason
        for name, expected in told.items():
            fact = getattr(found, name)
            if name.endswith("_at") and expected:
                assert elapsed_at(fact) == elapsed(expected), name
            else:
                assert {None: "", False: "", True: "yes"}.get(fact, str(fact)) == expected, name


def order(kind: MaintenanceOrder) -> Callable[..., None]:
    return lambda told, unit="": told.world.order(kind, unit)


for each in MaintenanceOrder:
    setattr(TurnStory, each.value.replace("-", "_"), order(each))


@pytest.mark.parametrize("rows", stories_beside(__file__, "turns.txt"))
def test_the_story_holds(rows: list[tuple[int, str]]) -> None:
    assert TurnStory().play("turns.txt", rows)
