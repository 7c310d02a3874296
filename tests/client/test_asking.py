"""What a watch asks, when, and what it says of failures."""

import re
from operator import sub

import pytest

from client import world
from client.world import Run, document, kinds, listed, one_by_one, reply
from forewarn.client import session, watch
from forewarn.client.discovery import EndpointAddress
from forewarn.client.event import Misuse, RequestRefused
from forewarn.client.session import Attempt, Pace, Question
from forewarn.protocol.message import Reply

STARTED = {"EventStatus": "Started"}


def held(run: Run) -> dict[bytes, bytes]:
    return dict(run.asked[-1][1].held)


def test_a_server_that_does_not_wait_is_asked_once_a_second() -> None:
    run = Run(one_by_one(document()))
    for _ in range(10):
        run.ask()
    assert [seconds for seconds, _ in run.asked] == pytest.approx(range(10))
    assert [bool(ask.held) for _, ask in run.asked] == [False, True, *[False] * 8]


def test_a_server_that_does_not_wait_is_asked_to_once_a_minute() -> None:
    waits = False

    def server(_: object, held: bool) -> object:
        run.seconds += 60 if held and waits else 0
        applied = {"Preference_Applied": "wait=60"} if waits else {}
        return reply(304, **applied) if held else document()

    run = Run(server)
    while run.seconds < 130:
        run.ask()
    assert [seconds for seconds, ask in run.asked if ask.held] == pytest.approx([1, 61, 121])
    waits = True
    while run.seconds < 400:
        run.ask()
    times = [seconds for seconds, ask in run.asked if ask.held]
    assert times[3:] == pytest.approx([181, 241, 301, 361])


def test_the_pause_between_polls_is_left_to_chance_within_a_tenth() -> None:
    for chance, pause in [(0.0, 0.9), (0.5, 1.0), (1.0, 1.1)]:
        run = Run(one_by_one(document()), chance=chance)
        run.ask()
        run.ask()
        assert run.seconds == pytest.approx(pause)


class Waiting:
    """A server that holds an answer until the document changes, as section 10 says."""

    def __init__(self, *changes: tuple[float, object], wait: float = 60.0) -> None:
        self.changes = list(changes)
        self.wait = wait
        self.incarnation = 1
        self.run: Run | None = None
        self.current: object = document(incarnation=1)

    def __call__(self, ask: object, held: bool) -> object:
        assert self.run is not None
        said = dict(ask.held)
        if not held or said[b"If-None-Match"] != b"%d" % self.incarnation:
            return self.current
        assert said[b"Prefer"] == b"wait=60"
        preference = {"Preference_Applied": f"wait={self.wait:.0f}"}
        if self.changes and self.changes[0][0] <= self.run.seconds + self.wait:
            seconds, events = self.changes.pop(0)
            self.run.seconds = max(seconds, self.run.seconds)
            self.incarnation += 1
            self.current = document(*events, incarnation=self.incarnation, **preference)
            return self.current
        self.run.seconds += self.wait
        return reply(304, **preference)


def waiting(*changes: tuple[float, object], wait: float = 60.0) -> Run:
    server = Waiting(*changes, wait=wait)
    server.run = Run(server)
    return server.run


def test_a_server_that_waits_is_asked_anew_at_once() -> None:
    run = waiting((100.0, [listed()]), (100.01, [listed(**STARTED)]))
    told = [(change.kind, run.seconds) for _ in range(5) for change in run.ask()]
    assert [kind for kind, _ in told] == ["appeared", "started"]
    assert [seconds for _, seconds in told] == pytest.approx([100, 100.01])
    times = [seconds for seconds, _ in run.asked]
    assert times == pytest.approx([0, 1, 61, 100, 100.05])
    assert all(ask.held_seconds == 60 for _, ask in run.asked[1:])


def test_a_wait_of_one_second_is_a_wait() -> None:
    run = waiting((1.5, [listed()]), (1.6, [listed(**STARTED)]), wait=1)
    told = [(change.kind, run.seconds) for _ in range(3) for change in run.ask()]
    assert told == [("appeared", pytest.approx(1.5)), ("started", pytest.approx(1.6))]


def test_a_server_may_wait_less_than_it_was_asked_to() -> None:
    run = waiting(wait=20)
    for _ in range(5):
        run.ask()
    assert [seconds for seconds, _ in run.asked] == pytest.approx([0, 1, 21, 41, 61])


