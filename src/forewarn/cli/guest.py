"""`forewarn watch`: changes of a metadata endpoint's events, as JSON or as lines."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from forewarn import times
from forewarn.cli import output
from forewarn.cli.command import command
from forewarn.cli.exits import (
    ENDING,
    ExitStatus,
    Failed,
    end_session,
    handled,
    interrupted_by,
    need_program,
)
from forewarn.cli.options import METADATA, flag, option

if TYPE_CHECKING:
    from forewarn.client.event import Change, Event, Trouble
    from forewarn.client.sync import Client

SECOND: Final = timedelta(seconds=1)


@contextlib.contextmanager
def connected(endpoint: str | None, name: str | None = None) -> Iterator["Client"]:
    """Provide a client, whose errors end the command; None for what it finds out itself."""
    import logging

    from forewarn.client.event import Misuse
    from forewarn.client.sync import Client

    logging.getLogger("forewarn.client").addHandler(logging.NullHandler())  # the command says it
    try:
        with Client(endpoint, name=name) as client:
            yield client
    except Misuse as error:
        raise Failed(ExitStatus.USAGE, output.printable(str(error))) from error


def tree(event: "Event") -> dict[str, Any]:
    """Return an event as JSON values."""
    import msgspec

    left = event.notice_left
    told = msgspec.structs.asdict(event)
    del told["resource_type"], told["starts_by"]
    return told | {
        "resources": list(event.resources),
        "not_before": None if event.not_before is None else times.precise(event.not_before),
        "notice_left_seconds": None if left is None else round(left.total_seconds(), 3),
    }


def change_tree(change: "Change", at: datetime) -> dict[str, Any]:
    """Return a change as JSON values, and when it was reported."""
    from forewarn.client.event import Updated

    found = {"at": times.precise(at), "change": change.kind, "event": tree(change.event)}
    if change.gone:
        return found | {"last": change.last}
    if isinstance(change, Updated):
        return found | {"before": tree(change.before)}
    return found


def change_line(change: "Change", at: datetime) -> str:
    """Return a change as a line for people."""
    event = change.event
    parts = [times.hour(at), f"{change.kind:<8}", f"{event.event_type:<9}", f"{event.status:<9}"]
    parts.append(output.listed(event.resources))
    if event.concerns_me:
        parts.append("(this machine)")
    if not change.gone and event.not_before is not None:
        left = event.notice_left
        parts.append(f"in {output.shown(left and timedelta(seconds=left // SECOND))}")
    return output.printable("  ".join([*parts, event.event_id]))


YES_NO: Final = {True: "yes", False: "no", None: ""}
"""A truth as a variable; None where it is not known, or does not apply."""

NAMED: Final = re.compile(r"[\w.+-]*/[\w./+-]*")
"""The look of a program in a folder, to shells, too: `./drain`, `/opt/drain`, `bin/drain`."""


AGAIN_SECONDS: Final = 1.0
"""Before the next try to run the command where the system cannot for now."""

_NEVER: Final = threading.Event()


@command(
    METADATA,
    option("--name NAME", "This machine's name in events. Default: ask the endpoint."),
    flag("--mine", "Leave out events that concern other machines only."),
    flag("--once", "End after the first change."),
    option(
        "--exec CMD program",
        "Run this for each change, one at a time: JSON on stdin, FOREWARN_* variables.",
    ),
    option("--since FILE", "Save the state in this file, and resume from there the next time."),
)
def watch(
    *,
    endpoint: str | None,
    name: str | None,
    mine: bool,
    once: bool,
    program: str | None,
    since: Path | None,
) -> None:
    """Report changes of events, until Ctrl-C.

    Prints one line per change: text on a terminal, JSON in a pipe.
    """
    from forewarn.clock import SystemClock

    clock = SystemClock()
    if program is not None and not program.strip():
        raise click.UsageError("--exec: expected a command line to run for each change")
    if program and NAMED.fullmatch(word := program.partition(" ")[0]):
        need_program(word)
    drawn = sys.stdout.isatty()
    with (
        connected(endpoint, name) as client,
        interrupted_by(*ENDING, "SIGQUIT", close=client.close) as check,
    ):
        watching = client.watch(since=since, mine=mine, on_trouble=Troubles().tell)
        for change in watching:
            check()
            now = clock.now()
            shown = json.dumps(change_tree(change, now), ensure_ascii=False)
            _print(change_line(change, now) if drawn else shown, needed=not program)
            if program:
                _run(program, change, shown, client.endpoint)
            if once:
                watching.done()
                return
        check()


def _print(line: str, *, needed: bool) -> None:
    """Print a change; where a command is run for it, a full disk or a closed pipe is only noted.

    Neither does a command wait for a reader that hangs: the change is not printed then.
    """
    from forewarn import logs

    if not needed and not logs.takes(sys.stdout):
        output.note("forewarn: cannot print a change, and runs the command: nothing reads stdout")
        return
    try:
        output.say(line)
    except (BrokenPipeError, Failed) as error:
        if needed:
            raise
        output.note(f"forewarn: cannot print a change, and runs the command: {error}")


class Troubles:
    """Prints why the endpoint cannot be asked: for the name and for the events once, if alike."""

    def __init__(self) -> None:
        self._last = ""

    def tell(self, trouble: "Trouble") -> None:
        """Print it, unless the line before ends with it."""
        if not self._last.endswith(trouble.message):
            output.note(output.printable(f"forewarn: {trouble.message}"))
            self._last = trouble.message


def _run(program: str, change: "Change", shown: str, endpoint: str) -> None:
    """Run the command for one change, to its end; its output goes to stderr."""
    asked: list[int] = []  # a signal while it starts must not leave it behind
    process = None
    try:
        with handled(lambda number, _: asked.append(number), *ENDING, "SIGQUIT"):
            process = _begun(program, _variables(change, endpoint))
        for number in asked:
            signal.raise_signal(number)
        process.communicate(shown.encode() + b"\n")
    except BaseException:
        if process is not None:
            end_session(process)
        raise
    if process.returncode:
        what = output.printable(f"{change.kind} of {change.event.event_id}")
        output.note(f"forewarn: the command ended with {process.returncode} for {what}")


def _begun(program: str, variables: dict[str, str]) -> "subprocess.Popen[bytes]":
    """Begin the command, as soon as the system has a process and the files for it."""
    told = False
    while True:
        try:
            return subprocess.Popen(  # noqa: S602 - the operator's own line
                program,
                shell=True,
                stdin=subprocess.PIPE,
                stdout=sys.stderr.fileno(),
                start_new_session=True,  # for a signal to all that it begins
                env={**os.environ, **variables},
            )
        except OSError as error:
            if not told:
                output.note(f"forewarn: cannot run the command yet: {error.strerror or error}")
            told = True
        _NEVER.wait(AGAIN_SECONDS)


def _variables(change: "Change", endpoint: str) -> dict[str, str]:
    from forewarn.client import event

    left = tree(change.event)["notice_left_seconds"]
    return event.environment(
        event.facts(change.event)
        | {
            "change": change.kind,
            "endpoint": endpoint,
            "concerns_me": YES_NO[change.event.concerns_me],
            "notice_left_seconds": "" if left is None else str(left),
            "last": YES_NO[change.last if change.gone else None],
        }
    )
