"""The guest plane put together, as the service starts, feeds and stops it."""

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

import structlog

from forewarn.clock import Clock
from forewarn.control.plane import Plane
from forewarn.maintenance.model import Changes, Machine, Operation, Scope
from forewarn.protocol import exchange
from forewarn.server import listening, secret_files, settings
from forewarn.server.guest.asking import ALWAYS_ON, Asking, askings_of
from forewarn.server.guest.callers import Registry
from forewarn.server.guest.connections import Connections
from forewarn.server.guest.documents import Documents
from forewarn.server.guest.endpoint import Endpoint
from forewarn.server.guest.listener import CannotListen, Listener, Listeners
from forewarn.server.guest.proxies import Proxies
from forewarn.server.guest.rate import UNLIMITED, Limiter, Rate
from forewarn.server.guest.repeats import Repeats
from forewarn.server.guest.tally import Figures, Reason, Tally
from forewarn.server.guest.writing import Writer
from forewarn.server.operator.sockets import SocketUnusable

FINISH_SECONDS: Final = 5.0
"""How long requests under way may take to finish once the service stops."""

_log = structlog.get_logger(__name__)


class Guests(Protocol):
    """The guest plane, as the service starts and stops it."""

    @property
    def machines(self) -> Mapping[str, Machine]:
        """All machines by key, always as of the last change."""
        ...

    def fill(
        self,
        scopes: Collection[Scope],
        machines: Collection[Machine],
        operations: Collection[Operation],
    ) -> None:
        """Take over what the store holds."""
        ...

    def learn(self, changes: Changes) -> None:
        """Take over what changed; called on the event loop."""
        ...

    def seen(self, machine_key: str) -> tuple[datetime, str] | None:
        """Return when a machine last asked and by which api-version, None if it never did."""
        ...

    def figures(self) -> Figures:
        """Return what was counted so far."""
        ...

    async def open(self) -> tuple[str, ...]:
        """Open every listener and return their addresses.

        Raises:
            SocketUnusable: One cannot be opened; none is left open.
        """
        ...

    def reload(self) -> None:
        """Read again what may be changed while the service runs: the proxies' secrets.

        Raises:
            SecretUnusable: One cannot be read; all of them stay as they were.
        """
        ...

    async def close(self) -> None:
        """Stop accepting, finish requests under way within seconds, close every connection."""
        ...


class GuestPlane:
    """The metadata endpoint on its listeners. Made and used on the event loop.

    Args:
        wanted: Its listeners, rules and limits.
        plane: Who approves.
        clock: Tells the time of day.
        mint: Gives a new GUID at each call.
        watch: The service's time, which no jump goes through; what scopes are on by.
        asking: What it means that a machine asks.
        rate: How often a machine may ask.
        scale: The service's seconds in a real one.
    """

    def __init__(
        self,
        wanted: settings.GuestSettings,
        plane: Plane,
        clock: Clock,
        mint: Callable[[], str],
        *,
        watch: Clock,
        asking: Asking = ALWAYS_ON,
        rate: Rate = UNLIMITED,
        scale: float = 1.0,
    ) -> None:
        self._wanted = wanted
        self._tally: Tally = Counter()
        self._proxies = tuple(_proxies(listener) for listener in wanted.listener)
        self._registry = Registry(self._tally, proxied=any(self._proxies))
        self._documents = Documents()
        limiter = Limiter(rate, self._tally)
        loop = asyncio.get_running_loop()
        askings = askings_of(asking, self._documents, plane, clock=watch, loop=loop)
        endpoint = Endpoint(
            self._registry,
            self._documents,
            plane,
            rules=exchange.Rules(preview_post_without_header=wanted.preview_post_without_header),
            clock=clock,
            askings=askings,
            limiter=limiter,
            monotonic=loop.time,
        )
        writer = Writer(clock, mint(), scale)
        self._connections = Connections(
            endpoint,
            writer,
            limits=wanted,
            tally=self._tally,
            loop=loop,
            repeats=Repeats(
                self._registry, self._documents, limiter=limiter, writer=writer, askings=askings
            ),
        )
        self._listeners = Listeners(self._connections)

    @property
    def machines(self) -> Mapping[str, Machine]:
        """All machines by key, always as of the last change."""
        return self._registry.machines

    def fill(
        self,
        scopes: Collection[Scope],
        machines: Collection[Machine],
        operations: Collection[Operation],
    ) -> None:
        """Take over what the store holds."""
        self._tell_unheard(machines)
        self._registry.fill(scopes, machines, operations)
        self._documents.fill(scopes, machines, operations)

    def learn(self, changes: Changes) -> None:
        """Take over what changed, all of it before the next request."""
        self._tell_unheard(changes.machines)
        self._registry.learn(changes)
        self._documents.learn(changes)
        self._connections.repeats.learn()
        self._connections.waiting.learn(changes)

    def _tell_unheard(self, machines: Collection[Machine]) -> None:
        """Tell the log of machines that no listener hears: the fleet names one that is not set."""
        names = {listener.name for listener in self._wanted.listener}
        unheard = [m for m in machines if m.address and m.listener not in names]
        if unheard:
            _log.warning(
                "no listener of this name is in the settings: these machines are not known by "
                "their addresses",
                listener=unheard[0].listener,
                machine=unheard[0].name,
                machines=len(unheard),
            )

    def seen(self, machine_key: str) -> tuple[datetime, str] | None:
        """Return when a machine last asked and by which api-version, None if it never did."""
        return self._registry.seen(machine_key)

    def figures(self) -> Figures:
        """Return what was counted so far."""
        connections = self._connections
        return Figures(
            answers={name: dict(counts) for name, counts in connections.answers.counts.items()},
            refusals={reason: self._tally[reason] for reason in Reason},
            connections=len(connections),
            accepted=connections.accepted,
            waiters=len(connections.waiting),
            seen=self._registry.seen_count,
        )

    async def open(self) -> tuple[str, ...]:
        """Open every listener and return their addresses."""
        self.reload()
        wanted = [
            Listener(
                host=listener.address,
                port=listener.port,
                loopback=ipaddress.ip_address(listener.address).is_loopback,
                default_vm=listener.default_vm,
                name=listener.name,
                proxies=proxies,
            )
            for listener, proxies in zip(self._wanted.listener, self._proxies, strict=True)
        ]
        try:
            opened = await self._listeners.open(wanted)
        except CannotListen as error:
            message = f"guest.listener: {error}"
            raise SocketUnusable(message) from error
        return tuple(f"http://{listener}" for listener in opened)

    def reload(self) -> None:
        """Read the proxies' secrets again, all of them before any is put in."""
        read = [
            tuple(secret_files.shared_secret(Path(place)) for place in listener.proxy_secret_files)
            for listener in self._wanted.listener
        ]
        for proxies, secrets in zip(self._proxies, read, strict=True):
            if proxies is not None:
                proxies.secrets = secrets

    async def close(self) -> None:
        """Stop accepting, finish requests under way, close every connection."""
        await self._listeners.stop(FINISH_SECONDS)
        if self._tally:
            _log.info("guests were turned away", **dict(self._tally))


def _proxies(listener: listening.Listener) -> Proxies | None:
    """Return a listener's trusted proxies, their secrets still to be read; None for none."""
    if not listener.trusted_proxies:
        return None
    return Proxies(listening.networks(listener), without_header=listener.proxy_without_header)
