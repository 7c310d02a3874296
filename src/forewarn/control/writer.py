"""The one writer: requests that wait together share a transaction, and so its commit.

A job decides on the World, and changes it. The writer saves that, commits, tells the changefeed,
and only then answers. A job that is refused is undone by itself. If one fails otherwise, or the
saving or the commit does, the batch is undone and each job runs in a transaction of its own, so
that only the guilty one fails.

A full disk or a lost connection fails a job with StoreUnavailable, and nothing was changed: see
`store.sqlite`, and `store.postgresql` for a COMMIT whose answer is lost.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import structlog
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.registry import Collector

from forewarn.clock import Clock
from forewarn.control.changefeed import Changefeed
from forewarn.control.outbox import Follower
from forewarn.control.service_clock import ServiceClock
from forewarn.control.unit_of_work import Job
from forewarn.maintenance.model import Refused
from forewarn.store.port import OutcomeUnknown, StoreError, StoreUnavailable
from forewarn.store.queries import Reading
from forewarn.store.sql import Store, Transaction

MAX_BATCH = 500
"""The most jobs that share a commit: about a tenth of a second, in which nobody else writes."""

LONG_SECONDS: Final = 1.0
"""The length of a failed wait for the store that also answers the jobs behind it: each by itself
would wait as long again, and the clients of approvals go away after some seconds."""

T = TypeVar("T")

Waiting: TypeAlias = "tuple[Job, Future[Any]]"

COMMIT_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Seconds: from a fast disk's commit of one change to what guests' clients give up on."""

_log = structlog.get_logger(__name__)


