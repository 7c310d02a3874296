"""The agent as a process: the decider, and the threads around it.

One thread decides and owns the decider, the journal, the log and the counts; all other threads (the
poller, actions, peers, approvals) and signals send it inputs through one queue. The records of an
input are on the disk, by one sync, before any of its other outputs is carried out. For the status
port it publishes immutable pages, which any thread reads.
"""

import contextlib
import logging
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from forewarn import clock, settings, status_port, systemd
from forewarn.agent import activity, approvals, decider, state, status
from forewarn.agent.actions.runner import ActionRunner
from forewarn.agent.decider import Decider
from forewarn.agent.journal import Journal, JournalError
from forewarn.agent.rules import ActionOutcome, Rule
from forewarn.agent.settings import AgentSettings
from forewarn.agent.status import Peers
from forewarn.client.event import ClientError, Event, RequestRefused, Trouble
from forewarn.client.sync import Client
from forewarn.client.watch import MISNAMED, NAMED, NO_NAME
from forewarn.protocol import exchange
from forewarn.settings import OFF
from forewarn.status_port import TEXT, StatusServer

LOGGER: Final = logging.getLogger("forewarn.agent")

FAULT_SECONDS: Final = 1.0
"""The pause before the next look after a fault of our own: as long as between two polls."""

APPROVAL_SECONDS: Final = 10.0
"""The time for one approval; then the decider asks the peers again."""


class Poller:
    """Watches one endpoint, and approves there.

    Beside the client's `watch`, which reports change after change, the agent takes whole documents:
    an event that supersedes another must be seen before that one's end is acted on.

    The watching thread writes the attributes, others read them: each is one value. Without an
    endpoint it looks for one, without a machine it asks for the name. An invalid one is a Misuse.
    `known` are the events that an earlier process saw: their ends are confirmed too.
    """

    def __init__(
        self,
        endpoint: str | None,
        machine: str | None,
        tell: Callable[[decider.Input], None],
        known: Iterable[Event] = (),
    ) -> None:
        self._fault = self._told = self._unnamed = ""
        self.misnamed = ""
        """The complaint that the endpoint has another name for this machine; `""` for none."""
        self._client = Client(endpoint, name=machine)
        self._tell = tell
        self._known = tuple(known)
        self.documents = self._client.documents(known=self._known, on_trouble=self._note)
        self._word: tuple[str, str] = ("", "")
        self._said = self._word
        self._saying = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="poller", daemon=True)

    @property
    def trouble(self) -> str:
        """The reason why no good answer comes, or an event cannot be read; `""` while all is well.

        The first is a fault of our own, which ends with the next document, the second the client's.
        """
        return self._fault or self._told

    @property
    def nameless(self) -> str:
        """The reason why no event counts as this machine's; `""` while its name is known."""
        return self.misnamed or ("" if self._client.name else self._unnamed)

    @property
    def is_named(self) -> bool:
        """True if the name is known by which the endpoint calls this machine."""
        return bool(self._client.name) and not self.misnamed

    @property
    def is_answered(self) -> bool:
        """True if the last look was answered."""
        return self.documents.answered_at is not None and not self.trouble

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def approve(self, output: approvals.ApproveEvent) -> None:
        """Approve an event in a thread of its own; the answer becomes an input."""
        if status.start_thread(self._approve, output) is None:
            self._tell(approvals.ApprovalAnswered(output.request, None))

    def report(self, word: tuple[str, str]) -> None:
        """Report the machine's state to Forewarn, in a thread of its own; the latest one counts."""
        self._word = word
        status.start_thread(self._say)

    def _say(self) -> None:
        with self._saying:
            if (word := self._word) != self._said and not self._closed.is_set():
                self._said = word
                with contextlib.suppress(ClientError):  # the next look says it too
                    self._client.report(*word)

    def close(self) -> None:
        """End at once."""
        self._closed.set()
        self._client.close()

    def _look(self) -> None:
        """Look until it is closed, whatever happens: an agent that sees nothing is useless."""
        has_ended = False
        while not self._closed.is_set():
            try:
                if has_ended:  # it may fail as well, where the process has no files left
                    self.documents = self._client.documents(
                        known=self._known, on_trouble=self._note
                    )
                    self._told, has_ended = "", False
                for document in self.documents:
                    self._fault, self._known = "", document.events
                    self._tell(decider.DocumentSeen(document.events, self._client.name))
            except Exception as error:
                if self._closed.is_set():
                    return
                LOGGER.exception(
                    "internal error while watching the endpoint; the agent tries again"
                )
                self._fault, has_ended = f"internal error: {error}", True
                self.documents.close()
                self._closed.wait(FAULT_SECONDS)

    def _note(self, trouble: Trouble) -> None:
        if trouble.reason == NO_NAME:  # its end is not told
            use = "no event counts as this machine's own: set client.machine"
            self._unnamed = f"{trouble.message}; until then {use}"
        elif trouble.reason in {MISNAMED, NAMED}:
            is_over = trouble.reason == NAMED
            self.misnamed = "" if is_over else f"{trouble.message} (client.machine)"
        else:
            self._told = "" if trouble.over else trouble.message

    def _approve(self, output: approvals.ApproveEvent) -> None:
        taken: bool | None = None
        try:
            self._client.approve(output.event, within_seconds=APPROVAL_SECONDS)
            taken = True
        except RequestRefused as refused:
            taken = False
            LOGGER.warning("approving %s was refused: %s", output.event.event_id, refused)
        except ClientError as error:
            LOGGER.warning("approving %s: %s", output.event.event_id, error)
        finally:
            self._tell(approvals.ApprovalAnswered(output.request, taken))


