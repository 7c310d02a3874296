"""What the pool's rounds are judged by can fail, and what is drawn is what happened."""

import dataclasses

import pytest

from pool import picture, place, results
from pool.results import Change, DemoFailed, Event, Failure, Machine, Round, State, follow


def machine(name: str, *, boots: tuple[int, ...] = (10, 20), down: float = 10.0) -> Machine:
    changes = [
        Change(-3.0, State.DOWN),
        Change(-1.0, State.SERVING),
        Change(down - 7, State.LEAVING),
        Change(down, State.DOWN),
        Change(down + 2, State.RETURNING),
        Change(down + 4, State.SERVING),
    ]
    return Machine(name, place.domain(name), list(boots), changes)


def event(number: int, *machines: str, **changes: object) -> Event:
    given = Event(
        operation=f"1.{number}",
        machines=machines,
        approved_by=machines[0],
        by_guest=True,
        status="Completed",
        at=1.0,
    )
    return dataclasses.replace(given, **changes)


def played(**changes: object) -> Round:
    """A round with agents that went as it should."""
    given = Round(
        agents=True,
        seconds=40.0,
        asking_seconds=38.0,
        answered={"quick new": 4000, "quick kept": 4000, "slow new": 150, "slow kept": 150},
        failures=[],
        slowest={"quick new": 0.05, "quick kept": 0.02, "slow new": 2.1, "slow kept": 2.2},
        approvals=3,
        events=[
            event(1, "web-0", "web-3"),
            event(2, "web-1", "web-4"),
            event(3, "web-2", "web-5"),
        ],
        machines=[machine(name, down=10 + 10 * place.domain(name)) for name in place.MACHINES],
    )
    return dataclasses.replace(given, **changes)


def bare(**changes: object) -> Round:
    """A round without agents that went as it should."""
    events = [
        dataclasses.replace(each, approved_by="ann", by_guest=False) for each in played().events
    ]
    failures = [Failure(10.0 + n / 100, "quick new", "status 503") for n in range(100)]
    failures += [Failure(30.0, "slow kept", "cut short")]
    given = played(agents=False, approvals=0, events=events, failures=failures)
    return dataclasses.replace(given, **changes)


def test_a_round_that_went_as_it_should_is_told() -> None:
    load, events, failures = results.judge(played())
    assert load == "218 requests/s over new and kept connections, some of them lasting 2.2 s"
    assert events.startswith("3 events of 2 machines, each approved once, by its first machine;")
    assert events.endswith("; every machine was restarted")
    assert failures == "0 of 8300 requests failed (0.00%)"
    assert results.judge(bare())[1:] == [
        "3 events of 2 machines, approved by the operator; every machine was restarted",
        "101 of 8401 requests failed (1.20%)",
    ]


BROKEN = {
    "one request failed": (
        played(failures=[Failure(12.34, "slow new", "cut short")]),
        r"1 of 8301 requests failed .*after 12\.3 s, slow new: cut short",
    ),
    "the client was slow": (played(asking_seconds=80.0), "only 104 requests/s"),
    "a kind of request is missing": (
        played(answered={"quick new": 9000, "quick kept": 1, "slow new": 1}),
        "kind 'slow kept'",
    ),
    "a machine had no event": (played(events=played().events[:2]), "events named web-0"),
    "an operation failed": (
        played(events=[*played().events[:2], event(3, "web-2", "web-5", status="Failed")]),
        "1.3 is Failed",
    ),
    "an operator approved": (
        played(events=[*played().events[:2], event(3, "web-2", "web-5", by_guest=False)]),
        "approved by web-2",
    ),
    "the second machine approved": (
        played(events=[*played().events[:2], event(3, "web-2", "web-5", approved_by="web-5")]),
        "approved by web-5",
    ),
    "an approval too many": (played(approvals=4), "4 approvals for 3 events"),
    "a machine was not restarted": (
        played(machines=[machine("web-0", boots=(10,)), *played().machines[1:]]),
        "web-0 was booted 1 times",
    ),
    "without agents too few failed": (
        bare(failures=[Failure(1.0, "quick new", "refused")]),
        "1 of 8301 requests failed",
    ),
    "without agents a guest approved": (bare(approvals=1), "1 approvals for 0 events"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_not_as_it_should_be_is_found(name: str) -> None:
    broken, words = BROKEN[name]
    with pytest.raises(DemoFailed, match=words):
        results.judge(broken)


def test_a_machine_s_state_follows_from_what_is_seen_of_it() -> None:
    assert follow(None, on=False, up=False, ready=False) is State.DOWN
    assert follow(State.DOWN, on=True, up=False, ready=True) is State.RETURNING
    assert follow(State.RETURNING, on=True, up=True, ready=False) is State.RETURNING
    assert follow(State.RETURNING, on=True, up=True, ready=True) is State.SERVING
    assert follow(State.SERVING, on=True, up=True, ready=False) is State.LEAVING
    assert follow(State.LEAVING, on=True, up=False, ready=False) is State.LEAVING
    assert follow(State.SERVING, on=False, up=True, ready=True) is State.DOWN


def test_the_text_shows_each_state_at_its_time() -> None:
    lines = picture.text(played(), width=40)  # a column is a second
    assert lines[0] == "       0 s       10 s      20 s      30 s"
    assert lines[1] == "web-0  ███▒▒▒▒▒▒▒✗✗░░" + "█" * 26
    assert [line[:5] for line in lines[1:7]] == [
        *("web-0", "web-3", "web-1", "web-4", "web-2", "web-5")
    ]
    assert lines[7] == "failed none"
    assert lines[8].split() == ["█", "serving", "▒", "leaving", "✗", "down", "░", "returning"]


def test_the_text_shows_when_requests_failed() -> None:
    shown = picture.text(bare(), width=40)[7]
    assert shown == "failed           █                   ▁"
    assert sum(picture.failures(bare(), 7)) == 101


def test_a_state_that_is_short_is_not_hidden_by_the_longer_beside_it() -> None:
    brief = [Change(0.0, State.SERVING), Change(5.4, State.DOWN), Change(5.5, State.SERVING)]
    one = Machine("web-0", 0, [1, 2], brief)
    assert picture.text(played(machines=[one]), width=40)[1] == "web-0  █████✗" + "█" * 34


def test_the_picture_has_both_rounds() -> None:
    drawn = picture.svg([played(), bare()])
    assert drawn.count("<g ") == 3
    assert "With agents: 0 of 8,300 requests failed (0.00%)" in drawn
    assert "Without agents: 101 of 8,401 requests failed (1.20%)" in drawn
    assert drawn.count(f'fill="{picture.COLOURS[State.DOWN]}"') >= 12
