"""The agent's decider in stories: texts of one verb a line, and the verbs that they are made of.

What follows a line stands behind an arrow: `end web -> do drain`. Nothing follows one without it.

A `step` is an action of the next `rule`; rules that come once events were seen count from the next
`kill` or `reload`. An event is a Reboot of this machine with 900 s of notice, but for what a line
`event` says. Times are seconds from the beginning.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import stories
from agent import bench
from agent.bench import ME, START, Bench
from forewarn.agent import approvals, decider, status
from forewarn.agent.activity import Activity
from forewarn.agent.rules import ActionOutcome, Rule
from forewarn.agent.state import Case, EventRetried
from forewarn.client.event import Event

FILE: Final = Path(__file__).with_name("stories.txt")
STORIES: Final = stories.stories(FILE.read_text(encoding="utf-8"))
MATCH: Final = frozenset({"types", "machine", "min_notice_seconds", "max_notice_seconds"})
NOTICED: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
ANSWERS: Final = {"taken": True, "refused": False, "lost": None}
CONCERNS: Final = {"me": True, "others": False, "nobody": None}


def case(of: Bench, event_id: str) -> Case:
    return of.decider.state.cases[event_id]


def report(of: Bench) -> dict[str, Any]:
    return status.report(of.decider, of.now)


class Logged(Bench):
    """A bench whose decider's doings are told, as the daemon tells them."""

    def __init__(self, *rules: Rule, me: str | None, dry: bool) -> None:
        self.log = Activity(dry=dry)
        super().__init__(*rules, me=me)

    def tell(self, cause: decider.Input) -> list[str]:
        self.log.heard(cause, self.decider, self.now)
        said = super().tell(cause)
        self.log.settled(self.decider)
        return said

    def _take(self, told: decider.Output) -> list[str]:
        self.log.heard(told, self.decider, self.now)
        return super()._take(told)


class Expected:
    """What `expect` says of a bench and its log, by its first word."""

    def __init__(self, of: Logged, log: pytest.LogCaptureFixture) -> None:
        self.of = of
        self.log = log

    def logged(self, *parts: str) -> None:
        """All that was logged since the log was forgotten, with a part of each line."""
        pairs = zip(parts, self.log.messages, strict=True)
        assert all(part in line for part, line in pairs), self.log.messages
        self.log.clear()

    def logged_of(self, event_id: str, *rules: str) -> None:
        facts = [record.__dict__["facts"] for record in self.log.records]
        assert {each["event_id"] for each in facts} == {event_id}
        assert tuple(each.get("rule", "-") for each in facts) == rules

    def logged_times(self, times: str, part: str) -> None:
        assert sum(part in line for line in self.log.messages) == int(times), self.log.messages

    def log_kept(self) -> None:
        assert self.of.decider.state.idle
        gone = ("_begun", "_taken_at", "_phases", "_started", "_asked", "_missing")
        assert not any(vars(self.of.log)[name] for name in gone)

    def effects(self, *names: str) -> None:
        assert tuple(each["effect"] for each in report(self.of)["standing"]) == names

    def phase(self, event_id: str, phase: str) -> None:
        assert case(self.of, event_id).phase == phase

    def results(self, event_id: str, *results: str) -> None:
        assert tuple(str(each or "-") for each in case(self.of, event_id).results) == results

    def agrees(self, event_id: str, told: str) -> None:
        assert approvals.agrees(case(self.of, event_id)) == (told == "yes")

    def standing(self, *names: str) -> None:
        assert tuple(self.of.standing) == names

    def wake(self, at: str) -> None:
        assert self.of.decider.wake_at == (None if at == "never" else START + float(at))

    def reasons(self, event_id: str, *reasons: str) -> None:
        (told,) = [each for each in report(self.of)["events"] if each["event_id"] == event_id]
        assert tuple(action["reason"] for action in told["actions"]) == reasons

    def effect(self, **facts: Any) -> None:
        (effect,) = report(self.of)["standing"]
        assert {name: effect[name] for name in facts} == facts

    def run(self, which: str, **facts: Any) -> None:
        run = self.of.runs[which]
        known = {"attempt": run.attempt, "until": run.until - START, "rule": run.rule}
        known |= {"facts": run.facts, "event": run.event.event_id, "status": run.event.status}
        known["undo_signal"] = getattr(run.action.settings, "undo_signal", "")
        assert {name: known[name] for name in facts} == facts

    def busy(self, told: str) -> None:
        assert self.of.decider.busy == (told == "yes")

    def tried(self, number: str) -> None:
        assert sum(isinstance(record, EventRetried) for record in self.of.journal) == int(number)

    def at_once(self, most: str) -> None:
        """The most actions that were under way together."""
        assert self.of.most_at_once == int(most)

    def phases(self, *phases: str) -> None:
        assert {each.phase for each in self.of.decider.state.cases.values()} == {*phases}

    def cases(self, number: str) -> None:
        assert len(self.of.decider.state.cases) == int(number)

    def again(self, event_id: str, *places: str) -> None:
        """What a boot interrupted of an event."""
        assert case(self.of, event_id).again == [int(each) for each in places]

    def orders(self, *orders: str) -> None:
        effects = self.of.decider.state.effects.values()
        assert [effect.order for effect in effects] == [int(each) for each in orders]

    def approvals(self, number: str) -> None:
        assert len(self.of.approvals) == int(number)


