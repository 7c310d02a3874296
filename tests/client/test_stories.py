"""The watch's decider in stories: texts of one verb a line, and the verbs that they are made of.

What the server says comes in turn, and the last of it for ever: `[A,B!]` is a document with two
events, of which B has started; `503*2` are two statuses, `cut`, `refused` and `hangs` failures, and
any other word is a body, as is `=[]`. With `at=` it says so from that second on. `names` and
`posts` are its answers to questions for the name and to approvals, where these differ.

What follows a line stands behind an arrow: `ask -> appeared A, gone B~`. An event that has started
has `!`, one of another machine `~`, one of nobody knows whom `?`. After `more`, others are left.
"""

import collections
import shlex
from collections.abc import Callable, Iterable
from operator import sub
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import stories
from client import world
from client.world import Run, at, reply
from forewarn.client import session
from forewarn.client.discovery import EndpointAddress
from forewarn.client.event import BadAnswer, Change, ClientError, RequestRefused, Updated
from forewarn.client.session import FailedAnswer, Pace, Question
from forewarn.client.watch import EventFilter, event_filter
from forewarn.protocol.message import Reply

FILE: Final = Path(__file__).with_name("stories.txt")
STORIES: Final = stories.stories(FILE.read_text(encoding="utf-8"))
PLACES: Final = tuple(EndpointAddress(f"10.0.0.{n}") for n in (1, 2, 3))
FACTS: Final = {"of": "Resources", "type": "EventType", "description": "Description"}
HANGS: Final = FailedAnswer(reason="no-answer", message="no answer in time")
FAILURES: Final = {"cut": world.CUT, "refused": world.REFUSED, "hangs": HANGS}
CONCERNS: Final = {True: "", False: "~", None: "?"}


class Said:
    """What a server says to one kind of question, in turn."""

    def __init__(self) -> None:
        self.coming: collections.deque[tuple[float, Reply | FailedAnswer]] = collections.deque()
        self.now: Reply | FailedAnswer | None = None

    def come(self, by: float) -> float | None:
        """Go on to the next answer if it is due by then; return since when it is."""
        if not self.coming or self.coming[0][0] > by:
            return None
        since, self.now = self.coming.popleft()
        return since


