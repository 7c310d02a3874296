"""The judge finds each thing that it is there to find, and nothing in a run that is whole."""

import copy
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from kills import judge
from kills.rounds import Kill, in_request
from stories import Told, WithoutTimes, stories_beside

NOW = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
REAL = 1000.0
"""The machine's time at NOW; the service's clock runs 600 times as fast."""

WHOLE = Path(__file__).with_name("run.yaml")


class Run:
    """A run in which all is well, until a story changes it."""

    operation: dict[str, Any]
    operations: dict[str, dict[str, Any]]
    maintenances: dict[int, dict[str, Any]]
    journals: dict[str, list[dict[str, Any]]]
    runs: list[dict[str, Any]]
    live: list[dict[str, Any]]
    documents: dict[str, dict[str, Any]]
    marks: dict[str, str]

    def __init__(self) -> None:
        vars(self).update(value_of(WHOLE.read_text(encoding="utf-8")))

    def complaints(self) -> list[str]:
        return judge.judge(self.journals, self.runs, self.final())

    def final(self, scale: float = 600.0) -> judge.Final:
        return judge.Final(
            operations=self.operations,
            maintenances=self.maintenances,
            live=self.live,
            documents=self.documents,
            marks=self.marks,
            now=NOW,
            read_from=REAL - 0.001,
            scale=scale,
        )

    def ask(self, kind: str, at: float, status: int, said: Any, **facts: Any) -> None:
        """Let ann ask for something a hundredth of a second before she is answered."""
        self.journals["ann"] += [
            {"what": "sends", "at": at - 0.01, "kind": kind, **facts},
            {"what": "answered", "at": at, "kind": kind, "status": status, **facts}
            | {"said": json.dumps(said)},
        ]

    def turn(self, number: int, **more: Any) -> dict[str, Any]:
        """Add the operation of a further unit, in a domain of its own, that is over."""
        event = {**self.operation["events"][0], "id": f"{number}", "update_domain": number}
        turn = {
            **self.operation,
            "id": f"1.{number}",
            "unit": number - 1,
            "events": [event],
            **more,
        }
        self.operations[turn["id"]] = turn
        vouched = {"what": "sends", "at": 999.1, "kind": "vouch", "events": [event["id"]]}
        self.journals["ann"].append(vouched)
        ran = {"operation": turn["id"], "machine": "web-0", "attempt": 1}
        self.runs.append({"what": "start", "at": 999.2} | ran)
        self.runs.append({"what": "end", "at": 999.3, "status": 0} | ran)
        return turn


class JudgedRun(Told):
    """A run so far; a place in it is told as `journals/ann/0/at`, and values are YAML."""

    def __init__(self) -> None:
        self.run = Run()

    def carry_out(self, row: str) -> None:
        verb, _, told = row.partition(" ")
        if verb not in {"", "#"}:
            getattr(self, verb)(told)

    def place(self, told: str) -> tuple[Any, Any]:
        """Return what has the last step of a place, and that step."""
        at: Any = vars(self.run)
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
        kind, at, status, facts = told.split(maxsplit=3)
        self.run.ask(kind, float(at), int(status), **value_of(facts))

    def postpone(self, told: str) -> None:
        at, not_before = told.split()
        later = {"not_before": not_before, "events": self.run.operation["events"]}
        self.run.ask("postpone", float(at), 200, {"operations": [later]}, reference="1.1")

    def turn(self, told: str) -> None:
        number, more = told.split(maxsplit=1)
        self.run.turn(int(number), **value_of(more))

    def whole(self, _: str) -> None:
        assert self.run.complaints() == []

    def complains(self, words: str) -> None:
        complaints = self.run.complaints()
        assert any(words in complaint for complaint in complaints), complaints


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
    run = Run()
    answered = NOW - timedelta(seconds=REAL - 999.06)
    at = (answered + timedelta(seconds=seconds)).isoformat()
    run.operation["events"][0]["approval"]["at"] = at
    for each in run.journals["guest"]:
        each["replica"] = 0
    final = run.final(scale=1.0)
    complaints = judge.judge(run.journals, run.runs, final, final)
    assert any("the approval that is there" in each for each in complaints) is told


def test_a_kill_falls_in_a_request_that_had_begun_and_was_never_answered() -> None:
    kill = Kill(before=10.0, after=10.1, aim="", fresh=True)
    broken = {"what": "unanswered", "first": 9.9, "at": 10.2}
    assert in_request(kill, [[], [broken]])
    for other in (
        broken | {"first": 10.05},
        broken | {"at": 9.95},
        broken | {"what": "answered"},
    ):
        assert not in_request(kill, [[copy.deepcopy(other)]])


def test_replicas_that_differ_at_the_end_are_told() -> None:
    run = Run()
    final = run.final(scale=1.0)
    (complaint,) = judge.judge(run.journals, run.runs, final, final._replace(maintenances={}))
    assert "show maintenances 1 differently" in complaint
