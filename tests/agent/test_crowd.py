"""A crowd of this machine's own events: each gets its turn, the most urgent first."""

import sys
from types import FrameType

from agent.bench import ME, START, command, event, rule
from forewarn.agent.decider import (
    AT_ONCE,
    ActionFinished,
    BeginAction,
    Decider,
    DocumentSeen,
    Input,
    TimePassed,
)
from forewarn.agent.rules import ActionOutcome

MANY = 120
OWN = rule(command("a", shared=False), approve="when-prepared")
"""An action that each event needs for itself."""


class Crowd:
    """A decider with many events, whose running actions are counted."""

    def __init__(self, number: int = MANY) -> None:
        self.decider = Decider((OWN,), 5.0)
        self.events = tuple(event(f"E{number}") for number in range(number))
        self.runs: dict[int, BeginAction] = {}
        self.most = 0
        self.tell(DocumentSeen(self.events, ME))

    def tell(self, told: Input, now: float = START) -> list[BeginAction]:
        begun = [each for each in self.decider.handle(told, now) if isinstance(each, BeginAction)]
        self.runs |= {each.run: each for each in begun}
        self.most = max(self.most, len(self.runs))
        return begun

    def end_one(self) -> list[BeginAction]:
        number = next(iter(self.runs))
        del self.runs[number]
        return self.tell(ActionFinished(number, ActionOutcome.DONE))

    def end_all(self) -> None:
        while self.runs:
            self.end_one()

    def phases(self) -> set[str]:
        return {case.phase for case in self.decider.state.cases.values()}


def test_a_crowd_of_events_has_a_limited_number_of_actions_at_once() -> None:
    crowd = Crowd()
    crowd.end_all()
    assert crowd.most == AT_ONCE
    assert crowd.phases() == {"Prepared"}
    crowd.tell(DocumentSeen((), ME))
    crowd.end_all()
    assert crowd.most == AT_ONCE
    assert crowd.decider.state.idle


def test_an_event_with_less_notice_does_not_wait_for_a_crowd_with_more() -> None:
    crowd = Crowd()
    preempts = tuple(event(f"P{number}", starts_by=START + 30) for number in range(MANY))
    begun = crowd.tell(DocumentSeen((*crowd.events, *preempts), ME))
    assert [each.event.event_id[0] for each in begun] == ["P"] * AT_ONCE
    crowd.end_all()
    assert crowd.most == 2 * AT_ONCE
    assert crowd.phases() == {"Prepared"}


def test_an_event_that_waits_for_its_turn_waits_no_longer_than_its_notice() -> None:
    crowd = Crowd()
    assert crowd.decider.wake_at is not None
    crowd.tell(TimePassed(), START + 895)
    waiting = crowd.decider.state.cases[f"E{MANY - 1}"]
    assert waiting.results == [ActionOutcome.NO_TIME]


def calls_of_one_end(number: int) -> int:
    """Count the calls of Python's functions that the end of one action leads to."""
    crowd = Crowd(number)
    crowd.end_one()
    calls = 0

    def count(_frame: FrameType, what: str, _argument: object) -> None:
        nonlocal calls
        calls += what == "call"

    sys.setprofile(count)
    try:
        crowd.end_one()
    finally:
        sys.setprofile(None)
    return calls


def test_the_end_of_an_action_costs_no_more_for_each_event_of_a_larger_crowd() -> None:
    assert calls_of_one_end(200) < 3 * calls_of_one_end(100)
