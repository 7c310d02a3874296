"""The watch's decider beside its stories: how servers are asked, and what a handler sees."""

import itertools
import pickle
import re
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client import world
from client.world import EVENT_ID, Run, at, document, kinds, listed, one_by_one, reply
from forewarn import clock
from forewarn.client import session, watch
from forewarn.client.discovery import EndpointAddress
from forewarn.client.event import (
    OVER,
    Appeared,
    Event,
    Gone,
    Misuse,
    RequestRefused,
    Started,
    Trouble,
    Updated,
)
from forewarn.client.session import Attempt, FailedAnswer, Pace, Question
from forewarn.protocol import codec
from forewarn.protocol.message import Reply
from forewarn.vocabulary import EventStatus, EventType

STARTED = {"EventStatus": "Started"}


@pytest.mark.parametrize(("slept", "paused"), [(3.0, 0.0), (0.0, 3.0)])
def test_who_slept_in_a_wait_asks_for_the_whole_document(slept: float, paused: float) -> None:
    held: list[bool] = []

    def answers(ask: Question, _held: bool) -> Reply:
        held.append(bool(ask.held))
        if len(held) == 2:
            run.slept = slept
            run.seconds += 60.0
        stood = 0.0 if len(held) == 1 else slept + paused
        sent = codec.http_date(at(run.seconds, stood).now).decode()
        if len(held) == 2:
            return reply(304, ETag="1", Preference_Applied="wait=60", Date=sent)
        return document(listed(), ETag="1", Date=sent)

    run = Run(answers)
    for _ in range(4):
        run.ask()
    assert held == [False, True, False, True]


def test_a_pause_after_a_failure_has_its_limits_whatever_chance_and_servers_say() -> None:
    pace = Pace()
    assert pace.backoff(1, 0.0) == 0.25
    assert pace.backoff(3, 1.0) == 2
    assert pace.backoff(1000, 1.0) == 10
    for chance, failures in itertools.product((0.0, 0.5, 1.0), (1, 1000)):
        assert pace.backoff(failures, chance, 120.0) <= 10.0


def test_a_document_that_changes_all_the_time_is_asked_for_twenty_times_a_second_at_most() -> None:
    numbers = itertools.count()

    def server(*_: object) -> Reply:
        number = next(numbers)
        changed = listed(Description=str(number))
        return document(changed, incarnation=number, Preference_Applied="wait=60")

    run = Run(server)
    for _ in range(23):
        run.ask()
    assert run.seconds == pytest.approx(1 + 21 * watch.LEAST_GAP_SECONDS)


@pytest.mark.parametrize("begins", [0, 1])
@pytest.mark.parametrize("refused", range(1, 20))
def test_refusals_that_pass_leave_no_event_to_an_older_version(refused: int, begins: int) -> None:
    preempt = listed(EventType="Preempt")

    def server(ask: Question, held: bool) -> Reply:
        if begins < len(run.asked) <= begins + refused:
            return reply(400)
        if held and ask.held[0][1] == b"1":
            return reply(304)
        return document(*[preempt][: ask.version >= "2017-11-01"])

    run = Run(server)
    told = [change.kind for _ in range(refused + 5) for change in run.look()]
    assert told == ["appeared"]
    assert run.asked[-1][1].version == "2020-07-01"


def test_an_old_server_that_names_no_versions_is_asked_for_the_newest_a_few_times_only() -> None:
    def server(ask: Question, _: bool) -> Reply:
        if ask.version != "2019-08-01":
            return reply(400)
        return reply(200) if ask.method == b"POST" else document(listed())

    run = Run(server)
    told = [change.kind for _ in range(20) for change in run.look()]
    assert told == ["appeared"]
    newest = sum(ask.version == "2020-07-01" for _, ask in run.asked)
    assert newest == 1 + session.NEWEST_TRIES
    session.approve(run.session, run._do, at(run.seconds), [EVENT_ID], None)
    fresh = Run(server)
    session.approve(fresh.session, fresh._do, at(), [EVENT_ID], None)
    assert fresh.asked[-1][1].version == "2019-08-01"


