"""What waits together is decided in one turn of the writer: one reading and one saving for all.

A fleet's guests approve in the same second, and acts that began together end together. Each of
these alone would read its operation, its scopes and what is live there; together they read once.
Each is still decided by itself, in the order of its arrival, on what the ones before it led to, and
is answered for itself: one that is refused, and one that fails, costs the others nothing.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Any, Generic, TypeVar

import structlog

from forewarn.control.draft import Draft
from forewarn.control.writer import Work, Writer
from forewarn.maintenance.commands import Command
from forewarn.maintenance.model import Refused, Snapshot
from forewarn.maintenance.working_set import Decision
from forewarn.store.port import StoreError, Transaction

MAX_TOGETHER = 500
"""The most that is decided in one turn: about a tenth of a second, in which nobody else writes."""

Decide = Callable[[Snapshot, Command, datetime], Decision]
"""Decides one cause and checks the invariants."""

Matter = TypeVar("Matter")

_log = structlog.get_logger(__name__)


class Turns(ABC, Generic[Matter]):
    """Collects matters of one kind while the writer is busy.

    Args:
        writer: Runs the transactions.
        decide: Decides one cause and checks the invariants.
    """

    def __init__(self, writer: Writer, decide: Decide) -> None:
        self._writer = writer
        self._decide = decide
        self._lock = threading.Lock()
        self._waiting: list[tuple[Matter, Future[Any]]] = []

    @abstractmethod
    def _gather(self, transaction: Transaction, matters: Iterable[Matter]) -> Snapshot:
        """Return all that deciding these may concern, each on what the ones before it led to."""

    @abstractmethod
    def _part(self, draft: Draft, matter: Matter) -> Snapshot:
        """Return what one of them may concern, as it would be read if it were alone."""

    @abstractmethod
    def _cause(self, matter: Matter, now: datetime) -> Command:
        """Return what is decided."""

    def submit(self, matter: Matter) -> "Future[Any]":
        """Decide a matter with those that wait; the answer is its operations, once durable."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            self._waiting.append((matter, future))
            first = len(self._waiting) == 1
        if first:
            self._ask()
        return future

    def _ask(self, alone: Sequence[tuple[Matter, "Future[Any]"]] = ()) -> None:
        """Ask the writer for a turn of these, or of what waits by then."""
        turns = [alone] if alone else []

        def job(transaction: Transaction, now: datetime) -> Work:
            if not turns:  # a transaction may be run twice, with the same matters
                turns.append(self._take())
            return self._decide_all(transaction, [matter for matter, _ in turns[0]], now)

        def answer(done: "Future[Any]") -> None:
            self._answer(turns[0] if turns else self._take(), done)

        self._writer.submit(job).add_done_callback(answer)

    def _take(self) -> list[tuple[Matter, "Future[Any]"]]:
        with self._lock:
            taken, self._waiting = self._waiting[:MAX_TOGETHER], self._waiting[MAX_TOGETHER:]
            more = bool(self._waiting)
        if more:
            self._ask()
        return taken

    def _answer(self, taken: Sequence[tuple[Matter, "Future[Any]"]], done: "Future[Any]") -> None:
        error = done.exception()
        if error is not None and not isinstance(error, StoreError) and len(taken) > 1:
            # What could not be saved together is tried one by one, so that only the guilty fails.
            _log.warning("a turn failed; each of it is decided alone", matters=len(taken))
            for single in taken:
                self._ask([single])
            return
        results = [error] * len(taken) if error is not None else done.result()
        for (_, future), result in zip(taken, results, strict=True):
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

    def _decide_all(
        self, transaction: Transaction, matters: Sequence[Matter], now: datetime
    ) -> Work:
        draft = Draft(self._gather(transaction, matters))
        results: list[Any] = []
        for matter in matters:
            try:
                decision = self._decide(self._part(draft, matter), self._cause(matter, now), now)
            except Refused as refusal:
                results.append(refusal)
            except Exception as error:  # noqa: BLE001 - a defect is its own matter's to answer
                results.append(error)
            else:
                draft.learn(decision.changes)
                results.append(decision.operations)
        return Work(results, draft.changes())
