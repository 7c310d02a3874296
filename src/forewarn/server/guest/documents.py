"""The document of each scope as bytes, kept by the changefeed, and the enabling of scopes.

A scope without events, as most are at any time, costs its `Scope` alone: its document depends only
on its incarnation and is rendered once for all such scopes.

The first request of one of its machines turns a scope on (protocol.md section 8). That is saved
when the request arrives, and the request is answered after that. A further request for a scope
which is on is noted in memory and saved at most once a minute a scope, many scopes in one
transaction. A guest never depends on the store: if it is away, or slow, the answer comes from
memory, and the next request tries again.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeAlias

import msgspec
import structlog

from forewarn.clock import Clock
from forewarn.maintenance import model
from forewarn.maintenance.model import Changes, Operation, Policy, Scope
from forewarn.protocol import codec, versions
from forewarn.protocol.versions import Version
from forewarn.server.process import LimitLog
from forewarn.server.relay_feed import PublishedEvent, ScopeDocument
from forewarn.store.port import StoreError
from forewarn.vocabulary import EventStatus, ScopeKind

MAX_EMPTY: Final = 1024
"""The most empty documents that are kept rendered: incarnations times versions, and a fleet has few
of either. When there are more, all are rendered again."""


def shown(operation: Operation, event: model.OperationEvent) -> versions.ScheduledEvent:
    """Return an operation's event as guests read it; the operation is visible."""
    scheduled = operation.status is EventStatus.SCHEDULED
    return versions.ScheduledEvent(
        event_id=event.id,
        status=EventStatus.SCHEDULED if scheduled else EventStatus.STARTED,
        event_type=operation.event_type,
        resources=event.machines,
        not_before=operation.not_before if scheduled else None,
        description=operation.description,
        source=operation.source,
        duration_seconds=operation.duration_seconds,
    )


class RenderedDocument(msgspec.Struct):
    """A document as a version shows it."""

    incarnation: int
    body: bytes
    endings: dict[tuple[bool, bool], bytes] = {}
    """The ends of the answers to polls, once written: by two flags, the client has the document,
    and its connection ends."""


class _ScopeEvents(msgspec.Struct):
    """A scope's visible events, and its document in the versions that were asked for."""

    events: dict[str, PublishedEvent] = {}
    """By id."""
    rendered: dict[str, RenderedDocument] = {}
    """By version's name."""


class DocumentCache:
    """Every scope's document, always as of the last change; used on the event loop alone."""

    def __init__(self) -> None:
        self._scopes: dict[str, Scope] = {}
        self._live: dict[str, _ScopeEvents] = {}
        self._empty: dict[tuple[int, str], RenderedDocument] = {}

    def learn(self, changes: Changes) -> None:
        """Follow changes, all of them before the next request."""
        for scope in changes.scopes:
            key = scope.key
            self._scopes[key] = scope
            if key in self._live:
                self._live[key].rendered.clear()
        for operation in changes.operations:
            self._put(operation)
        for key in changes.removed_scopes:
            self._scopes.pop(key, None)
            self._live.pop(key, None)

    def replace(
        self, documents: Iterable[ScopeDocument], removed_scopes: Iterable[str] = ()
    ) -> None:
        """Take whole documents in place of those that their scopes had."""
        for whole in documents:
            key = whole.scope.key
            self._scopes[key] = whole.scope
            events = {one.event.event_id: one for one in whole.events}
            if events:
                self._live[key] = _ScopeEvents(events)
            else:
                self._live.pop(key, None)
        for key in removed_scopes:
            self._scopes.pop(key, None)
            self._live.pop(key, None)

    def whole(self, key: str) -> ScopeDocument:
        """Return a scope with its document, such as `replace` takes, or raise KeyError."""
        scope, live = self._scopes[key], self._live.get(key)
        return ScopeDocument(scope=scope, events=() if live is None else _in_order(live))

    def _put(self, operation: Operation) -> None:
        for event in (*operation.events, *operation.dropped):
            if event.silent:
                continue  # its scope was off when it was made: no guest sees it
            live = self._live.get(event.scope)
            if operation.status.visible and event not in operation.dropped:
                if live is None:
                    live = self._live[event.scope] = _ScopeEvents()
                live.events[event.id] = PublishedEvent(
                    published=event.published, event=shown(operation, event)
                )
                live.rendered.clear()
            elif live is not None:
                live.events.pop(event.id, None)
                live.rendered.clear()
                if not live.events:
                    del self._live[event.scope]

    def scope(self, key: str) -> Scope:
        """Return a scope, or raise KeyError."""
        return self._scopes[key]

    def page(self, key: str, version: Version) -> RenderedDocument:
        """Return a scope's document as this version shows it, or raise KeyError."""
        scope = self._scopes[key]
        live = self._live.get(key)
        if live is None:
            return self._empty_page(scope.incarnation, version)
        page = live.rendered.get(version.name)
        if page is None:
            page = live.rendered[version.name] = _render(scope, live, version)
        return page

    def _empty_page(self, incarnation: int, version: Version) -> RenderedDocument:
        page = self._empty.get((incarnation, version.name))
        if page is None:
            if len(self._empty) >= MAX_EMPTY:
                self._empty.clear()
            body = codec.encode_document(versions.EventsDocument(incarnation=incarnation), version)
            page = self._empty[incarnation, version.name] = RenderedDocument(incarnation, body)
        return page


