"""The watch's decider, case by case."""

from collections.abc import Iterable

import pytest

from client import world
from client.world import EVENT_ID, Run, at, document, kinds, listed, one_by_one, reply
from forewarn.client import session, watch
from forewarn.client.event import Misuse, Updated
from forewarn.client.session import FailedAnswer, Pace, Question
from forewarn.client.watch import EventFilter
from forewarn.protocol import codec, exchange
from forewarn.protocol.message import Reply
from forewarn.vocabulary import EventType

OTHER_ID = "AAAAAAAA-4CBF-4FC4-9C45-B40CF3106D0E"
STARTED = {"EventStatus": "Started"}
EVEN = Pace(jitter=0.0)


def test_an_event_appears_starts_and_is_gone() -> None:
    run = Run(one_by_one(document(), document(listed()), document(listed(**STARTED)), document()))
    told = [change for _ in range(4) for change in run.ask()]
    assert kinds(told) == ["appeared", "started", "gone"]
    assert [change.event.status for change in told] == ["Scheduled", "Started", "Started"]
    assert [change.event.concerns_me for change in told] == [True, True, True]
    assert [(c.appeared, c.started, c.updated, c.gone) for c in told] == [
        (True, False, False, False),
        (False, True, False, False),
        (False, False, False, True),
    ]


def test_a_later_notbefore_is_an_update_that_shows_both() -> None:
    later = listed(NotBefore="Thu, 01 Jan 2026 12:20:00 GMT")
    run = Run(one_by_one(document(listed()), document(later)))
    run.ask()
    (change,) = run.ask()
    assert isinstance(change, Updated)
    assert change.event.not_before is not None
    assert change.before.not_before is not None
    assert (change.event.not_before - change.before.not_before).total_seconds() == 300
    assert change.event.starts_by == world.ORIGIN + 1200


@pytest.mark.parametrize(
    "facts",
    [
        {"EventId": EVENT_ID.lower()},
        {"Resources": ["_web-0"]},
        {"Resources": None},
        {"Description": None, "EventSource": None, "DurationInSeconds": None},
        {"NotBefore": None},
        {"EventStatus": None},
        {"EventType": None},
        {"EventType": "REBOOT", "EventStatus": "scheduled"},
        {"NotBefore": "2026-01-01T12:15:00Z"},
        {"NotBefore": "Fri, 01 Jan 2026 12:15:00 GMT"},
        {"Unknown": {"of": "a later version"}},
    ],
    ids=str,
)
def test_another_way_to_write_the_same_event_is_no_news(facts: dict[str, object]) -> None:
    first = listed(Description="why", DurationInSeconds=5)
    run = Run(one_by_one(document(first), document(first | facts), document(first)))
    for key, value in facts.items():
        if value is None:
            assert key in first
    said = {key: value for key, value in (first | facts).items() if value is not None}
    run.answers = one_by_one(document(first), document(said), document(first), document())
    assert kinds(run.ask()) == ["appeared"]
    assert kinds(run.ask()) == []
    assert kinds(run.ask()) == []
    (gone,) = run.ask()
    assert (gone.event.event_id, gone.event.description) == (EVENT_ID, "why")
    assert gone.event.duration_seconds == 5


def test_a_start_is_told_once_though_the_server_goes_back() -> None:
    run = Run(
        one_by_one(
            document(listed(**STARTED)), document(listed()), document(listed(**STARTED)), document()
        )
    )
    told = [kinds(run.ask()) for _ in range(4)]
    assert told == [["appeared", "started"], ["updated"], ["updated"], ["gone"]]


def test_an_event_that_one_document_leaves_out_is_not_gone() -> None:
    """A server or proxy that is just starting may say once that there are no events."""
    started = document(listed(**STARTED))
    run = Run(one_by_one(started, document(), started, document(), document()))
    assert kinds(run.ask()) == ["appeared", "started"]
    assert kinds(run.ask()) == []
    assert kinds(run.ask()) == ["gone"]
    assert run.troubles == []


def behind(run: Run, seen: int) -> bool:
    """Return True for the first second of answers after so many, as of a replica that is behind."""
    return len(run.asked) > seen and run.seconds < run.asked[seen][0] + exchange.CATCH_UP_SECONDS


def test_an_event_is_not_gone_while_another_replica_is_behind() -> None:
    newest, older = document(listed(), incarnation=6), document(incarnation=5)
    run = Run(lambda *_: older if behind(run, 1) else newest, pace=EVEN)
    assert [kinds(run.ask()) for _ in range(4)] == [["appeared"], [], [], []]