@pytest.mark.parametrize(
    ("headers", "believed"), [({"Preference_Applied": "wait=1"}, True), ({}, False)]
)
def test_a_server_that_says_so_waits_though_it_ends_a_wait_early(
    headers: dict[str, str], believed: bool
) -> None:
    def server(_: object, held: bool) -> object:
        run.seconds += 0.1 if held else 0
        return reply(304, **headers) if held else document()

    run = Run(server)
    for _ in range(4):
        run.ask()
    assert bool(held(run)) == believed
    assert [seconds for seconds, _ in run.asked] == pytest.approx(range(4))
    assert [seconds for seconds, _ in run.asked] == pytest.approx(range(4))


def test_a_server_that_ends_each_wait_at_once_is_asked_no_more_often_than_polled() -> None:
    run = Run(lambda _, held: reply(304, Preference_Applied="wait=60") if held else document())
    for _ in range(4):
        run.ask()
    assert [seconds for seconds, _ in run.asked] == pytest.approx(range(4))


def test_a_number_that_changes_with_every_answer_is_no_reason_to_hurry() -> None:
    numbers = iter(range(1000))
    run = Run(lambda *_: document(incarnation=next(numbers), Preference_Applied="wait=60"))
    for _ in range(5):
        run.ask()
    assert [seconds for seconds, _ in run.asked] == pytest.approx(range(5))


def test_a_document_that_changes_all_the_time_is_asked_for_twenty_times_a_second_at_most() -> None:
    numbers = iter(range(1000))

    def server(*_: object) -> object:
        number = next(numbers)
        return document(
            listed(Description=str(number)), incarnation=number, Preference_Applied="wait=60"
        )

    run = Run(server)
    for _ in range(23):
        run.ask()
    assert run.seconds == pytest.approx(1 + 21 * watch.LEAST_GAP_SECONDS)


def test_the_tag_is_the_servers_own_where_it_sends_one() -> None:
    run = Run(one_by_one(document(ETag='W/"seven"')))
    run.ask()
    run.ask()
    assert held(run)[b"If-None-Match"] == b'W/"seven"'


def test_without_a_number_nothing_is_held() -> None:
    run = Run(one_by_one(document(incarnation=None)))
    run.ask()
    run.ask()
    assert held(run) == {}


def test_after_a_failure_the_whole_document_is_asked_for() -> None:
    run = waiting()
    run.ask()
    run.ask()
    server, run.answers = run.answers, one_by_one(world.CUT)
    run.ask()
    run.answers = server
    run.ask()
    assert held(run) == {}
    run.ask()
    assert held(run)[b"If-None-Match"] == b"1"


def test_nothing_new_counts_only_where_it_was_asked_for() -> None:
    run = Run(one_by_one(reply(304), document(listed())))
    assert run.ask() == []
    assert run.troubles == ["status-304"]
    assert kinds(run.ask()) == ["appeared"]


def test_the_first_answer_is_waited_for_patiently_and_later_ones_are_not() -> None:
    run = Run(one_by_one(world.CUT, document()))
    for _ in range(3):
        run.ask()
    assert [ask.answer_seconds for _, ask in run.asked] == [150, 150, 10]


def test_failures_are_followed_by_longer_pauses_up_to_a_limit() -> None:
    run = Run(one_by_one(world.CUT), chance=1.0)
    for _ in range(9):
        run.ask()
    times = [seconds for seconds, _ in run.asked]
    gaps = list(map(sub, times[1:], times))
    assert gaps == pytest.approx([0.5, 1, 2, 4, 8, 10, 10, 10])


def test_chance_shortens_a_pause_after_a_failure_by_half_at_the_most() -> None:
    pace = Pace()
    assert pace.backoff(1, 0.0) == 0.25
    assert pace.backoff(3, 1.0) == 2
    assert pace.backoff(1000, 1.0) == 10


@pytest.mark.parametrize(
    ("headers", "pause"),
    [
        ({"Retry_After": "3"}, 3.15),
        ({"Retry_After": "100000"}, 9.55),
        ({"Retry_After": "0"}, 0.375),
        ({"Retry_After": "soon"}, 0.375),
        (
            {
                "Date": "Thu, 01 Jan 2026 12:00:00 GMT",
                "Retry_After": "Thu, 01 Jan 2026 12:00:20 GMT",
            },
            9.55,
        ),
        ({"Retry_After": "Thu, 01 Jan 2026 12:00:20 GMT"}, 0.375),
    ],
)
def test_a_server_that_says_when_to_come_again_is_believed(
    headers: dict[str, str], pause: float
) -> None:
    run = Run(one_by_one(reply(429, **headers), document()))
    run.ask()
    run.ask()
    assert run.seconds == pytest.approx(pause, abs=0.01)


