"""How a watch learns this machine's name, and what is told without it."""

import itertools

import pytest

from client import world
from client.world import Answers, Run, document, kinds, listed, one_by_one, reply
from forewarn.client import session, watch
from forewarn.client.session import FailedAnswer, Question
from forewarn.client.watch import EventFilter
from forewarn.protocol.message import Reply

LISTED = one_by_one(document(listed()))
NAMED = reply(200, b"web-0")


def naming(*names: Reply | FailedAnswer, events: Answers = LISTED) -> Answers:
    """A server that says these to questions for the name in turn, and the last one for ever."""
    by_name = one_by_one(*names)
    return lambda ask, held: (by_name if "compute" in ask.target else events)(ask, held)


def test_the_name_is_asked_for_before_the_events() -> None:
    run = Run(one_by_one(reply(200, b"WEB-0\n"), document(listed())), name=None)
    (change,) = run.ask()
    assert change.event.concerns_me is True
    assert [ask.target for _, ask in run.asked] == [
        "/metadata/instance/compute/name?api-version=2019-03-11&format=text",
        "/metadata/scheduledevents?api-version=2020-07-01",
    ]
    assert [seconds for seconds, _ in run.asked] == [0, 0]


def test_an_instance_service_of_older_versions_is_asked_by_one_of_them() -> None:
    run = Run(one_by_one(reply(400), reply(200, b"web-0"), document(listed())), name=None)
    assert [change.event.concerns_me for change in run.ask()] == [True]
    assert "2017-08-01" in run.asked[1][1].target


@pytest.mark.parametrize("answer", [reply(404), reply(403), reply(400)])
def test_where_no_name_can_be_learnt_nobody_can_tell_whom_it_concerns(answer: Reply) -> None:
    run = Run(naming(answer), name=None)
    assert [change.event.concerns_me for change in run.ask()] == [None]
    while run.seconds < 200:
        run.ask()
    assert run.troubles == [watch.NO_NAME]
    first_events = next(seconds for seconds, ask in run.asked if "compute" not in ask.target)
    assert first_events > 0  # a server that has just refused is not asked at once
    assert f"answered {answer.status}" in run.messages[0]
    assert len([ask for _, ask in run.asked if "compute" in ask.target]) >= 3


def test_a_server_without_names_is_not_said_to_have_no_events() -> None:
    run = Run(naming(reply(404)), name=None)
    run.ask()
    assert "name" in run.messages[0]
    assert "scheduled events" not in run.messages[0]


def test_a_name_that_is_learnt_later_is_an_update() -> None:
    run = Run(naming(reply(404), reply(404), NAMED), name=None)
    assert [change.event.concerns_me for change in run.ask()] == [None]
    while not (told := run.ask()):
        assert run.seconds < 61
    assert [(change.kind, change.event.concerns_me) for change in told] == [("updated", True)]
    assert run.seconds == pytest.approx(60, abs=2)


def test_a_name_that_is_learnt_later_is_told_although_the_document_is_the_same() -> None:
    """A server that waits for a change would leave its events nobody's until there is one."""

    def events(_: Question, held: bool) -> Reply:
        if not held:
            return document(listed(), ETag="1")
        run.seconds += 60
        return reply(304, Preference_Applied="wait=60")

    run = Run(naming(reply(404), reply(404), NAMED, events=events), name=None)
    assert [change.event.concerns_me for change in run.ask()] == [None]
    while not (told := run.ask()):
        assert run.seconds < 61
    assert [(change.kind, change.event.concerns_me) for change in told] == [("updated", True)]


def test_a_name_that_could_not_be_asked_for_is_learnt_as_soon_as_answers_come() -> None:
    """A machine asks before its network is up; a Preempt has 30 s of notice, not a minute more."""

    def server(ask: Question, _: bool) -> Reply | FailedAnswer:
        if run.seconds < 5:
            return world.REFUSED
        return reply(200, b"web-0") if "compute" in ask.target else document(listed())

    run = Run(server, name=None)
    told = run.ask()
    while not told or told[-1].event.concerns_me is None:
        told += run.ask()
        assert run.seconds < 7
    assert [(change.kind, change.event.concerns_me) for change in told] == [
        ("appeared", None),
        ("updated", True),
    ]
    assert run.troubles == [watch.NO_NAME, "no-connection", "over"]


def named(run: Run) -> list[Question]:
    return [ask for _, ask in run.asked if "compute" in ask.target]


def test_a_machine_that_is_registered_late_learns_at_once_whose_its_first_event_is() -> None:
    """Its questions are refused until then, and the event is there as soon as it is."""

    def server(ask: Question, _: bool) -> Reply | FailedAnswer:
        if run.seconds < 20:
            return reply(403)
        return reply(200, b"web-0") if "compute" in ask.target else document(listed())

    run = Run(server, name=None)
    while not (told := run.ask()):
        assert run.seconds < 27
    first = run.seconds
    told += run.ask()
    assert [(change.kind, change.event.concerns_me) for change in told] == [
        ("appeared", None),
        ("updated", True),
    ]
    assert run.seconds - first < 0.1
    assert len(named(run)) == 2