def test_an_approval_is_not_given_up_while_another_replica_is_behind() -> None:
    newest, older = document(listed(), incarnation=6), document(incarnation=5)

    def server(ask: Question, _: bool) -> Reply:
        if ask.method == b"POST":
            posts.append(ask)
            return reply(503 if len(posts) == 1 else 200)
        return older if behind(run, 2) else newest

    posts: list[Question] = []
    run = Run(server, pace=EVEN)
    session.approve(run.session, run._do, at(), [EVENT_ID], None)
    assert len(posts) == 2


def test_an_event_is_gone_though_the_document_that_confirms_another_end_lists_it_again() -> None:
    documents = [document(listed()), document(listed(OTHER_ID)), world.CUT, document()]
    run = Run(one_by_one(*documents, document(listed())))
    told = [(change.kind, change.event.event_id) for _ in range(6) for change in run.look()]
    assert told == [
        *[("appeared", EVENT_ID), ("appeared", OTHER_ID)],
        *[("gone", EVENT_ID), ("gone", OTHER_ID), ("appeared", EVENT_ID)],
    ]


def test_a_server_that_waits_is_not_asked_to_before_every_end_is_confirmed() -> None:
    held: list[bool] = []

    def server(ask: Question, _: bool) -> Reply:
        held.append(bool(ask.held))
        return replies.pop(0) if len(replies) > 1 else replies[0]

    replies = [document(listed()), document(listed(OTHER_ID)), document(listed())]
    run = Run(server)
    told = [(c.kind, c.event.event_id) for _ in range(4) for c in run.ask()]
    assert told[1:] == [("appeared", OTHER_ID), ("gone", OTHER_ID)]
    assert held == [False, True, False, False, False]


def test_an_end_in_doubt_is_not_left_to_a_server_that_waits() -> None:
    def server(_: Question, held: bool) -> Reply:
        if len(replies) > 1:
            return replies.pop(0)
        run.seconds += 60.0 if held else 0.0
        return reply(304, Preference_Applied="wait=60") if held else replies[0]

    waits = {"Preference_Applied": "wait=60"}
    ours, other = document(listed(), **waits), document(listed(OTHER_ID), **waits)
    replies = [ours, other, ours, ours]
    run = Run(server)
    told = [(c.kind, c.event.event_id) for _ in range(3) for c in run.ask()]
    assert told[1:] == [("appeared", OTHER_ID), ("gone", OTHER_ID)]
    assert run.seconds < 10


def test_documents_are_taken_whole_and_only_when_their_events_are_new() -> None:
    ours, both = document(listed()), document(listed(), listed(OTHER_ID), incarnation=2)
    run = whole(document(), document(), ours, document(), ours, both, both, document())
    assert run.watcher.take_document() is None
    taken = [shown for _ in range(20) if (shown := turned(run)) is not None]
    assert taken == [[], [EVENT_ID], [EVENT_ID, OTHER_ID], []]
    assert run.watcher.answered_at is not None


def test_a_new_event_of_a_document_does_not_wait_for_the_end_of_another() -> None:
    run = whole(document(listed()), document(listed(OTHER_ID)))
    taken = [(run.seconds, shown) for _ in range(6) if (shown := turned(run)) is not None]
    assert [shown for _, shown in taken] == [[EVENT_ID], [EVENT_ID, OTHER_ID], [OTHER_ID]]
    assert [seconds for seconds, _ in taken] == pytest.approx([0, 1, 1.05])
    assert [bool(ask.held) for _, ask in run.asked] == [False, True, False]


@pytest.mark.parametrize("wishes", [None, world.EVERYTHING])
def test_a_server_that_waits_is_asked_again_as_soon_as_an_end_is_confirmed(
    wishes: EventFilter | None,
) -> None:
    def server(_: Question, held: bool) -> Reply:
        if held and len(replies) == 1:
            run.seconds += 60.0
            return reply(304, Preference_Applied="wait=60")
        return replies.pop(0) if len(replies) > 1 else replies[0]

    waits = {"Preference_Applied": "wait=60"}
    ours, none = document(listed(), **waits), document(incarnation=2, **waits)
    replies = [document(incarnation=0), ours, none, none]
    run = Run(server, wishes=wishes)
    while len(run.asked) < 5:
        run.turn()
        run.watcher.take_document()
    assert [seconds for seconds, _ in run.asked] == pytest.approx([0, 1, 1.05, 1.1, 1.1])
    assert [bool(ask.held) for _, ask in run.asked] == [False, True, True, False, True]


