"""Sends news to webhooks: to each in order, at least once, by one replica at a time.

`maintenance.webhooks` has the rules, `server.operator.webhook_requests` signs and sends requests. A
webhook's row is its lock and its cursor, and changes only by a conditional update (`move`): a
replica that knows an older row changes nothing, and begins again with the current one. Before each
item is sent, one such update moves the cursor past the item before and says that nobody else may
try for a while. So a replica that dies leaves its item to the others, and a kill repeats one item
at most.

The replica that commits news sends it at once; the others look every few seconds for items that
were left behind. Each webhook has a task of its own while there is something to send: one that is
slow keeps no other waiting.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Final, TypeAlias

import msgspec
import structlog

from forewarn.clock import Clock
from forewarn.control.changefeed import Ask, Reached
from forewarn.control.plane import Plane
from forewarn.control.ticker import Rounds
from forewarn.control.unit_of_work import UnitOfWork
from forewarn.maintenance import news, webhooks
from forewarn.maintenance.alerts import Alert
from forewarn.maintenance.model import Refused, unknown
from forewarn.maintenance.webhooks import MAX_WEBHOOKS, Place, Webhook
from forewarn.store.port import StoreError, micros
from forewarn.store.queries import Reading
from forewarn.vocabulary import ErrorCode

LOOK_EVERY: Final = timedelta(seconds=5)
"""The pause between two looks at the rows: so soon a replica goes on with items that another left
behind."""

LEAST_PAUSE_SECONDS: Final = 0.25
"""Between two looks where there are no webhooks: each one reads the store, on another thread, and
news may come a thousand times a second."""

BATCH: Final = 10
"""Transactions whose news is read at once: an item has some 400 bytes, a transaction up to 2 MB."""

MAX_ITEMS: Final = 200
"""The most items that are kept of these: a slow receiver takes 15 s for each."""

Send: TypeAlias = Callable[[Webhook, str, bytes], Awaitable[str]]
"""Sends a body under an id; returns why it was not accepted, `""` if it was."""

_log = structlog.get_logger(__name__)


def add(unit: UnitOfWork, webhook: Webhook) -> Webhook:
    """Add a webhook; its cursor is at the next transaction."""
    known = unit.store.webhooks()
    if webhook.name in known:
        message = f"there is a webhook {webhook.name!r} already: remove it first"
        raise Refused(ErrorCode.CONFLICT, message, webhook=webhook.name)
    if len(known) >= MAX_WEBHOOKS:
        message = f"there are {len(known)} webhooks, at most {MAX_WEBHOOKS} allowed"
        raise Refused(ErrorCode.LIMIT, message, webhooks=len(known), most=MAX_WEBHOOKS)
    added = webhooks.passed(webhook, (unit.store.position().sequence + 1, 0))
    unit.store.put_webhooks([added])
    return added


def remove(unit: UnitOfWork, names: Collection[str]) -> tuple[Webhook, ...]:
    """Remove webhooks, all or none."""
    known = unit.store.webhooks()
    if missing := [name for name in names if name not in known]:
        raise unknown("webhook", *missing)
    unit.store.remove_webhooks(names)
    return tuple(known[name] for name in dict.fromkeys(names))


def move(unit: UnitOfWork, before: Webhook, step: Callable[[datetime], Webhook]) -> Webhook | None:
    """Change a webhook's row if it is still the one that the caller knows; else return None.

    It may have been removed, or another replica may have begun to send. `step` gets the time.
    """
    if unit.store.webhooks().get(before.name) != before:
        return None
    after = step(unit.now)
    unit.store.put_webhooks([after])
    return after


class _Item(msgspec.Struct, frozen=True, kw_only=True):
    """An item of news for a webhook."""

    place: Place
    at: datetime
    id: str
    """The same at each try. With the time in it no other item has it, not even after a backup was
    restored and numbers are given again."""
    body: bytes


class _Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The next news of a webhook."""

    items: list[_Item]
    end: Place
    """Where the cursor is once all of them are accepted."""
    oldest: int
    """The transaction from which on all news is kept."""


