"""`forewarn demo`: starts the service and the guests, shows what happens, and stops them."""

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final, TextIO

import typer

from forewarn.cli import operations, output, times
from forewarn.cli.demo import story
from forewarn.cli.exits import ExitStatus, Failed
from forewarn.cli.operator import JsonOption, OperatorClient
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

START_LIMIT: Final = 30.0
"""Seconds until the service must be ready; it takes one or two."""

DEMO_LIMIT: Final = 85.0
"""Seconds until the story must be over; it takes about half of it."""

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
    *(("MACHINE", 14, 0), ("DOMAIN", 9, 0), ("ITS GUEST", 17, 100), ("PID", 7, 0)),
    *(("EVENT", 8, 0), ("STATUS", 9, 0), ("NOTICE", BAR, 110), ("LEFT", 7, 0)),
    *(("APPROVED BY", 13, 0), ("THE GUEST SAYS", 18, 119)),
)
"""Heading, width, and the narrowest terminal that has room for the column."""


def demo(
    *,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave it running afterwards, until Ctrl-C.")
    ] = False,
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
        _signals(_interrupt),
        tempfile.TemporaryDirectory(prefix="forewarn-demo-", dir=place) as folder,
    ):
        running = Demo(Path(folder), as_json=as_json)
        try:
            running.run()
            if keep:
                running.keep()
        finally:
            with _signals(signal.SIG_IGN):
                running.close()


class Row:
    """What the table shows of one machine.

    Args:
        guest: The machine.
        process: The program in it.
        spoken: What the program prints.
    """

    def __init__(self, guest: story.Guest, process: Process, spoken: TextIO) -> None:
        self.guest = guest
        self.process = process
        self.spoken = spoken
        self.says = ""
        self.operation: schemas.OperationView | None = None
        self.end = ""
        """`deleted` or `stopped` once the guest has ended."""

    def cells(self) -> list["Text"]:
        """Return the cells of its row, in the order of COLUMNS."""
        from rich.text import Text

        guest, operation = self.guest, self.operation
        dim = "dim" if self.end == "deleted" else ""
        status = bar = left = approver = ""
        if operation is not None:
            status = "waits" if operation.waits_for else str(operation.status)
            approvals = [e.approval for e in operation.events if guest.machine in e.machines]
            approver = ", ".join(operations.approver(one) for one in approvals if one)
            if operation.status is EventStatus.SCHEDULED:
                remains = operation.notice_left_seconds or 0
                full = round(BAR * remains / (operations.notice_seconds(operation) or 1))
                bar = "━" * min(BAR, full) + "╌" * (BAR - min(BAR, full))
                left = times.shown_span(remains)
        return [
            Text(guest.machine, "dim strike" if dim else "bold"),
            Text(guest.domain, dim),
            Text(guest.shown, "dim" if self.end else ""),
            Text(
                self.end or str(self.process.pid),
                "bold red" if self.end == "stopped" else "dim",
            ),
            Text(str(operation.event_type) if operation else ""),
            Text(status, output.STYLES.get(status, "yellow")),
            Text(bar, "yellow"),
            Text(left, "yellow"),
            Text(approver, "green"),
            Text(self.says, "italic"),
        ]


