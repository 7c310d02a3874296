"""What keeps an operation where it is, in words, at each point of its life."""

from datetime import timedelta

import msgspec
import pytest

from builders import MINUTE, NOW, Bench
from forewarn.maintenance import commands, standing
from forewarn.maintenance.model import HoldKind, Sighting, Verdict
from forewarn.vocabulary import EventType

REBOOT = EventType.REBOOT


@pytest.fixture
def bench() -> Bench:
    return Bench()


def detail(bench: Bench, operation: str = "1.1") -> str:
    known = bench.snapshot.operations
    live = {name: one for name, one in known.items() if one.live}
    return standing.status_detail(known[operation], live, bench.snapshot.holds, bench.now)


def test_what_is_announced_says_what_starts_it(bench: Bench) -> None:
    bench.ask(REBOOT, "web-0")
    assert detail(bench) == "starts when approved, or at 12:15Z"
    bench.now += timedelta(days=-1)
    assert detail(bench) == "starts when approved, or at 03-02 12:15Z", "another day is named"
    bench.now = NOW
    bench.approve(bench.event("1.1").id)
    assert detail(bench) == "since 12:00Z"


def test_what_opens_later_says_when(bench: Bench) -> None:
    bench.ask(REBOOT, "web-0", opens_at=NOW + 30 * MINUTE)
    assert detail(bench) == "until 12:14Z", "so long it is queued"
    bench.let_pass(15 * MINUTE)
    assert detail(bench) == "starts when approved from 12:30Z on, or at 12:30Z"
    bench.approve(bench.event("1.1").id)
    assert detail(bench) == "approved, starts at 12:30Z"


def test_what_waits_says_for_what_and_what_would_end_that(bench: Bench) -> None:
    bench.ask(REBOOT, "web-0", no_notice=True)
    bench.ask(REBOOT, "web-1")
    assert detail(bench, "2.1") == "waits for 1.1"
    bench.claim("1.1")
    bench.decide(
        commands.report_unknown_outcome,
        operation_id="1.1",
        attempt=bench.operation("1.1").attempt,
        message="the host is gone",
    )
    assert detail(bench) == "outcome unknown: resolve 1.1"
    assert detail(bench, "2.1") == "waits for 1.1, whose outcome is unknown: resolve 1.1"
    failed = Verdict.FAILED
    bench.decide(commands.resolve_outcomes, operations=["1.1"], verdict=failed, by="ann")
    assert detail(bench) == "not acknowledged"
    assert detail(bench, "2.1") == "waits for 1.1, which failed: acknowledge 1.1"
    bench.decide(commands.acknowledge_failures, operations=("1.1",), by="ann", even_if_down=True)
    assert detail(bench) == ""


def test_what_is_held_says_by_whom_since_when_and_why(bench: Bench) -> None:
    bench.ask(REBOOT, "web-0")
    bench.ask(REBOOT, "web-1")
    bench.hold(HoldKind.SCOPE, "web")
    assert detail(bench) == "held by ann since 12:00Z: scope web (storm)"
    bench.now += MINUTE
    bench.hold(HoldKind.EVERYTHING)
    assert detail(bench) == "held by ann since 12:00Z: scope web (storm), and 1 more"
    elsewhere = msgspec.structs.replace(bench.snapshot, holds=())
    bench.snapshot = elsewhere
    assert detail(bench) == "held", "a hold that is known to nobody any more"


def test_what_comes_back_says_who_is_awaited_and_how_long(bench: Bench) -> None:
    bench.sightings["web-0"] = Sighting(asked_at=NOW, version="2020-07-01")
    bench.ask(REBOOT, "web-0", no_notice=True)
    bench.finish("1.1")
    assert detail(bench) == "awaits web-0 until 12:05Z"
