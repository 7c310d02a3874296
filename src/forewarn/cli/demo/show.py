"""The demo put together: the service and the guests started, the story played, all of it ended."""

import shutil
import sys
import threading
from pathlib import Path
from typing import Final

from forewarn.cli import operations, output
from forewarn.cli.demo import cast, display, processes
from forewarn.cli.demo.stage import Row, Stage
from forewarn.cli.demo.story import DemoFailed, Story
from forewarn.cli.exits import ExitStatus, Failed
from forewarn.cli.operator import Service
from forewarn.clock import SystemClock
from forewarn.server.operator import schemas, vitals

LOOK_EVERY: Final = 0.2
"""Seconds between two looks at the service: five pictures a second are smooth for a table."""

START_LIMIT: Final = 30.0
"""Seconds in which the service must be ready; it takes one or two."""

DEMO_LIMIT: Final = 85.0
"""Seconds in which the story must be over; it takes about half of it."""


class Show:
    """One demo.

    Args:
        folder: Its own, which whoever made it removes.
        as_json: Whether stdout is kept for the history as one JSON document.
    """

    def __init__(self, folder: Path, *, as_json: bool) -> None:
        self._folder = folder
        self._as_json = as_json
        self._clock = SystemClock()
        self._nap = threading.Event()  # never set: waiting for it is a pause that Ctrl-C ends
        self._port = processes.free_port()
        self._socket = folder / "operator.sock"
        self._service_log = folder / "service.log"
        self._guests_log = folder / "guests.log"
        self._service: processes.Process | None = None
        self._guests: list[processes.Process] = []
        self._operator = Service(str(self._socket))
        self._stage: Stage | None = None

    def run(self) -> None:
        """Play the story and show what came of it.

        Raises:
            Failed: Something did not happen as it should.
        """
        began = self._clock.monotonic()
        self._start(began)
        shown = display.chosen(quiet=self._as_json)
        try:
            stage = Stage(self._operator, self._rows(), shown.tell)
            self._stage = stage
            shown.paint(stage)
            story = Story(stage)
            for _ in story.play():
                self._nap.wait(LOOK_EVERY)
                self._look(stage, shown)
                if self._clock.monotonic() - began > DEMO_LIMIT:
                    raise self._failed(f"the story was not over after {DEMO_LIMIT:g} s")
        except DemoFailed as failed:
            raise self._failed(str(failed)) from failed
        except Failed as failed:
            if failed.status is ExitStatus.UNREACHABLE:
                self._nap.wait(0.5)  # what hung up may be ending: its status tells more
                self._judge_service()
            raise
        finally:
            shown.close()
        self._epilogue(story, self._clock.monotonic() - began)

    def keep(self) -> None:
        """Go on until Ctrl-C, telling each change."""
        assert self._stage is not None
        stage = self._stage
        output.note(self._invitation())
        told = display.Lines(to_errors=self._as_json)
        stage.tell = told.tell
        try:
            while True:
                self._look(stage, told)
                self._nap.wait(LOOK_EVERY)
        except KeyboardInterrupt:
            output.note("Stopped.")

    def close(self) -> None:
        """End every process that was started."""
        for guest in self._guests:
            guest.ask_to_stop()
        for guest in self._guests:
            guest.stop()
        if self._service is not None:
            self._service.stop()

    def _start(self, began: float) -> None:
        """Start the service, wait until it is ready, and give it its fleet."""
        output.note("Starting the service and its guests ...")
        settings = self._folder / "forewarn.toml"
        settings.write_text(cast.settings(self._folder, self._port), encoding="utf-8")
        self._service = processes.service(settings, self._service_log)
        while not self._ready():
            if self._service.status is not None:
                raise self._ended(self._service.status)
            if self._clock.monotonic() - began > START_LIMIT:
                raise self._failed(f"the service was not ready after {START_LIMIT:g} s")
            self._nap.wait(0.05)
        self._operator.ask("PUT", "/v1/fleet", body=cast.fleet())

    def _ready(self) -> bool:
        if not self._socket.exists():
            return False
        try:
            return self._operator.get("/readyz").read(vitals.Readiness).ready
        except Failed:
            return False

    def _rows(self) -> list[Row]:
        rows = []
        for guest in cast.GUESTS:
            process = processes.guest(guest, self._port, self._guests_log)
            self._guests.append(process)
            rows.append(Row(guest, process))
        return rows

    def _look(self, stage: Stage, shown: display.Display) -> None:
        self._judge_service()
        stage.refresh()
        shown.paint(stage)

    def _judge_service(self) -> None:
        assert self._service is not None
        if (status := self._service.status) is not None:
            raise self._ended(status)

    def _epilogue(self, story: Story, took: float) -> None:
        answer = self._operator.get("/v1/history", limit=cast.HISTORY)
        try:
            verdicts = story.verdicts()
        except DemoFailed as failed:
            raise self._failed(str(failed)) from failed
        if self._as_json:
            output.document(answer.tree())
        else:
            output.say("")
            output.say("What happened, the newest first ('forewarn history'):")
            operations.told(answer.read(schemas.HistoryPage).operations, empty="nothing")
            output.say("")
        for verdict in verdicts:
            (output.note if self._as_json else output.say)(f"ok  {verdict}")
        output.note(f"The demo took {took:.0f} s.")

    def _invitation(self) -> str:
        guest = f"http://127.0.0.1:{self._port}/vm/web-0/metadata"
        program = "forewarn" if shutil.which("forewarn") else f"{sys.executable} -m forewarn"
        return f"""
The service is still running. Try, in another terminal:

  export FOREWARN_OPERATOR={self._socket}
  {program} fleet list
  {program} schedule reboot web-0 web-3
  curl -s -H Metadata:true '{guest}/scheduledevents?api-version={cast.NEWEST}'
  curl -s -H Metadata:true '{guest}/instance?api-version=2021-02-01'
  curl -s --unix-socket {self._socket} 'http://localhost/v1/events'

Ctrl-C stops it and leaves nothing behind.
"""

    def _failed(self, what: str) -> Failed:
        return Failed(ExitStatus.DEMO_FAILED, f"the demo went wrong: {what}")

    def _ended(self, status: int) -> Failed:
        log = processes.tail(self._service_log)
        lines = log.splitlines() or ["it said nothing"]
        last = next((line for line in reversed(lines) if "error" in line), lines[-1])
        if status in {ExitStatus.MISSING_EXTRA, ExitStatus.USAGE}:
            return Failed(ExitStatus(status), last.removeprefix("forewarn: "))
        output.note(log)
        return self._failed(f"the service ended with status {status}: {last}")
