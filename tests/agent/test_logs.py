"""What the log says: a line for each thing that people want to know, and whom it is about."""

import io
import logging
from typing import Any

import pytest

from agent.bench import MARGIN, START, Bench, command, event, rule
from forewarn.agent import logs, status
from forewarn.agent.activity import Activity
from forewarn.agent.decider import (
    ActionFinished,
    Input,
    Output,
)
from forewarn.agent.rules import ActionOutcome
from forewarn.settings import Log


class Told(Bench):
    """A bench whose decider's doings are told, as the daemon tells them."""

    def __init__(self, *args: object, dry: bool = False, **given: object) -> None:
        self.log = Activity(dry=dry)
        super().__init__(*args, **given)  # type: ignore[arg-type]  # the bench's own

    def tell(self, cause: Input) -> list[str]:
        self.log.heard(cause, self.decider, self.now)
        said = super().tell(cause)
        self.log.settled(self.decider)
        return said

    def _take(self, told: Output) -> list[str]:
        self.log.heard(told, self.decider, self.now)
        return super()._take(told)


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


def test_it_is_told_why_what_is_held_stays_so_though_somebody_wants_it_tried_again(
    log: pytest.LogCaptureFixture,
) -> None:
    bench = Told(rule(command("drain")))
    bench.see(event(), event("E2"), event("E3"))
    for _ in bench.document:
        bench.end("drain", ActionOutcome.FAILED)
    bench.see(event(), event("E2", status="Started"), event("E3", starts_by=START + MARGIN))
    log.clear()
    bench.retry()
    assert [(record.levelname, record.getMessage()) for record in log.records] == [
        ("INFO", "retrying E1: an operator asked for it"),
        ("WARNING", "E2 stays held: it is Started, and its rule lacks even_if_started"),
        ("WARNING", "E3 stays held: too little notice is left"),
    ]
    log.clear()
    bench.see(*bench.document)
    assert log.messages == []  # it was one word


def test_an_action_that_waits_by_failing_is_told_once(log: pytest.LogCaptureFixture) -> None:
    bench = Told(rule(command("room", retries=5, retry_seconds=1)))
    bench.see(event())
    for _ in range(5):
        bench.end("room", ActionOutcome.FAILED)
        bench.let_pass(1)
    assert sum("tries again" in line for line in log.messages) == 1
    bench.end("room", ActionOutcome.FAILED)
    assert log.messages[-2].endswith(": failed: said so")


def test_whose_word_is_waited_for_is_told_when_it_changes(log: pytest.LogCaptureFixture) -> None:
    both = event(resources=("web-0", "web-1", "web-2"))
    bench = Told(rule(command("drain")))
    bench.see(both)
    bench.end("drain")
    bench.hear()
    bench.let_pass(1)
    bench.hear()
    bench.let_pass(1)
    bench.hear("web-1")
    waited_for = [line.rpartition(" waits for ")[2] for line in log.messages if " waits " in line]
    assert waited_for == ["web-1, web-2", "web-2"]


def test_a_dry_run_tells_no_ends_of_actions(log: pytest.LogCaptureFixture) -> None:
    bench = Told(rule(command("drain")), dry=True)
    bench.see(event())
    bench.tell(ActionFinished(bench.runs["drain"].run, ActionOutcome.DONE, "dry run"))
    assert log.messages == ["Reboot E1: rule 'r'", "E1 is prepared"]


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ({"ready": {}}, "ready"),
        (command("sync"), "command sync"),
        ({"command": {"run": ["sh", "-c", "sync; sync"]}}, "command sh -c 'sync; sync'"),
        ({"http": {"url": "http://h/room", "method": "GET"}}, "http GET http://h/room"),
    ],
)
def test_what_the_agents_end_interrupted_is_logged_as_people_would_write_it(
    action: dict[str, Any], said: str, log: pytest.LogCaptureFixture
) -> None:
    bench = Told(rule(action))
    bench.see(event())
    log.clear()
    again = Told(*bench.rules)
    again.journal = bench.journal
    again.start()
    assert [line for line in log.messages if line.startswith(f"doing {said}: interrupted")]


def test_what_stands_and_what_is_logged_has_the_names_of_actions_and_no_keys(
    log: pytest.LogCaptureFixture,
) -> None:
    bench = Told(rule(command("drain", shared=False), {"log": {}}))
    bench.see(event())
    bench.end("drain")
    standing = status.report(bench.decider, bench.now)["standing"]
    assert [(each["effect"], each["tells"]) for each in standing] == [
        ("command drain", False),
        ("log", True),
    ]
    assert "E1/r" not in f"{standing} {log.messages}"


def test_no_control_character_of_an_event_reaches_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        logs.set_up(Log(), terminal)
        logging.getLogger("forewarn.agent").warning("%s", "\x1b]0;mine\x07 \x9b2J \r é")
    finally:
        root.handlers[:], root.level = before
    (line,) = terminal.getvalue().splitlines()
    assert line.removesuffix("\n").isprintable()
    assert "é" in line


def test_the_log_keeps_nothing_of_an_event_that_is_over() -> None:
    """An agent runs for years, and each event of its scope is logged."""
    bench = Told(rule({"log": {}}, command("drain")))
    bench.see(event())
    bench.end("log")
    bench.end("drain")
    bench.see()
    bench.end("drain")
    bench.end("log")
    assert bench.decider.state.idle
    kept = vars(bench.log)
    gone = ("_begun", "_taken_at", "_phases", "_started", "_missing")
    assert not any(kept[name] for name in gone)
