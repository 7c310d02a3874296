"""Each scenario file of this folder holds; and a line that does not is named."""

from pathlib import Path
from typing import Final

import msgspec
import pytest

import stories
from forewarn.maintenance.invariants import InvariantBroken
from forewarn.maintenance.model import Changes
from forewarn.vocabulary import EventStatus
from scenarios import story
from scenarios.house import BEGINNING

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.rglob("*.txt"))
STORIES = [
    pytest.param(path, title, id=f"{path.stem} {title}".strip())
    for path in FILES
    for title in stories.stories(path.read_text(encoding="utf-8"))
]
FLEET = "machine web\napply\n"


def played(text: str) -> story.Story:
    return story.play(text, "here.txt")


def test_the_scenarios_are_found() -> None:
    assert len(FILES) >= 18


@pytest.mark.parametrize(("path", "title"), STORIES)
def test_the_scenario_holds(path: Path, title: str) -> None:
    assert story.play(path.read_text(encoding="utf-8"), path.name, title).expectations


TICKED: Final = {
    "what has started goes on under a hold, and what waited for it stays",
    "the time of the close is too late to start",
}
"""The stories with an instant that a server which starts in it has gone on from: it looks first."""


@pytest.mark.parametrize(("path", "title"), [one for one in STORIES if one.values[1] not in TICKED])
def test_the_scenario_holds_though_the_server_dies_after_each_commit(
    path: Path, title: str
) -> None:
    text = path.read_text(encoding="utf-8")
    assert story.play(text, path.name, title, dies_often=True).expectations


def test_each_line_that_says_what_a_guest_sees_breaks_when_it_says_something_else() -> None:
    path = FOLDER / "hold_release_and_postpone_at_each_state.txt"
    rows = path.read_text(encoding="utf-8").splitlines()
    for number, row in enumerate(rows):
        if "expect document " not in row:
            continue
        head, _, _ = row.partition(' "')
        other = [*rows[:number], f'{head} "Terminate Started nobody"', *rows[number + 1 :]]
        with pytest.raises(story.Broken, match=rf"^here\.txt:{number + 1}: "):
            played("\n".join(other))


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("expect document web nothing", "Reboot Scheduled web"),
        ("expect document web", "Reboot Scheduled web"),
        ('expect document web "Reboot Scheduled web 16m"', "12:15"),
        ('expect document web "Freeze Scheduled web"', "Reboot"),
        ('expect document web "Reboot Scheduled web" "Reboot Scheduled web"', "Reboot"),
        ("expect operation 1.1 Started", "it is Scheduled"),
        ("expect operation 1.1 Scheduled held=yes", "it is Scheduled"),
        ("expect operation 1.1 Queued waits_for=2.1", "it is Scheduled"),
        ("expect operation 1.1 Scheduled awaiting=web", "nobody"),
        ("expect operation 1.1 Scheduled not_before=16m", "12:15"),
        ("expect operation 1.1 Scheduled machines=db", "web"),
        ("expect operation 1.1 Scheduled nothing=so", "KeyError"),
        ("expect operations 1.2", "1.1"),
        ('expect units 1 "web running"', "none"),
        ("expect maintenance 1 announced because=storm", "announced"),
        ("expect machine web host=h9", "web"),
        ("expect no-scope web", "web"),
        ("expect alert failed 1.1", "the alerts are"),
        ("expect standing 1.1 nobody", "approved"),
        ('expect standing 1.1 ""', "approved"),
        ('postpone 1.1 15m refused="notice-too-short earliest=soon"', "earliest="),
        ("expect operation 2.1 Scheduled", "no operation 2.1"),
        ("expect no-operation 1.1", "it is Scheduled"),
        ("expect incarnation web 2", "it is 1"),
        ("expect maintenance 1 running", "it is announced"),
        ("expect unit 1 web running", "none"),
        ("pause 1", "too-late"),
        ('expect alerts "failed 1.1"', "none"),
        ("expect no-machine web", "web"),
        ("schedule Freeze web", "conflict"),
        ("schedule Rebot web", "Rebot"),
        ("cancel 1 refused=too-late", "not refused"),
        ("cancel 1.7", "not-found"),
        ("cancel 1.7 refused=conflict", "not-found"),
        ("cancel", "TypeError"),
        ("cancel 1 soon=yes", "TypeError"),
        ("dance", "dance"),
        ("finish 1.1", "1.1"),
        ("approve db", "no machine db"),
        ("approve web 7.1", "no operation 7.1"),
        ("start", "already running"),
        ("at 5x  ask web", "5x"),
        ("before 0s  ask web refused=conflict", "not refused"),
    ],
)
def test_a_line_that_does_not_hold_is_named_with_what_is_so_instead(
    line: str, instead: str
) -> None:
    with pytest.raises(story.Broken) as broken:
        played(f"{FLEET}at 0s  schedule Reboot web\n{line}\n")
    assert str(broken.value).startswith(f"here.txt:4: {line}\n")
    assert instead in str(broken.value)


def test_two_stories_of_a_text_have_two_titles() -> None:
    with pytest.raises(ValueError, match="line 3"):
        stories.stories("story one\nask web\nstory one\n")


@pytest.mark.parametrize("line", ["at 1m  ask web", "before 2m  ask web"])
def test_time_goes_on_from_line_to_line(line: str) -> None:
    with pytest.raises(story.Broken, match="already"):
        played(f"{FLEET}at 2m  ask web\n{line}\n")


@pytest.mark.parametrize("line", ["expect document web nothing", "ask web", "kill"])
def test_nobody_reads_or_asks_while_the_server_is_down(line: str) -> None:
    with pytest.raises(story.Broken, match="down"):
        played(f"{FLEET}schedule Reboot web\nkill\n{line}\n")


def test_an_older_version_sees_less() -> None:
    assert played(
        """scale_set batch priority=low
member 0
apply
schedule Preempt batch_0
expect document batch_0 nothing version=2017-08-01
expect document batch_0 "Preempt Scheduled batch_0 30s" version=2017-11-01
"""
    )


def test_the_judge_ends_a_scenario_that_breaks_a_promise() -> None:
    house = played(f"{FLEET}schedule Reboot web\n").house
    reboot = house.operation("1.1")
    assert reboot is not None
    early = msgspec.structs.replace(reboot, status=EventStatus.STARTED, started_at=BEGINNING)
    house.learn(Changes(operations=(early,)))
    with pytest.raises(InvariantBroken, match=r"1\.1"):
        house.follow_up()