def test_a_question_after_an_end_that_failures_kept_in_doubt_comes_no_sooner_than_any() -> None:
    none = document()
    run = Run(one_by_one(document(listed()), none, world.CUT, world.CUT, none), chance=0.0)
    while len(run.asked) < 6:
        run.turn()
        run.take()
    (*_, confirmed, following) = (seconds for seconds, _ in run.asked)
    assert following - confirmed == pytest.approx(run.session.pace.poll(0.0))


def whole(*outcomes: Reply | FailedAnswer) -> Run:
    return Run(one_by_one(*outcomes), wishes=None)


def turned(run: Run) -> list[str] | None:
    """Do one thing, and return the events of the document if that is new."""
    run.turn()
    found = run.watcher.take_document()
    return None if found is None else [event.event_id for event in found.events]


def test_names_are_compared_without_case_and_with_the_previews_sign() -> None:
    for resources, concerned in [
        (["WEB-0"], True),
        (["_Web-0"], True),
        (["web-1", "web-0"], True),
        (["web-00", "__web-0"], False),
        ([], False),
    ]:
        run = Run(one_by_one(document(listed(Resources=resources))))
        assert [change.event.concerns_me for change in run.ask()] == [concerned]


@pytest.mark.parametrize(
    ("types", "mine", "told"),
    [
        (None, False, ["web-0", "web-1"]),
        (None, True, ["web-0"]),
        (["freeze"], False, ["web-1"]),
        (["FREEZE", "Reboot"], False, ["web-0", "web-1"]),
        ([EventType.REBOOT], False, ["web-0"]),
        (["Freeze"], True, []),
        (("Freeze", "Reboot"), True, ["web-0"]),
    ],
)
def test_what_is_not_wished_for_is_never_told(
    types: Iterable[str] | None, mine: bool, told: list[str]
) -> None:
    wishes = watch.event_filter(types, mine=mine)
    events = (listed(), listed(OTHER_ID, EventType="Freeze", Resources=["web-1"]))
    started = tuple(event | STARTED | {"NotBefore": ""} for event in events)
    run = Run(one_by_one(document(*events), document(*started), document()), wishes=wishes)
    names = [[change.event.resources[0] for change in run.ask()] for _ in range(3)]
    assert names == [told, told, told]


@pytest.mark.parametrize(("mine", "told"), [(True, ["gone"]), (False, ["updated"])])
def test_an_event_that_this_machine_drops_out_of_is_gone_among_its_own(
    mine: bool, told: list[str]
) -> None:
    both = document(listed(Resources=["web-0", "web-1"]))
    others = document(listed(Resources=["web-1"]), incarnation=2)
    run = Run(one_by_one(both, others, document()), wishes=EventFilter(mine=mine))
    run.ask()
    changes = run.ask()
    assert [(change.kind, change.event.concerns_me) for change in changes] == [(told[0], mine)]
    assert kinds(run.ask()) == ([] if mine else ["gone"])


def test_a_watch_that_resumes_ends_an_event_that_this_machine_has_left() -> None:
    both = document(listed(Resources=["web-0", "web-1"]))
    before = Run(one_by_one(both), wishes=EventFilter(mine=True))
    before.ask()
    others = document(listed(Resources=["web-1"]), incarnation=2)
    run = Run(one_by_one(others), wishes=EventFilter(mine=True), since=before.watcher.since)
    assert kinds(run.ask()) == ["gone"]


@pytest.mark.parametrize("types", ["Reboot", [], [1]])
def test_types_are_some_texts(types: object) -> None:
    with pytest.raises(Misuse, match="event types"):
        watch.event_filter(types, mine=False)


def test_a_type_that_nobody_knows_is_kept_as_text() -> None:
    run = Run(one_by_one(document(listed(EventType="Teleport"))))
    assert [change.event.event_type for change in run.ask()] == ["Teleport"]


def test_the_time_that_an_event_starts_by_does_not_waver_with_each_answer() -> None:
    first = document(listed(), Date="Thu, 01 Jan 2026 12:10:00 GMT")
    later = document(listed(Description="new"), Date="Thu, 01 Jan 2026 12:10:03 GMT")
    run = Run(one_by_one(first, later))
    run.ask()
    (change,) = run.ask()
    assert change.event.starts_by == world.ORIGIN + 300


