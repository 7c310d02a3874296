"""The table of transitions: what it has, and that nothing else happens."""

import itertools
import re

import pytest

from forewarn.maintenance import transitions, units
from forewarn.maintenance.model import Refused
from forewarn.maintenance.transitions import Trigger
from forewarn.maintenance.units import MaintenanceState
from forewarn.vocabulary import ErrorCode, EventStatus
from house import tree

STATUSES = [None, *EventStatus]


@pytest.mark.parametrize(("status", "trigger"), list(itertools.product(STATUSES, Trigger)))
def test_only_what_the_table_has_happens(status: EventStatus | None, trigger: Trigger) -> None:
    if (status, trigger) in transitions.TRANSITIONS:
        assert transitions.step("1.1", status, trigger) is transitions.TRANSITIONS[status, trigger]
        return
    with pytest.raises(Refused) as refusal:
        transitions.step("1.1", status, trigger)
    assert refusal.value.code is ErrorCode.TOO_LATE
    assert refusal.value.facts == {"operation": "1.1", "status": str(status), "trigger": trigger}


@pytest.mark.parametrize(
    ("status", "trigger", "possible"),
    [
        (EventStatus.STARTED, Trigger.CANCEL, {Trigger.SUCCEED, Trigger.FAIL, Trigger.RETURN}),
        (EventStatus.FAILED, Trigger.START, set()),
        (None, Trigger.START, {Trigger.QUEUE, Trigger.ANNOUNCE, Trigger.STRIKE}),
    ],
)
def test_a_refusal_says_what_is_and_what_could_happen_instead(
    status: EventStatus | None, trigger: Trigger, possible: set[Trigger]
) -> None:
    with pytest.raises(Refused) as refusal:
        transitions.step("12.1", status, trigger)
    words = set(re.findall(r"\w+", refusal.value.message))
    assert words & set(Trigger) == possible | {trigger}
    assert (status or "new") in words


def test_no_way_leads_back_or_out_of_an_end() -> None:
    order = [None, *(status for status in EventStatus if not status.over)]
    for (before, _), after in transitions.TRANSITIONS.items():
        assert before is None or not before.over
        assert after.over or order.index(after) > order.index(before)


def drawn(index: int, of: str = "lifecycle.md") -> set[tuple[str, str, str | None]]:
    """Return the arrows of a diagram of the page: from, to, by."""
    page = (tree.ROOT / "docs" / of).read_text(encoding="utf-8")
    drawings = re.findall(r"```mermaid\nstateDiagram-v2\n(.*?)```", page, re.DOTALL)
    arrows = set()
    for line in drawings[index].strip().splitlines():
        match = re.fullmatch(r"\s*(\[\*\]|\w+) --> (\[\*\]|\w+)(?: : ([\w ]+))?", line)
        assert match is not None, line
        before, after, trigger = match.groups()
        arrows.add((before, after, trigger))
    return arrows


def test_the_page_draws_the_table_of_operations_and_nothing_else() -> None:
    table = {
        (before.value if before else "[*]", after.value, trigger.value)
        for (before, trigger), after in transitions.TRANSITIONS.items()
    }
    ends = {(status.value, "[*]", None) for status in EventStatus if status.over}
    assert drawn(0) == table | ends


def test_the_page_draws_the_table_of_maintenances_and_nothing_else() -> None:
    table = {
        (before.value, after.value, trigger.value)
        for (before, trigger), after in units.TRANSITIONS.items()
    }
    states = {after for _, after, _ in table} | {before for before, _, _ in table}
    ends = {(state, "[*]", None) for state in states if MaintenanceState(state).over}
    assert drawn(1) == table | ends | {("[*]", "running", None)}