class Writer:
    """Runs each job at once, in the caller's thread: for the emulator and for tests.

    The clock tells each transaction's `now` where the store has no clock of its own. `told` hears
    the store's time, where it has one, before anything is decided by it; after ClockJumped nothing
    is.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        feed: Changefeed,
        follower: Follower | None = None,
        *,
        told: ServiceClock | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._told = told
        if follower is None:
            follower = Follower(store, feed, clock)
            with store.read() as reading:
                follower.begin(reading)
        self._follower = follower
        self.collectors: tuple[Collector, ...] = ()
        self.ended = _promise()
        """Done when it decides nothing any more; raises StoreUnavailable if it was not closed."""

    @property
    def next_wakeup(self) -> datetime | None:
        """The earliest time at which an operation is due, or a hold ends, by what is committed."""
        return self._follower.next_wakeup

    def submit(self, job: Job) -> "Future[Any]":
        """Run a job in a transaction.

        The future holds the result once it is durable, or raises Refused, StoreUnavailable, or what
        the job raised.
        """
        future = _promise()
        self.commit([(job, future)])
        return future

    def read(self, question: Callable[[Reading], T]) -> "Future[T]":
        """Ask the store as it is at this instant, without waiting for writers.

        The future raises StoreUnavailable while the store cannot be read.
        """
        future = _promise()
        try:
            future.set_result(self._ask(question))
        except StoreError as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        """Finish what was submitted, then take nothing more."""

    def commit(self, batch: Sequence[Waiting]) -> StoreError | None:
        """Run a batch in one transaction and answer each of its jobs.

        Returns:
            The reason why the store was away, if it was.
        """
        asked = self._told.asking() if self._told else 0.0
        try:
            results = self._follower.transact((job for job, _ in batch), partial(self._time, asked))
        except (StoreUnavailable, OutcomeUnknown) as error:
            for _, future in batch:
                future.set_exception(error)
            return error
        except Exception as error:  # noqa: BLE001 - whatever fails is the callers' to see
            if len(batch) == 1:
                batch[0][1].set_exception(error)
                return None
            _log.warning("a shared transaction failed; its jobs run alone", jobs=len(batch))
            for number, single in enumerate(batch, 1):
                if away := self.commit([single]):
                    for _, future in batch[number:]:
                        future.set_exception(away)
                    return away
            return None
        for (_, future), result in zip(batch, results, strict=True):
            if isinstance(result, Refused):
                future.set_exception(result)
            else:
                future.set_result(result)
        return None

    def _time(self, asked: float, transaction: Transaction) -> datetime:
        now = transaction.now()
        if now is None:
            return self._clock.now()
        return now if self._told is None else self._told.tell(now, asked)

    def _ask(self, question: Callable[[Reading], T]) -> T:
        with self._store.read() as reading:
            return question(reading)


class ThreadWriter(Writer):
    """Runs jobs on a thread of its own; jobs that wait together are committed together."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        feed: Changefeed,
        follower: Follower | None = None,
        *,
        told: ServiceClock | None = None,
    ) -> None:
        super().__init__(store, clock, feed, follower, told=told)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="forewarn-reader")
        self._queue: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self._commits = Histogram(
            "forewarn_commit_seconds",
            "Seconds from a transaction's begin to the answers of all its jobs.",
            buckets=COMMIT_BUCKETS,
            registry=None,
        )
        self._jobs = Counter(
            "forewarn_writer_jobs", "Changes that the writer took up.", registry=None
        )
        waiting = Gauge(
            "forewarn_writer_jobs_waiting", "Changes that wait for the writer.", registry=None
        )
        waiting.set_function(self._queue.qsize)
        self.collectors = (self._commits, self._jobs, waiting)
        self._batch: list[Waiting] = []
        self._closed = ""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="forewarn-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> "Future[Any]":
        """Queue the job."""
        future = _promise()
        with self._lock:
            if self._closed:
                future.set_exception(StoreUnavailable(self._closed))
            else:
                self._queue.put((job, future))
        return future

    def read(self, question: Callable[[Reading], T]) -> "Future[T]":
        """Ask on a thread of its own."""
        try:
            return self._reader.submit(self._ask, question)
        except RuntimeError:  # `close` has ended its threads
            future = _promise()
            future.set_exception(StoreUnavailable(self._closed))
            return future

    def close(self) -> None:
        """Finish the queued jobs and end the threads."""
        with self._lock:
            if not self._closed:
                self._closed = "the service is stopping"
                self._queue.put(None)
        self._thread.join()
        self._reader.shutdown()

    def _run(self) -> None:
        try:
            while self._commit_next():
                pass
        except BaseException as error:  # noqa: BLE001 - dying unseen leaves all waiting
            _log.exception("the writer has ended; nothing can be written any more")
            self._die(error)
        else:
            self.ended.set_result(None)

    def _die(self, error: BaseException) -> None:
        """Answer all jobs that wait, and all later ones."""
        with self._lock:
            self._closed = "the writer has ended: nothing can be written until a restart"
        left = self._batch
        while not self._queue.empty():
            if (following := self._queue.get()) is not None:
                left.append(following)
        for _, future in left:
            if not future.done():
                future.set_exception(StoreUnavailable(self._closed))
        ended = StoreUnavailable(self._closed)
        ended.__cause__ = error  # not itself: a SystemExit would end the waiting threads, too
        self.ended.set_exception(ended)

    def _commit_next(self) -> bool:
        """Commit the waiting jobs, or wait for one; return True if more may come.

        Nothing of a batch (it may hold a whole fleet) is referred to while the thread waits.
        """
        batch = self._batch = []
        following = self._queue.get()
        while following is not None:
            batch.append(following)
            if len(batch) == MAX_BATCH or self._queue.empty():
                break
            following = self._queue.get()
        if batch:
            self._jobs.inc(len(batch))
            began = self._follower.real.monotonic()
            away = self.commit(batch)
            took = self._follower.real.monotonic() - began
            self._commits.observe(took)
            if away is not None and took > LONG_SECONDS:
                return self._refuse_waiting(away) and following is not None
        return following is not None

    def _refuse_waiting(self, away: StoreError) -> bool:
        """Answer all waiting jobs that the store is away; return True if more may come."""
        while not self._queue.empty():
            following = self._queue.get()
            if following is None:
                return False
            following[1].set_exception(away)
        return True


def _promise() -> "Future[Any]":
    """Return a future that cannot be cancelled: a caller that stops waiting stops no job."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future