class Deliveries(Rounds):
    """Sends to every webhook that no other replica is sending to. On the event loop's thread.

    Pauses are in the time of `clock`, and `real` passes between two looks.
    """

    def __init__(
        self,
        plane: Plane,
        read: Ask,
        clock: Clock,
        real: Clock,
        send: Send,
    ) -> None:
        super().__init__("webhooks", real, clock)
        self._plane = plane
        self._read = read
        self._send = send
        self._webhooks: Mapping[str, Webhook] = {}
        """By name, as of the last look."""
        self._looked_at = float("-inf")
        self._sending: set[str] = set()

    def hear(self, reached: Reached) -> None:
        """Wake up for news that this replica has committed; for `Changefeed.tell`."""
        if reached.news:
            self._wake.set()

    def alerts(self) -> list[Alert]:
        """Return the alerts."""
        found = webhooks.alerts_of(self._webhooks.values(), self._time.now())
        return [*super().alerts(), *found]

    async def _round(self) -> timedelta:
        left = self._looked_at + LEAST_PAUSE_SECONDS - self._clock.monotonic()
        if left > 0 and not self._webhooks:
            return timedelta(seconds=left)
        self._looked_at = self._clock.monotonic()
        self._webhooks = await self._read(lambda reading: reading.webhooks())
        now = self._time.now()
        for name, webhook in self._webhooks.items():
            if name not in self._sending and webhook.free(now):
                self._sending.add(name)
                self._begin_task(self._deliver(webhook))
        return LOOK_EVERY

    async def _deliver(self, webhook: Webhook) -> None:
        try:
            with self._contained(f"webhook {webhook.name}"):
                known: Webhook | None = webhook
                while known is not None:
                    known = await self._deliver_batch(known)
        except StoreError as error:
            _log.warning("a webhook waits for the store", webhook=webhook.name, why=str(error))
        finally:
            self._sending.discard(webhook.name)

    async def _deliver_batch(self, webhook: Webhook) -> Webhook | None:
        """Send a few transactions' news; return the row that they led to, if there were any."""
        batch: _Batch = await self._read(partial(_next, webhook))
        if batch.oldest > webhook.cursor[0]:
            _log.warning("a webhook misses news that was deleted", webhook=webhook.name)
            return await self._move(webhook, partial(webhooks.missed, webhook, batch.oldest))
        for item in batch.items:
            step = partial(webhooks.sending, webhook, item.place, item.at)
            if (taken := await self._move(webhook, step)) is None:
                return None
            webhook = taken
            if trouble := await self._send(webhook, item.id, item.body):
                _log.warning("a webhook did not accept an item", webhook=webhook.name, why=trouble)
                await self._move(webhook, partial(webhooks.refused, webhook, trouble))
                return None
        done = webhooks.passed(webhook, batch.end)
        return await self._move(webhook, lambda _: done) if done != webhook else None

    async def _move(self, webhook: Webhook, step: Callable[[datetime], Webhook]) -> Webhook | None:
        moved: Webhook | None = await asyncio.wrap_future(self._plane.order(move, webhook, step))
        return moved


def _next(webhook: Webhook, reading: Reading) -> _Batch:
    """Read the next news of a webhook, on the reader's thread: a transaction may have 2 MB."""
    records = reading.news_after(webhook.cursor[0] - 1, BATCH)
    types, items, end = news.chosen(webhook.types), list[_Item](), webhook.cursor
    for record in records:
        told = news.numbered(record.sequence, record.items)
        for one, at in zip(told, (item.at for item in news.decode(record.items)), strict=True):
            place = record.sequence, one.index
            if place >= webhook.cursor and (not types or one.type in types):
                id_ = f"{one.id}_{micros(at)}"
                items.append(_Item(place=place, at=at, id=id_, body=one.json))
        end = record.sequence + 1, 0
        if len(items) >= MAX_ITEMS:
            items = items[:MAX_ITEMS]
            end = items[-1].place[0], items[-1].place[1] + 1
            break
    return _Batch(items=items, end=end, oldest=reading.news_trimmed() + 1)
