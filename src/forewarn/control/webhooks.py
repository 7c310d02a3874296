"""Delivers news to webhooks: to each in order, at least once, by one replica at a time.

`server.operator.webhook_requests` signs and sends each request, `maintenance.webhooks` says when to
try again.

A webhook's row has how far it has come. Whoever delivers holds a lease in it, as an executor does
of a task; how far it is, it writes there after each failure, and once a second while deliveries
succeed. So a kill repeats at most that second's deliveries, under the same ids. Each webhook has a
task of its own: one that is slow keeps no other waiting.

The rows are no part of the outbox: nobody but the deliverers, who look every few seconds, and the
operators who ask has any use for them.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

import msgspec
import structlog

from forewarn.clock import Clock
from forewarn.control.changefeed import Reached
from forewarn.control.plane import Plane
from forewarn.control.ticker import AFTER_TROUBLE, Rounds
from forewarn.control.unit_of_work import Decide, UnitOfWork, Work
from forewarn.maintenance import news, webhooks
from forewarn.maintenance.alerts import Alert
from forewarn.maintenance.model import Refused, unknown
from forewarn.maintenance.news import NewsItem
from forewarn.maintenance.webhooks import LEASE, MAX_WEBHOOKS, DeliveryFailure, Webhook
from forewarn.store.port import Reading, StoreError
from forewarn.vocabulary import ErrorCode

LOOK_EVERY: Final = timedelta(seconds=5)
"""Between two looks at the rows: so soon a replica knows what another was asked for."""

RENEW_BEFORE: Final = timedelta(seconds=40)
"""A lease is renewed when so much of it is left: three tries before it is over."""

SAVE_EVERY: Final = 1.0
"""Seconds between two writes of how far a webhook is, while it accepts what it gets."""

SAVE_IDLE_EVERY: Final = 60.0
"""The same where it is told of nothing: to read that again after a start does no harm."""

BATCH: Final = 10
"""Transactions whose news is read at once: an item has some 400 bytes, a transaction up to 2 MB."""

Place: TypeAlias = tuple[int, int]
"""The transaction of an item, and its place there."""

Send: TypeAlias = Callable[[Webhook, Place, NewsItem], Awaitable[DeliveryFailure | None]]
"""Sends an item; returns why it was not accepted, None if it was."""

_log = structlog.get_logger(__name__)


def add(unit: UnitOfWork, _: Decide, webhook: Webhook) -> Work[Webhook]:
    """Add a webhook; it is told of what happens from then on."""
    known = unit.store.webhooks()
    if webhook.name in known:
        message = f"there is a webhook {webhook.name!r} already: remove it first"
        raise Refused(ErrorCode.CONFLICT, message, webhook=webhook.name)
    if len(known) >= MAX_WEBHOOKS:
        message = f"there are {len(known)} webhooks, at most {MAX_WEBHOOKS} allowed"
        raise Refused(ErrorCode.LIMIT, message, webhooks=len(known), most=MAX_WEBHOOKS)
    sequence = unit.store.position().sequence
    added = msgspec.structs.replace(webhook, done_sequence=sequence, created_at=unit.now)
    unit.store.put_webhooks([added])
    return Work(added)


def remove(unit: UnitOfWork, _: Decide, names: Collection[str]) -> Work[tuple[Webhook, ...]]:
    """Remove webhooks, all or none."""
    known = unit.store.webhooks()
    if missing := [name for name in names if name not in known]:
        raise unknown("webhook", *missing)
    unit.store.remove_webhooks(names)
    return Work(tuple(known[name] for name in dict.fromkeys(names)))


def enable(unit: UnitOfWork, _: Decide, webhook: Webhook) -> Work[Webhook]:
    """Let a webhook go on after it has accepted a test."""
    known = unit.store.webhooks().get(webhook.name)
    if known is None:
        raise unknown("webhook", webhook.name)
    going_on = webhooks.enabled(known)
    unit.store.put_webhooks([going_on])
    return Work(going_on)


def claim(unit: UnitOfWork, _: Decide, replica: str) -> Work[dict[str, Webhook]]:
    """Give a replica a lease of each webhook that no other one holds."""
    until = unit.now + LEASE
    claimed = {
        name: msgspec.structs.replace(webhook, holder=replica, lease_until=until)
        for name, webhook in unit.store.webhooks().items()
        if webhook.free_for(replica, unit.now)
    }
    unit.store.put_webhooks(claimed.values())
    return Work(claimed)


def release(unit: UnitOfWork, _: Decide, replica: str) -> Work[None]:
    """End all leases of a replica that stops."""
    unit.store.put_webhooks(
        msgspec.structs.replace(webhook, lease_until=None)
        for webhook in unit.store.webhooks().values()
        if webhook.holder == replica
    )
    return Work(None)


def note(unit: UnitOfWork, _: Decide, webhook: Webhook, replica: str) -> Work[Webhook | None]:
    """Write down how far a webhook is; the answer is its row, None if it is not ours.

    It may have been removed, or another replica may deliver to it.
    """
    known = unit.store.webhooks().get(webhook.name)
    if known is None or known.created_at != webhook.created_at or known.holder != replica:
        return Work(None)
    noted = msgspec.structs.replace(webhook, holder=replica, lease_until=unit.now + LEASE)
    unit.store.put_webhooks([noted])
    return Work(noted)


class Deliveries(Rounds):
    """Delivers to every webhook that this replica can have. On the event loop's thread.

    `read` asks the store, on another thread. Leases and delays are in the time of `clock`, and
    `real` passes between two looks.
    """

    def __init__(
        self,
        *,
        plane: Plane,
        read: "Callable[[Callable[[Reading], Any]], Awaitable[Any]]",
        clock: Clock,
        real: Clock,
        replica: str,
        send: Send,
        chance: Callable[[], float],
    ) -> None:
        super().__init__("webhooks", real, clock)
        self._plane = plane
        self._read = read
        self._replica = replica
        self._send = send
        self._chance = chance
        self.webhooks: Mapping[str, Webhook] = {}
        """By name, as of the last look."""
        self.accepted: Counter[str] = Counter()
        """How many items each webhook accepted from this process."""
        self.refused: Counter[str] = Counter()
        self._couriers: dict[str, Courier] = {}

    def hear(self, reached: Reached) -> None:
        """Wake up for the news of a change; for `Changefeed.tell`."""
        if reached.news is None or reached.news:
            for courier in self._couriers.values():
                courier.news.set()

    def alerts(self) -> list[Alert]:
        """Return what needs an operator."""
        return [*super().alerts(), *webhooks.alerts_of(self.webhooks.values())]

    def look(self) -> None:
        """Look at the rows at once: one was added, removed or enabled."""
        self._wake.set()

    def waiting_seconds(self) -> dict[str, float]:
        """Return the age of the item that each webhook of this replica has next, 0 for none."""
        now = self._time.now()
        return {
            name: max(0.0, (now - courier.next_at).total_seconds()) if courier.next_at else 0.0
            for name, courier in list(self._couriers.items())  # another thread asks
        }

    async def run(self) -> None:
        """Deliver until `stop`; what is under way then may be delivered again."""
        await super().run()
        couriers = list(self._couriers.values())
        await self._end(list(self._couriers))
        if couriers:
            await self._leave(couriers)

    async def _leave(self, couriers: Iterable["Courier"]) -> None:
        """Write down how far each webhook is, and let another replica deliver."""
        try:
            for courier in couriers:
                if courier.webhook != courier.stored:
                    await self._save(courier)
            await asyncio.wrap_future(self._plane.order(release, self._replica))
        except Exception as error:  # noqa: BLE001 - the leases end by themselves
            _log.warning("leases of webhooks were not released", reason=str(error))

    async def _round(self) -> timedelta:
        """Claim and renew, and have a courier for each webhook that is ours."""
        stored = {name: courier.stored.place for name, courier in self._couriers.items()}
        known: dict[str, Webhook] = await self._read(lambda reading: reading.webhooks())
        now = self._time.now()
        if any(self._is_due(webhook, now) for webhook in known.values()):
            claimed = await asyncio.wrap_future(self._plane.order(claim, self._replica))
            known = {**known, **claimed}
        self.webhooks = known
        own = {
            name: webhook
            for name, webhook in known.items()
            if webhook.disabled_at is None and webhook.holder == self._replica
        }
        over = [
            name
            for name, courier in self._couriers.items()
            if courier.task.done()
            or name not in own
            or own[name].created_at != courier.webhook.created_at
            or own[name].place < stored[name]  # the store lost its last changes
        ]
        await self._end(over)
        for name, webhook in own.items():
            courier = self._couriers.get(name)
            if courier is None:
                courier = self._couriers[name] = Courier(webhook)
                courier.task = asyncio.create_task(self._deliver(courier))
            elif webhook.next_try_at is None:
                courier.retry.set()  # an operator's test was accepted
        return LOOK_EVERY

    def _is_due(self, webhook: Webhook, now: datetime) -> bool:
        if not webhook.free_for(self._replica, now):
            return False
        until = webhook.lease_until
        return until is None or until - now < RENEW_BEFORE

    async def _end(self, names: Iterable[str]) -> None:
        ending = [self._couriers.pop(name).task for name in names]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _deliver(self, courier: "Courier") -> None:
        """Deliver to one webhook, until it is disabled or not ours any more."""
        name = courier.webhook.name
        while True:
            pause = LOOK_EVERY
            goes_on: bool | None = None
            try:
                with self._contained(f"webhook {name}"):
                    goes_on = await self._deliver_what_there_is(courier)
            except StoreError as error:
                _log.warning("a webhook waits for the store", webhook=name, why=str(error))
                pause = AFTER_TROUBLE
            if goes_on is None:
                await self._clock.wait(pause.total_seconds(), asyncio.Event())
            elif not goes_on:
                self._wake.set()  # to show what became of it
                return

    async def _deliver_what_there_is(self, courier: "Courier") -> bool:
        """Deliver what there is, and wait for more; return whether to go on."""
        courier.news.clear()
        done = courier.webhook.done_sequence
        found, trimmed = await self._read(lambda reading: _news_from(reading, done))
        if trimmed > done:
            _log.warning(
                "a webhook misses news that is kept no more",
                webhook=courier.webhook.name,
                transactions=trimmed - done,
            )
        for sequence, items in found:
            for index, item in enumerate(items):
                place = sequence, index
                if place > courier.webhook.place and not await self._pass(courier, place, item):
                    return False
        if len(found) == BATCH:
            return True
        if courier.unsaved and not await self._save(courier):
            return False
        if not courier.news.is_set():
            await self._clock.wait(SAVE_IDLE_EVERY, courier.news)
            if not courier.news.is_set() and courier.webhook != courier.stored:
                return await self._save(courier)
        return True

    async def _pass(self, courier: "Courier", place: Place, item: NewsItem) -> bool:
        """Deliver an item if it is wanted; return whether to go on."""
        if not courier.webhook.wants(item.type):
            courier.webhook = webhooks.passed(courier.webhook, place)
            return True
        courier.next_at = item.at
        if not await self._deliver_one(courier, place, item):
            return False
        courier.next_at = None
        late = self._clock.monotonic() - courier.saved_at >= SAVE_EVERY
        return await self._save(courier) if courier.unsaved and late else True

    async def _deliver_one(self, courier: "Courier", place: Place, item: NewsItem) -> bool:
        """Deliver an item, however often that takes; return whether the webhook goes on."""
        while True:
            if not await self._takes_turn(courier):
                return False
            failure = await self._send(courier.webhook, place, item)
            webhook, now = courier.webhook, self._time.now()
            if failure is None:
                self.accepted[webhook.name] += 1
                courier.webhook = webhooks.delivered(webhook, place, now)
                courier.unsaved = True
                return True
            self.refused[webhook.name] += 1
            courier.webhook = webhooks.failed(webhook, failure, now, self._chance())
            _tell(courier.webhook)
            if not await self._save(courier) or courier.webhook.disabled_at is not None:
                return False

    async def _takes_turn(self, courier: "Courier") -> bool:
        """Wait until the next try is due; return whether it is still ours to make."""
        courier.retry.clear()
        at = courier.webhook.next_try_at
        if at is not None and at > (now := self._time.now()):
            await self._time.wait((at - now).total_seconds(), courier.retry)
        # If this process stood still, another one may deliver by now: its row says so.
        return self._holds(courier.webhook) or await self._save(courier)

    def _holds(self, webhook: Webhook) -> bool:
        now, seen = self._time.now(), self.webhooks.get(webhook.name, webhook)
        return any(one.held_by(self._replica, now) for one in (webhook, seen))

    async def _save(self, courier: "Courier") -> bool:
        """Write down how far a webhook is; return whether it is still ours."""
        noted = await asyncio.wrap_future(self._plane.order(note, courier.webhook, self._replica))
        if noted is None:
            _log.info("a webhook is not ours any more", webhook=courier.webhook.name)
            return False
        courier.webhook = courier.stored = noted
        courier.saved_at, courier.unsaved = self._clock.monotonic(), False
        return True


class Courier:
    """Who delivers to one webhook: how far it is, and how much of that the store has."""

    task: "asyncio.Task[None]"

    def __init__(self, webhook: Webhook) -> None:
        self.webhook = self.stored = webhook
        self.next_at: datetime | None = None
        """The time of the item that it delivers; None where there is none."""
        self.saved_at = float("-inf")
        """When it was written last, by the machine's seconds."""
        self.unsaved = False
        """Whether the webhook accepted something since."""
        self.news = asyncio.Event()
        """Set where there may be news."""
        self.retry = asyncio.Event()
        """Set where the next try need not wait."""


def _news_from(reading: Reading, sequence: int) -> tuple[list[tuple[int, list[NewsItem]]], int]:
    """Return a batch of news from this transaction on, and the last one that was trimmed.

    It is decoded here, on the reader's thread: that of a transaction may be 2 MB.
    """
    records = reading.news_after(sequence - 1, BATCH)
    found = [(record.sequence, news.decode(record.items)) for record in records]
    return found, reading.news_trimmed()


def _tell(webhook: Webhook) -> None:
    told = {"webhook": webhook.name, "why": webhook.trouble, "tries": webhook.tries}
    if webhook.disabled_at is not None:
        _log.error("a webhook is disabled: it has accepted nothing for too long", **told)
    else:
        _log.warning("a webhook did not accept an item", next_try_at=webhook.next_try_at, **told)