class Story:
    """A story so far: the rules and events that are written down, and the bench."""

    def __init__(self, log: pytest.LogCaptureFixture) -> None:
        self.log = log
        self.is_dry = False
        self.steps: list[dict[str, Any]] = []
        self.rules: list[Rule] = []
        self.events: dict[str, Event] = {}
        self.me: str | None = ME
        self._bench: Logged | None = None

    @property
    def bench(self) -> Logged:
        """The bench, with the rules that were there when the first event was seen."""
        if self._bench is None:
            self._bench = Logged(*self.rules, me=self.me, dry=self.is_dry)
            self.rules = []
        self._bench.me = self.me
        return self._bench

    def carry_out(self, row: str) -> None:
        """Carry a line out, and compare what follows it."""
        told, _, follows = row.partition(" -> ")
        verb, words, given = stories.split(told)
        options = {name: value_of(text) for name, text in given.items()}
        if verb == "expect":
            known = Expected(self.bench, self.log)
            getattr(known, words[0].replace("-", "_"))(*words[1:], **options)
        elif verb:
            made = VERBS.get(verb) or getattr(Story, verb.replace("-", "_"))
            said = made(self, *words, **options) or []
            assert said == several(follows.split(", ") if follows else [])

    def step(self, kind: str, what: str = "", **terms: Any) -> None:
        """Add an action to the next rule."""
        made = {"service": bench.service, "command": bench.command}.get(kind)
        self.steps.append({kind: terms} if made is None else made(what, **terms))

    def rule(self, **given: Any) -> None:
        """Add a rule with the actions before it."""
        match = {name: given.pop(name) for name in MATCH & given.keys()}
        if "types" in match:
            match["types"] = match["types"].split(",")
        self.rules.append(bench.rule(*self.steps, match=match, **given))
        self.steps = []

    def event(self, event_id: str, **facts: Any) -> None:
        """Say how an event is from now on."""
        if "type" in facts:
            facts["event_type"] = facts.pop("type")
        if "of" in facts:
            facts["resources"] = tuple(facts.pop("of").split(","))
        if "concerns" in facts:
            facts["concerns_me"] = CONCERNS[facts.pop("concerns")]
        if (left := facts.pop("left", None)) is not None:
            facts["starts_by"] = START + left
            facts["not_before"] = NOTICED + timedelta(seconds=left)
        self.events[event_id] = bench.event(event_id, **facts)

    def see(self, *ids: str) -> list[str]:
        """Read a document that lists these events.

        `X*9` are events X0 to X8, like an event X that a line told of, or of other machines.
        """
        seen = []
        for word in ids:
            each, _, times = word.partition("*")
            for one in (f"{each}{number}" for number in range(int(times or 0))):
                others = bench.event(resources=(f"o{one}",))
                like = self.events.get(each, others)
                seen.append(msgspec.structs.replace(like, event_id=one))
            if not times:
                seen.append(self.events.get(each) or bench.event(each))
        return self.bench.see(*seen)

    def hear_of(self, event_id: str, *prepared: str) -> list[str]:
        """Hear the answer to the last question for an event."""
        asked = [each.round for each in self.bench.asked if each.event_id == event_id]
        return self.bench.tell(approvals.PeersAnswered(asked[-1], frozenset(prepared)))

    def answer_of(self, event_id: str, how: str) -> list[str]:
        """Answer the approval of an event."""
        sent = [each.request for each in self.bench.approvals if each.event.event_id == event_id]
        return self.bench.tell(approvals.ApprovalAnswered(sent[-1], ANSWERS[how]))

    def end(
        self, which: str, outcome: str = "done", text: str = "said so", *, final: bool = False
    ) -> list[str]:
        """End an action."""
        run = self.bench.runs[which].run
        return self.bench.tell(decider.ActionFinished(run, ActionOutcome(outcome), text, final))

    def end_all(self) -> None:
        """End all actions, and those that begin then."""
        while self.bench.under_way:
            run = next(iter(self.bench.under_way))
            self.bench.tell(decider.ActionFinished(run, ActionOutcome.DONE))

    def kill(self, boot: str = "boot-1", *, without_rules: bool = False) -> list[str]:
        """Begin again from the journal, by the rules before, those given since, or none."""
        if self.rules or without_rules:
            self.bench.rules, self.rules = tuple(self.rules), []
        return self.bench.start(boot)

    def reload(self) -> list[str]:
        """Reload with the rules before."""
        rules, self.rules = self.rules, []
        return self.bench.reload(*rules)

    def name(self, me: str) -> None:
        """Say what this machine is called; `unknown` for nobody knows."""
        self.me = None if me == "unknown" else me

    def shorten(self) -> None:
        """Shorten the journal."""
        self.bench.journal = [self.bench.decider.state.checkpoint()]


def several(words: list[str]) -> list[str]:
    """Return words of which `do log*20` stands for twenty."""
    parts = [word.partition("*") for word in words]
    return [word for word, _, times in parts for _ in range(int(times or 1))]


def value_of(text: str) -> Any:
    """Return the value of an option: JSON, or else a text."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


VERBS: Final[dict[str, Callable[..., list[str] | None]]] = {
    "dry": lambda story: setattr(story, "is_dry", True),
    "forget-log": lambda story: story.log.clear(),
    "retry": lambda story: story.bench.retry(),
    "tick": lambda story: story.bench.tell(decider.TimePassed()),
    "pass": lambda story, seconds: story.bench.let_pass(float(seconds)),
    "find": lambda story, which, **facts: story.bench.find(which, **facts),
    "answer": lambda story, how: story.bench.answer(taken=ANSWERS[how]),
    "hear": lambda story, *prepared: story.bench.hear(*prepared),
    "shutdown": lambda story: story.bench.tell(decider.ShutdownRequested()),
}
"""What is no method of a story by its own name."""


@pytest.mark.parametrize("title", STORIES)
def test_the_story_holds(title: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="forewarn.agent")
    assert stories.play(FILE.name, STORIES[title], Story(caplog).carry_out)
