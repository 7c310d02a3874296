"""Each scenario file of this folder holds; and a line that does not is named."""

import re
from pathlib import Path
from typing import Final

import msgspec
import pytest

import stories
from forewarn.maintenance.invariants import InvariantBroken
from forewarn.maintenance.model import Changes
from forewarn.vocabulary import EventStatus
from scenarios.house import BEGINNING
from scenarios.story import Story

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.rglob("*.txt"))
STORIES = [
    pytest.param(path.name, rows, id=f"{path.stem} {title}".strip())
    for path in FILES
    for title, rows in stories.stories(path.read_text(encoding="utf-8")).items()
]
FLEET = "machine web\napply\n"


def played(text: str) -> Story:
    story = Story()
    story.play("here.txt", stories.stories(text)[""])
    return story


def test_the_scenarios_are_found() -> None:
    assert len(FILES) >= 18


@pytest.mark.parametrize(("name", "rows"), STORIES)
def test_the_scenario_holds(name: str, rows: stories.Rows) -> None:
    assert any(re.search("expect |refused=|unreadable ", row) for _, row in rows)
    Story().play(name, rows)


TICKED: Final = (
    "what has started goes on under a hold, and what waited for it stays",
    "the time of the close is too late to start",
)
"""The stories with an instant that a server which starts in it has gone on from: it looks first."""


@pytest.mark.parametrize(
    ("name", "rows"), [one for one in STORIES if not str(one.id).endswith(TICKED)]
)
def test_the_scenario_holds_though_the_server_dies_after_each_commit(
    name: str, rows: stories.Rows
) -> None:
    assert Story(dies_often=True).play(name, rows)


BROKEN: Final = """
expect document web nothing
expect document web
expect document web "Reboot Scheduled web 16m"
expect document web "Freeze Scheduled web"
expect document web "Reboot Scheduled db"
expect document web "Reboot Scheduled web" "Reboot Scheduled web"
expect operation 1.1 Started
expect operation 1.1 Scheduled held=yes
expect operation 1.1 Scheduled waits_for=2.1
expect operation 1.1 Scheduled awaiting=web
expect operation 1.1 Scheduled not_before=16m
expect operation 1.1 Scheduled machines=db
expect operation 1.1 Scheduled nothing=so
expect operation 2.1 Scheduled
expect operations 1.2
expect no-operation 1.1
expect units 1 "web running"
expect unit 1 web running
expect maintenance 1 running
expect maintenance 1 announced because=storm
expect machine web host=h9
expect no-machine web
expect no-scope web
expect incarnation web 2
expect alert failed 1.1
expect alerts "failed 1.1"
expect standing 1.1 nobody
expect standing 1.1 ""
postpone 1.1 15m refused="notice-too-short earliest=soon"
pause 1
schedule Freeze web
schedule Rebot web
cancel 1 refused=too-late
cancel 1.7
cancel 1.7 refused=conflict
cancel
cancel 1 soon=yes
dance
finish 1.1
approve db
approve web 7.1
start
at 5x  ask web
before 0s  ask web refused=conflict
"""
"""Lines that do not hold where nothing but a reboot of web was asked for."""


@pytest.mark.parametrize("line", BROKEN.split("\n")[1:-1])
def test_a_line_that_does_not_hold_is_named(line: str) -> None:
    with pytest.raises(AssertionError) as broken:
        played(f"{FLEET}at 0s  schedule Reboot web\n{line}\n")
    assert str(broken.value).startswith(f"here.txt:4: {line}\n")


def test_two_stories_of_a_text_have_two_titles() -> None:
    with pytest.raises(ValueError, match="line 3"):
        stories.stories("story one\nask web\nstory one\n")


@pytest.mark.parametrize("line", ["at 1m  ask web", "before 2m  ask web"])
def test_time_goes_on_from_line_to_line(line: str) -> None:
    with pytest.raises(AssertionError, match="already"):
        played(f"{FLEET}at 2m  ask web\n{line}\n")


@pytest.mark.parametrize("line", ["expect document web nothing", "ask web", "kill"])
def test_nobody_reads_or_asks_while_the_server_is_down(line: str) -> None:
    with pytest.raises(AssertionError, match="down"):
        played(f"{FLEET}schedule Reboot web\nkill\n{line}\n")


def test_the_judge_ends_a_scenario_that_breaks_a_promise() -> None:
    house = played(f"{FLEET}schedule Reboot web\n").house
    reboot = house.operation("1.1")
    assert reboot is not None
    early = msgspec.structs.replace(reboot, status=EventStatus.STARTED, started_at=BEGINNING)
    house.learn(Changes(operations=(early,)))
    with pytest.raises(InvariantBroken, match=r"1\.1"):
        house.follow_up()
