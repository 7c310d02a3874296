"""The guest plane put together, as the service fills, opens, feeds and stops it."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

import structlog

from forewarn import clock
from forewarn.control.plane import Plane
from forewarn.control.service_clock import ServiceClock
from forewarn.maintenance import model
from forewarn.protocol import exchange
from forewarn.server import secret_files
from forewarn.server.guest import listener as listening
from forewarn.server.guest.connections import Connections
from forewarn.server.guest.counters import Counters, Figures
from forewarn.server.guest.documents import Documents
from forewarn.server.guest.enablement import Enabler
from forewarn.server.guest.endpoint import GuestEndpoint
from forewarn.server.guest.http import AnswerWriter
from forewarn.server.guest.limits import Limiter, Rate, Reason
from forewarn.server.guest.listener import CannotListen, Listener, Listeners
from forewarn.server.guest.machines import Proxies, Registry
from forewarn.server.guest.repeated_polls import Polls
from forewarn.server.settings import Settings
from forewarn.server.sockets import HandedOver, SocketUnusable

FINISH_SECONDS: Final = 5.0
"""How long requests under way may take to finish once the service stops."""

_log = structlog.get_logger(__name__)


class GuestPlane:
    """The metadata endpoint on its listeners. Made and used on the event loop."""

    def __init__(
        self,
        settings: Settings,
        plane: Plane,
        watch: ServiceClock,
        policy: model.Policy,
        *,
        mint: Callable[[], str],
        handed_over: HandedOver,
    ) -> None:
        self._handed_over = handed_over
        self._settings = settings.guest
        self._proxies = tuple(_proxies(each) for each in settings.guest.listener)
        self._counters = Counters()
        self._registry = Registry(proxied=any(self._proxies))
        self._documents = Documents()
        rules = settings.rules
        limiter = Limiter(Rate(per_second=rules.rate_per_second, burst=rules.rate_burst))
        loop = asyncio.get_running_loop()
        enabler = None
        if policy.enablement is not model.Enablement.ALWAYS:
            enabler = Enabler(
                self._documents,
                plane.record_requests,
                policy,
                delay_seconds=rules.first_response_delay_seconds,
                clock=watch,
                loop=loop,
            )
        endpoint = GuestEndpoint(
            self._registry,
            self._documents,
            plane,
            rules=exchange.Rules(post_without_header=settings.guest.post_without_header),
            clock=watch.wall,
            limiter=limiter,
            monotonic=clock.monotonic,
            counters=self._counters,
            enabler=enabler,
        )
        writer = AnswerWriter(watch.wall, mint(), settings.clock.scale)
        self._polls = Polls(
            self._registry, self._documents, limiter=limiter, writer=writer, enabler=enabler
        )
        self._connections = Connections(
            endpoint,
            writer,
            limits=settings.guest,
            counters=self._counters,
            loop=loop,
            polls=self._polls,
            on_turn=watch.turn,
        )
        self._listeners = Listeners(loop, self._connections)

    @property
    def machines(self) -> Mapping[str, model.Machine]:
        """All machines by key, always as of the last change."""
        return self._registry.machines

    def fill(
        self,
        scopes: Collection[model.Scope],
        machines: Collection[model.Machine],
        operations: Collection[model.Operation],
    ) -> None:
        """Take over what the store holds."""
        self._warn_of_unheard(machines)
        self._registry.fill(machines)
        self._documents.fill(scopes, operations)

    def learn(self, changes: model.Changes) -> None:
        """Take over what changed, all of it before the next request."""
        self._warn_of_unheard(changes.machines)
        self._registry.learn(changes)
        self._documents.learn(changes)
        self._polls.learn()
        self._connections.long_polls.learn(changes)

    def _warn_of_unheard(self, machines: Collection[model.Machine]) -> None:
        names = {listener.name for listener in self._settings.listener}
        unheard = [m for m in machines if m.address and m.listener not in names]
        if unheard:
            _log.warning(
                "the settings have no listener of this name: these machines are not known by "
                "their addresses",
                listener=unheard[0].listener,
                machine=unheard[0].name,
                machines=len(unheard),
            )

    def seen(self, machine_key: str) -> model.Sighting | None:
        """Return what a machine's requests told last, None if it has not asked since the start.

        Any thread may ask.
        """
        return self._registry.seen(machine_key)

    def tell_news(self, hear: Callable[[str], None]) -> None:
        """Call `hear` with the key of a machine that asks first, or whose agent says news."""
        self._registry.on_news = hear

    def ask_again(self, operation: model.Operation) -> None:
        """End the waiting requests of the machines that an operation awaits."""
        self._connections.long_polls.end_all(
            {event.scope for event in operation.events}, {*map(model.key, operation.awaited)}
        )

    def figures(self) -> Figures:
        """Return what was counted so far."""
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
                list(zip(self._settings.listener, self._proxies, strict=True)), self._handed_over
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
            for listener in self._settings.listener
        ]
        for proxies, secrets in zip(self._proxies, read, strict=True):
            if proxies is not None:
                proxies.secrets = secrets

    def suspend(self) -> None:
        """Close every connection without an answer until `resume`: what is known may be too old."""
        self._connections.suspend()

    def resume(self) -> None:
        """Answer again."""
        self._connections.resume()

    async def drain(self, seconds: float) -> None:
        """Have guests leave the connections that they keep, while all are served."""
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
    networks = listening.networks(listener)
    return Proxies(networks, without_header=listener.proxy_without_header)
