"""The guest plane put together, as the service fills, opens, feeds and stops it."""

import asyncio
import ipaddress
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, cast

import structlog

from forewarn import clock
from forewarn.maintenance import model
from forewarn.protocol import exchange
from forewarn.protocol.versions import Version
from forewarn.server import secret_files
from forewarn.server.guest.connection import Connection, Tap
from forewarn.server.guest.connections import Connections
from forewarn.server.guest.documents import DelayedAnswer, DocumentCache, Enabler
from forewarn.server.guest.endpoint import (
    Counters,
    Figures,
    GuestBackend,
    GuestEndpoint,
    Polls,
)
from forewarn.server.guest.http import AnswerWriter
from forewarn.server.guest.limits import UNLIMITED, Limiter, Limits, Rate, Reason
from forewarn.server.guest.listener import CannotListen, Listener, Listeners
from forewarn.server.guest.machines import Proxies, Registry, Source
from forewarn.server.relay_feed import GuestRules, ScopeDocument
from forewarn.server.sockets import HandedOver, SocketUnusable

FINISH_SECONDS: Final = 5.0
"""The time for requests under way to finish once the service stops."""

_log = structlog.get_logger(__name__)


class GuestPlane:
    """The metadata endpoint on its listeners. Made and used on the event loop.

    `apply` gives other rules. Scopes are turned on by `time`, whose `wait` delays answers, and
    answers show `wall`. `age` returns the age of the documents in seconds, which answers show
    unless it is 0; None where they are always as of the last change.
    """

    def __init__(  # noqa: PLR0913 - by name
        self,
        *,
        listeners: Sequence[Listener],
        limits: Limits,
        rules: GuestRules,
        backend: GuestBackend,
        time: clock.Clock,
        wall: clock.Clock,
        request_time: clock.Clock,
        on_turn: Callable[[float], None],
        mint: Callable[[], str],
        handed_over: HandedOver,
        scale: float = 1.0,
        age: Callable[[], int] | None = None,
    ) -> None:
        self._handed_over = handed_over
        self._given = tuple(listeners)
        self._backend = backend
        self._time = time
        self._proxies = tuple(_proxies(each) for each in self._given)
        self._counters = Counters()
        self._registry = Registry(proxied=any(self._proxies))
        self._documents = DocumentCache()
        self._loop = asyncio.get_running_loop()
        limiter = Limiter(UNLIMITED)
        self._endpoint = GuestEndpoint(
            self._registry,
            self._documents,
            backend,
            rules=exchange.Rules(),
            clock=request_time,
            limiter=limiter,
            monotonic=clock.monotonic,
            counters=self._counters,
        )
        writer = self._writer = AnswerWriter(wall, request_time, mint(), scale, age)
        self._polls = Polls(self._registry, self._documents, limiter=limiter, writer=writer)
        self._connections = Connections(
            self._endpoint,
            writer,
            limits=limits,
            counters=self._counters,
            loop=self._loop,
            polls=self._polls,
            on_turn=on_turn,
        )
        self._listeners = Listeners(self._loop, self._connections)
        self.apply(rules)

    def apply(self, rules: GuestRules) -> None:
        """Answer by these rules from now on; the clock stays as it is."""
        # A later release's word that this one does not know counts as the default, "preview".
        post_without_header = cast("Any", rules.post_without_header)
        self._endpoint.rules = exchange.Rules(post_without_header=post_without_header)
        limiter = Limiter(Rate(per_second=rules.rate_per_second, burst=rules.rate_burst))
        self._endpoint.limiter = self._polls.limiter = limiter
        enabler = None
        if rules.enablement == model.Enablement.FIRST_REQUEST:
            enabler = Enabler(
                self._documents,
                self._backend.record_requests,
                model.Policy(
                    enablement=model.Enablement.FIRST_REQUEST,
                    disable_after=timedelta(seconds=rules.disable_after_seconds),
                ),
                delay_seconds=rules.first_response_delay_seconds,
                clock=self._time,
                loop=self._loop,
            )
        self._endpoint.enabler = self._polls.enabler = enabler

    @property
    def machines(self) -> Mapping[str, model.Machine]:
        """All machines by key, always as of the last change."""
        return self._registry.machines

    @property
    def whole(self) -> Callable[[str], ScopeDocument]:
        """Returns a scope's document by its key, for relays; raises KeyError for an unknown one."""
        return self._documents.whole

    def document(self, scope: str, version: Version) -> bytes:
        """Return the document of a scope, by its key; KeyError for an unknown one."""
        return self._documents.page(scope, version).body

    def learn(self, changes: model.Changes) -> None:
        """Take over changes, all of them before the next request."""
        self._documents.learn(changes)
        self._follow(changes)

    def replace(
        self,
        documents: Collection[ScopeDocument],
        *,
        removed_scopes: Collection[str] = (),
        machines: Collection[model.Machine] = (),
        removed_machines: Collection[str] = (),
    ) -> None:
        """Take over whole documents, and machines, all of them before the next request."""
        self._documents.replace(documents, removed_scopes)
        self._follow(
            model.Changes(
                scopes=tuple(document.scope for document in documents),
                removed_scopes=tuple(removed_scopes),
                machines=tuple(machines),
                removed_machines=tuple(removed_machines),
            )
        )

    def _follow(self, changes: model.Changes) -> None:
        self._warn_of_unheard(changes.machines)
        self._registry.learn(changes)
        self._polls.learn()
        self._connections.long_polls.learn(changes)

    def _warn_of_unheard(self, machines: Collection[model.Machine]) -> None:
        names = {listener.name for listener in self._given}
        unheard = [m for m in machines if m.address and m.listener not in names]
        if unheard and names:  # an emulator has none
            _log.warning(
                "the settings have no listener of this name: these machines are not known by "
                "their addresses",
                listener=unheard[0].listener,
                machine=unheard[0].name,
                machines=len(unheard),
            )

    def seen(self, machine_key: str) -> model.Sighting | None:
        """Return a machine's latest request, None if it has not asked since the start.

        Any thread may ask.
        """
        return self._registry.seen(machine_key)

    def tell_news(self, hear: Callable[[str], None]) -> None:
        """Call `hear` with the key of a machine that asks first, or whose agent reports news."""
        self._registry.on_news = hear

    def tell_strangers(self, arrival: Callable[[Source], DelayedAnswer | None]) -> None:
        """Ask `arrival` about an address that no machine has: one may have just moved here.

        A request from there is answered once the returned answer is done, at once where that is
        None.
        """
        self._endpoint.arrival = arrival

    def ask_again(self, operation: model.Operation) -> None:
        """End the waiting requests of the machines that an operation awaits."""
        self.end_waits({*map(model.key, operation.awaited)})

    def end_waits(self, machines: Collection[str]) -> None:
        """End the waiting requests of these machines (keys), so that they ask again."""
        known = self._registry.machines
        scopes = {known[key].scope for key in machines if key in known}
        self._connections.long_polls.end_all(scopes, machines)

    def figures(self) -> Figures:
        """Return the counts so far."""
        counters = self._counters
        return {
            "guest_connections": len(self._connections),
            "guest_connections_accepted": counters.accepted,
            "guest_waiters": len(self._connections.long_polls),
            "guest_requests": {
                (resource, str(status)): count
                for resource, statuses in counters.answers.items()
                for status, count in statuses.items()
            },
            "guest_refusals": {(reason.value,): counters.refusals[reason] for reason in Reason},
            "machines_seen": self._registry.seen_count,
        }

    async def open(self) -> tuple[str, ...]:
        """Open every listener and return their addresses; SocketUnusable if one cannot be opened.

        None is left open then, nor where a proxies' secret cannot be read (SecretUnusable).
        """
        self.reload()
        try:
            opened = await self._listeners.open(
                list(zip(self._given, self._proxies, strict=True)), self._handed_over
            )
        except CannotListen as error:
            message = f"guest.listener: {error}"
            raise SocketUnusable(message) from error
        self._connections.sweep_from_now_on()
        return tuple(f"http://{listener}" for listener in opened)

    def reload(self) -> None:
        """Read the proxies' secrets again; if one cannot be read, all stay (SecretUnusable)."""
        read = [
            tuple(secret_files.shared_secret(Path(path)) for path in listener.proxy_secret_files)
            for listener in self._given
        ]
        for proxies, secrets in zip(self._proxies, read, strict=True):
            if proxies is not None:
                proxies.secrets = secrets

    def tap(self, tap: Tap) -> None:
        """Show all requests and answers to a tap from now on; none is answered from `Polls`."""
        self._connections.tap = tap

    def connection(self, source: Source) -> Connection:
        """Return a new connection of a peer that was accepted elsewhere."""
        return Connection(self._connections, source)

    def note_jump(self) -> None:
        """Note that the clock was moved: answers read the time again."""
        self._writer.until = -math.inf

    @property
    def is_waking(self) -> bool:
        """True if waiting requests are about to be answered."""
        return self._connections.long_polls.is_waking

    def suspend(self) -> None:
        """Close every connection without an answer until `resume`: the documents may be too old."""
        self._connections.suspend()

    def resume(self) -> None:
        """Answer again."""
        self._connections.resume()

    async def drain(self, seconds: float) -> None:
        """Ask guests to leave the connections that they keep, while all are served."""
        self._listeners.accept_at_once()
        await self._connections.drain(seconds)

    async def close(self) -> None:
        """Stop accepting, finish requests under way, close every connection."""
        self._listeners.close()
        await self._connections.retire(FINISH_SECONDS)
        if self._counters.refusals:
            _log.info("guests were turned away", **dict(self._counters.refusals))


def _proxies(listener: Listener) -> Proxies | None:
    if not listener.trusted_proxies:
        return None
    networks = map(ipaddress.ip_network, listener.trusted_proxies)
    return Proxies(networks, without_header=listener.proxy_without_header)
