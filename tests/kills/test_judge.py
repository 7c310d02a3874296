"""The judge finds each thing that it is there to find, and nothing in a run that is whole."""

import copy
import json
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from kills import judge
from kills.processes import release
from kills.rounds import Kill, in_request
from stories import Told, WithoutTimes, stories_beside

NOW = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
REAL = 1000.0
"""The machine's time at NOW; the service's clock runs 600 times as fast."""

WHOLE = Path(__file__).with_name("run.yaml")


class JudgedRun(Told):
    """A run so far; a place in it is told as `journals/ann/0/at`, and values are YAML."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = value_of(WHOLE.read_text(encoding="utf-8"))

    def carry_out(self, row: str) -> None:
        verb, _, told = row.partition(" ")
        if verb not in {"", "#"}:
            getattr(self, verb)(told)

    def place(self, told: str) -> tuple[Any, Any]:
        """Return what has the last step of a place, and that step."""
        at: Any = self.told
        *steps, last = told.split("/")
        for step in steps:
            at = at[step_in(at, step)]
        return at, step_in(at, last)

    def set(self, told: str) -> None:
        place, _, value = told.partition(" = ")
        at, step = self.place(place)
        at[step] = value_of(value)

    def append(self, told: str) -> None:
        place, _, value = told.partition(" = ")
        at, step = self.place(place)
        at[step].append(value_of(value))

    def delete(self, told: str) -> None:
        place, first, end = told.split()
        at, step = self.place(place)
        del at[step][int(first) : int(end)]

    def unapproved(self, _: str) -> None:
        """The guest never approved."""
        self.delete("journals/guest 2 4")

    def ask(self, told: str) -> None:
        """Ann asks for something a hundredth of a second before she is answered."""
        kind, at, status, facts = told.split(maxsplit=3)
        named = value_of(facts)
        said, answered = json.dumps(named.pop("said")), {"status": int(status), **named}
        self.told["journals"]["ann"] += [
            {"what": "sends", "at": float(at) - 0.01, "kind": kind, **named},
            {"what": "answered", "at": float(at), "kind": kind, "said": said, **answered},
        ]

    def postpone(self, told: str) -> None:
        at, not_before = told.split()
        events = [{"id": event["id"]} for event in self.told["operation"]["events"]]
        said = {"operations": [{"not_before": not_before, "events": events}]}
        self.ask(f"postpone {at} 200 {json.dumps({'said': said, 'reference': '1.1'})}")

    def turn(self, _: str) -> None:
        """The operation of a further unit, in a domain of its own, is over."""
        turn = self.told["turn"]
        self.told["operations"]["1.2"] = turn["operation"]
        self.told["journals"]["ann"].append(turn["vouched"])
        self.told["runs"] += turn["runs"]

    def whole(self, _: str) -> None:
        assert self.complaints() == []

    def complains(self, words: str) -> None:
        complaints = self.complaints()
        assert any(words in complaint for complaint in complaints), complaints

    def complaints(self, *others: judge.Final, scale: float = 600.0) -> list[str]:
        told = self.told
        return judge.judge(told["journals"], told["runs"], self.final(scale), *others)

    def final(self, scale: float) -> judge.Final:
        seen = {name: self.told[name] for name in judge.Final._fields if name in self.told}
        return judge.Final(**seen, now=NOW, read_from=REAL - 0.001, scale=scale)


def step_in(at: Any, step: str) -> Any:
    return int(step) if isinstance(at, list) or (step.isdigit() and step not in at) else step


def value_of(told: str) -> Any:
    return yaml.load(told, WithoutTimes)


@pytest.mark.parametrize("rows", stories_beside(__file__, "faults.txt"))
def test_the_judge_tells_each_fault_and_nothing_else(rows: list[tuple[int, str]]) -> None:
    assert JudgedRun().play("faults.txt", rows)


@pytest.mark.parametrize(("seconds", "told"), [(1.9, False), (2.1, True)])
def test_an_approval_is_as_old_as_its_answer_as_far_as_replicas_clocks_agree(
    seconds: float, told: bool
) -> None:
    run = JudgedRun()
    answered = NOW - timedelta(seconds=REAL - 999.06)
    at = (answered + timedelta(seconds=seconds)).isoformat()
    run.told["operation"]["events"][0]["approval"]["at"] = at
    for each in run.told["journals"]["guest"]:
        each["replica"] = 0
    complaints = run.complaints(run.final(scale=1.0), scale=1.0)
    assert any("the approval that is there" in each for each in complaints) is told


def test_a_kill_falls_in_a_request_that_had_begun_and_was_never_answered() -> None:
    kill = Kill(before=10.0, after=10.1, aim="")
    broken = {"what": "unanswered", "first": 9.9, "at": 10.2}
    assert in_request(kill, [[], [broken]])
    for other in (
        broken | {"first": 10.05},
        broken | {"at": 9.95},
        broken | {"what": "answered"},
    ):
        assert not in_request(kill, [[copy.deepcopy(other)]])


def test_replicas_that_differ_at_the_end_are_told() -> None:
    run = JudgedRun()
    (complaint,) = run.complaints(run.final(1.0)._replace(maintenances={}), scale=1.0)
    assert "show maintenances 1 differently" in complaint


def test_each_break_and_the_later_release_have_their_places_in_the_package(tmp_path: Path) -> None:
    folder = Path(__file__).parent
    for file in (folder / "breaks.toml", folder.parent / "replicas" / "later.toml"):
        for name, edits in tomllib.loads(file.read_text("utf-8")).items():
            assert release(tmp_path / name, edits)["PYTHONPATH"]