def test_no_server_keeps_a_client_away_for_over_ten_seconds() -> None:
    for chance in (0.0, 0.5, 1.0):
        assert Pace().backoff(1, chance, 120.0) <= 10.0
        assert Pace().backoff(1000, chance, 120.0) <= 10.0


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


def test_trouble_is_told_once_for_each_change_of_its_reason() -> None:
    run = Run(
        one_by_one(*[world.REFUSED] * 3, *[reply(503)] * 2, world.REFUSED, document(), document())
    )
    for _ in range(8):
        run.ask()
    assert run.troubles == ["no-connection", "status-503", "no-connection", "over"]
    assert run.messages[0] == "no connection"
    assert "503" in run.messages[1]
    assert run.messages[3] == "the endpoint answers again"


def test_the_pause_after_a_failure_is_short_again_after_an_answer() -> None:
    run = Run(one_by_one(world.CUT, world.CUT, document(), world.CUT, document()), chance=1.0)
    for _ in range(5):
        run.ask()
    assert [seconds for seconds, _ in run.asked] == pytest.approx([0, 0.5, 1.5, 2.6, 3.1])


@pytest.mark.parametrize(
    "answer",
    [
        reply(404),
        reply(410),
        reply(401),
        reply(403),
        reply(500),
        reply(302),
        reply(200),
        reply(200, b"<html>"),
        reply(200, b"[]"),
        reply(200, b"{}"),
        reply(200, b"null"),
        reply(200, b'{"DocumentIncarnation":7}'),
        reply(200, b'{"DocumentIncarnation":7,"Events":null}'),
        reply(200, b'{"Events":{}}'),
        reply(200, b'{"Events":[{}]}'),
        reply(200, b'{"Events":[null]}'),
        reply(200, b"[" * 100_000),
    ],
    ids=lambda answer: f"{answer.status} {answer.body[:30]!r}",
)
def test_what_is_no_document_is_never_read_as_an_empty_one(answer: object) -> None:
    run = Run(one_by_one(document(listed()), answer, document(listed()), document()))
    assert [kinds(run.ask()) for _ in range(4)] == [["appeared"], [], [], ["gone"]]
    assert run.troubles[-1] == "over"
    assert len(run.troubles) == 2


def test_an_event_that_cannot_be_read_hides_no_other_and_ends_none() -> None:
    odd = listed("B", NotBefore="tomorrow")
    run = Run(
        one_by_one(
            document(listed(), odd),
            document(listed("C"), {}),
            document(listed("C"), {}),
            document(listed("C")),
        )
    )
    assert kinds(run.ask()) == ["appeared", "appeared"]
    assert run.troubles == ["unreadable"]
    assert kinds(run.ask()) == ["appeared"]
    assert kinds(run.ask()) == []  # the entry without an id may be any of the others
    assert run.troubles == ["unreadable"]
    assert kinds(run.ask()) == ["gone", "gone"]
    assert run.troubles == ["unreadable", "over"]


def test_an_entry_without_an_id_keeps_only_those_that_it_may_be() -> None:
    other = listed("B", Resources=["web-9"])
    nameless = listed(None, Resources=["_web-9"])
    run = Run(one_by_one(document(listed(), other), document(nameless), document(nameless)))
    assert kinds(run.ask()) == ["appeared", "appeared"]
    assert kinds(run.ask()) == ["gone"]
    assert [event.event_id for event in run.listed] == ["B"]


NEWEST = ["2019-08-01", "2019-04-01", "2019-01-01"]


def asked_versions(run: Run) -> list[str]:
    return [ask.target.rpartition("=")[2] for _, ask in run.asked]


def test_an_older_version_is_asked_for_at_once_where_the_newest_is_refused() -> None:
    refusal = reply(400, {"error": "Bad request.", "newest-versions": NEWEST})
    run = Run(one_by_one(refusal, document(listed())))
    assert kinds(run.ask() + run.ask()) == ["appeared"]
    assert asked_versions(run) == ["2020-07-01", "2019-08-01"]
    assert run.seconds == 0
    assert run.troubles == []


