"""`forewarn demo`: a fleet, its guests, and maintenance from notice to history.

It starts the real service, and each guest (`demo_guest`) as a process of its own, and asks the
operators' API, as anybody can.
"""

import contextlib
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO

import click

from forewarn import times
from forewarn.cli import events, output
from forewarn.cli.command import command
from forewarn.cli.exits import ENDING, ExitStatus, Failed, handled, interrupted_by
from forewarn.cli.operator_client import OperatorClient
from forewarn.cli.options import JSON, flag
from forewarn.clock import SystemClock
from forewarn.vocabulary import EventStatus, EventType

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

    from forewarn.server.operator import schemas

Process = subprocess.Popen[bytes]

SCALE: Final = 90
"""The service's seconds in one real second: fifteen minutes' notice last ten seconds."""

BACK_SECONDS: Final = SCALE * 80
"""For a machine to come back: the default would be over in three real seconds."""

LOOK_EVERY: Final = 0.2
"""Seconds between two looks at the service."""

DEMO_LIMIT: Final = 85.0
"""Seconds until the story must be over; it takes about half of it."""

STOP_SECONDS: Final = 10.0
"""For a process to end before it is killed; the service promises the same."""

LONGEST_FOLDER: Final = 70
"""The path of a unix socket has room for 103 characters, with the folder of the demo in it."""

TOLD_LINES: Final = 8
"""The lines of the story below the table: all of it fits a terminal of 24 lines."""

COLUMNS: Final = {
    heading: column
    for heading, column in events.COLUMNS.items()
    if heading not in {"?HOST", "NOT BEFORE", "AGENTS", "SHOWN TO"}
}
"""The columns of the table: each event fits in a line of 80 characters."""

TRY: Final = """
The service is still running. Try, in another terminal:

{activate}  export FOREWARN_OPERATOR={socket}
  {program} fleet list
  {program} schedule reboot web-0 web-3
  {program} page   # prints a link for your browser
  curl -s -H Metadata:true '{guest}/scheduledevents?api-version={version}'
  curl -s -H Metadata:true '{guest}/instance?api-version=2021-02-01'
  curl -s --unix-socket {socket} 'http://localhost/v1/events'

Ask as the machine bastion, by 'watch' or by your own handler, and reboot it:

  FOREWARN_ENDPOINT={bastion} {program} watch --mine
  {program} schedule reboot bastion

Ctrl-C stops it and leaves nothing behind.
"""

NEWEST: Final = "2020-07-01"
PREVIEW: Final = "2017-03-01"


class Guest(NamedTuple):
    """A machine and the program in it."""

    machine: str
    approves_after: float = 0.3
    """In real seconds; `inf` is never. By default so soon that the notice can just be seen."""
    version: str = NEWEST


GUESTS: Final = (
    *(Guest("web-0"), Guest("web-3")),
    *(Guest("web-1", 3.0), Guest("web-4", 3.0)),
    *(Guest("web-2", math.inf), Guest("web-5", math.inf)),
    *(Guest("batch_0", 1.5), Guest("batch_1", 1.5)),
    *(Guest("FrontEnd_IN_0", version=PREVIEW), Guest("FrontEnd_IN_1", version=PREVIEW)),
    Guest("bastion", 60.0),
)

FLEET: Final = """
machine = [{ name = "bastion", host = "h7" }]
[[availability_set]]
name = "web"
update_domains = 3
machines = [
  { name = "web-0", host = "h1" }, { name = "web-1", host = "h2" }, { name = "web-2", host = "h3" },
  { name = "web-3", host = "h4" }, { name = "web-4", host = "h5" }, { name = "web-5", host = "h6" },
]
[[scale_set]]
name = "batch"
priority = "low"
machines = [{ index = 0, host = "h1" }, { index = 1, host = "h2" }]
[[cloud_service]]
name = "shop"
roles = [{ name = "FrontEnd", instances = [{ host = "h1" }, { host = "h2" }] }]
"""