# By publication, then by EventId (protocol.md section 4): the same at each replica.
def _in_order(live: _ScopeEvents) -> tuple[PublishedEvent, ...]:
    return tuple(sorted(live.events.values(), key=lambda one: (one.published, one.event.event_id)))


def _render(scope: Scope, live: _ScopeEvents, version: Version) -> RenderedDocument:
    body = codec.encode_document(
        versions.EventsDocument(
            incarnation=scope.incarnation,
            events=tuple(one.event for one in _in_order(live)),
            cloud_service=scope.kind is ScopeKind.CLOUD_SERVICE,
        ),
        version,
    )
    return RenderedDocument(scope.incarnation, body)


SAVE_EVERY: Final = timedelta(minutes=1)
"""The age of a scope's saved time of asking after which it is saved again."""

GATHER_SECONDS: Final = 5.0
"""The time for which scopes that were asked for are gathered, to be saved together: a fleet of
100,000 scopes is then twelve transactions a minute. A crash loses no more of a day than this and
SAVE_EVERY."""

TURN_ON_SECONDS: Final = 2.0
"""The longest wait of a request for the store, in real seconds: the least that clients wait for an
answer is 1 s, and most wait longer."""

Save: TypeAlias = "Callable[[Collection[str]], Future[None]]"
"""Saves that machines of these scopes (keys) asked for their events."""

_log = structlog.get_logger(__name__)


class DelayedAnswer(Future[Any]):
    """An answer that is held back on purpose, for `seconds`.

    Its result is None where the request is to be admitted again, else a function that answers it.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self.seconds = seconds


@dataclass(eq=False, repr=False)
class Enabler:
    """Turns scopes on, and notes their requests; made and used on the event loop."""

    documents: DocumentCache
    save_scopes: Save
    policy: Policy
    delay_seconds: float
    """The delay of the answer that turns a scope on, by the clock."""
    clock: Clock
    loop: asyncio.AbstractEventLoop
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the plane stops: no answer is held back any longer."""
    _turning_on: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _noted: set[str] = field(default_factory=set)
    _saving: asyncio.Task[None] | None = None
    _told: LimitLog = field(default_factory=LimitLog)

    def note(self, key: str) -> "asyncio.Task[None] | None":
        """Note that a machine of this scope asks; return None if the scope is on.

        Otherwise the task ends when the request may be answered, with the scope on or not.
        """
        if self.is_on(key):
            self.note_on(key)
            return None
        turning_on = self._turning_on.get(key)
        if turning_on is None:
            # The plane is asked now, while the request arrives: not at the loop's next turn.
            saved = self.save_scopes((key,))
            turning_on = self.loop.create_task(self._turn_on(key, saved))
            self._turning_on[key] = turning_on
        return turning_on

    def is_on(self, key: str) -> bool:
        """Return True if the scope is on; a request is not noted by that."""
        scope = self.documents.scope(key)
        return scope.asked_at is not None and self.policy.is_on(scope, self.clock.now())

    def note_on(self, key: str) -> None:
        """Note that a machine of this scope, which is on, asks."""
        asked_at = self.documents.scope(key).asked_at
        assert asked_at is not None
        if self.clock.now() - asked_at >= SAVE_EVERY and key not in self._noted:
            self._noted.add(key)
            if self._saving is None or self._saving.done():
                self._saving = self.loop.create_task(self._save())

    async def _turn_on(self, key: str, saved: "Future[None]") -> None:
        saving = asyncio.wrap_future(saved, loop=self.loop)
        # Until then the store is not asked again: one that hangs would delay every poll.
        saving.add_done_callback(lambda _: self._turning_on.pop(key))
        try:
            async with asyncio.timeout(TURN_ON_SECONDS):
                await asyncio.shield(saving)
        except (StoreError, TimeoutError) as error:
            event = "could not turn a scope on; its guests ask again"
            self._told.warn(event, event, self.loop.time(), why=repr(error))
            return
        except Exception:  # noqa: BLE001 - the guest is answered all the same
            _log.exception("could not turn a scope on; its guests ask again")
            return
        if self.delay_seconds:
            await self.clock.wait(self.delay_seconds, self.stopping)

    async def _save(self) -> None:
        while self._noted:
            await self.clock.wait(GATHER_SECONDS)
            noted = tuple(self._noted)
            try:
                await asyncio.wrap_future(self.save_scopes(noted), loop=self.loop)
            except StoreError as error:
                _log.warning("could not save who asked; they ask again", why=str(error))
            except Exception:  # noqa: BLE001 - they ask again
                _log.exception("could not save who asked")
            # Only now: until the documents have learned of it, each request would note it again.
            self._noted.difference_update(noted)
