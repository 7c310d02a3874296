"""The one writer: requests that wait together share a transaction, and so its commit.

A job decides on what the transaction shows, checks the invariants and returns new values; the
writer notes the numbers of what they remove, saves, commits, tells the feed, and only then answers.
A refusal concerns its own job alone: it is raised before anything is saved. Any other error undoes
the whole batch, which is then run again job by job, so that only the guilty one fails.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Any, Final, Protocol

import msgspec
import structlog
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.registry import Collector

from forewarn.clock import Clock
from forewarn.control import tombstones
from forewarn.control.changefeed import Changefeed
from forewarn.maintenance.model import Changes, Refused
from forewarn.store.port import Store, StoreUnavailable, Transaction

MAX_BATCH = 1000
"""The most jobs that share a commit: nobody waits for more than about a tenth of a second."""

COMMIT_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Seconds: from a fast disk's commit of one change to what guests' clients give up on."""

_log = structlog.get_logger(__name__)


class Work(msgspec.Struct, frozen=True):
    """What a job came to: what to answer and what to save."""

    result: Any
    changes: Changes = Changes()


Job = Callable[[Transaction, datetime], Work]
"""Decides within a transaction, at one `now`. It may be run twice: it has no effect of its own."""


class Writer(Protocol):
    """Takes jobs and answers each after its commit."""

    def submit(self, job: Job) -> "Future[Any]":
        """Run a job in a transaction.

        Returns:
            A future that holds the result once it is durable, or raises Refused,
            StoreUnavailable, or what the job raised.
        """
        ...

    def close(self) -> None:
        """Finish what was submitted, then take nothing more."""
        ...


class InlineWriter:
    """Runs each job at once, in the caller's thread: for tests and simulations."""

    def __init__(self, store: Store, clock: Clock, feed: Changefeed) -> None:
        self._committer = _Committer(store, clock, feed)
        self._lock = threading.Lock()

    def submit(self, job: Job) -> "Future[Any]":
        """Run the job before returning."""
        future = _promise()
        with self._lock:
            self._committer.commit([(job, future)])
        return future

    def close(self) -> None:
        """Do nothing: nothing waits."""


class ThreadWriter:
    """Runs jobs on a thread of its own; what waits together is committed together.

    Args:
        store: Where they run.
        clock: Tells each transaction's `now`.
        feed: Told what changed, after the commit.
        real: Measures how long commits take; `clock` if left out.
    """

    def __init__(
        self, store: Store, clock: Clock, feed: Changefeed, real: Clock | None = None
    ) -> None:
        self._committer = _Committer(store, clock, feed)
        self._real = real or clock
        self._queue: queue.SimpleQueue[tuple[Job, Future[Any]] | None] = queue.SimpleQueue()
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
        self.collectors: tuple[Collector, ...] = (self._commits, self._jobs, waiting)
        """What Prometheus is told of it."""
        self._closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="forewarn-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> "Future[Any]":
        """Queue the job."""
        future = _promise()
        with self._lock:
            if self._closed:
                future.set_exception(StoreUnavailable("the service is stopping"))
            else:
                self._queue.put((job, future))
        return future

    def close(self) -> None:
        """Finish what is queued and end the thread."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while self._commit_next():
            pass

    def _commit_next(self) -> bool:
        """Commit what waits, or wait for it; tell whether more may come.

        A call of its own, so that nothing of a batch (it may hold a whole fleet) is still referred
        to while the thread waits for the next.
        """
        first = self._queue.get()
        if first is None:
            return False
        batch = [first]
        more = True
        while more and len(batch) < MAX_BATCH and not self._queue.empty():
            following = self._queue.get()
            if following is None:
                more = False
            else:
                batch.append(following)
        self._jobs.inc(len(batch))
        began = self._real.monotonic()
        self._committer.commit(batch)
        self._commits.observe(self._real.monotonic() - began)
        return more


def _promise() -> "Future[Any]":
    """Return a future that cannot be cancelled: whoever stops waiting does not stop the job."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


class _Committer:
    def __init__(self, store: Store, clock: Clock, feed: Changefeed) -> None:
        self._store = store
        self._clock = clock
        self._feed = feed

    def commit(self, batch: Sequence[tuple[Job, "Future[Any]"]]) -> None:
        """Run a batch in one transaction and answer each of its jobs."""
        try:
            works = self._transact([job for job, _ in batch])
        except StoreUnavailable as error:
            for _, future in batch:
                future.set_exception(error)
            return
        except Exception as error:  # noqa: BLE001 - whatever a job raises is its caller's to see
            if len(batch) == 1:
                batch[0][1].set_exception(error)
                return
            _log.warning("a shared transaction failed; its jobs run alone", jobs=len(batch))
            for single in batch:
                self.commit([single])
            return
        for work in works:
            if isinstance(work, Work) and work.changes:
                self._feed.publish(work.changes)
        for (_, future), work in zip(batch, works, strict=True):
            if isinstance(work, Work):
                future.set_result(work.result)
            else:
                future.set_exception(work)

    def _transact(self, jobs: Sequence[Job]) -> list[Work | Refused]:
        works: list[Work | Refused] = []
        with self._store.write() as transaction:
            now = self._clock.now()
            for job in jobs:
                try:
                    work = job(transaction, now)
                except Refused as refusal:
                    works.append(refusal)
                    continue
                if work.changes:
                    tombstones.note(transaction, work.changes)
                    transaction.save(work.changes)
                works.append(work)
        return works