PREEMPT_AHEAD: Final = timedelta(minutes=13)
"""The least notice of a preemption is 30 s, a third of a second here: too short to see."""


@command(flag("--keep", "Leave it running afterwards, until Ctrl-C."), JSON)
def demo(*, keep: bool, as_json: bool) -> None:
    """See a fleet, its guests and their maintenance.

    Runs the real service on a temporary database, with guests as processes of their own and a
    clock on which fifteen minutes last ten seconds. It ends by itself after half a minute.
    """
    import tempfile

    place = tempfile.gettempdir()
    if len(place) > LONGEST_FOLDER and Path("/tmp").is_dir():  # noqa: S108 - our folder is private
        place = "/tmp"  # noqa: S108 - the same
    with (
        interrupted_by(*ENDING) as check,
        tempfile.TemporaryDirectory(prefix="forewarn-demo-", dir=place) as folder,
    ):
        running = Demo(Path(folder), check, as_json=as_json)
        try:
            running.run()
            if keep:
                running.keep()
            else:
                output.note(f"'{_program()} demo --keep' leaves it running, for you to try.")
        except KeyboardInterrupt:
            output.note("Stopped.")
            raise
        finally:
            with handled(signal.SIG_IGN, *ENDING):
                running.close()


class Program(NamedTuple):
    """The program of a guest, which writes what it does into a log."""

    name: str
    process: Process
    log: TextIO


