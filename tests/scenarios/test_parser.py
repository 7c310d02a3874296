"""The language is strict: an error names the place, what was found and what was expected."""

import pytest

from forewarn.testing import parser
from forewarn.testing.parser import ScriptError

FLEET = 'fleet\n  [[machine]]\n  name = "web"\n'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("at 5x web approves", "found '5x'; expected a time"),
        ("at", "the line ends; expected a time"),
        ("at 1m", "the line ends; expected an operator"),
        ("at 1m operator dances", "the line ends; expected one of schedules, cancels"),
        ("at 1m operator ann dances", "expected one of schedules, cancels"),
        ("at 1m operator schedules Rebot of web", "found 'Rebot'; expected a type: Freeze, Reboot"),
        ("at 1m operator schedules Reboot web", "found 'web'; expected 'of'"),
        ("at 1m operator schedules Reboot of web soon", "found 'soon'; expected 'for a user'"),
        ("at 1m operator holds web", "found 'web'; expected what it concerns: everything, scope"),
        ("at 1m operator postpones 1.1 until 2h", "found 'until'; expected 'to'"),
        ("at 1m operator cancels web", "expected an operation such as 1.2, or a maintenance"),
        ("at 1m web sleeps", "found 'sleeps'; expected one of approves, asks, says"),
        ("at 1m web says well", "found 'well'; expected what its agent says: preparing, ready"),
        ("at 1m expect 1.1 is Queued waiting for 2.1", "found 'waiting'; expected 'because'"),
        ("at 1m expect web sees Reboot Queued of web", "found 'Queued'; expected Scheduled"),
        ("at 1m connector finishes web", "found 'web'; expected an operation, such as 1.2"),
        ("at 1m connector explodes 1.1", "found 'explodes'; expected one of finishes, fails"),
        ('at 1m connector fails 1.1 "no', 'a quoted text begins with " and has no end'),
        ("at 1m server stops", "found 'stops'; expected one of starts, is"),
        ("at 1m clock jumps 24h", "found '24h'; expected a span with its sign"),
        ("at 1m clock jumps +", "found '+'; expected a span with its sign"),
        ("at 1m expect web sees Reboot Completed of web", "found 'Completed'; expected Scheduled"),
        ("at 1m expect web by 2016 sees nothing", "expected an api-version: 2017-03-01"),
        ("at 1m expect 1.1 is Gone", "expected a status: Queued, Scheduled"),
        ("at 1m expect 1.1 is Started because of it", "expected why it started: approved"),
        ("at 1m expect alerts ugly 1", "expected the kind of an alert: failed"),
        ("at 1m web approves refused as wrong", "expected a reason: invalid"),
        ("at 1m expect no alerts please", "found 'please'; expected the end of the line"),
        ("  web approves", "expected a line that is not indented"),
    ],
)  # fmt: skip
def test_what_the_language_does_not_know_is_named_with_its_place(line: str, said: str) -> None:
    with pytest.raises(ScriptError) as error:
        parser.parse(f"{FLEET}at 0s web asks\n{line}\n", "here.txt")
    assert str(error.value).startswith("here.txt:5: ")
    assert said in str(error.value)


def test_time_goes_forward_from_line_to_line() -> None:
    with pytest.raises(ScriptError, match=r"here\.txt:5: .*0:02:00"):
        parser.parse(f"{FLEET}at 2m web asks\nat 1m web asks\n", "here.txt")


def test_an_instant_that_time_has_passed_cannot_come_before_the_ticker() -> None:
    with pytest.raises(ScriptError, match=r"here\.txt:5: "):
        parser.parse(f"{FLEET}at 2m web asks\nat 2m before the ticker web asks\n", "here.txt")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "here.txt:0: "),
        (FLEET, "here.txt:3: "),
        ("at 0s web asks\n", "here.txt:1: found 'at'; expected 'fleet'"),
        ("fleet\n  name =\n", "here.txt:1: "),
        ('fleet\n  [[machin]]\n  name = "a"\n', "here.txt:1: "),
        (f"settings\n  limit = 1\n{FLEET}", "here.txt:1: "),
        (f'settings\n  preset = "azure"\n{FLEET}', "here.txt:1: "),
    ],
)
def test_a_file_without_a_fleet_or_with_a_broken_block_is_refused(text: str, said: str) -> None:
    with pytest.raises(ScriptError) as error:
        parser.parse(text, "here.txt")
    assert str(error.value).startswith(said)


def test_comments_and_empty_lines_say_nothing() -> None:
    text = f"# a story\n{FLEET}\nat 0s web asks # and hears\n  \n# the end\n"
    (line,) = parser.parse(text, "here.txt").lines
    assert line.text == "at 0s web asks"
    assert line.number == 6