def test_a_machine_that_slept_has_less_notice_and_that_is_no_update() -> None:
    first = document(listed(), Date="Thu, 01 Jan 2026 12:00:00 GMT")
    slept = document(listed(), Date="Thu, 01 Jan 2026 12:01:01 GMT")
    run = Run(one_by_one(first, slept, slept))
    run.ask()
    assert run.ask() == []
    (known,) = run.listed
    assert known.starts_by == world.ORIGIN + 1 + 839  # a second was ours, 60 more were slept
    run.ask()
    assert run.listed == (known,)


def test_what_an_answer_does_not_say_of_the_notice_is_as_it_was() -> None:
    silent = document(listed(NotBefore=None), Date="Thu, 01 Jan 2026 12:05:00 GMT")
    run = Run(one_by_one(document(listed()), silent))
    run.ask()
    assert run.ask() == []
    assert [known.starts_by for known in run.listed] == [world.ORIGIN + 900]


@pytest.mark.parametrize(("slept", "paused"), [(60.0, 0.0), (0.0, 60.0)])
def test_a_machine_that_slept_while_it_waited_asks_for_the_whole_document(
    slept: float, paused: float
) -> None:
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
    run.ask()
    run.ask()
    run.ask()
    run.ask()
    assert held == [False, True, False, True]


@pytest.mark.parametrize(
    ("is_done", "now", "told"),
    [
        (False, document(listed()), ["appeared"]),
        (False, document(listed(**STARTED)), ["started"]),
        (False, document(), ["gone"]),
        (True, document(listed()), []),
        (True, document(listed(**STARTED)), ["started"]),
        (True, document(), ["gone"]),
    ],
)
def test_a_process_that_ended_in_or_after_a_drain_is_followed_by_one_that_undoes_it(
    is_done: bool, now: Reply, told: list[str]
) -> None:
    run = Run(one_by_one(document(listed())))
    run.turn()
    first = run.watcher.take()
    assert first is not None
    assert first.appeared
    if is_done:
        run.watcher.settle()
    again = Run(one_by_one(now), since=run.watcher.since)
    assert again.take() == []
    assert kinds(again.ask()) == told
    if again.listed:
        assert again.listed[0].starts_by == (None if told == ["started"] else world.ORIGIN + 900)


@pytest.mark.parametrize(
    ("now", "told"), [(document(), ["gone"]), (document(listed()), ["appeared"])]
)
def test_an_end_is_told_again_if_a_process_ended_before_it_was_done_with_it(
    now: Reply, told: list[str]
) -> None:
    run = Run(one_by_one(document(listed()), document()))
    run.ask()
    while (change := run.watcher.take()) is None:
        run.turn()
    assert change.gone
    assert kinds(Run(one_by_one(now), since=run.watcher.since).ask()) == told


def test_the_last_of_two_ends_is_told_in_the_process_after_too() -> None:
    both = document(listed(), listed(OTHER_ID))
    run = Run(one_by_one(both, both))
    run.ask()
    again = Run(one_by_one(document(listed(OTHER_ID)), document()), since=run.watcher.since)
    told = [change for _ in range(4) for change in again.look()]
    assert [(c.kind, c.event.event_id, c.last) for c in told] == [
        ("gone", EVENT_ID, False),
        ("gone", OTHER_ID, True),
    ]


@pytest.mark.parametrize(
    "since", ["", "{", "[]", '{"format":1}', '{"format":2,"known":{"A":{}}}', "[" * 100_000]
)
def test_what_is_no_state_is_the_callers_mistake(since: str) -> None:
    with pytest.raises(Misuse, match="since="):
        Run(one_by_one(document()), since=since)


def test_every_answer_that_was_understood_counts_as_a_look() -> None:
    run = Run(one_by_one(document(), reply(500), document(), document()))
    while len(run.asked) < 4:
        run.turn()
    assert run.watcher.looks == 3


def test_a_state_has_no_time_of_its_process() -> None:
    run = Run(one_by_one(document(listed())))
    run.ask()
    assert '"starts_by":null' in run.watcher.since


@pytest.mark.parametrize("date", ["11:00:00", "12:10:00"])
def test_a_watch_that_resumes_with_a_wrong_clock_has_the_servers_notice(date: str) -> None:
    run = Run(one_by_one(document(listed())))
    run.ask()
    sent = {"Date": f"Thu, 01 Jan 2026 {date} GMT"}
    again = Run(one_by_one(document(listed(), **sent)), since=run.watcher.since)
    assert again.ask() == []
    fresh = Run(one_by_one(document(listed(), **sent)))
    fresh.ask()
    assert [each.starts_by for each in again.listed] == [each.starts_by for each in fresh.listed]
