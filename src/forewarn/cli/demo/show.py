"""`forewarn demo`: starts the service and the guests, shows what happens, and stops them."""

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final, TextIO

import typer

from forewarn.cli import operations, output, times
from forewarn.cli.demo import story
from forewarn.cli.exits import ExitStatus, Failed, handled
from forewarn.cli.operator import OperatorClient
from forewarn.cli.options import JsonOption, flag
from forewarn.clock import SystemClock
from forewarn.vocabulary import EventStatus

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    from forewarn.server.operator import schemas

Process = subprocess.Popen[bytes]

LOOK_EVERY: Final = 0.2
"""Seconds between two looks at the service."""

DEMO_LIMIT: Final = 85.0
"""Seconds until the story must be over; it takes about half of it."""

ENDING: Final = ("SIGINT", "SIGTERM", "SIGHUP")
"""Ctrl-C, SIGTERM and a closed terminal end it alike, so that nothing is left behind."""

STOP_SECONDS: Final = 10.0
"""For a process to end before it is killed; the service promises the same."""

LINGER: Final = timedelta(minutes=4)
"""How long, by the service's clock, the table shows an operation that is over."""

LONGEST_FOLDER: Final = 70
"""The path of a unix socket has room for 103 characters, with the folder of the demo in it."""

TOLD_LINES: Final = 6
"""The lines of the story below the table: all of it fits a terminal of 24 lines."""

BAR: Final = 8
"""The characters of the bar of notice left."""

COLUMNS: Final = (
    *(("MACHINE", 14, 0, "bold"), ("DOMAIN", 9, 0, ""), ("ITS GUEST", 17, 100, "")),
    *(("PID", 7, 0, "dim"), ("EVENT", 8, 0, ""), ("STATUS", 9, 0, "yellow")),
    *(("NOTICE", BAR, 110, "yellow"), ("LEFT", 7, 0, "yellow")),
    *(("APPROVED BY", 13, 0, "green"), ("THE GUEST SAYS", 18, 119, "italic")),
)
"""Heading, width, the narrowest terminal that has room for the column, and style."""

TRY = """
The service is still running. Try, in another terminal:

  export FOREWARN_OPERATOR={socket}
  {program} fleet list
  {program} schedule reboot web-0 web-3
  curl -s -H Metadata:true '{guest}/scheduledevents?api-version={version}'
  curl -s -H Metadata:true '{guest}/instance?api-version=2021-02-01'
  curl -s --unix-socket {socket} 'http://localhost/v1/events'

Ctrl-C stops it and leaves nothing behind.
"""


def demo(
    *,
    keep: Annotated[bool, flag("--keep", "Leave it running afterwards, until Ctrl-C.")] = False,
    as_json: JsonOption = False,
) -> None:
    """See a fleet, its guests and their maintenance.

    Runs the real service on a temporary database, with guests as processes of their own and a
    clock on which fifteen minutes last ten seconds. It ends by itself after half a minute.
    """
    place = tempfile.gettempdir()
    if len(place) > LONGEST_FOLDER and Path("/tmp").is_dir():  # noqa: S108 - our folder is private
        place = "/tmp"  # noqa: S108 - the same
    with (
        handled(_interrupt, *ENDING),
        tempfile.TemporaryDirectory(prefix="forewarn-demo-", dir=place) as folder,
    ):
        running = Demo(Path(folder), as_json=as_json)
        try:
            running.run()
            if keep:
                running.keep()
        finally:
            with handled(signal.SIG_IGN, *ENDING):
                running.close()


@dataclass
class Row:
    """A machine in the table, and the program in it, which writes what it does into a log."""

    guest: story.Guest
    process: Process
    log: TextIO
    says: str = ""
    end: str = ""
    """`deleted` or `stopped` once the guest has ended."""

    def cells(self, operation: "schemas.OperationView | None") -> "tuple[str | Text, ...]":
        """Return the cells of its row, in the order of COLUMNS."""
        from rich.text import Text

        guest = self.guest
        event = status = bar = left = approver = ""
        if operation is not None:
            event = operation.event_type
            status = str(operation.status)
            if operation.waits_for and operation.status is EventStatus.SCHEDULED:
                status = "waits"
            approvals = [e.approval for e in operation.events if guest.machine in e.machines]
            approver = ", ".join(operations.approver(one) for one in approvals if one)
            if operation.status is EventStatus.SCHEDULED:
                remains = operation.notice_left_seconds or 0
                full = round(BAR * remains / (operations.notice_seconds(operation) or 1))
                bar = "━" * min(BAR, full) + "╌" * (BAR - min(BAR, full))
                left = times.shown_span(remains)
        return (
            *(Text(guest.machine, "strike" if self.end == "deleted" else ""), guest.domain),
            *(
                guest.shown,
                Text(self.end or str(self.process.pid), "bold red" * (self.end == "stopped")),
            ),
            *(event, Text(status, output.STYLES.get(status, "")), bar, left, approver, self.says),
        )


