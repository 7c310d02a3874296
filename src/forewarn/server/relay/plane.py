"""The relay plane put together, as the service fills, opens, feeds and stops it."""

import ssl
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from forewarn.clock import Clock
from forewarn.control.changefeed import Changefeed
from forewarn.control.plane import Plane
from forewarn.control.relay_watch import RelayWatch
from forewarn.maintenance import model
from forewarn.maintenance.alerts import Alert, AlertKind
from forewarn.maintenance.relays import RelayToken
from forewarn.server import secret_files, sockets
from forewarn.server.operator import connections
from forewarn.server.relay.application import RelayApplication
from forewarn.server.relay.hub import RelayHub
from forewarn.server.relay_feed import GuestRules, ScopeDocument
from forewarn.server.settings import RelaySettings
from forewarn.server.sockets import Probes
from forewarn.settings import split_address
from forewarn.store.port import Store

BACKLOG: Final = 4096
"""Relays that may wait to be accepted, as far as the system lets them: all of them come at once
when a replica has gone."""

PROBES: Final = Probes(silent_seconds=10, between_seconds=2, most=3)
"""A relay whose host is cut off is away soon after, whatever its request waits for. A probe costs
this process nothing, and of ten thousand relays the system sends a thousand a second."""

CUT_OFF: Final = "this replica does not reach the database: ask another one"
STOPPING: Final = "the service is stopping: ask another replica"


class RelayPlane:
    """What relays reach. Made and used on the event loop.

    Args:
        settings: Where it listens.
        plane: The control plane.
        store: Where replicas share what they heard.
        clock: The service's clock.
        real: The machine's own clock.
        machines: All machines by key, as the guest plane has them.
        whole: Returns a scope's whole document, as the guest plane has it.
        rules: How guests are answered.
        saw: Is told what a machine's requests told a relay.
        epoch: Returns what changes whenever the store may have lost changes.
        replica: This replica's name.
        handed_over: Sockets of systemd's, which are taken in place of our own.
        reached: Counts the limits that relays reach.
    """

    def __init__(  # noqa: PLR0913 - by name
        self,
        *,
        settings: RelaySettings,
        plane: Plane,
        store: Store,
        clock: Clock,
        real: Clock,
        machines: Mapping[str, model.Machine],
        whole: Callable[[str], ScopeDocument],
        rules: GuestRules,
        saw: Callable[[str, model.Sighting], None],
        epoch: Callable[[], str],
        replica: str,
        handed_over: sockets.HandedOver,
        reached: connections.ReachedLimits,
    ) -> None:
        self._settings = settings
        self._handed_over = handed_over
        self._clock = clock
        self.hub = RelayHub(machines, whole, rules, epoch=epoch, alone=not store.shared)
        self.watch = RelayWatch(
            plane,
            store,
            clock,
            real,
            replica=replica,
            scale=rules.clock_scale,
            has_all=self.hub.has_all,
            on_void=self.hub.wake,
        )
        self.hub.on_change = self.watch.changed
        self._application = RelayApplication(
            self.hub, self.watch, plane, clock, saw, scale=rules.clock_scale
        )
        self._reached = reached
        self._server: connections.Server | None = None

    def fill(
        self,
        operations: Iterable[model.Operation],
        tokens: Iterable[RelayToken],
        sequence: int,
    ) -> None:
        """Take over what the store holds, as of a number of the outbox."""
        self.hub.fill(operations, sequence)
        self.watch.fill(tokens)

    def subscribe(self, feed: Changefeed) -> None:
        """Follow what changes, after the guest plane."""
        feed.subscribe(self.hub.learn)
        feed.subscribe(self.watch.learn)
        feed.count(self.hub.reach)

    def open(self) -> tuple[str, Coroutine[Any, Any, None]]:
        """Open the socket; return its address, and what serves it.

        SocketUnusable, or SecretUnusable for the certificate, if that is not possible.
        """
        self.reload()
        address, port = split_address(self._settings.listen)
        tcp = self._handed_over.take(sockets.tcp_address(address, port))
        tcp = tcp or sockets.open_tcp(address, port, "relay.listen", BACKLOG)
        sockets.probe(tcp, PROBES)
        tls = self._context if self._application.context is not None else None
        most = self._settings.connections
        server = connections.Server(self._application, self._reached, most=most, tls=tls)
        self._server = server
        scheme = "http" if tls is None else "https"
        return f"{scheme}://{sockets.shown(address, tcp.getsockname()[1])}", server.serve([tcp])

    def reload(self) -> None:
        """Read the certificates again; if one cannot be used, the old ones stay (SecretUnusable).

        Relays that have shown a certificate show it again, for it may be revoked.
        """
        wanted = self._settings
        if not wanted.tls_certificate:
            return
        key = Path(wanted.tls_key) if wanted.tls_key else None
        certificate = Path(wanted.tls_certificate)
        context = secret_files.tls_context(certificate, key, "relay.tls_certificate")
        if wanted.client_ca:
            revoked = Path(wanted.client_crl) if wanted.client_crl else None
            secret_files.ask_for_certificates(context, Path(wanted.client_ca), revoked)
        self._application.context = context
        self.hub.wake_all()

    def _context(self) -> ssl.SSLContext:
        assert self._application.context is not None
        return self._application.context

    def cut_off(self, *, cut_off: bool) -> None:
        """Send relays to another replica while this one does not reach the database."""
        reason = CUT_OFF if cut_off else ""
        if self._application.unavailable not in {reason, STOPPING}:
            self._application.unavailable = reason
            if cut_off:
                self.hub.wake_all()

    async def drain(self, seconds: float) -> None:
        """Send relays to another replica, and have them leave their connections."""
        self._application.unavailable = STOPPING
        self.hub.wake_all()
        if self._server is not None:
            await self._server.drain(seconds)

    def stop(self) -> None:
        """End what `open` returned, and the watch."""
        self._application.unavailable = STOPPING
        self.hub.wake_all()
        self.watch.stop()
        if self._server is not None:
            self._server.should_exit = True

    def alerts(self, rebooting: Collection[str] = ()) -> Iterator[Alert]:
        """Yield the relays that are away, but for those of hosts that reboot."""
        for relay in self.watch.relays.values():
            if relay.host not in rebooting and self.watch.is_away(relay):
                message = (
                    f"the relay of host {relay.host} did not ask for news: its guests cannot "
                    "approve, and nothing of the host starts while it is held"
                )
                yield Alert(AlertKind.RELAY_AWAY, relay.host, message, relay.heard_at)