class Story:
    """A story so far: the server, and the watch once something was asked."""

    def __init__(self) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self.said: dict[str, Said] = collections.defaultdict(Said)
        self.waits: float | None = None
        self.silent = False
        self.wishes: EventFilter | None = world.EVERYTHING
        self.given: dict[str, Any] = {}
        self.places: list[int] = []
        self.marked = 0.0
        self.last: Change | None = None
        self._run: Run | None = None

    @property
    def run(self) -> Run:
        if self._run is None:
            self._run = Run(self.answer, wishes=self.wishes, **self.given)
        return self._run

    def answer(self, ask: Question, held: bool) -> Reply | FailedAnswer:
        """Say what comes next; a question that may be held waits for that, if the server does."""
        run = self.run
        self.places.append(int(run.session.endpoint.host[-1]))
        kind = "names" if ask.of_instance else "posts" if ask.method == b"POST" else "says"
        said = self.said[kind] if kind in self.said else self.said["says"]
        if held:
            assert dict(ask.held)[b"Prefer"] == b"wait=25"
        waits = self.waits if held else None
        since = said.come(run.seconds + (waits or 0.0))
        if since is not None:
            run.seconds = max(run.seconds, since)
        elif waits is not None:
            run.seconds += waits
            applied = {} if self.silent else {"Preference_Applied": f"wait={max(waits, 1):.0f}"}
            return reply(304, **applied)
        assert said.now is not None
        run.seconds += ask.answer_seconds * (said.now is HANGS)
        return said.now

    def carry_out(self, row: str) -> None:
        """Carry a line out, and compare what follows it."""
        told, _, follows = row.partition(" -> ")
        verb, words, options = stories.split(told)
        if verb == "expect":
            self.expect(*words)
        elif verb:
            act = VERBS.get(verb) or getattr(Story, verb.replace("-", "_"))
            said = act(self, *words, **options) or []
            if verb in {"approve", "document"} and follows:
                kind, text = shlex.split(follows)
                assert said[0].startswith(kind)
                assert text in said[0]
            else:
                assert ", ".join(said) == follows

    def watch(self, name: str = world.NAME, **options: str) -> None:
        """Say how the watch is, before it begins."""
        self.given["name"] = None if name == "unknown" else name
        if "documents" in options:
            self.wishes = None
        if "mine" in options or "types" in options:
            types = stories.listed(options["types"]) if "types" in options else None
            self.wishes = event_filter(types, mine="mine" in options)
        if "even" in options:
            self.given["pace"] = Pace(jitter=0.0)
        if "chance" in options:
            self.given["chance"] = float(options["chance"])
        if "places" in options:
            self.given["endpoints"] = PLACES

    def server(self, waits: str, silent: str = "") -> None:
        """Say how long the server holds an answer, and whether it does not say that it does."""
        self.waits, self.silent = float(waits), silent == "yes"

    def event(self, event_id: str, *raw: str, not_before: str = "", **facts: str) -> None:
        """Say how an event is written from now on; `Name=VALUE` is to the letter."""
        written: dict[str, Any] = {FACTS[name]: value for name, value in facts.items()}
        if "Resources" in written:
            written["Resources"] = written["Resources"].split(",")
        if not_before:
            known = f"Thu, 01 Jan 2026 {not_before}:00 GMT" if ":" in not_before else not_before
            written["NotBefore"] = None if not_before == "none" else known
        self.events[event_id] = written | _to_the_letter(raw)

    def once(self, event_id: str, *raw: str) -> None:
        """Write an event in another form once, and then as before."""
        usual = self.events[event_id]
        for written in (usual | _to_the_letter(raw), usual):
            self.events[event_id] = written
            self.say("says", f"[{event_id}]")

    def say(self, kind: str, *words: str, **options: str) -> None:
        """Add what the server says, with these headers."""
        since = float(options.pop("at", "0"))
        incarnation = options.pop("incarnation", "1")
        body = {"error": options.pop("error")} if "error" in options else b""
        headers = {name.title(): value for name, value in options.items()}
        for word in words:
            what, _, times = word.partition("*")
            made = self.outcome(what, None if incarnation == "none" else int(incarnation), headers)
            if body:
                made = reply(int(what), body)
            self.said[kind].coming += [(since, made)] * int(times or 1)

    def outcome(
        self, word: str, incarnation: int | None, headers: dict[str, str]
    ) -> Reply | FailedAnswer:
        if word.startswith("="):
            return reply(200, word[1:].encode())
        if word in FAILURES:
            return FAILURES[word]
        if word.startswith("["):
            ids = stories.listed(word.strip("[]"))
            listed = [self.written(each) for each in ids]
            return world.document(*listed, incarnation=incarnation, **headers)
        status, _, versions = word.partition(":")
        if versions:
            refusal = {"error": "", "newest-versions": versions.split(",")}
            return reply(int(status), refusal)
        if word.isdigit():
            return reply(int(word), **headers)
        return reply(200, word.encode(), **headers)

    def written(self, word: str) -> dict[str, Any]:
        event_id = word.removesuffix("!")
        facts = self.events.get(event_id, {})
        if word.endswith("!"):
            facts = {**facts, "EventStatus": "Started"}
        if event_id == "-":  # an entry that says no id
            return world.listed(None, **facts) if facts else {}
        return world.listed(event_id, **facts)

    def told(self, changes: list[Change]) -> list[str]:
        """Return changes in words."""
        self.last = changes[-1] if changes else self.last
        return [_word(change) for change in changes]

    def ask(self) -> list[str]:
        """Ask for the document, and twice to confirm an end."""
        return self.told(self.run.ask())

    def asks(self, times: str) -> list[str]:
        return [word for _ in range(int(times)) for word in self.ask()]

    def looks(self, times: str = "1") -> list[str]:
        """Ask for the document so many times."""
        return [word for _ in range(int(times)) for word in self.told(self.run.look())]

    def until(self, seconds: str) -> list[str]:
        """Ask until then."""
        said = []
        while self.run.seconds < float(seconds):
            said += self.ask()
        return said

    def until_told(self) -> list[str]:
        """Ask until something is told."""
        while not (said := self.ask()):
            assert self.run.seconds < 200
        return said

    def turns(self, times: str = "1") -> list[str]:
        """Take so many steps, and return the documents that are new."""
        said = []
        for _ in range(int(times)):
            self.run.turn()
            if self.wishes is None and (shown := self.run.watcher.take_document()) is not None:
                said.append(f"[{','.join(event.event_id for event in shown.events)}]")
        return said

    def take(self) -> list[str]:
        """Take the next change."""
        change = self.run.watcher.take()
        return self.told([] if change is None else [change])

    def document(self) -> list[str]:
        """Ask for the document once, without a watch; return an event, and what it starts by."""
        try:
            found = session.document(self.run.session, self.run._do, at(self.run.seconds))
        except ClientError as error:
            return [_failed(error)]
        (event,) = found.events
        return [f"{event.event_id} {event.starts_by - world.ORIGIN:.0f}"]

    def approve(self, *ids: str, within: str = "") -> list[str]:
        """Approve events, and return how that has failed."""
        now, seconds = at(self.run.seconds), float(within) if within else None
        try:
            session.approve(self.run.session, self.run._do, now, ids, seconds)
        except ClientError as error:
            return [_failed(error)]
        return []

    def report(self, status: str, reason: str = "") -> None:
        """Report how the machine fares."""
        session.report(self.run.session, self.run._do, at(self.run.seconds), status, reason)

    def resume(self) -> None:
        """Go on in another process."""
        self._run = Run(self.answer, wishes=self.wishes, since=self.run.watcher.since, **self.given)

    def mark(self) -> None:
        """Take the time that `expect passed` counts from."""
        self.marked = self.run.seconds

    def wait(self, seconds: str) -> None:
        """Let time pass."""
        self.run.seconds += float(seconds)

    def expect(self, what: str, *expected: str) -> None:
        """Compare what is known of the watch: numbers nearly, and the rest to the letter."""
        if what in LIMITS:
            assert LIMITS[what](self) < float(expected[0])
        elif what == "messages":
            pairs = zip(expected, self.run.messages, strict=True)
            assert all(part in message for part, message in pairs)
        elif what == "state-has":
            assert expected[0] in self.run.watcher.since
        else:
            found = KNOWN[what](self)
            if found and all(isinstance(each, int | float) for each in found):
                assert found == pytest.approx([float(each) for each in expected])
            else:
                assert found == list(expected)


