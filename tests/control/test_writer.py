"""The one writer: what shares a commit, what a failure costs, and who is told when."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, cast

import msgspec
import pytest

import patience
from builders import NOW
from control.conftest import Busy, Counting
from forewarn.clock import ManualClock
from forewarn.control.changefeed import Changefeed
from forewarn.control.unit_of_work import UnitOfWork
from forewarn.control.writer import LONG_SECONDS, MAX_BATCH, Job, Writer
from forewarn.maintenance import fleet_file, news
from forewarn.maintenance.model import Changes, Hold, HoldKind, Refused, Scope
from forewarn.maintenance.planner import Request
from forewarn.store.port import StoreUnavailable
from forewarn.vocabulary import ErrorCode, EventType, ScopeKind


def save(name: str) -> Job:
    scope = Scope(name=name, kind=ScopeKind.MACHINE, update_domains=1)

    def job(unit: UnitOfWork) -> Any:
        unit.take(Changes(scopes=(scope,)))
        return name, unit.now

    return job


def refuse(unit: UnitOfWork) -> None:
    raise Refused(ErrorCode.CONFLICT, f"no, at {unit.now}")


def fail(_: UnitOfWork) -> None:
    raise ZeroDivisionError("a defect")


@pytest.fixture
def threaded() -> Iterator[Busy]:
    built = Busy()
    yield built
    built.close()


def test_what_waits_together_shares_a_commit_and_a_now(threaded: Busy) -> None:
    threaded.hold()
    futures = [threaded.writer.submit(save(f"m{n}")) for n in range(50)]
    threaded.release()
    assert [future.result(patience.SECONDS) for future in futures] == [
        (f"m{n}", NOW) for n in range(50)
    ]
    assert threaded.store.commits == 2
    assert [len(changes.scopes) for changes in threaded.told] == [50]


def test_a_batch_has_a_limit(threaded: Busy) -> None:
    threaded.hold()
    futures = [threaded.writer.submit(save("m")) for _ in range(MAX_BATCH + 1)]
    threaded.release()
    assert len([future.result(patience.SECONDS) for future in futures]) == MAX_BATCH + 1
    assert threaded.store.commits == 3


def spoil(unit: UnitOfWork) -> None:
    unit.store.put_setting("half", "done")
    fail(unit)


@pytest.mark.parametrize(
    ("guilty", "error", "commits"), [(refuse, Refused, 2), (spoil, ZeroDivisionError, 3)]
)
def test_a_refusal_or_a_defect_fails_its_own_job_and_no_other(
    threaded: Busy, guilty: Job, error: type[Exception], commits: int
) -> None:
    threaded.hold()
    before, failed, after = map(threaded.writer.submit, (save("a"), guilty, save("b")))
    threaded.release()
    assert before.result(patience.SECONDS)[0] == "a"
    assert after.result(patience.SECONDS)[0] == "b"
    assert isinstance(failed.exception(patience.SECONDS), error)
    assert threaded.store.names() == {"a", "b"}
    assert threaded.store.commits == commits
    assert isinstance(threaded.writer.submit(guilty).exception(patience.SECONDS), error)
    with threaded.store.read() as reading:
        assert reading.setting("half") is None


def hold(host: str) -> Job:
    placed = Hold(kind=HoldKind.HOST, name=host, reason="", by="ann", at=NOW)
    return lambda unit: unit.take(Changes(holds=(placed,)))


def test_a_refusal_leaves_nothing_of_what_its_job_changed(threaded: Busy) -> None:
    def change_and_refuse(unit: UnitOfWork) -> None:
        hold("half")(unit)
        refuse(unit)

    def store_and_refuse(unit: UnitOfWork) -> None:
        hold("stored")(unit)
        assert len(unit.store.holds()) == 2
        refuse(unit)

    for number, guilty in enumerate((change_and_refuse, store_and_refuse), 1):
        threaded.hold()
        futures = [threaded.writer.submit(job) for job in (save("a"), guilty, hold(f"h{number}"))]
        threaded.release()
        assert isinstance(futures[1].exception(patience.SECONDS), Refused)
        kept = [f"h{each}" for each in range(1, number + 1)]
        assert futures[2].result(patience.SECONDS) is None
        with threaded.store.read() as reading:
            assert [each.name for each in reading.holds()] == kept
            rows = reading.news_after(0, MAX_BATCH)
        told = [one.subject for row in rows for one in news.decode(row.items)]
        assert told == [f"host {each}" for each in kept]
    assert threaded.store.names() == {"a"}


def test_a_store_that_is_away_answers_everybody_and_keeps_the_writer(threaded: Busy) -> None:
    threaded.hold()
    threaded.store.away = True
    futures = [threaded.writer.submit(save(name)) for name in "ab"]
    threaded.release()
    for future in futures:
        with pytest.raises(StoreUnavailable, match="the disk is full"):
            future.result(patience.SECONDS)
    assert threaded.told == []
    threaded.store.away = False
    assert threaded.writer.submit(save("c")).result(patience.SECONDS)[0] == "c"
    assert threaded.store.names() == {"c"}


def test_jobs_that_run_alone_are_refused_once_the_store_is_away(threaded: Busy) -> None:
    def spoil(unit: UnitOfWork) -> None:
        threaded.store.away = True  # from the next transaction on
        unit.take(cast("Changes", "no changes"))

    threaded.hold()
    futures = [threaded.writer.submit(job) for job in (spoil, save("b"), save("c"))]
    threaded.release()
    for future in futures:
        with pytest.raises(StoreUnavailable):
            future.result(patience.SECONDS)
    assert threaded.store.refused == 1


def test_what_was_refused_is_let_go_of_without_the_collector(threaded: Busy) -> None:
    class Large:
        """What a job refers to: a body of a thousand ids, or a fleet."""

    def submit() -> "weakref.ref[Large]":
        large = Large()

        def job(unit: UnitOfWork) -> None:
            assert large
            refuse(unit)

        assert threaded.writer.submit(job).exception(patience.SECONDS) is not None
        return weakref.ref(large)

    gc.disable()
    try:
        refused = submit()
        threaded.writer.submit(save("next")).result(patience.SECONDS)
        threaded.hold()  # the writer has let go of the batch before this one
        assert refused() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(("seconds", "refused"), [(LONG_SECONDS + 0.1, True), (0.0, False)])
def test_what_waits_behind_a_long_wait_for_the_store_is_refused_with_it(
    threaded: Busy, seconds: float, refused: bool
) -> None:
    behind: list[Future[Any]] = []

    def wait_in_vain(_: UnitOfWork) -> None:
        behind.append(threaded.writer.submit(save("behind")))
        threaded.clock.advance(timedelta(seconds=seconds))
        raise StoreUnavailable("another program has it locked")

    first = threaded.writer.submit(wait_in_vain)
    with pytest.raises(StoreUnavailable):
        first.result(patience.SECONDS)
    assert isinstance(behind[0].exception(patience.SECONDS), StoreUnavailable) is refused
    assert threaded.writer.submit(save("after")).result(patience.SECONDS)[0] == "after"
    assert threaded.store.names() == ({"after"} if refused else {"behind", "after"})


def test_a_writer_that_is_closed_while_the_store_is_away_ends(threaded: Busy) -> None:
    closing: list[threading.Thread] = []

    def wait_in_vain(_: UnitOfWork) -> None:
        closing.append(threading.Thread(target=threaded.writer.close, daemon=True))
        closing[0].start()
        patience.until(lambda: threaded.writer._closed)
        threaded.clock.advance(timedelta(seconds=2 * LONG_SECONDS))
        raise StoreUnavailable("another program has it locked")

    with pytest.raises(StoreUnavailable):
        threaded.writer.submit(wait_in_vain).result(patience.SECONDS)
    closing[0].join(patience.SECONDS)
    assert not closing[0].is_alive()
    threaded.writer.ended.result(patience.SECONDS)


def test_the_feed_is_told_after_the_commit_and_before_the_answer(threaded: Busy) -> None:
    seen: list[tuple[set[str], bool]] = []
    futures: list[Future[Any]] = []

    def listener(_: Changes) -> None:
        seen.append((threaded.store.names(), futures[0].done()))

    threaded.feed.subscribe(listener)
    threaded.hold()
    futures.append(threaded.writer.submit(save("a")))
    threaded.release()
    futures[0].result(patience.SECONDS)
    assert seen == [({"a"}, False)]


def test_a_commit_of_several_changes_reaches_the_loop_in_one_call(threaded: Busy) -> None:
    calls: list[Any] = []

    class Loop:
        def call_soon_threadsafe(self, *call: Any) -> None:
            calls.append(call)

    def twice(unit: UnitOfWork) -> None:
        save("a")(unit)
        unit.save()
        save("b")(unit)

    threaded.feed.deliver_on(cast("asyncio.AbstractEventLoop", Loop()))
    threaded.writer.submit(twice).result(patience.SECONDS)
    assert len(calls) == 1


def test_a_listener_that_raises_ends_the_feed_and_no_answer(threaded: Busy) -> None:
    def broken(_: Changes) -> None:
        raise ZeroDivisionError

    heard: list[Changes] = []
    threaded.feed.subscribe(broken)
    threaded.feed.subscribe(heard.append)
    assert threaded.writer.submit(save("a")).result(patience.SECONDS)[0] == "a"
    assert isinstance(threaded.feed.ended.exception(patience.SECONDS), ZeroDivisionError)
    told = len(threaded.told)
    assert threaded.writer.submit(save("b")).result(patience.SECONDS)[0] == "b"
    assert (len(threaded.told), heard) == (told, []), "what is half changed is changed no more"


def test_closing_finishes_what_was_submitted_and_takes_nothing_more(threaded: Busy) -> None:
    threaded.hold()
    futures = [threaded.writer.submit(save(f"m{n}")) for n in range(5)]
    threaded.release()
    threaded.writer.close()
    assert all(future.result(0) for future in futures)
    with pytest.raises(StoreUnavailable, match="the service is stopping"):
        threaded.writer.submit(save("late")).result(0)
    with pytest.raises(StoreUnavailable, match="the service is stopping"):
        threaded.writer.read(lambda reading: reading.scopes()).result(0)
    assert "late" not in threaded.store.names()
    threaded.writer.close()


def test_what_one_job_of_a_batch_removed_is_not_there_for_the_next(threaded: Busy) -> None:
    machines = [{"name": "web-0"}, {"name": "web-1"}]
    both, one = (
        msgspec.convert({"availability_set": [{"name": "web", "machines": some}]}, fleet_file.Fleet)
        for some in (machines, machines[:1])
    )
    threaded.plane.apply_fleet(both).result(patience.SECONDS)
    threaded.hold()
    threaded.plane.apply_fleet(one, prune=True)
    asked = threaded.plane.request(Request(event_type=EventType.FREEZE, machines=("web-1",)))
    threaded.release()
    refusal = asked.exception(patience.SECONDS)
    assert isinstance(refusal, Refused)
    assert refusal.code is ErrorCode.NOT_FOUND


def test_an_inline_writer_answers_before_it_returns() -> None:
    store = Counting()
    writer = Writer(store, ManualClock(NOW), Changefeed())
    assert writer.submit(save("a")).done()
    refused = writer.submit(refuse)
    assert isinstance(refused.exception(0), Refused)
    assert isinstance(writer.submit(fail).exception(0), ZeroDivisionError)
    writer.close()
    assert store.names() == {"a"}
    store.close()
