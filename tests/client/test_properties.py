"""What a watch promises, for any sequence of documents, failures, restarts and lost answers."""

import itertools
import re
from operator import sub
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from client import world
from forewarn.client import watch
from forewarn.client.event import Change
from forewarn.client.session import FailedAnswer, Question
from forewarn.client.watch import EventFilter
from forewarn.protocol.message import Reply

IDS = [f"C1BF8322-4CBF-4FC4-9C45-B40CF3106D0{n}" for n in range(4)]

events = st.fixed_dictionaries(
    {
        "EventStatus": st.sampled_from(["Scheduled", "Started"]),
        "EventType": st.just("Reboot"),
        "Resources": st.sampled_from([["web-0"], ["WEB-0", "web-1"], ["_web-0"], ["web-1"], []]),
        "NotBefore": st.sampled_from(["Thu, 01 Jan 2026 12:15:00 GMT", "", None]),
        "Description": st.sampled_from(["", "more", None]),
        "DurationInSeconds": st.sampled_from([-1, 5, None]),
    }
)
documents = st.dictionaries(st.sampled_from(range(len(IDS))), events, max_size=len(IDS))
failures = st.sampled_from(
    [
        world.CUT,
        world.REFUSED,
        world.reply(404),
        world.reply(429, {"error": "Too many requests"}, Retry_After="2"),
        world.reply(503),
        world.reply(400),
        world.reply(200),
        world.reply(200, b"<html>Sign in</html>"),
        world.reply(200, b'{"DocumentIncarnation":3,"Events":[{"EventId":"C1'),
        world.reply(200, b"{}"),
        world.reply(304),
    ]
)
steps = st.one_of(
    st.tuples(st.just("document"), documents),
    st.tuples(st.just("same"), st.none()),
    st.tuples(st.just("restart"), st.integers(0, 2)),
    st.tuples(st.just("failure"), failures),
)
scripts = st.lists(steps, min_size=1, max_size=12)


class Server:
    """Says what a script says, one step a question, and honours tags as a real one does."""

    def __init__(self, script: list[tuple[str, Any]], *, waits: bool, lower: bool) -> None:
        self.script = script
        self.waits = waits
        self.lower = lower
        self.position = 0
        self.incarnation = 0
        self.content: dict[int, Any] = {}
        self.read: list[set[int]] = []
        self.connection = 0

    def __call__(self, ask: Question, held: bool) -> Reply | FailedAnswer:
        kind, what = self.script[self.position]
        self.position += 1
        if kind == "failure":
            return what
        if kind == "document":
            self.incarnation += self.content != what
            self.content = what
        if kind == "restart":
            self.incarnation = what  # a number that may have been given to another document
            return world.CUT
        self.read.append(set(self.content))
        if held and ask.held[0][1] == b"%d" % self.incarnation:
            return world.reply(304, **self._preference(ask))
        listed = [
            world.listed(IDS[n].lower() if self.lower and self.position % 2 else IDS[n], **facts)
            for n, facts in self.content.items()
        ]
        return world.document(*listed, incarnation=self.incarnation, **self._preference(ask))

    def _preference(self, ask: Question) -> dict[str, str]:
        return {"Preference_Applied": "wait=60"} if self.waits and ask.held else {}

    @property
    def left(self) -> bool:
        return self.position < len(self.script)


def play(
    server: Server, wishes: EventFilter, cut_after: int | None = None, *, is_done: bool = True
) -> list[Change]:
    """Watch to the script's end; after so many changes go on in another client, from its state."""
    run = world.Run(server, wishes=wishes)
    told: list[Change] = []
    while True:
        change = run.watcher.take()
        if change is not None:
            told.append(change)
            if len(told) == cut_after:
                if is_done:
                    run.watcher.settle()
                since = run.watcher.since
                run = world.Run(server, wishes=wishes, since=since, seconds=run.seconds)
        elif server.left:
            run.turn()
        else:
            return told


wished = st.builds(
    EventFilter, mine=st.booleans(), types=st.sampled_from([None, frozenset({"reboot"})])
)


