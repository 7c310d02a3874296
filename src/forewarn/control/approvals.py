"""Approvals that wait together are decided together: one reading and one saving for all of them.

A fleet's guests approve in the same second. Each approval alone would read its operation, its
scopes and what is live there; together they read once. Each is still decided by itself, in the
order of its arrival, on what the ones before it led to, and is answered for itself.
"""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from datetime import datetime
from typing import Any

import msgspec

from forewarn.control import snapshots
from forewarn.control.writer import Work, Writer
from forewarn.maintenance.bench import Decision
from forewarn.maintenance.causes import Approved
from forewarn.maintenance.errors import Refused
from forewarn.maintenance.model import (
    Approval,
    Changes,
    Operation,
    Scope,
    Snapshot,
)
from forewarn.store.port import Transaction
from forewarn.vocabulary import ApproverKind

MAX_TOGETHER = 500
"""The most approvals that are decided together: about a tenth of a second."""

Decide = Callable[[Snapshot, Approved, datetime], Decision]


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """A guest's word that events may start."""

    scope: str
    """The key of the scope that it belongs to."""
    event_ids: tuple[str, ...]
    """In upper case."""
    by: str
    address: str


Waiting = tuple[Word, "Future[tuple[Operation, ...]]"]


class Approvals:
    """Collects guests' approvals while the writer is busy.

    Args:
        writer: Runs the transactions.
        decide: Decides one cause and checks the invariants.
    """

    def __init__(self, writer: Writer, decide: Decide) -> None:
        self._writer = writer
        self._decide = decide
        self._lock = threading.Lock()
        self._waiting: list[Waiting] = []

    def submit(self, word: Word) -> "Future[tuple[Operation, ...]]":
        """Decide a word with those that wait; the answer is what it approved, once durable."""
        future: Future[tuple[Operation, ...]] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            self._waiting.append((word, future))
            first = len(self._waiting) == 1
        if first:
            self._ask()
        return future

    def _ask(self) -> None:
        """Ask the writer for a turn; what waits by then shares it."""
        turns: list[list[Waiting]] = []

        def job(transaction: Transaction, now: datetime) -> Work:
            if not turns:  # a transaction may be run twice, with the same words
                turns.append(self._take())
            return self._decide_all(transaction, [word for word, _ in turns[0]], now)

        def answer(done: "Future[Any]") -> None:
            self._answer(turns[0] if turns else self._take(), done)

        self._writer.submit(job).add_done_callback(answer)

    def _take(self) -> list[Waiting]:
        with self._lock:
            taken, self._waiting = self._waiting[:MAX_TOGETHER], self._waiting[MAX_TOGETHER:]
            more = bool(self._waiting)
        if more:
            self._ask()
        return taken

    def _answer(self, taken: list[Waiting], done: "Future[Any]") -> None:
        error = done.exception()
        results = [error] * len(taken) if error is not None else done.result()
        for (_, future), result in zip(taken, results, strict=True):
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

    def _decide_all(self, transaction: Transaction, words: Iterable[Word], now: datetime) -> Work:
        words = list(words)
        ids = {event_id for word in words for event_id in word.event_ids}
        desk = _Desk(snapshots.around(transaction, transaction.operations_of_events(ids)))
        results: list[tuple[Operation, ...] | Refused] = []
        for word in words:
            approval = Approval(kind=ApproverKind.GUEST, by=word.by, address=word.address, at=now)
            cause = Approved(event_ids=word.event_ids, approval=approval, scope=word.scope)
            try:
                decision = self._decide(desk.about(word.event_ids), cause, now)
            except Refused as refusal:
                results.append(refusal)
                continue
            desk.learn(decision.changes)
            results.append(decision.operations)
        return Work(results, desk.changes())


class _Desk:
    """The snapshot of all the words, and what became of it so far."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._holds = snapshot.holds
        self._scopes = dict(snapshot.scopes)
        self._operations = dict(snapshot.operations)
        self._by_event: dict[str, str] = {}
        self._by_scope: dict[str, list[str]] = {}
        for operation in snapshot.operations.values():
            for event in operation.events:
                self._by_event[event.id] = operation.id
                self._by_scope.setdefault(event.scope, []).append(operation.id)
        self._changed_operations: dict[str, Operation] = {}
        self._changed_scopes: dict[str, Scope] = {}

    def about(self, event_ids: Iterable[str]) -> Snapshot:
        """Return the part of the snapshot that these events concern."""
        named = {self._by_event[event_id] for event_id in event_ids if event_id in self._by_event}
        scopes = self._scopes_of(named)
        near = {other for scope in scopes for other in self._by_scope[scope]} | named
        return Snapshot(
            scopes={s: self._scopes[s] for s in self._scopes_of(near) if s in self._scopes},
            operations={i: self._operations[i] for i in near},
            holds=self._holds,
        )

    def learn(self, changes: Changes) -> None:
        """Go on from what a decision changed; an approval makes nothing that was not there."""
        for operation in changes.operations:
            self._operations[operation.id] = self._changed_operations[operation.id] = operation
        for scope in changes.scopes:
            self._scopes[scope.key] = self._changed_scopes[scope.key] = scope

    def changes(self) -> Changes:
        """Return the last values of all that changed."""
        return Changes(
            operations=tuple(self._changed_operations.values()),
            scopes=tuple(self._changed_scopes.values()),
        )

    def _scopes_of(self, operations: Iterable[str]) -> set[str]:
        return {event.scope for o in operations for event in self._operations[o].events}
