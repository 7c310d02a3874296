"""The service behind the relay's guest plane, asked through one of its replicas.

The guest plane submits guests' requests, and gets a future; the requests that answer it run on the
event loop. Only the service approves a guest's events, durably: nothing of it is kept here.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final

import structlog
from msgspec.structs import replace

from forewarn.clock import Clock
from forewarn.control.replicas import SharedSightings
from forewarn.maintenance import model
from forewarn.maintenance.model import Machine, Refused, Sighting
from forewarn.protocol.message import Reply
from forewarn.relay import upstream
from forewarn.relay.upstream import Body, Upstream, UpstreamFailed
from forewarn.server import relay_feed
from forewarn.server.guest.documents import DelayedAnswer
from forewarn.server.guest.machines import Source
from forewarn.server.relay_feed import AgedSighting, GuestApproval, ScopeRequests, UnknownCaller
from forewarn.store.port import OutcomeUnknown, StoreError, StoreUnavailable
from forewarn.vocabulary import ErrorCode

APPROVAL_SECONDS: Final = 8.0
"""The time limit of an approval, all replicas together: clients in the field wait 10 s and more."""

REPLICA_SECONDS: Final = 3.0
"""The time limit of one replica's answer: a write there takes milliseconds, a failover of its
database longer, and then another replica is as slow."""

REQUESTS_SECONDS: Final = 8.0
"""The time limit of sightings, and of scopes that were asked for: both come again."""

MAX_PENDING: Final = 256
"""Approvals and first requests that wait for an answer at once: guests have a share each, and more
than these would only pile up before a service that is slow."""

SIGHTING_BEATS: Final = 45
"""The number of calls of `tell`, a minute, in which each machine that goes on asking is reported
again."""

CLAIM_SECONDS: Final = 10.0
"""The time for which an address without a machine is not asked for again."""

CLAIMS_PER_SECOND: Final = 5.0
"""The most questions for any such address: networks have strangers, and machines move seldom."""

MAX_CLAIMS: Final = 100

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Arrival:
    """An address that the service was asked for."""

    until: float
    """The time from which it may be asked for again, by the clock's monotonic seconds."""
    known: DelayedAnswer
    """Done once the machine is known, or is not."""

    def settle(self) -> None:
        """Answer those who wait."""
        if not self.known.done():
            self.known.set_result(None)