def expected(listed: list[bool]) -> list[str]:
    """What is told of an event by the documents that list it and those that do not."""
    told: list[str] = []
    known = False
    for before, now in itertools.pairwise([False, *listed]):
        if known != now and (now or not before):
            known = now
            told.append("appeared" if now else "gone")
    return told


@given(scripts, st.booleans(), st.booleans())
def test_every_event_appears_starts_at_most_once_and_ends_after_two_looks_without_it(
    script: list[tuple[str, Any]], waits: bool, lower: bool
) -> None:
    # A restart to a lower number: see "an event is gone though the server has lost its memory".
    script = [
        ("failure", world.CUT) if kind == "restart" else (kind, what) for kind, what in script
    ]
    server = Server(script, waits=waits, lower=lower)
    told = play(server, EventFilter())
    for number, event_id in enumerate(IDS):
        listed = [number in read for read in server.read]
        kinds = [change.kind for change in told if change.event.event_id.upper() == event_id]
        lives = [kind for kind in kinds if kind in {"appeared", "gone"}]
        assert lives in (expected(listed), expected(listed[:-1]))  # the last may be in doubt
        for life in "".join(each[0] for each in kinds).split("g"):
            assert life.count("s") <= 1


@given(scripts, st.booleans(), st.booleans(), wished, st.integers(1, 8), st.booleans())
def test_a_run_that_is_cut_anywhere_repeats_at_most_the_change_in_hand(
    script: list[tuple[str, Any]],
    waits: bool,
    lower: bool,
    wishes: EventFilter,
    cut_after: int,
    is_done: bool,
) -> None:
    told = play(Server(script, waits=waits, lower=lower), wishes, cut_after, is_done=is_done)
    without = told[: cut_after - 1] + told[cut_after:]
    for event_id in IDS:
        lives = [
            "".join(each.kind[0] for each in changes if each.event.event_id.upper() == event_id)
            for changes in ([told] if is_done else [told, without])
        ]
        assert any(re.fullmatch("(au*s?u*g)*(au*s?u*)?", life) for life in lives), lives


@given(scripts, st.booleans())
def test_the_last_end_is_told_when_no_other_event_that_was_told_is_left(
    script: list[tuple[str, Any]], waits: bool
) -> None:
    listed: set[str] = set()
    for change in play(Server(script, waits=waits, lower=False), EventFilter()):
        if change.appeared:
            listed.add(change.event.event_id)
        listed -= {change.event.event_id} if change.gone else set()
        assert change.last == (change.gone and not listed)


@given(scripts, st.booleans())
def test_a_start_is_told_by_the_first_document(script: list[tuple[str, Any]], waits: bool) -> None:
    server = Server(script, waits=waits, lower=False)
    run = world.Run(server)
    started: set[str] = set()
    while server.left:
        before = len(server.read)
        run.turn()
        told = run.take()
        started |= {change.event.event_id for change in told if change.started}
        if len(server.read) > before:
            now = {
                IDS[n] for n, facts in server.content.items() if facts["EventStatus"] == "Started"
            }
            assert run.watcher._held_back is not None or not now - started


@given(scripts, st.sampled_from([world.EVERYTHING, None]))
def test_no_question_is_asked_sooner_than_a_pause_allows(
    script: list[tuple[str, Any]], wishes: EventFilter | None
) -> None:
    server = Server(script, waits=False, lower=False)
    run = world.Run(server, chance=0.0, wishes=wishes)
    while server.left:
        run.turn()
        run.take()
    times = [seconds for seconds, _ in run.asked]
    soon = [gap for gap in map(sub, times[1:], times) if gap < run.session.pace.backoff_seconds / 2]
    refused = [what for kind, what in script if kind == "failure" and what == world.reply(400)]
    again = [ask for _, ask in run.asked if ask.answer_seconds == watch.SECOND_LOOK_SECONDS]
    assert len(soon) <= len(refused) + len(again)  # an older version and a second look, at once
