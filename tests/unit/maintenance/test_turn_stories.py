"""Stories of units that take turns, one verb a line: turns.txt, played by the decider alone."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import stories
from builders import NOW
from forewarn.maintenance import turn_check, turns
from forewarn.maintenance.footprints import SEVERAL
from forewarn.maintenance.model import Refused
from forewarn.maintenance.turn_check import CheckResult, CheckRun
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.turns import Done, Stop, Wait
from forewarn.maintenance.units import CONFIRM, TurnPolicy, UnitState
from forewarn.vocabulary import ErrorCode
from scenarios import story
from turn_world import World, maintenance

FILE: Final = Path(__file__).with_name("turns.txt")
TIMES: Final = ("opens_at", "closes_at", "approval_until")
replace = msgspec.structs.replace


class TurnStory:
    """A maintenance so far, and the checks that were begun, by the names that the story gives."""

    world: World

    def __init__(self) -> None:
        self.checks: dict[str, CheckRun] = {}

    def carry_out(self, row: str) -> None:
        verb, names, options = stories.split(row)
        if verb == "at":
            span, *names = names
            self.world.now = NOW + story.elapsed(span)
            verb, *names = names or [""]
        if not verb:
            return
        refused = options.pop("refused", "").split()
        if not refused:
            VERBS[verb](self, *names, **options)
            return
        with pytest.raises(Refused) as refusal:
            VERBS[verb](self, *names, **options)
        told = {f"{name}={fact}" for name, fact in refusal.value.facts.items()}
        assert refusal.value.code == refused[0]
        assert told.issuperset(refused[1:])

    def units(self, *names: str, waves: str = "", **policy: str) -> None:
        given: dict[str, Any] = dict(policy)
        for name in given.keys() & {*TIMES}:
            given[name] = NOW + story.elapsed(given[name])
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
        assert not until or self.elapsed(step.until) == story.elapsed(until)
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

    def begins_check(self, name: str, /, **told: str) -> None:
        run = self.checks[name] = self.world.begins_check()
        assert {each: str(getattr(run, each)) for each in told} == told

    def ends_check(self, name: str, verdict: str, message: str = "") -> None:
        result = CheckResult(passed=verdict == "passed", message=message)
        self.world.check_ends(self.checks[name], result)

    def release_checks(self) -> None:
        self.world.maintenance = turn_check.released(self.world.maintenance)

    def unit(self, name: str, state: str, **told: str) -> None:
        self.compare(self.world.unit(name), state, **told)

    def state(self, state: str, **told: str) -> None:
        self.compare(self.world.maintenance, state, **told)

    def compare(self, found: Any, state: str, because: str = "", **told: str) -> None:
        assert found.state == state
        assert because in found.reason
        for name, expected in told.items():
            fact = getattr(found, name)
            if name.endswith("_at") and expected:
                assert self.elapsed(fact) == story.elapsed(expected), name
            else:
                assert {None: "", False: "", True: "yes"}.get(fact, str(fact)) == expected, name

    def elapsed(self, moment: Any) -> timedelta:
        assert moment is not None
        return timedelta(seconds=round((moment - NOW).total_seconds(), 6))


def order(kind: MaintenanceOrder) -> Callable[..., None]:
    return lambda told, unit="": told.world.order(kind, unit)


VERBS: Final[dict[str, Callable[..., None]]] = {
    "units": TurnStory.units,
    "policy": TurnStory.policy,
    "takes": TurnStory.takes,
    "is-in": TurnStory.is_in,
    "blocked": TurnStory.blocked,
    "free": TurnStory.blocked,
    "drained": TurnStory.drained,
    "refuse": TurnStory.refuse,
    "end": TurnStory.end,
    "asks": TurnStory.asks,
    "waits": TurnStory.waits,
    "halts": TurnStory.halts,
    "finishes": TurnStory.finishes,
    "recalls": TurnStory.recalls,
    "checks": TurnStory.begins_check,
    "checked": TurnStory.ends_check,
    "release-checks": TurnStory.release_checks,
    "unit": TurnStory.unit,
    "maintenance": TurnStory.state,
    **{kind.value: order(kind) for kind in MaintenanceOrder},
}


@pytest.mark.parametrize(("title", "rows"), stories.stories(FILE.read_text("utf-8")).items())
def test_the_story_holds(title: str, rows: list[tuple[int, str]]) -> None:
    assert title
    stories.check(FILE, rows, TurnStory().carry_out)