class Demo:
    """The running demo.

    Args:
        folder: An empty folder for it alone.
        as_json: Whether to print the history as one JSON document; the story goes to stderr.
    """

    def __init__(self, folder: Path, *, as_json: bool) -> None:
        self._folder = folder
        self._as_json = as_json
        self._clock = SystemClock()
        self._began = self._clock.monotonic()
        self._nap = threading.Event()  # never set: waiting for it is a pause that Ctrl-C ends
        self._port = _free_port()
        self._socket = folder / "operator.sock"
        self._operator = OperatorClient(str(self._socket))
        self._service: Process | None = None
        self._rows: list[Row] = []
        self._told: deque[str] = deque([""] * TOLD_LINES, maxlen=TOLD_LINES)
        self._live: Live | None = None
        self._limit = DEMO_LIMIT
        self.now = self._clock.now()
        self.operations: dict[str, schemas.OperationView] = {}
        self.stopped: set[str] = set()
        """The machines whose guest somebody else has stopped."""

    def run(self) -> None:
        """Play the story, and show what came of it.

        Raises:
            Failed: Something did not happen as it should.
        """
        output.note("Starting the service and its guests ...")
        self._start()
        played = story.Story(self)
        try:
            with self._drawn():
                played.play()
            verdicts = played.verdicts()
        except story.DemoFailed as failed:
            raise _failed(str(failed)) from failed
        history = self._operator.get("/v1/history")
        if self._as_json:
            output.document(history.tree())
        else:
            output.say("\nWhat happened, the newest first ('forewarn history'):")
            operations.history(reversed(self.operations.values()), empty="nothing")
            output.say("")
        for verdict in verdicts:
            (output.note if self._as_json else output.say)(f"ok  {verdict}")
        output.note(f"The demo took {self._clock.monotonic() - self._began:.0f} s.")

    def keep(self) -> None:
        """Go on until Ctrl-C, telling each change."""
        guest = f"http://127.0.0.1:{self._port}/vm/web-0/metadata"
        program = "forewarn" if shutil.which("forewarn") else f"{sys.executable} -m forewarn"
        output.note(f"""
The service is still running. Try, in another terminal:

  export FOREWARN_OPERATOR={self._socket}
  {program} fleet list
  {program} schedule reboot web-0 web-3
  curl -s -H Metadata:true '{guest}/scheduledevents?api-version={story.NEWEST}'
  curl -s -H Metadata:true '{guest}/instance?api-version=2021-02-01'
  curl -s --unix-socket {self._socket} 'http://localhost/v1/events'

Ctrl-C stops it and leaves nothing behind.
""")
        self._limit = float("inf")
        try:
            while True:
                self.look()
        except KeyboardInterrupt:
            output.note("Stopped.")

    def close(self) -> None:
        """End every process that was started."""
        for row in self._rows:
            row.process.terminate()
        for row in self._rows:
            _stop(row.process)
            row.spoken.close()
        if self._service is not None:
            _stop(self._service)

    def tell(self, line: str) -> None:
        """Tell a line of the story."""
        line = f"{times.hour(self.now)} {line}"
        self._told.append(line)
        if self._live is None:
            typer.echo(line, err=self._as_json)

    def look(self) -> None:
        """Wait a little, learn what is new, and tell it.

        Raises:
            Failed: The service has ended.
            story.DemoFailed: It takes too long.
        """
        from forewarn.server.operator import schemas

        self._nap.wait(LOOK_EVERY)
        self._check_service()
        if self._clock.monotonic() - self._began > self._limit:
            raise story.DemoFailed(f"the story was not over after {DEMO_LIMIT:g} s")
        try:
            page = self._operator.get("/v1/history").read(schemas.HistoryPage)
            self.now = self._now()
        except Failed:
            self._nap.wait(0.5)  # a service that hangs up may be ending: its status tells more
            self._check_service()
            raise
        for operation in reversed(page.operations):
            before = self.operations.get(operation.id)
            self.operations[operation.id] = operation
            for line in news(before, operation):
                self.tell(line)
        self._look_at_guests()
        if self._live is not None:
            self._live.update(self._table(), refresh=True)

    def schedule(self, **request: object) -> int:
        """Ask for maintenance, and return its number."""
        body = {"by": "demo", **request}
        answer = self._operator.ask("POST", "/v1/maintenance", body=body).tree()
        return int(answer["maintenance"]["number"])

    def cancel(self, number: int, reason: str) -> None:
        """Cancel a maintenance."""
        body = {"reference": str(number), "reason": reason, "by": "demo"}
        self._operator.ask("POST", "/v1/cancellations", body=body)

    def delete(self, machine: str) -> None:
        """Stop the guest of a machine."""
        (row,) = (row for row in self._rows if row.guest.machine == machine)
        row.end, row.says = "deleted", ""
        _stop(row.process)

    def _start(self) -> None:
        """Start the service, wait until it is ready, give it its fleet, and start the guests."""
        file = self._folder / "forewarn.toml"
        file.write_text(story.settings(self._folder, self._port), encoding="utf-8")
        serve = [sys.executable, "-m", "forewarn", "serve", "--config", str(file)]
        self._service = _run(serve, self._folder / "service.log")
        while not self._ready():
            self._check_service()
            if self._clock.monotonic() - self._began > START_LIMIT:
                raise _failed(f"the service was not ready after {START_LIMIT:g} s")
            self._nap.wait(0.05)
        self._operator.ask("PUT", "/v1/fleet", body=story.fleet())
        script = str(Path(__file__).with_name("guest.py"))
        for guest in story.GUESTS:
            command = [
                *(sys.executable, "-I", script, "--role", guest.role),
                *("--url", f"http://127.0.0.1:{self._port}/vm/{guest.machine}"),
                *("--api-version", guest.version, "--drain", str(guest.drain_seconds)),
            ]
            log = self._folder / f"{guest.machine}.log"
            self._rows.append(Row(guest, _run(command, log), log.open(encoding="utf-8")))
        self.now = self._now()

    def _ready(self) -> bool:
        try:
            return self._socket.exists() and bool(self._operator.get("/readyz").tree()["ready"])
        except Failed:
            return False

    def _now(self) -> datetime:
        return datetime.fromisoformat(self._operator.get("/v1/clock").tree()["now"])

    def _check_service(self) -> None:
        assert self._service is not None
        status = self._service.poll()
        if status is None:
            return
        log = (self._folder / "service.log").read_text(errors="replace").splitlines()[-8:]
        last = next((line for line in reversed(log) if "error" in line), (log or ["no output"])[-1])
        if status in {ExitStatus.MISSING_EXTRA, ExitStatus.USAGE}:
            raise Failed(ExitStatus(status), last.removeprefix("forewarn: "))
        output.note("\n".join(log))
        raise _failed(f"the service ended with status {status}: {last}")

    def _look_at_guests(self) -> None:
        for row in self._rows:
            if row.end:
                continue
            name = row.guest.machine
            shown = [
                operation
                for operation in self.operations.values()
                if not operation.ended_at or self.now - operation.ended_at <= LINGER
                if any(name in event.machines for event in operation.events)
            ]
            row.operation = shown[-1] if shown else None
            for line in row.spoken:
                row.says = line.rstrip()
                self.tell(f"  {name}: {row.says}")
            if row.process.poll() is not None:
                row.end, row.says = "stopped", ""
                self.stopped.add(name)
                self.tell(f"  the guest of {name} was stopped: it approves nothing any more")

    @contextlib.contextmanager
    def _drawn(self) -> Generator[None]:
        """Show a live table if stdout is a terminal, and lines otherwise."""
        if self._as_json or not sys.stdout.isatty():
            yield
            return
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(highlight=False), auto_refresh=False) as self._live:
            yield
        self._live = None

    def _table(self) -> "Table":
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        assert self._live is not None
        width = self._live.console.width
        fits = [width >= least for _, _, least in COLUMNS]
        table = Table(box=SIMPLE_HEAD, show_edge=False, header_style="bold", padding=0)
        for (heading, size, _), fit in zip(COLUMNS, fits, strict=True):
            if fit:
                table.add_column(heading, no_wrap=True, overflow="ellipsis", width=size)
        for row in self._rows:
            cells = zip(row.cells(), fits, strict=True)
            table.add_row(*(cell for cell, fit in cells if fit))
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


