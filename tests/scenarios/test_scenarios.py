"""Each scenario file of this folder holds; and a line that does not is named."""

from pathlib import Path

import pytest

from forewarn.testing import parser, scenario

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("*.txt"))
NAMED = {
    "host_with_two_domains_of_one_scope",
    "host_over_an_on_and_an_off_scope",
    "host_waits_for_every_scope_of_it",
    "failure_clears_the_way_of_another_scopes_rolling_update",
    "two_host_patches_on_two_domains_of_one_scope",
    "rolling_update_with_domain_2_failing_then_resumed",
    "rolling_update_with_domain_2_failing_then_cancelled",
    "server_killed_between_two_domains",
    "machines_added_moved_removed_in_mid_rolling_update",
    "failure_and_preemption_during_a_scheduled_reboot",
    "hold_release_and_postpone_at_each_state",
    "restart_after_not_before_passed",
    "clock_jumps_a_day_ahead",
    "clock_jumps_an_hour_back",
    "approval_in_the_same_instant",
    "reboot_that_comes_back",
    "reboot_that_does_not_come_back",
    "agent_says_back",
}
FLEET = 'fleet\n  [[machine]]\n  name = "web"\n'


def played(text: str) -> list[scenario.TimelineEntry]:
    return list(scenario.play(parser.parse(text, "here.txt")))


def test_every_scenario_that_was_promised_is_there() -> None:
    assert {path.stem for path in FILES} >= NAMED


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_scenario_holds(path: Path) -> None:
    entries = played(path.read_text(encoding="utf-8"))
    assert any(entry.sights for entry in entries)


def test_each_line_that_says_what_a_guest_sees_breaks_when_it_says_something_else() -> None:
    path = FOLDER / "hold_release_and_postpone_at_each_state.txt"
    rows = path.read_text(encoding="utf-8").splitlines()
    for number, row in enumerate(rows):
        if " sees " not in row or row.lstrip().startswith("#"):
            continue
        head, _ = row.split(" sees ")
        other = [*rows[:number], f"{head} sees Terminate Started of nobody", *rows[number + 1 :]]
        with pytest.raises(scenario.ScenarioBroken) as broken:
            played("\n".join(other))
        assert broken.value.line == number + 1


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("expect web sees nothing", "web sees Reboot Scheduled of web at 0:15:00"),
        ("expect web sees Reboot Scheduled of web at 16m", "at 0:15:00"),
        ("expect web sees Freeze Scheduled of web", "web sees Reboot"),
        ("expect 1.1 is Started", "1.1 is Scheduled not before 0:15:00"),
        ("expect 1.1 is Scheduled held", "1.1 is Scheduled not before"),
        ("expect 1.1 is Queued behind 2.1", "1.1 is Scheduled not before"),
        ("expect 1.1 is Scheduled awaiting web", "1.1 is Scheduled not before"),
        ("expect no operation 1.1", "1.1 is Scheduled"),
        ("expect 2.1 is Scheduled", "no operation 2.1"),
        ("expect incarnation of web is 2", "is 1"),
        ("expect rolling update of 1 is running", "nothing"),
        ("expect alerts failed 1.1", "nothing"),
        ("expect web is on host h1", "web is on host unknown"),
        ("expect no machine web", "web is on host unknown"),
        ("operator schedules Freeze of web", "conflict"),
        ("operator cancels 1 refused as too-late", "not refused"),
        ("operator cancels 1.7", "not-found"),
        ("operator cancels 1.7 refused as conflict", "not-found"),
        ("connector finishes 1.1", "1.1"),
        ("db approves", "no machine db"),
        ("web approves 7.1", "no operation 7.1"),
        ("server starts", "already running"),
    ],
)
def test_a_line_that_does_not_hold_is_named_with_what_is_so_instead(
    line: str, instead: str
) -> None:
    with pytest.raises(scenario.ScenarioBroken) as broken:
        played(f"{FLEET}at 0s operator schedules Reboot of web\n{line}\n")
    assert str(broken.value).startswith(f"here.txt:5: {line}\n")
    assert instead in str(broken.value)


def test_nobody_reads_or_asks_while_the_server_is_down() -> None:
    for line in ("expect web sees nothing", "web asks", "server is killed"):
        with pytest.raises(scenario.ScenarioBroken, match="down"):
            played(f"{FLEET}at 0s operator schedules Reboot of web\nserver is killed\n{line}\n")


def test_an_older_version_sees_less() -> None:
    text = """fleet
  [[scale_set]]
  name = "batch"
  priority = "low"
  machines = [ { index = 0 } ]
at 0s operator schedules Preempt of batch_0
expect batch_0 by 2017-08-01 sees nothing
expect batch_0 by 2017-11-01 sees Preempt Scheduled of batch_0 at 30s
"""
    assert played(text)


def test_the_timeline_says_who_sees_what_from_when_on() -> None:
    entries = played(f"{FLEET}at 1m operator schedules Reboot of web\nat 16m web asks\n")
    lines = [line for entry in entries for line in scenario.shown(entry)]
    assert lines == [
        "01 12:01:00  +0:01:00  at 1m operator schedules Reboot of web  (line 4)",
        "             web sees [1] Reboot Scheduled of web, not before 01 12:16:00",
        "01 12:16:00  +0:16:00  time passes",
        "             web sees [2] Reboot Started of web",
        "01 12:16:00  +0:16:00  at 16m web asks  (line 5)",
    ]