JSON: Final = "application/json; charset=utf-8"

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
"""random(4): different after each boot."""

ALIVE_SECONDS: Final = 30.0
"""The longest silence of the deciding thread, which wakes up every ten seconds."""

IDLE_SECONDS: Final = 10.0
"""The longest that the deciding thread waits for an input."""

RETRY_SECONDS: Final = 1.0

LAST_TRIES: Final = 3
"""The number of further tries of an agent that is to end."""

PUBLISH_SECONDS: Final = 0.5
"""The longest between two renderings of the port's pages while one input follows another: with a
thousand events each takes as long as many inputs."""

SHORTEN_SECONDS: Final = 60.0
"""The pause before the next try to shorten the journal."""


def boot_id() -> str:
    """Return the id of this boot of the machine; `""` where the platform has none."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


class _ReadRules(msgspec.Struct, frozen=True):
    """Read the rules again: only the daemon handles it."""


class Daemon:
    """One agent.

    Without a journal it is a dry run, which remembers nothing and does nothing. `reload` reads the
    rules again, and raises SettingsError if it cannot use them. With `once` it ends when all work
    for the first document is done. An invalid address or name is a Misuse.
    """

    def __init__(
        self,
        own: AgentSettings,
        journal: Journal | None,
        reload: Callable[[], tuple[Rule, ...]],
        *,
        once: bool = False,
    ) -> None:
        self._settings = own
        self._journal = journal
        self._dry = journal is None
        self._reload = reload
        self._once = once
        # A signal's handler puts into both queues: only SimpleQueue may be used in one while the
        # same thread waits on it. An Event's lock would hang the agent.
        self._inputs: queue.SimpleQueue[decider.Input | _ReadRules] = queue.SimpleQueue()
        self._end_told: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._decider = Decider(
            own.rule, own.margin_seconds, journal.records if journal else (), own.stop_seconds
        )
        self._activity = activity.Activity(dry=self._dry)
        self._notifier = systemd.Notifier(os.environ)
        self._runner = ActionRunner(self._inputs.put, dry=self._dry)
        self._peers = Peers(own.peers, self._inputs.put)
        self._poller = Poller(
            own.client.endpoint or None,
            own.client.machine or None,
            self._inputs.put,
            [case.event for case in self._decider.state.cases.values()],
        )
        self._ended = threading.Event()  # no signal's handler sets it
        self._is_writing = False
        self._endings = 0
        self._trouble = self._kept = ""
        self._shorten_at = self._heard_at = self._publish_at = clock.monotonic()
        self._told: MappingProxyType[str, Any] = MappingProxyType({})
        self._counted = b""
        self._word = ("", "")
        self._ready = True
        self._server: StatusServer | None = None

    @property
    def port(self) -> int | None:
        """The status port's number; None if there is none."""
        return self._server.number if self._server else None

    def listen(self) -> None:
        """Open the status port, if there is to be one; `run` closes it. It may be free later only.

        A process that sees it open may send signals, so handle them before.
        """
        self._publish()  # a probe finds its pages from the first moment on
        listen = self._settings.status.listen
        if listen == OFF:
            return

        def when_free() -> None:
            LOGGER.info("the status port %s is open", listen)

        address, wait = settings.split_address(listen), None if self._dry else when_free
        try:
            self._server = StatusServer(address, self.page, name="forewarn-agent", when_free=wait)
        except OSError as error:
            # It often tries rules beside the agent that has the port.
            LOGGER.warning("this dry run has no status port %s: %s", listen, error.strerror)
            return
        if self._server.is_late:
            LOGGER.warning("this machine does not have the address of %s yet", listen)
        if why := self._server.waits_for:
            # The port serves the events, and not the other way round.
            message = (
                "cannot listen on status.listen %s for now: %s; the agent goes on, and tries again"
            )
            LOGGER.warning(message, listen, why)

    def run(self) -> None:
        """Run until a request to end, and then until its actions have ended.

        It raises JournalError if it is to end while it cannot write the journal.
        """
        self._publish()
        self._handle(decider.AgentStarted(boot_id()))
        self._publish()
        self._poller.start()
        LOGGER.info(
            "the agent is up%s",
            ": a dry run, which changes nothing" if self._dry else "",
            extra={"facts": {"status_port": self.port, "rules": len(self._settings.rule)}},
        )
        self._notifier.tell("READY=1")
        if self._notifier.every:
            status.start_thread(self._beat, self._notifier.every)
        try:
            while not self._over():
                self._turn()
        finally:
            self._notifier.tell("STOPPING=1")
            self._ended.set()
            self._poller.close()
            if self._server:
                self._server.close()

    def _beat(self, every: float) -> None:
        """Tell systemd that the agent lives, unless the deciding thread hangs.

        A disk that takes a minute for a record is no reason for a restart, which would wait for it
        as well, and cut what runs.
        """
        while True:
            lives = self._is_writing or clock.monotonic() - self._heard_at <= ALIVE_SECONDS
            if lives:
                self._notifier.alive()
            # The whole machine may have been paused, and that thread be about to wake up.
            if self._ended.wait(every if lives else min(every, RETRY_SECONDS)):
                return

    def _turn(self) -> None:
        """Handle the next input; after a signal to end it begins nothing."""
        told = self._next()
        if self._endings:
            self._handle(decider.ShutdownRequested())
        self._handle(told)
        if self._inputs.empty() or clock.monotonic() >= self._publish_at:
            self._publish()

    def signal(self, number: int) -> None:
        """Take a signal.

        SIGHUP reads the rules again and retries what is held or stuck, SIGTERM and SIGINT end.
        """
        if number == getattr(signal, "SIGHUP", None):  # Windows has none
            self._inputs.put(_ReadRules())
        else:
            self._endings += 1
            self._end_told.put(None)
            self._inputs.put(decider.ShutdownRequested())

    def page(self, path: str, host: bytes | None) -> status_port.Page | None:
        """Return a page of the status port. Any thread may call it."""
        # A website whose name was pointed at this machine asks through its browsers.
        own = host is not None and exchange.is_own_host(host or None)
        now, poller = clock.monotonic(), self._poller
        silent = now - self._heard_at
        ailment = self._trouble or (f"silent for {silent:.0f} s" if silent > ALIVE_SECONDS else "")
        at = poller.documents.answered_at
        match path:
            case "/readyz":
                return (200, TEXT, b"ready\n") if self._ready else (503, TEXT, b"draining\n")
            case "/healthz":
                return (503, TEXT, f"{ailment}\n".encode()) if ailment else (200, TEXT, b"ok\n")
            case "/status":
                told = dict(self._told) if own else status.without_reasons(self._told)
                kept = self._kept if own else ""  # it may quote a setting
                told["trouble"] = self._trouble or poller.trouble or poller.nameless or kept
                told["endpoint"] = {
                    "answers": poller.is_answered,
                    "answered_seconds_ago": None if at is None else round(now - at, 1),
                }
                return 200, JSON, msgspec.json.encode(told)
            case "/metrics":
                wall = clock.SystemClock().now().timestamp()
                live = activity.live_page(
                    healthy=not ailment,
                    endpoint_up=poller.is_answered,
                    name_known=poller.is_named,
                    last_look=None if at is None else wall - (now - at),
                    looks=poller.documents.looks,
                )
                return 200, status_port.METRICS, self._counted + live
        return None

    def _over(self) -> bool:
        if self._endings > 1:
            return True
        if self._once and self._decider.looked and not self._decider.busy:
            return self._inputs.empty()
        return self._endings == 1 and not self._decider.busy

    def _next(self) -> decider.Input | _ReadRules:
        """Return the next input, or `TimePassed` if none comes in time."""
        self._heard_at = now = clock.monotonic()
        seconds = min(self._notifier.every or IDLE_SECONDS, IDLE_SECONDS)
        if self._decider.wake_at is not None:
            seconds = min(seconds, max(0.0, self._decider.wake_at - now))
        try:
            return self._inputs.get(timeout=seconds)
        except queue.Empty:
            return decider.TimePassed()

    def _handle(self, told: decider.Input | _ReadRules) -> None:
        if isinstance(told, _ReadRules):
            self._read_rules()
            return
        now = clock.monotonic()
        self._activity.heard(told, self._decider, now)
        outputs = self._decider.handle(told, now)
        records = [output for output in outputs if isinstance(output, state.Record)]
        began = clock.monotonic()
        if self._journal is not None and (records or self._journal.is_lost):
            self._append(self._journal, records)
        took = clock.monotonic() - began
        for output in outputs:
            self._carry_out(output, took)
        self._activity.settled(self._decider)
        if self._journal is not None:
            self._shorten(self._journal)

    def _shorten(self, journal: Journal) -> None:
        long = journal.is_long or (self._decider.state.idle and journal.length > 1)
        if not long or clock.monotonic() < self._shorten_at:
            return
        try:
            with self._writing():
                journal.append(self._decider.state.checkpoint())
        except JournalError as error:
            LOGGER.warning("%s; could not shorten the journal", error)
            self._shorten_at = clock.monotonic() + SHORTEN_SECONDS

    def _read_rules(self) -> None:
        self._notifier.tell("RELOADING=1", f"MONOTONIC_USEC={int(clock.monotonic() * 1e6)}")
        rules = None
        try:
            rules = self._reload()
        except settings.SettingsError as error:
            for line in str(error).splitlines():
                self._kept = f"kept the old rules: {line}"
                LOGGER.error("%s", self._kept)  # noqa: TRY400 - told whole
        except Exception as error:  # no file ends an agent that runs
            self._kept = f"kept the old rules: internal error: {error}"
            LOGGER.exception("internal error while reading the rules; the agent keeps the old ones")
        else:
            self._kept = ""
            LOGGER.info("reloaded the rules", extra={"facts": {"rules": len(rules)}})
        self._handle(decider.Reloaded(rules))
        self._notifier.tell("READY=1")

    def _carry_out(self, output: decider.Output, took: float) -> None:
        """Carry an output out; its records took so many seconds, which no action is charged for."""
        if isinstance(output, decider.BeginAction | decider.ProceedAction):
            until = self._decider.delay(output.run, took)
            if isinstance(output, decider.BeginAction):
                output = msgspec.structs.replace(output, until=until)
        now = clock.monotonic()
        self._activity.heard(output, self._decider, now)
        match output:
            case decider.BeginAction() if took > ALIVE_SECONDS and not self._inputs.empty():
                # Its event may be over by now: what has come meanwhile is decided first.
                self._inputs.put(decider.ActionFinished(output.run, ActionOutcome.INTERRUPTED))
            case decider.BeginAction():
                self._publish_ready()  # before a ready action counts its wait
                self._runner.begin(output, self._decider.name or "", now)
            case decider.ProceedAction():
                self._runner.proceed(output.run)
            case decider.StopAction():
                self._runner.stop(output.run)
            case approvals.ApproveEvent() if self._dry:
                LOGGER.info("would approve %s", output.event.event_id)
                self._inputs.put(approvals.ApprovalAnswered(output.request, taken=True))
            case approvals.ApproveEvent() if took > ALIVE_SECONDS:
                # What it stands for was looked at too long ago, and others may not agree any more.
                self._inputs.put(approvals.ApprovalAnswered(output.request, None))
            case approvals.ApproveEvent():
                self._poller.approve(output)
            case approvals.AskPeers():
                self._peers.ask(output)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        self._is_writing = True
        try:
            yield
        finally:
            self._is_writing = False
            self._heard_at = clock.monotonic()

    def _append(self, journal: Journal, records: Sequence[state.AnyRecord]) -> None:
        """Write records, however often it takes: nothing may follow that is not in the journal."""
        tries = 0
        while True:
            try:
                with self._writing():
                    if journal.is_lost:
                        LOGGER.warning("somebody removed or replaced the journal: it is made again")
                        journal.remake(self._decider.state.checkpoint())  # which has the records
                    else:
                        journal.append(*records)
            except JournalError as error:
                if not self._trouble:
                    LOGGER.critical(
                        "%s; the agent does nothing until it can write its journal", error
                    )
                self._trouble = str(error)
                tries += bool(self._endings)
                if tries > LAST_TRIES or self._endings > 1:
                    raise
            else:
                if self._trouble:
                    LOGGER.info("the agent can write its journal again")
                    self._trouble = ""
                return
            seconds = min(RETRY_SECONDS, self._notifier.every or RETRY_SECONDS)
            with contextlib.suppress(queue.Empty):
                self._end_told.get(timeout=seconds)

    def _publish(self) -> None:
        """Render the port's answers: any thread reads them, each attribute a value by itself."""
        now = clock.monotonic()
        self._publish_at = now + PUBLISH_SECONDS
        self._told = MappingProxyType(status.report(self._decider, now, dry=self._dry))
        self._counted = self._activity.page(self._decider, now)
        word = status.word(self._decider)
        if word != self._word and not self._dry:
            self._word = word
            self._poller.report(word)
        self._publish_ready()

    def _publish_ready(self) -> None:
        self._ready = self._dry or status.is_ready(self._decider)