class Demo:
    """The running demo, in a folder of its own; with `as_json` the story goes to stderr."""

    def __init__(self, folder: Path, *, as_json: bool) -> None:
        self._folder = folder
        self._as_json = as_json
        self._clock = SystemClock()
        self._began = self._clock.monotonic()
        self._nap = threading.Event()  # never set: waiting for it is a pause that Ctrl-C ends
        self._port = _free_port()
        self._socket = folder / "operator.sock"
        self._processes: list[Process] = []
        self._rows: list[Row] = []
        self._told: deque[str] = deque([""] * TOLD_LINES, maxlen=TOLD_LINES)
        self._live: Live | None = None
        self._news: set[tuple[str, str]] = set()
        self.operator = OperatorClient(address=str(self._socket))
        self.now = self._clock.now()
        self.operations: dict[str, schemas.OperationView] = {}
        self.stopped: set[str] = set()
        """The machines whose guest somebody else has stopped."""

    def run(self) -> None:
        """Play the story, and show what came of it."""
        output.note("Starting the service and its guests ...")
        self._start()
        with contextlib.ExitStack() as stack:
            if sys.stdout.isatty() and not self._as_json:
                from rich.console import Console
                from rich.live import Live

                live = Live(console=Console(highlight=False), auto_refresh=False)
                self._live = stack.enter_context(live)
            verdicts = story.play(self)
        self._live = None
        history = self.operator.get("/v1/history")
        if self._as_json:
            output.document(history.tree())
        else:
            output.say("\nWhat happened, the newest first ('forewarn history'):")
            operations.happened(reversed(self.operations.values()), empty="nothing")
            output.say("")
        for verdict in verdicts:
            typer.echo(f"ok  {verdict}", err=self._as_json)
        output.note(f"The demo took {self._clock.monotonic() - self._began:.0f} s.")

    def keep(self) -> None:
        """Go on until Ctrl-C, telling each change."""
        output.note(
            TRY.format(
                socket=self._socket,
                program="forewarn" if shutil.which("forewarn") else f"{sys.executable} -m forewarn",
                guest=f"http://127.0.0.1:{self._port}/vm/web-0/metadata",
                version=story.NEWEST,
            )
        )
        try:
            while True:
                self.look()
        except KeyboardInterrupt:
            output.note("Stopped.")

    def close(self) -> None:
        """End every process that was started: ask it, and kill it if it stays."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            with process:
                try:
                    process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
        for row in self._rows:
            row.log.close()

    def tell(self, line: str) -> None:
        """Tell a line of the story."""
        line = f"{times.hour(self.now)} {line}"
        self._told.append(line)
        if self._live is None:
            typer.echo(line, err=self._as_json)

    def until(self, true: Callable[[], bool], what: str) -> None:
        """Show what happens until a condition is true."""
        while not true():
            self._check(what)
            self.look()

    def of(self, number: int) -> "list[schemas.OperationView]":
        """Return the operations of a maintenance, as they were last seen."""
        return [one for one in self.operations.values() if one.maintenance == number]

    def look(self) -> None:
        """Wait a little, learn what is new, and tell it."""
        from forewarn.server.operator import schemas

        self._nap.wait(LOOK_EVERY)
        try:
            page = self.operator.get("/v1/history").read(schemas.HistoryPage)
            self.now = self._now()
        except Failed:
            self._nap.wait(0.5)  # a service that hangs up may be ending: its status tells more
            self._check("an answer")
            raise
        for operation in reversed(page.operations):
            self.operations[operation.id] = operation
            for line in facts(operation):
                if (operation.id, line) not in self._news:
                    self._news.add((operation.id, line))
                    self.tell(line)
        for row in self._rows:
            if not row.end:
                self._look_at(row)
        if self._live is not None:
            self._live.update(self._table(), refresh=True)

    def _start(self) -> None:
        """Start the service, wait until it is ready, give it its fleet, and start the guests."""
        file = self._folder / "forewarn.toml"
        file.write_text(story.settings(self._folder, self._port), encoding="utf-8")
        serve = [sys.executable, "-m", "forewarn", "serve", "--config", str(file)]
        self._run(serve, self._folder / "service.log")
        while not self._ready():
            self._check("the service to be ready")
            self._nap.wait(0.05)
        self.operator.put("/v1/fleet", json.dumps(story.fleet()).encode())
        script = str(Path(__file__).with_name("guest.py"))
        for guest in story.GUESTS:
            command = [
                *(sys.executable, "-I", script, "--role", guest.role),
                *("--url", f"http://127.0.0.1:{self._port}/vm/{guest.machine}"),
                *("--api-version", guest.version, "--drain", str(guest.drain_seconds)),
            ]
            log = self._folder / f"{guest.machine}.log"
            self._rows.append(Row(guest, self._run(command, log), log.open(encoding="utf-8")))
        self.now = self._now()

    def _ready(self) -> bool:
        try:
            return self._socket.exists() and bool(self.operator.get("/readyz").tree()["ready"])
        except Failed:
            return False

    def _now(self) -> datetime:
        return datetime.fromisoformat(self.operator.get("/v1/clock").tree()["now"])

    def _run(self, command: Sequence[str], log: Path) -> Process:
        """Start a program in a session of its own, so that Ctrl-C reaches the demo alone."""
        with log.open("ab") as file:
            process = subprocess.Popen(  # noqa: S603 - this interpreter and our own files
                command, stdin=subprocess.PIPE, stdout=file, stderr=file, start_new_session=True
            )
        self._processes.append(process)
        return process

    def _check(self, awaited: str) -> None:
        """Fail if the service has ended, or the demo takes too long."""
        status = self._processes[0].poll()
        if status is None:
            if self._clock.monotonic() - self._began > DEMO_LIMIT:
                raise story.failed(f"waited in vain for {awaited}")
            return
        log = (self._folder / "service.log").read_text(errors="replace").splitlines()[-8:]
        last = next((line for line in reversed(log) if "error" in line), (log or ["no output"])[-1])
        if status in {ExitStatus.MISSING_EXTRA, ExitStatus.USAGE}:
            raise Failed(ExitStatus(status), last.removeprefix("forewarn: "))
        output.note("\n".join(log))
        raise story.failed(f"the service ended with status {status}: {last}")

    def _look_at(self, row: Row) -> None:
        name = row.guest.machine
        for line in row.log:
            row.says = line.rstrip()
            self.tell(f"  {name}: {row.says}")
        status = row.process.poll()
        if status is not None:
            row.end, row.says = "stopped" if status else "deleted", ""
            if status:
                self.stopped.add(name)
                self.tell(f"  the guest of {name} was stopped: it approves nothing any more")
            else:
                self.tell(f"  {name}: is gone")

    def _present(self, machine: str) -> "schemas.OperationView | None":
        shown = [
            operation
            for operation in self.operations.values()
            if not operation.ended_at or self.now - operation.ended_at <= LINGER
            if any(machine in event.machines for event in operation.events)
        ]
        return shown[-1] if shown else None

    def _table(self) -> "Table":
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        assert self._live is not None
        width = self._live.console.width
        shown = [number for number, (_, _, least, _) in enumerate(COLUMNS) if width >= least]
        table = Table(box=SIMPLE_HEAD, show_edge=False, header_style="bold", padding=0)
        for heading, size, _, style in (COLUMNS[number] for number in shown):
            table.add_column(heading, no_wrap=True, overflow="ellipsis", width=size, style=style)
        for row in self._rows:
            cells = row.cells(None if row.end else self._present(row.guest.machine))
            table.add_row(*(cells[n] for n in shown), style="dim" if row.end == "deleted" else "")
        told = Text("\n".join(self._told), no_wrap=True, overflow="ellipsis")
        told.highlight_regex(r"(?m)^\S+ >.*$", "bold")
        whole = Table.grid()
        for part in (
            Text.assemble(
                ("Forewarn", "bold"),
                f"   {times.shown(self.now)}   ",
                (f"15 minutes last {15 * 60 // story.SCALE} seconds here", "dim"),
            ),
            *("", table, "", told),
            Text("Stop a guest (kill its pid): its event then waits for NotBefore.", "dim"),
        ):
            whole.add_row(part)
        return whole


def facts(operation: "schemas.OperationView") -> list[str]:
    """Return what has happened to an operation, a line each."""
    names = ", ".join(name for event in operation.events for name in event.machines)
    if operation.status is EventStatus.QUEUED:
        behind = f"behind {operation.waits_for}, which takes another update domain"
        return [f"{operation.event_type} of {names} is queued {behind}"]
    at, notice = times.hour(operation.not_before), operations.notice_seconds(operation)
    found = [
        f"is announced: starts by {at} (notice {times.shown_span(notice)}), sooner if approved",
        *(f"is approved by {e.approval.by}" for e in operation.events if e.approval),
    ]
    if operation.waits_for:
        found.append(f"waits: another update domain is down ({operation.waits_for})")
    if operation.started_at:
        approved = operation.start_cause == "approved"
        why = "all approved" if approved else "nobody approved, the notice is over"
        found.append(f"starts: {why}")
    ends = {
        EventStatus.RETURNING: "is carried out: its machines have to ask again",
        EventStatus.COMPLETED: f"is completed after {times.shown_span(operation.took_seconds)}",
        EventStatus.CANCELED: f"is cancelled ({operation.outcome})",
        EventStatus.FAILED: f"has failed: {operation.outcome}",
    }
    found += [ends[operation.status]] if operation.status in ends else []
    return [f"{operation.event_type} of {names} {line}" for line in found]


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
