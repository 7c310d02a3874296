"""The agent as a process: the decider, and what surrounds it.

One thread decides; all others tell it causes through one queue: the looking, the actions' ends,
peers, approvals, signals. What it decides is carried out in order, and a record is on the disk
before what follows it.
"""

import logging
import os
import queue
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from forewarn import clock, systemd
from forewarn.agent import boot, metrics, view
from forewarn.agent.hands import Hands
from forewarn.agent.journal import SHORTEN_AT, Journal, JournalUnusable
from forewarn.agent.looking import Looking
from forewarn.agent.machine import Machine
from forewarn.agent.messages import (
    Answered,
    Approve,
    Ask,
    Begin,
    Cause,
    Closing,
    Command,
    Heard,
    Looked,
    Proceed,
    Reloaded,
    Resumed,
    Retry,
    Stop,
    Woken,
    Write,
)
from forewarn.agent.peers import Peers
from forewarn.agent.port import Port
from forewarn.agent.records import Fact
from forewarn.agent.rules import Rule
from forewarn.agent.settings import OFF, Settings
from forewarn.agent.telling import Telling
from forewarn.settings import SettingsError, split_address

LOGGER: Final = logging.getLogger("forewarn.agent")

JSON: Final = "application/json; charset=utf-8"
TEXT: Final = "text/plain; charset=utf-8"
METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"

ALIVE_SECONDS: Final = 30.0
"""How long the deciding thread may be silent before `/healthz` says so: it looks up every second
that something happens, and every ten where nothing does."""

IDLE_SECONDS: Final = 10.0
"""The longest that the deciding thread waits for a cause."""

RETRY_SECONDS: Final = 1.0
"""Before a record is written again that could not be."""

LAST_TRIES: Final = 3
"""How often that is tried by an agent that was told to end: what is in the journal is true anyhow,
and what is not in it was not acted on."""

SHORTEN_SECONDS: Final = 60.0
"""Before the journal is made short again that could not be: it wants a new file, and what is to be
done meanwhile does not."""