def news(before: "schemas.OperationView | None", after: "schemas.OperationView") -> list[str]:
    """Return the changes of an operation as lines."""
    names = ", ".join(name for event in after.events for name in event.machines)
    what = f"{after.event_type} of {names}"
    lines = []
    if before is None:
        at, notice = times.hour(after.not_before), operations.notice_seconds(after)
        lines.append(
            f"{what} is announced: starts by {at} (notice {times.shown_span(notice)}), "
            "sooner if approved"
        )
    for number, event in enumerate(after.events):
        if event.approval and not (before and before.events[number].approval):
            lines.append(f"{what} is approved by {event.approval.by}")
    if after.waits_for and (before is None or before.waits_for != after.waits_for):
        lines.append(f"{what} waits: another update domain is down ({after.waits_for})")
    if before is None or before.status is not after.status:
        approved = after.start_cause == "approved"
        why = "all approved" if approved else "nobody approved, the notice is over"
        shown = {
            EventStatus.STARTED: f"starts: {why}",
            EventStatus.COMPLETED: f"is completed after {times.shown_span(after.took_seconds)}",
            EventStatus.CANCELED: f"is cancelled ({after.outcome})",
            EventStatus.FAILED: f"has failed: {after.outcome}",
        }
        lines += [f"{what} {shown[after.status]}"] if after.status in shown else []
    return lines


@contextlib.contextmanager
def _signals(
    handler: Callable[[int, FrameType | None], None] | signal.Handlers,
) -> Generator[None]:
    """Handle Ctrl-C, SIGTERM and a closed terminal alike, so that nothing is left behind."""
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _run(command: Sequence[str], log: Path) -> Process:
    """Start a program in a session of its own, so that Ctrl-C reaches the demo alone."""
    with log.open("ab") as file:
        return subprocess.Popen(  # noqa: S603 - this interpreter and our own files
            command, stdin=subprocess.PIPE, stdout=file, stderr=file, start_new_session=True
        )


def _stop(process: Process) -> None:
    """Ask a program to end, then kill it; return when it is gone."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _failed(what: str) -> Failed:
    return Failed(ExitStatus.DEMO_FAILED, f"the demo went wrong: {what}")