@pytest.mark.parametrize(
    ("prefix", "cause"),
    [
        ("", "the address that this request came from"),
        ("", "http://127.0.0.1:8170/vm/NAME"),
        ("/imds", "the address that this request came from"),
        ("/vm/desk-0", "'desk-0'"),
        ("/behind/VM/desk-0", "'desk-0'"),
    ],
)
def test_the_likely_cause_of_a_403_is_that_of_the_address_asked(prefix: str, cause: str) -> None:
    endpoints = [EndpointAddress("127.0.0.1", 8170, prefix)]
    run = Run(one_by_one(reply(403)), name=None, endpoints=endpoints)
    run.ask()
    assert len(run.messages) == 2
    for message in run.messages:  # of the name and of the events
        assert cause in message
    for ask in (session.document, session.machine):
        with pytest.raises(RequestRefused, match=re.escape(cause)):
            ask(run.session, lambda _: Attempt(reply(403), at(), 0.5), at())


@pytest.mark.parametrize(
    ("answer", "takes"),
    [(reply(503, Retry_After="100"), 0.0), (reply(500), 0.0), (world.CUT, 2.0), (world.CUT, 9.0)],
)
def test_the_name_keeps_events_back_for_five_seconds_at_most(answer: object, takes: float) -> None:
    def server(ask: Question, _: bool) -> Reply | FailedAnswer:
        if "compute" in ask.target:
            run.seconds += min(takes, ask.answer_seconds)
            return answer
        return document(listed())

    run = Run(server, name=None)
    looks: list[float] = [0.0]
    while run.seconds < 200:
        run.ask()
        looks.append(run.asked[-1][0])
    gaps = [after - before for before, after in itertools.pairwise(looks)]
    assert max(gaps) <= session.NAME_SECONDS + run.session.pace.poll(1.0)
    assert run.troubles == [watch.NO_NAME]


def test_events_of_others_one_after_another_ask_for_the_name_seldom() -> None:
    numbers = itertools.count()

    def server(ask: Question, _: bool) -> Reply:
        if "compute" in ask.target:
            return reply(200, b"web-0")
        return document(listed(f"E{next(numbers)}", Resources=["web-9"]))

    run = Run(server, name=None)
    while run.seconds < 10 * session.NAME_HOLDS_SECONDS:
        run.look()
    assert 8 <= sum("compute" in ask.target for _, ask in run.asked) <= 12


def test_a_name_that_was_asked_for_when_a_wait_ended_comes_after_events() -> None:
    """Else a caller who waits for a second at a time would never hear of an event."""

    class GaveUpError(Exception):
        pass

    def server(ask: Question, _: bool) -> Reply | FailedAnswer:
        if "compute" in ask.target:
            raise GaveUpError
        return document(listed())

    run = Run(server, name=None)
    with pytest.raises(GaveUpError):
        run.turn()
    assert kinds(run.ask()) == ["appeared"]


def test_what_is_no_state_is_the_callers_mistake() -> None:
    for since in ("", "{", "[]", '{"format":1}', '{"format":2,"known":{"A":{}}}', "[" * 100_000):
        with pytest.raises(Misuse, match="since="):
            Run(one_by_one(document()), since=since)


@pytest.mark.parametrize("types", ["Reboot", [], [1]])
def test_types_are_some_texts(types: object) -> None:
    with pytest.raises(Misuse, match="event types"):
        watch.event_filter(types, mine=False)


@pytest.mark.parametrize(
    "wrong",
    [
        {"poll_seconds": 0},
        {"answer_seconds": -1},
        {"wait_seconds": 0},
        {"jitter": 1.5},
        {"backoff_seconds": float("nan")},
        {"first_answer_seconds": 1e9},
    ],
    ids=str,
)
def test_a_pace_that_is_none_is_the_callers_mistake(wrong: dict[str, float]) -> None:
    with pytest.raises(Misuse, match=next(iter(wrong))):
        Pace(**wrong)


# What a handler sees.


EVENT = Event(
    event_id=world.EVENT_ID,
    status=EventStatus.SCHEDULED,
    event_type=EventType.REBOOT,
    resource_type="VirtualMachine",
    resources=("web-0",),
    not_before=datetime(2026, 1, 1, 12, 15, tzinfo=UTC),
)