def test_the_name_is_asked_for_anew_as_soon_as_there_is_a_new_event() -> None:
    ids = ["E1"]
    late = naming(*[reply(404)] * 3, NAMED, events=lambda *_: document(*map(listed, ids)))
    run = Run(late, name=None)
    told = run.ask()
    for event_id in ("E2", "E3"):
        run.ask()
        ids.append(event_id)
        told += run.ask()
    told += run.ask()
    assert [(change.kind, change.event.event_id, change.event.concerns_me) for change in told] == [
        *[("appeared", event_id, None) for event_id in ids],
        *[("updated", event_id, True) for event_id in ids],
    ]
    assert run.troubles == [watch.NO_NAME]
    assert len(named(run)) == 4


@pytest.mark.parametrize(
    ("answer", "takes"),
    [(reply(503, Retry_After="100"), 0.0), (reply(500), 0.0), (world.CUT, 2.0), (world.CUT, 9.0)],
)
def test_the_name_keeps_nobody_from_the_events_for_over_five_seconds(
    answer: object, takes: float
) -> None:
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


def test_an_event_is_told_at_once_whatever_comes_instead_of_the_name() -> None:
    """A balancer with one endpoint that works, and that knows no names."""
    turns = itertools.cycle([document(listed()), reply(503)])
    run = Run(naming(reply(404), events=lambda *_: next(turns)), name=None)
    assert kinds(run.ask()) == ["appeared"]
    assert run.seconds < 0.1


def test_events_that_are_known_ask_for_no_name() -> None:
    events = one_by_one(document(listed("E1")), document(), document(listed("E1")))
    run = Run(naming(reply(404), events=events), name=None)
    told = [change.kind for _ in range(15) for change in run.ask()]
    assert told == ["appeared"]
    assert len(named(run)) == 2


def test_a_name_that_fails_for_a_while_is_tried_three_times_before_the_events() -> None:
    run = Run(one_by_one(*[world.CUT] * 3, document(listed())), name=None)
    assert [change.event.concerns_me for change in run.ask()] == [None]
    assert ["compute" in ask.target for _, ask in run.asked] == [True, True, True, False]
    assert [seconds for seconds, _ in run.asked] == pytest.approx([0, 0.375, 1.125, 1.125])
    assert run.troubles == [watch.NO_NAME]


def test_a_name_that_was_learnt_at_last_leaves_no_failures_behind() -> None:
    answers = [world.CUT, world.CUT, reply(200, b"web-0"), world.CUT, document()]
    run = Run(one_by_one(*answers), name=None, chance=1.0)
    run.ask()
    run.ask()
    assert [seconds for seconds, _ in run.asked] == pytest.approx([0, 0.5, 1.5, 1.5, 2.0])


@pytest.mark.parametrize(("status", "tries"), [(410, 3), (429, 3), (500, 3), (404, 1), (302, 1)])
def test_a_name_is_tried_again_before_the_events_where_that_may_help(
    status: int, tries: int
) -> None:
    run = Run(naming(reply(status)), name=None)
    run.ask()
    assert len(named(run)) == tries


OTHERS = one_by_one(document(listed(Resources=["web-9"])))


def after_one_look() -> Answers:
    """Events of web-9 from the second look on."""
    return one_by_one(document(), document(listed(Resources=["web-9"])))


@pytest.mark.parametrize(("now", "told"), [(b"web-9", ["appeared"]), (b"web-0", [])])
def test_an_event_of_another_machine_has_the_own_name_asked_for_again(
    now: bytes, told: list[str]
) -> None:
    server = naming(NAMED, reply(200, now), events=after_one_look())
    run = Run(server, name=None, wishes=EventFilter(mine=True))
    run.look()
    run.seconds += session.NAME_HOLDS_SECONDS
    assert kinds(run.look() + run.look()) == told
    assert run.session.name == now.decode()
    assert len(named(run)) == 2


def test_a_refusal_that_passes_leaves_the_newer_version_of_the_instance_service() -> None:
    run = Run(naming(reply(400), NAMED, events=after_one_look()), name=None)
    run.look()
    run.seconds += session.NAME_HOLDS_SECONDS
    run.look()
    run.look()
    asked = [ask.version for _, ask in run.asked if ask.of_instance]
    assert asked == ["2019-03-11", "2017-08-01", "2019-03-11"]


def test_a_name_that_was_given_is_never_asked_for() -> None:
    server = naming(reply(200, b"web-9"), events=after_one_look())
    run = Run(server, name="web-0", wishes=EventFilter(mine=True))
    for _ in range(3):
        run.look()
        run.seconds += session.NAME_HOLDS_SECONDS
    assert named(run) == []


def test_a_name_that_cannot_be_asked_for_again_is_kept_without_a_word() -> None:
    run = Run(naming(NAMED, reply(404), events=OTHERS), name=None)
    run.seconds += session.NAME_HOLDS_SECONDS
    for _ in range(3):
        run.look()
    assert (run.session.name, run.troubles) == ("web-0", [])


def test_events_of_others_one_after_another_ask_for_the_name_seldom() -> None:
    numbers = itertools.count()

    def events(*_: object) -> Reply:
        return document(listed(f"E{next(numbers)}", Resources=["web-9"]))

    run = Run(naming(NAMED, events=events), name=None)
    while run.seconds < 10 * session.NAME_HOLDS_SECONDS:
        run.look()
    assert 8 <= len(named(run)) <= 12


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
