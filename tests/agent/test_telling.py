"""What the log says: a line for each thing that people want to know, and whom it is about."""

import logging

import pytest

from agent.bench import Bench, command, event, rule
from forewarn.agent import view
from forewarn.agent.messages import Begin, Cause, Finished, Heard, Looked, Write
from forewarn.agent.records import Outcome
from forewarn.agent.telling import Telling


class Told(Bench):
    """A bench whose decider's doings are told, as the daemon tells them."""

    def __init__(self, *args: object, dry: bool = False, **given: object) -> None:
        self.telling = Telling(dry=dry)
        super().__init__(*args, **given)  # type: ignore[arg-type]  # the bench's own

    def tell(self, cause: Cause) -> list[str]:
        if isinstance(cause, Heard):
            self.telling.heard(cause)
        said = super().tell(cause)
        if isinstance(cause, Looked):
            self.telling.looked(self.machine)
        return said

    def _take(self, told: object) -> list[str]:
        if isinstance(told, Write):
            self.telling.wrote(told.record, self.machine)
        elif isinstance(told, Begin):
            self.telling.began(told)
        said = super()._take(told)  # type: ignore[arg-type]  # whatever the decider said
        if said and said[0].startswith("ask "):
            self.telling.asked(self.asked[-1])
        return said


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="forewarn.agent")
    return caplog


def test_an_events_whole_life_is_told_with_its_id_and_its_rule(
    log: pytest.LogCaptureFixture,
) -> None:
    bench = Told(rule(command("drain")))
    bench.see(event())
    bench.end("drain")
    bench.answer(taken=True)
    bench.see(event(status="Started"))
    bench.see()
    bench.end("drain")
    assert log.messages == [
        "Reboot E1: rule 'r'",
        "doing command drain: done: said so",
        "E1 is prepared",
        "E1 is approved",
        "E1 has started",
        "E1 is over",
        "undoing command drain: done: said so",
    ]
    facts = [record.__dict__["facts"] for record in log.records]
    assert {each["event_id"] for each in facts} == {"E1"}
    assert [each.get("rule") for each in facts] == ["r"] * 4 + [None] * 2 + ["r"]


def test_that_an_event_is_held_is_a_warning(log: pytest.LogCaptureFixture) -> None:
    bench = Told(rule(command("drain")))
    bench.see(event())
    bench.end("drain", Outcome.FAILED)
    said = {record.getMessage(): record.levelname for record in log.records}
    assert said["E1 is held: it is not approved, and its notice runs out"] == "WARNING"


def test_an_action_that_waits_by_failing_is_told_once(log: pytest.LogCaptureFixture) -> None:
    bench = Told(rule(command("room", retries=5, retry_seconds=1)))
    bench.see(event())
    for _ in range(5):
        bench.end("room", Outcome.FAILED)
        bench.wait(1)
    assert sum("it is tried again" in line for line in log.messages) == 1
    bench.end("room", Outcome.FAILED)
    assert log.messages[-2].endswith(": failed: said so")


def test_whose_word_is_waited_for_is_told_when_it_changes(log: pytest.LogCaptureFixture) -> None:
    both = event(resources=("web-0", "web-1", "web-2"))
    bench = Told(rule(command("drain")))
    bench.see(both)
    bench.end("drain")
    bench.hear()
    bench.wait(1)
    bench.hear()
    bench.wait(1)
    bench.hear("web-1")
    waits = "E1 is prepared here, and is approved when these say that they are too: "
    assert [line for line in log.messages if line.startswith(waits)] == [
        f"{waits}web-1, web-2",
        f"{waits}web-2",
    ]


def test_an_answer_of_a_round_that_nobody_waits_for_says_nothing(
    log: pytest.LogCaptureFixture,
) -> None:
    Told().tell(Heard(7, frozenset()))
    assert log.messages == []


def test_a_dry_run_tells_no_ends_of_actions(log: pytest.LogCaptureFixture) -> None:
    bench = Told(rule(command("drain")), dry=True)
    bench.see(event())
    bench.tell(Finished(bench.runs["drain"].run, Outcome.DONE, "dry run"))
    assert log.messages == ["Reboot E1: rule 'r'", "E1 is prepared"]


@pytest.mark.parametrize(
    ("effect", "said"),
    [
        ("ready", "ready"),
        ('command [["sh", "-c", "sync; sync"], []]', "command sh -c 'sync; sync'"),
        ('http ["GET", "http://10.0.0.5/room", "", ""]', "http GET http://10.0.0.5/room"),
        ("command of another version", "command of another version"),
        ("http []", "http []"),
        ("command 7", "command 7"),
    ],
)
def test_an_effect_is_shown_as_people_would_write_it(effect: str, said: str) -> None:
    assert view.readable(effect) == said


def test_what_stands_and_what_is_logged_has_the_names_of_actions_and_no_keys(
    log: pytest.LogCaptureFixture,
) -> None:
    bench = Told(rule(command("drain", shared=False), {"log": {}}))
    bench.see(event())
    bench.end("drain")
    standing = view.status(bench.machine, bench.now)["standing"]
    assert [(each["effect"], each["tells"]) for each in standing] == [
        ("command drain", False),
        ("log", True),
    ]
    assert "E1/r" not in f"{standing} {log.messages}"


def test_a_long_program_is_cut_short() -> None:
    line = view.line(["prog", "x" * 100])
    assert len(line) == view.COMMAND_LENGTH
    assert line.endswith("x…")