def due_in(seconds: float) -> Event:
    return msgspec.structs.replace(EVENT, starts_by=clock.monotonic() + seconds)


def test_notice_runs_out_on_the_monotonic_clock() -> None:
    left = due_in(10_000).notice_left
    assert left is not None
    assert timedelta(seconds=9_000) < left <= timedelta(seconds=10_000)
    assert due_in(-5).notice_left == timedelta(0)
    assert EVENT.notice_left is None


def test_notice_only_ever_shrinks() -> None:
    event = due_in(100)
    looked = [event.notice_left or timedelta(0) for _ in range(1000)]
    assert looked == sorted(looked, reverse=True)


def test_a_change_an_event_and_a_trouble_say_what_they_are() -> None:
    kinds = ("appeared", "started", "updated", "gone")
    changes = (Appeared(EVENT), Started(EVENT), Updated(EVENT, EVENT), Gone(EVENT))
    for change, kind in zip(changes, kinds, strict=True):
        assert change.kind == kind
        assert [name for name in kinds if getattr(change, name)] == [kind]
    assert not EVENT.started
    assert msgspec.structs.replace(EVENT, status="Started").started
    assert Trouble(reason=OVER, message="").over
    assert not Trouble(reason="cut", message="").over


def written() -> str:
    both = world.document(world.listed(), world.listed("B", EventStatus="Started"))
    run = world.Run(world.one_by_one(both))
    run.turn()
    run.watcher.take()
    run.watcher.take()
    return run.watcher.since


@given(st.integers(0, len(written()) - 1), st.sampled_from('{}[]",:0aAnullgone '))
def test_a_state_that_was_damaged_is_a_state_or_the_callers_mistake(at: int, sign: str) -> None:
    whole = written()
    damaged = whole[:at] + sign + whole[at + 1 :]
    try:
        run = world.Run(world.one_by_one(world.document()), since=damaged)
    except Misuse:
        return
    assert all(change.event.event_id for change in run.ask())


def test_what_a_state_holds_is_read_back_as_it_was() -> None:
    known = watch.read_state(written(), world.at())["B"]
    assert known.event.status is EventStatus.STARTED
    assert known.event.event_type is EventType.REBOOT
    assert (known.told, known.handled, known.started) == (True, False, False)


def test_a_refusal_crosses_to_another_process_whole() -> None:
    error = RequestRefused("no", status=403, text="nobody")
    there = pickle.loads(pickle.dumps(error))
    assert (type(there), str(there), vars(there)) == (RequestRefused, str(error), vars(error))


class FrozenDatetime(datetime):
    """The kind of a library that freezes time for tests."""


def test_a_state_takes_any_kind_of_datetime() -> None:
    known = watch.read_state(written(), world.at())[EVENT_ID]
    due = FrozenDatetime(2026, 3, 1, tzinfo=UTC)
    frozen = msgspec.structs.replace(
        known, event=msgspec.structs.replace(known.event, not_before=due)
    )
    read = watch.read_state(watch.write_state({EVENT_ID: frozen}), world.at())
    assert read[EVENT_ID].event.not_before == due


@pytest.mark.parametrize(
    ("names", "troubles", "asked"),
    [
        (["web-9", "web-9", "web-0"], ["misnamed", "named"], 3),
        (["WEB-0"], [], 1),
        (["_web-0"], [], 1),
        ([None], [], 1),
    ],
)
def test_a_name_that_was_given_is_compared_after_the_first_answer(
    names: list[str | None], troubles: list[str], asked: int
) -> None:
    """With a wrong one each event of this machine counts as another's."""
    told = iter(names)

    def server(ask: Question, _: bool) -> Reply | FailedAnswer:
        if "compute" not in ask.target:
            return document()
        name = next(told)
        return reply(404) if name is None else reply(200, name.encode())

    run = Run(server)
    run.session.compare_name()
    while run.seconds < 200:
        run.turn()
    assert run.troubles == troubles
    assert ["compute" in ask.target for _, ask in run.asked].index(True) == 1
    assert sum("compute" in ask.target for _, ask in run.asked) == asked