def _failed(error: ClientError) -> str:
    if isinstance(error, RequestRefused):
        return f"request-refused {error.status} {error.text}"
    return f"{'bad-answer' if isinstance(error, BadAnswer) else 'unreachable'} {error}"


def _to_the_letter(raw: Iterable[str]) -> dict[str, Any]:
    pairs = (word.partition("=") for word in raw)
    return {name: msgspec.json.decode(value) for name, _, value in pairs}


def _word(change: Change) -> str:
    event = change.event
    mark = "!" if event.status == "Started" else ""
    said = f"{change.kind} {event.event_id}{mark}{CONCERNS[event.concerns_me]}"
    if isinstance(change, Updated) and event.not_before and change.before.not_before:
        later = (event.not_before - change.before.not_before).total_seconds()
        said += f" +{later:.0f}" if later else ""
    return said + (" more" if change.gone and not change.last else "")


def _events(story: Story) -> list[tuple[float, Question]]:
    return [(seconds, ask) for seconds, ask in story.run.asked if not ask.of_instance]


def _names(story: Story) -> list[Question]:
    return [ask for _, ask in story.run.asked if ask.of_instance]


def _posted(story: Story) -> list[str]:
    bodies = [ask.body for _, ask in story.run.asked if ask.method == b"POST"]
    entries = [msgspec.json.decode(body)["StartRequests"] for body in bodies]
    return ["+".join(each["EventId"] for each in some) for some in entries]


def _last(story: Story) -> list[str]:
    assert story.last is not None
    event = story.last.event
    return [event.event_id, event.description or "", f"{event.duration_seconds}s"]


def _times(story: Story) -> list[float]:
    return [seconds for seconds, _ in story.run.asked]


def _starts_by(story: Story) -> list[float | str]:
    known = [event.starts_by for event in story.run.listed]
    return ["none" if each is None else each - world.ORIGIN for each in known]


LIMITS: Final[dict[str, Callable[[Story], float]]] = {
    "before": lambda story: story.run.seconds,
    "passed": lambda story: story.run.seconds - story.marked,
}
KNOWN: Final[dict[str, Callable[[Story], list[Any]]]] = {
    "times": _times,
    "now": lambda story: [story.run.seconds],
    "last-gap": lambda story: list(map(sub, _times(story)[-1:], _times(story)[-2:])),
    "held": lambda story: ["yes" if ask.held else "no" for _, ask in _events(story)],
    "held-times": lambda story: [seconds for seconds, ask in _events(story) if ask.held],
    "held-seconds": lambda story: list({ask.held_seconds for _, ask in _events(story) if ask.held}),
    "answer-seconds": lambda story: [ask.answer_seconds for _, ask in _events(story)],
    "tag": lambda story: [dict(story.run.asked[-1][1].held)[b"If-None-Match"].decode()],
    "targets": lambda story: [ask.target for _, ask in story.run.asked],
    "versions": lambda story: [ask.version for _, ask in _events(story)],
    "names": lambda story: [len(_names(story))],
    "name-versions": lambda story: [ask.version for ask in _names(story)],
    "name": lambda story: [story.run.session.name],
    "places": lambda story: list(map(float, story.places)),
    "methods": lambda story: [ask.method.decode() for _, ask in story.run.asked],
    "posted": _posted,
    "reports": lambda story: [ask.report for _, ask in _events(story)],
    "troubles": lambda story: story.run.troubles,
    "looks": lambda story: [story.run.watcher.looks],
    "listed": lambda story: [event.event_id for event in story.run.listed],
    "starts-by": _starts_by,
    "last": _last,
    "type": lambda story: [event.event_type for event in story.run.listed],
}
VERBS: Final[dict[str, Callable[..., list[str] | None]]] = {
    "says": lambda story, *words, **options: story.say("says", *words, **options),
    "names": lambda story, *words, **options: story.say("names", *words, **options),
    "posts": lambda story, *words, **options: story.say("posts", *words, **options),
    "look": Story.looks,
    "turn": Story.turns,
    "compare-name": lambda story: story.run.session.compare_name(),
    "set-clock": lambda story, ahead: setattr(story.run, "slept", float(ahead)),
    "settle": lambda story: story.run.watcher.settle(),
}
"""What is no method of a story by its own name."""


@pytest.mark.parametrize("title", STORIES)
def test_the_story_holds(title: str) -> None:
    assert stories.play(FILE.name, STORIES[title], Story().carry_out)