class Daemon:
    """One agent.

    Args:
        settings: Its settings.
        journal: Its journal; None for a dry run, which remembers nothing and does nothing.
        reload: Reads the rules again; raises SettingsError if they cannot be used.
        once: Whether to end when what the first document asks for is done.

    Raises:
        Misuse: The endpoint's address or the machine's name is none.
    """

    def __init__(
        self,
        settings: Settings,
        journal: Journal | None,
        reload: Callable[[], tuple[Rule, ...]],
        *,
        once: bool = False,
    ) -> None:
        self._settings = settings
        self._journal = journal
        self._reload = reload
        self._once = once
        self._causes: queue.SimpleQueue[Cause] = queue.SimpleQueue()
        self._machine = Machine(
            settings.rule, settings.margin_seconds, journal.records if journal else ()
        )
        self._metrics = metrics.Metrics()
        self._telling = Telling(dry=journal is None)
        self._notifier = systemd.Notifier(os.environ)
        self._hands = Hands(self._causes.put, dry=journal is None)
        self._peers = Peers(settings.peers, self._causes.put)
        self._endings = 0
        self._ended = threading.Event()
        self._trouble = ""
        self._shown_of_nothing: tuple[str | None] | None = None
        """The machine's name that was shown while nothing is in hand; None if something was."""
        self._shorten_at = clock.monotonic()
        self._told: dict[str, Any] = {}
        self._heard_at = clock.monotonic()
        self._pages: dict[str, tuple[int, str, bytes]] = {}
        self._looking = Looking(
            settings.client.endpoint or None, settings.client.machine or None, self._causes.put
        )
        self._port: Port | None = None

    @property
    def port(self) -> int | None:
        """The status port's number; None if there is none."""
        return self._port.number if self._port else None

    def listen(self) -> None:
        """Open the status port, if there is to be one; `run` closes it.

        It tells where to send signals, so whoever takes them is there before.

        Raises:
            OSError: It cannot be listened on.
        """
        self._publish()  # a probe finds its pages from the first moment on
        listen = self._settings.status.listen
        if listen != OFF:
            self._port = Port(split_address(listen), self)

    def run(self) -> None:
        """Run until it is told to end, and then until what is under way has ended.

        Raises:
            JournalUnusable: It was told to end while the journal could not be written.
        """
        self._publish()
        self._handle(Resumed(boot.name()))
        self._publish()
        self._looking.begin()
        LOGGER.info(
            "the agent is up%s",
            ": a dry run, which does nothing" if self._journal is None else "",
            extra={"facts": {"status_port": self.port, "rules": len(self._settings.rule)}},
        )
        self._notifier.tell("READY=1")
        try:
            while not self._over():
                self._turn()
        finally:
            self._notifier.tell("STOPPING=1")
            self._looking.close()
            if self._port:
                self._port.close()

    def _turn(self) -> None:
        """Handle the next cause; one that was told before a signal to end begins nothing either."""
        cause = self._next()
        if self._endings:
            self._handle(Closing())
        self._handle(cause)
        self._publish()

    def signal(self, number: int) -> None:
        """Take a signal.

        SIGHUP reads the rules again, SIGUSR1 tries again what is held, SIGTERM and SIGINT end.
        """
        if number == getattr(signal, "SIGHUP", None):
            self._causes.put(_Reread())
            return
        if number == getattr(signal, "SIGUSR1", None):
            self._causes.put(Retry())
            return
        self._endings += 1
        self._ended.set()
        self._causes.put(Closing())

    def page(self, path: str, *, own: bool) -> tuple[int, str, bytes] | None:
        """Return what the status port shows; any thread may.

        Args:
            path: Which page.
            own: Whether it is asked from this machine's own address, as `Shown` says.
        """
        if path == "/healthz":
            trouble = self._ailment()
            return (503, TEXT, f"{trouble}\n".encode()) if trouble else (200, TEXT, b"ok\n")
        if path == "/status":
            told = self._told if own else view.without_reasons(self._told)
            process = {"process": os.getpid()} if own else {}
            return 200, JSON, msgspec.json.encode(told | self._endpoint() | process)
        if path == "/metrics" and path in self._pages:
            status, kind, text = self._pages[path]
            return status, kind, text + self._live_metrics()
        return self._pages.get(path)

    def _ailment(self) -> str:
        """Return why the agent does not do its work; `""` while it does."""
        silent = clock.monotonic() - self._heard_at
        return self._trouble or (f"silent for {silent:.0f} s" if silent > ALIVE_SECONDS else "")

    def _endpoint(self) -> dict[str, Any]:
        """Return what the status says of the endpoint, and what troubles the agent."""
        at = self._looking.answered_at
        ago = None if at is None else round(clock.monotonic() - at, 1)
        return {
            "endpoint": {"answers": self._looking.is_answered, "answered_seconds_ago": ago},
            "trouble": self._trouble or self._looking.trouble,
        }

    def _live_metrics(self) -> bytes:
        at = self._looking.answered_at
        ago = 0.0 if at is None else clock.monotonic() - at
        wall = clock.SystemClock().now().timestamp()
        live = metrics.Live(
            healthy=not self._ailment(),
            endpoint_up=self._looking.is_answered,
            last_look=None if at is None else wall - ago,
        )
        return self._metrics.live_page(live)

    def _over(self) -> bool:
        if self._endings > 1:
            return True
        if self._once and self._machine.looked and not self._machine.busy:
            return self._causes.empty()
        return self._endings == 1 and not self._machine.busy

    def _next(self) -> Cause:
        """Return the next cause; `Woken` when it is time, or nothing else happened for long."""
        self._heard_at = now = clock.monotonic()
        seconds = self._notifier.every or IDLE_SECONDS
        if self._machine.wake_at is not None:
            seconds = min(seconds, max(0.0, self._machine.wake_at - now))
        try:
            cause = self._causes.get(timeout=min(seconds, IDLE_SECONDS))
        except queue.Empty:
            cause = Woken()
        self._notifier.alive()
        return cause

    def _handle(self, cause: Cause) -> None:
        if isinstance(cause, _Reread):
            self._reread()
            return
        self._metrics.looks = self._looking.looks
        if isinstance(cause, Heard):
            self._telling.heard(cause)
        elif isinstance(cause, Answered):
            self._metrics.answered(cause)
        elif isinstance(cause, Retry):
            self._telling.wanted()
        for command in self._machine.handle(cause, clock.monotonic()):
            self._carry_out(command)
        self._telling.tried(self._machine)
        if isinstance(cause, Looked):
            self._telling.looked(self._machine)
        if self._journal is not None:
            self._shorten(self._journal)

    def _shorten(self, journal: Journal) -> None:
        """Make the journal short where that is worth it: it is long, or of nothing still so."""
        long = journal.lines > (1 if self._machine.ledger.idle else SHORTEN_AT)
        if not long or clock.monotonic() < self._shorten_at:
            return
        try:
            journal.shorten(self._machine.ledger.kept())
        except JournalUnusable as error:
            LOGGER.warning("%s; it goes on as it is", error)
            self._shorten_at = clock.monotonic() + SHORTEN_SECONDS

    def _reread(self) -> None:
        self._notifier.tell("RELOADING=1", f"MONOTONIC_USEC={int(clock.monotonic() * 1e6)}")
        try:
            rules = self._reload()
        except SettingsError as error:
            LOGGER.error("the rules stay as they were: %s", error)  # noqa: TRY400 - told whole
        else:
            LOGGER.info("the rules were read again")
            self._handle(Reloaded(rules))
        self._notifier.tell("READY=1")

    def _carry_out(self, command: Command) -> None:
        now = clock.monotonic()
        match command:
            case Write():
                self._write(command.record, now)
            case Begin():
                self._metrics.began(command, now)
                self._telling.began(command)
                self._show_ready()  # before a ready action counts its wait
                self._hands.begin(command, self._machine.name or "", now)
            case Proceed():
                self._hands.proceed(command.run)
            case Stop():
                self._hands.stop(command.run)
            case Approve() if self._journal is None:
                LOGGER.info("would approve %s", command.event.event_id)
                self._causes.put(Answered(command.request, taken=True))
            case Approve():
                self._looking.approve(command)
            case Ask():
                self._telling.asked(command)
                self._peers.ask(command)

    def _write(self, record: Fact, now: float) -> None:
        journal = self._journal
        if journal is not None:
            self._insist(lambda: journal.append(record))
        self._metrics.wrote(record, now)
        self._telling.wrote(record, self._machine)

    def _insist(self, write: Callable[[], None]) -> None:
        """Write until it is written: nothing may follow what is not in the journal."""
        tries = 0
        while True:
            self._ended.clear()
            try:
                write()
            except JournalUnusable as error:
                if not self._trouble:
                    LOGGER.critical("%s; nothing is done until it can be", error)
                self._trouble = str(error)
                tries += bool(self._endings)
                if tries > LAST_TRIES or self._endings > 1:
                    raise
            else:
                if self._trouble:
                    LOGGER.info("the journal is written again")
                    self._trouble = ""
                return
            self._heard_at = clock.monotonic()
            self._notifier.alive()
            self._ended.wait(min(RETRY_SECONDS, self._notifier.every or RETRY_SECONDS))

    def _show_ready(self) -> None:
        ready = self._journal is None or view.ready(self._machine)
        page = (200, TEXT, b"ready\n") if ready else (503, TEXT, b"being taken out\n")
        self._pages = {**self._pages, "/readyz": page}

    def _publish(self) -> None:
        """Render what the port shows, unless that is nothing as before.

        It takes a fifth of a millisecond, which is a sixth of what a look costs while nothing
        happens.
        """
        shown = (self._machine.name,)
        nothing = self._machine.ledger.idle and not self._machine.events
        if nothing and shown == self._shown_of_nothing:
            return
        self._shown_of_nothing = shown if nothing else None
        now = clock.monotonic()
        self._told = view.status(self._machine, now, dry=self._journal is None)
        metrics = self._metrics.page(self._machine, now, dry=self._journal is None).encode()
        self._pages = {**self._pages, "/metrics": (200, METRICS, metrics)}
        self._show_ready()


class _Reread(Cause, frozen=True):
    """The rules are to be read again; the daemon's own business."""


def serve(
    settings: Settings,
    reload: Callable[[], tuple[Rule, ...]],
    *,
    dry_run: bool = False,
    once: bool = False,
) -> None:
    """Run an agent in this process until a signal ends it.

    Args:
        settings: Its settings.
        reload: Reads the rules again.
        dry_run: Whether to do nothing and say what would be done.
        once: Whether to end when what the first document asks for is done.

    Raises:
        JournalUnusable: Its journal cannot be had, or not be written at the end.
        OSError: Its status port cannot.
        Misuse: The endpoint's address or the machine's name is none.
    """
    journal = None if dry_run else Journal(Path(settings.state.folder))
    try:
        daemon = Daemon(settings, journal, reload, once=once)
        for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"):
            number = getattr(signal, name, None)  # Windows has the first two only
            if number is not None:
                signal.signal(number, lambda got, _: daemon.signal(got))
        daemon.listen()
        daemon.run()
    finally:
        if journal is not None:
            journal.close()