@dataclass(eq=False, repr=False)
class Forwarding:
    """Asks the service for the guest plane; used on the event loop alone."""

    upstream: Upstream
    age: Callable[[datetime], float]
    """Returns the age of a time of the service, in real seconds."""
    sighting: model.Sightings
    """Returns the latest requests of a machine to the relay."""
    clock: Clock
    approvals: Counter[str] = field(default_factory=Counter)
    """The number of approvals with each outcome: `approved`, or an ErrorCode."""
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _claims: dict[tuple[str, str], _Arrival] = field(default_factory=dict)
    """By listener and address, the oldest first."""
    _claim_at: float = 0.0
    _found: dict[tuple[str, str], None] = field(default_factory=dict)
    """Listeners and addresses of machines that were claimed: one replica knows of each."""

    # What the guest plane asks.

    def approve(
        self, scope: str, event_ids: Sequence[str], *, by: str, address: str
    ) -> "Future[None]":
        """Approve events for a machine at the service, as `GuestBackend` says."""
        del scope  # the service knows it by the machine
        machine = model.key(by)
        seen = self.sighting(machine)
        approval = GuestApproval(
            machine=machine,
            address=address,
            event_ids=tuple(event_ids),
            version="" if seen is None else seen.version,
        )
        return self._submit(self._approve(approval, seen))

    def record_requests(self, scopes: Collection[str]) -> "Future[None]":
        """Record at the service that machines of these scopes (keys) asked for their events."""
        return self._submit(self._record(tuple(scopes)))

    def _submit(self, asking: Coroutine[Any, Any, None]) -> "Future[None]":
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        if len(self._tasks) >= MAX_PENDING:
            asking.close()
            future.set_exception(StoreUnavailable("too many requests wait for the service"))
            return future
        self._start(self._answer(asking, future))
        return future

    async def _answer(self, asking: Coroutine[Any, Any, None], future: "Future[None]") -> None:
        try:
            await asking
        except asyncio.CancelledError:
            future.set_exception(OutcomeUnknown("the relay is stopping"))
            raise
        except Exception as error:  # noqa: BLE001 - the caller gets it
            future.set_exception(error)
        else:
            future.set_result(None)

    async def _approve(self, approval: GuestApproval, seen: Sighting | None) -> None:
        outcome = "approved"
        try:
            await self._send(approval, seen)
        except (Refused, StoreError) as error:
            outcome = error.code
            raise
        finally:
            self.approvals[str(outcome)] += 1

    async def _send(self, approval: GuestApproval, seen: Sighting | None) -> None:
        for event_id in approval.event_ids:
            if "\0" in event_id:  # no RelayText has it, and no GUID (protocol.md section 5)
                message = f"event {event_id!r} was never published"
                raise Refused(ErrorCode.NOT_FOUND, message, event_id=event_id)

        def aged() -> bytes:
            age = 0.0 if seen is None else max(0.0, self.age(seen.asked_at))
            return relay_feed.encode(replace(approval, age_seconds=age))

        reply = await self._ask(relay_feed.APPROVALS_PATH, aged, APPROVAL_SECONDS)
        if reply.status != 200:
            raise _error(reply)

    async def _record(self, scopes: tuple[str, ...]) -> None:
        for start in range(0, len(scopes), relay_feed.MAX_SCOPES):
            some = ScopeRequests(scopes=scopes[start : start + relay_feed.MAX_SCOPES])
            body = partial(relay_feed.encode, some)
            reply = await self._ask(relay_feed.REQUESTS_PATH, body, REQUESTS_SECONDS)
            if reply.status != 204:
                raise _error(reply)

    async def _ask(self, path: str, body: Body, seconds: float) -> Reply:
        try:
            return await self.upstream.ask(path, body, seconds, each_seconds=REPLICA_SECONDS)
        except UpstreamFailed as error:
            if error.maybe_done:
                raise OutcomeUnknown(str(error)) from error
            raise StoreUnavailable(str(error)) from error

    # Machines that nobody told the relay of.

    def arrival(self, source: Source) -> DelayedAnswer | None:
        """Return an answer that is done once the service has looked for a machine at this address.

        None where nothing is awaited: it has looked, or too many are asked for. It is asked once
        for an address in CLAIM_SECONDS; a machine that has just moved here is in the next document.
        Where it knows of none, somebody else may have moved one here, as fleet sync sees a moment
        later: that is awaited as long.
        """
        now = self.clock.monotonic()
        key = source.listener, source.address
        while self._claims and next(iter(self._claims.values())).until <= now:
            del self._claims[next(iter(self._claims))]
        claim = self._claims.get(key)
        if claim is None:
            if now < self._claim_at or len(self._claims) >= MAX_CLAIMS:
                return None
            self._claim_at = now + 1 / CLAIMS_PER_SECOND
            claim = self._claims[key] = _Arrival(
                now + CLAIM_SECONDS, DelayedAnswer(REPLICA_SECONDS)
            )
            asyncio.get_running_loop().call_later(REPLICA_SECONDS, claim.settle)
            self._start(self._claim(key))
        return None if claim.known.done() else claim.known

    async def claim_again(self) -> None:
        """Claim at another replica the addresses claimed here: claims die with their replica.

        All together: the service does not hear of the relay before that is over.
        """
        await asyncio.gather(*map(self._claim, self._found))

    def _start(self, asking: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(asking)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _claim(self, key: tuple[str, str]) -> None:
        """Claim a moving machine, at this listener and address, for this host at the service."""
        asked = UnknownCaller(listener=key[0], address=key[1])
        try:
            reply = await self.upstream.ask(
                relay_feed.UNKNOWN_PATH,
                partial(relay_feed.encode, asked),
                REPLICA_SECONDS,
                each_seconds=REPLICA_SECONDS,
            )
        except UpstreamFailed as error:
            _log.debug("could not ask for an unknown machine", why=str(error))
            return
        if reply.status == 204:
            self._found[key] = None
        else:  # it is not there, or the fleet knows by now that it is
            self._found.pop(key, None)

    def arrived(self, machines: Iterable[Machine], host: str) -> None:
        """Answer the requests from the addresses of these machines, which are known now.

        A machine that the fleet has on this host needs no claim any longer.
        """
        for machine in machines:
            key = machine.listener, machine.address
            if machine.host == host:
                self._found.pop(key, None)
            claim = self._claims.pop(key, None)
            if claim is not None:
                claim.settle()

    # What the relay saw of machines.

    async def tell(self, seen: SharedSightings) -> None:
        """Report new sightings of machines to the service; failed reports are repeated."""
        news = [*seen.news().items()]
        for start in range(0, len(news), relay_feed.MAX_SIGHTINGS):
            some = news[start : start + relay_feed.MAX_SIGHTINGS]
            try:
                reply = await self._ask(
                    relay_feed.SIGHTINGS_PATH, partial(self._aged, some), REQUESTS_SECONDS
                )
                if reply.status != 204:
                    raise _error(reply)
            except (StoreError, Refused) as error:
                _log.debug("could not tell which machines asked", why=str(error))
                seen.keep(machine for machine, _ in news[start:])
                return

    def _aged(self, seen: Iterable[tuple[str, Sighting]]) -> bytes:
        return relay_feed.encode(
            [
                AgedSighting(
                    machine=machine,
                    age_seconds=max(0.0, self.age(each.asked_at)),
                    version=each.version,
                    agent=each.agent,
                    reason=each.reason,
                )
                for machine, each in seen
            ]
        )

    async def close(self) -> None:
        """End the requests that are under way."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self.upstream.close()


def _error(reply: Reply) -> Exception:
    told = upstream.refusal(reply)
    if reply.status == 400 and told.code == ErrorCode.NOT_FOUND:
        return Refused(ErrorCode.NOT_FOUND, told.message, event_id=told.event_id)
    if told.code == ErrorCode.NOT_ELIGIBLE:
        return Refused(ErrorCode.NOT_ELIGIBLE, told.message)
    if told.code == ErrorCode.UNKNOWN_OUTCOME:
        return OutcomeUnknown(told.message)
    message = f"the service answers {reply.status}: {told.message or told.code}"
    if reply.status in {400, 413}:  # it would refuse it again
        return Refused(ErrorCode.INVALID, message)
    return StoreUnavailable(message)