class Demo:
    """The running demo, in a folder of its own; with `as_json` the story goes to stderr."""

    def __init__(self, folder: Path, interrupted: Callable[[], None], *, as_json: bool) -> None:
        self._folder = folder
        self._interrupted = interrupted
        self._as_json = as_json
        self._clock = SystemClock()
        self._began = self._clock.monotonic()
        self._nap = threading.Event()  # never set: waiting for it is a pause that Ctrl-C ends
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._socket = folder / "operator.sock"
        self._processes: list[Process] = []
        self._programs: list[Program] = []
        self._told: deque[str] = deque([""] * TOLD_LINES, maxlen=TOLD_LINES)
        self._live: Live | None = None
        self._hint = "Stop a guest (kill its pid): its event then waits for NotBefore."
        self._operator = OperatorClient(address=str(self._socket))
        self._now = self._clock.now()
        self._operations: dict[str, schemas.OperationView] = {}

    def run(self) -> None:
        """Play the story, and show what came of it."""
        output.note("Starting the service and its guests ...")
        self._start()
        with contextlib.ExitStack() as stack:
            if output.on_terminal() and not self._as_json:
                from rich.console import Console
                from rich.live import Live

                live = Live(console=Console(highlight=False), auto_refresh=False)
                self._live = stack.enter_context(live)
            self._play()
            self._hint = ""
            self._look()  # the last picture
        self._live = None
        if self._as_json:
            output.document(self._operator.get("/v1/history").tree())
        else:
            output.say("\nWhat happened, the newest first ('forewarn history'):")
            output.table(self._history().operations, events.HISTORY.columns, empty="nothing")
            output.say("")
        if complaint := wrong_end(self._operations.values()):
            raise failed(complaint)
        output.note(f"The demo took {self._clock.monotonic() - self._began:.0f} s.")

    def keep(self) -> None:
        """Go on until Ctrl-C, telling each change."""
        venv = os.environ.get("VIRTUAL_ENV")
        output.note(
            TRY.format(
                activate=f"  . {venv}/bin/activate\n" if venv else "",
                socket=self._socket,
                program=_program(),
                guest=f"http://127.0.0.1:{self._port}/vm/web-0/metadata",
                bastion=f"http://127.0.0.1:{self._port}/vm/bastion",
                version=NEWEST,
            )
        )
        try:
            while True:
                self._look()
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
        for program in self._programs:
            program.log.close()

    def _play(self) -> None:
        """Play it all, from the first request to the last end."""
        what = "Reboot of the availability set 'web', one update domain after the other"
        reboot = self._schedule(what, event_type="Reboot", scopes=["web"])
        # Nobody approves the last domain: its notice has room for the rest. The freeze is queued
        # behind it, for it concerns another domain of the set.
        self._until(lambda: f"{reboot}.3" in self._operations, "the last domain")
        what = "Freeze of the host h1: one request, machines of three scopes"
        self._schedule(what, event_type="Freeze", hosts=["h1"], duration_seconds=5)
        what = "Preemption of the low-priority machine batch_1"
        at = (self._now + PREEMPT_AHEAD).isoformat()
        self._schedule(what, event_type="Preempt", machines=["batch_1"], not_before=at)
        what = "Redeploy of bastion, to be cancelled"
        redeploy = self._schedule(what, event_type="Redeploy", machines=["bastion"], source="User")
        self._pause(5)
        reason = "the new host is not ready"
        self._operator.post("/v1/cancellations", references=[str(redeploy)], reason=reason)
        self._until(lambda: all(o.status.over for o in self._operations.values()), "all to end")
        self._pause(1)

    def _pause(self, minutes: int) -> None:
        end = self._now + timedelta(minutes=minutes)
        self._until(lambda: self._now >= end, "the clock of the service")

    def _schedule(self, what: str, **request: object) -> int:
        self._pause(1)
        self._tell(f"> {what}")
        answer = self._operator.post("/v1/maintenances", **request).tree()
        return int(answer["maintenance"]["number"])

    def _until(self, true: Callable[[], bool], what: str) -> None:
        while not true():
            self._check(what)
            self._look()

    def _tell(self, line: str) -> None:
        line = f"{times.hour(self._now)} {line}"
        self._told.append(line)
        if self._live is None:
            click.echo(line, err=self._as_json)

    def _look(self) -> None:
        """Wait a little, learn what is new, and tell it."""
        from forewarn.server.operator import schemas

        self._nap.wait(LOOK_EVERY)
        self._interrupted()
        try:
            page = self._history()
            listed = self._operator.get("/v1/events").read(schemas.EventList)
        except Failed:
            self._nap.wait(0.5)  # a service that hangs up may be ending: its status tells more
            self._check("an answer")
            raise
        self._now = listed.now
        for operation in reversed(page.operations):
            known = self._operations.get(operation.id)
            self._operations[operation.id] = operation
            if known is None or events.state(known) != events.state(operation):
                self._tell(events.state(operation, times.hour))
        for program in list(self._programs):
            self._look_at(program)
        if self._live is not None:
            self._live.update(self._picture(listed.events, self._live.console.width), refresh=True)

    def _history(self) -> "schemas.HistoryPage":
        from forewarn.server.operator import schemas

        return self._operator.get("/v1/history").read(schemas.HistoryPage)

    def _look_at(self, program: Program) -> None:
        said = list(program.log)
        status = program.process.poll()
        if status is not None:
            said.append("was stopped: it approves nothing any more" if status else "is gone")
            program.log.close()
            self._programs.remove(program)
        for line in said:
            self._tell(f"  {program.name} ({program.process.pid}): {line.rstrip()}")

    def _start(self) -> None:
        """Start the service, wait until it is ready, give it its fleet, and start the guests."""
        import tomllib

        file = self._folder / "forewarn.toml"
        file.write_text(settings(self._folder, self._port), encoding="utf-8")
        serve = [sys.executable, "-P", "-m", "forewarn", "serve", "--config", str(file)]
        self._run(serve, self._folder / "service.log")
        while not self._ready():
            self._check("the service to be ready")
            self._nap.wait(0.05)
        self._operator.put("/v1/fleet", json.dumps(tomllib.loads(FLEET)).encode())
        script = str(Path(__file__).with_name("demo_guest.py"))
        for guest in GUESTS:
            command = [
                *(sys.executable, "-I", script),
                f"http://127.0.0.1:{self._port}/vm/{guest.machine}/metadata",
                *(guest.version, str(guest.approves_after)),
            ]
            log = self._folder / f"{guest.machine}.log"
            process = self._run(command, log)
            self._programs.append(Program(guest.machine, process, log.open(encoding="utf-8")))
        self._look()

    def _ready(self) -> bool:
        try:
            return self._socket.exists() and bool(self._operator.get("/readyz").tree()["ready"])
        except Failed:
            return False

    def _run(self, command: Sequence[str], log: Path) -> Process:
        """Start a program in a session of its own, so that Ctrl-C reaches the demo alone."""
        with log.open("ab") as file:
            process = subprocess.Popen(  # noqa: S603 - this interpreter and our own files
                command,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                # Settings in the user's variables must not lead it to a database that is in use.
                env={n: v for n, v in os.environ.items() if not n.startswith("FOREWARN_")},
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def _check(self, awaited: str) -> None:
        status = self._processes[0].poll()
        if status is None:
            if self._clock.monotonic() - self._began > DEMO_LIMIT:
                raise failed(f"waited too long for {awaited}")
            return
        log = (self._folder / "service.log").read_text(errors="replace").splitlines()[-8:]
        last = next((line for line in reversed(log) if "error" in line), (log or ["no output"])[-1])
        if status in {ExitStatus.MISSING_EXTRA, ExitStatus.USAGE}:
            said = last.removeprefix("forewarn: ").replace("forewarn serve", "forewarn demo")
            raise Failed(ExitStatus(status), said)
        output.note("\n".join(log))
        raise failed(f"the service ended with status {status}: {last}")

    def _picture(self, listed: "Iterable[schemas.LiveEvent]", width: int) -> "Group":
        """Return the events as `forewarn events` shows them, above the end of the story."""
        from rich.console import Group
        from rich.text import Text

        lines = [part for line in self._told for part in folded(line, width)]
        told = Text("\n".join(lines[-TOLD_LINES:]), no_wrap=True, overflow="ellipsis")
        told.highlight_regex(r"(?m)^\S+ >.*$", "bold")
        title = Text.assemble(
            ("Forewarn", "bold"),
            f"   {times.shown(self._now)}   ",
            (f"{SCALE} times as fast: 15 minutes last {15 * 60 // SCALE} seconds", "dim"),
        )
        hint = Text(self._hint, "dim")
        table = output.drawn(tuple(COLUMNS), output.cells(listed, COLUMNS), width)
        return Group(title, "", table, "", told, hint)


def folded(line: str, width: int) -> list[str]:
    """Return a line of the story as lines of at most this width, none of them cut."""
    import textwrap

    indent = " " * len("12:00:00Z   ")
    return textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False) or [""]