def test_a_refusal_that_names_versions_leads_straight_to_the_newest_that_is_known() -> None:
    refusal = reply(400, {"error": "", "newest-versions": ["2018-01-01", "2017-11-01"]})
    run = Run(one_by_one(refusal, document()))
    run.ask()
    run.ask()
    assert asked_versions(run) == ["2020-07-01", "2017-11-01"]


def test_a_refusal_without_names_leads_to_the_next_older_one_and_at_last_around() -> None:
    run = Run(one_by_one(*[reply(400)] * 8, document()))
    for _ in range(9):
        run.ask()
    assert asked_versions(run) == [
        *("2020-07-01", "2019-08-01", "2019-04-01", "2019-01-01"),
        *("2017-11-01", "2017-08-01", "2017-03-01", "2020-07-01", "2019-08-01"),
    ]
    assert [seconds for seconds, _ in run.asked][:7] == [0] * 7
    assert run.seconds == 0.375
    assert run.troubles == ["status-400", "over"]


def test_a_version_that_was_taken_is_doubted_after_three_refusals() -> None:
    run = Run(one_by_one(document(), *[reply(400)] * 3, document()))
    for _ in range(5):
        run.ask()
    assert asked_versions(run) == [*["2020-07-01"] * 4, "2019-08-01"]


@pytest.mark.parametrize("begins", [0, 1])
@pytest.mark.parametrize("refused", range(1, 20))
def test_refusals_that_pass_leave_no_event_to_a_version_that_does_not_show_it(
    refused: int, begins: int
) -> None:
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
    assert asked_versions(run).count("2020-07-01") == 1 + session.NEWEST_TRIES
    session.approve(run.session, run._do, world.at(run.seconds), [world.EVENT_ID], None)
    fresh = Run(server)
    session.approve(fresh.session, fresh._do, world.at(), [world.EVENT_ID], None)
    assert fresh.asked[-1][1].version == "2019-08-01"


def test_a_refusal_that_names_the_version_asked_by_is_no_refusal_of_it() -> None:
    refusal = reply(400, {"error": "no", "newest-versions": ["2020-07-01", "2019-08-01"]})
    run = Run(one_by_one(refusal, document()))
    run.ask()
    run.ask()
    assert asked_versions(run) == ["2020-07-01", "2020-07-01"]


PLACES = (
    EndpointAddress("169.254.169.254"),
    EndpointAddress("10.0.0.1"),
    EndpointAddress("10.0.0.2"),
)


@pytest.mark.parametrize(
    "failure", [world.REFUSED, world.CUT, reply(404), reply(302), reply(200, b"<html>"), reply(200)]
)
def test_the_next_place_is_tried_at_once_where_none_has_answered(failure: object) -> None:
    asked: list[str] = []

    def server(ask: object, _: bool) -> object:
        asked.append(run.session.endpoint.host)
        return document(listed()) if len(asked) > 5 and asked[-1] == "10.0.0.1" else failure

    run = Run(server, endpoints=PLACES, name=None)
    while not run.take():
        run.turn()
    run.ask()
    assert asked[:4] == ["169.254.169.254", "10.0.0.1", "10.0.0.2", "169.254.169.254"]
    assert [seconds for seconds, _ in run.asked][:3] == [0, 0, 0]
    assert run.session.endpoint == PLACES[1]
    run.answers = one_by_one(failure)
    run.ask()
    assert run.session.endpoint == PLACES[1]  # it has answered once, and is the one


@pytest.mark.parametrize("failure", [reply(400), reply(403), reply(429), reply(503)])
def test_who_speaks_as_an_endpoint_is_the_one(failure: object) -> None:
    run = Run(one_by_one(failure), endpoints=PLACES)
    for _ in range(3):
        run.ask()
    assert run.session.endpoint == PLACES[0]


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
def test_the_likely_cause_of_a_403_is_the_one_of_the_address_that_was_asked(
    prefix: str, cause: str
) -> None:
    run = Run(
        one_by_one(reply(403)), name=None, endpoints=[EndpointAddress("127.0.0.1", 8170, prefix)]
    )
    run.ask()
    assert len(run.messages) == 2
    for message in run.messages:  # of the name and of the events
        assert cause in message
    for ask in (session.document, session.machine):
        with pytest.raises(RequestRefused, match=re.escape(cause)):
            ask(run.session, lambda _: Attempt(reply(403), world.at(), 0.5), world.at())