def settings(folder: Path, port: int) -> str:
    """Return the settings of the service: its files' folder, and the guest plane's port."""
    return f"""\
store.path = {json.dumps(str(folder / "forewarn.db"))}
operator.socket = {json.dumps(str(folder / "operator.sock"))}
operator.listen = "127.0.0.1:0"
guest.listener = [{{ address = "127.0.0.1", port = {port} }}]
connector.simulated = {{ freeze_seconds = 120, reboot_seconds = 180, preempt_seconds = 120 }}
rules.back_seconds = {BACK_SECONDS}
clock.scale = {SCALE}
log.format = "console"
"""


def wrong_end(operations: "Iterable[schemas.OperationView]") -> str:
    """Find an operation that did not end as the story has it; `""` for none."""
    for one in operations:
        redeployed = one.event_type is EventType.REDEPLOY
        if one.status is not (EventStatus.CANCELED if redeployed else EventStatus.COMPLETED):
            return f"operation {one.id}, a {one.event_type}, is {one.status}"
    return ""


def failed(what: str) -> Failed:
    """Return the demo's end: something did not happen as it should."""
    return Failed(ExitStatus.DEMO_FAILED, f"the demo went wrong: {what}")


def _program() -> str:
    return "forewarn" if shutil.which("forewarn") else f"{sys.executable} -m forewarn"
