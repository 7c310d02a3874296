"""`forewarn watch`: reports changes of this machine's events, as they happen."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

from forewarn.cli import guest, output
from forewarn.cli.exits import ExitStatus, Failed, handled, need_program, read_text
from forewarn.cli.options import flag, option

if TYPE_CHECKING:
    from forewarn.client.event import Change, Trouble

MAX_STATE_BYTES: Final = 32 * 1024 * 1024
"""The most that is read of a state file: the largest document makes no longer one."""

NAMED: Final = re.compile(r"[\w.+-]*/[\w./+-]*")
"""What a program in a folder looks like, to shells, too: `./drain`, `/opt/drain`, `bin/drain`."""

MAX_VARIABLE: Final = 64 * 1024
"""The longest variable, in bytes: the kernel refuses 128 KiB. Longer ones are in the JSON only."""


def watch(
    *,
    endpoint: Annotated[
        str | None,
        option(
            "--endpoint",
            "URL",
            "The metadata endpoint. Default: FOREWARN_ENDPOINT, else http://169.254.169.254.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        option("--name", "NAME", "This machine's name in events. Default: ask the endpoint."),
    ] = None,
    mine: Annotated[
        bool, flag("--mine", "Leave out events that concern other machines only.")
    ] = False,
    once: Annotated[bool, flag("--once", "End after the first change.")] = False,
    command: Annotated[
        str,
        option(
            "--exec",
            "CMD",
            "Run this for each change, one at a time: JSON on stdin, FOREWARN_* variables.",
        ),
    ] = "",
    since: Annotated[
        Path | None,
        option(
            "--since", "FILE", "Save the state in this file, and resume from there the next time."
        ),
    ] = None,
) -> None:
    """Report changes of events, until Ctrl-C.

    Prints one line per change: text on a terminal, JSON in a pipe.
    """
    from forewarn.clock import SystemClock

    clock = SystemClock()
    state = None
    if since is not None:
        _judge(since)
    if NAMED.fullmatch(program := command.partition(" ")[0]):
        need_program(program)
    if since is not None and since.exists():
        state = read_text(str(since.absolute()), MAX_STATE_BYTES)
    drawn = sys.stdout.isatty()
    with handled(_end, "SIGTERM"), guest.connected(endpoint, name) as client:
        watching = client.watch(since=state, mine=mine, on_trouble=Troubles().tell)
        for change in watching:
            now = clock.now()
            tree = json.dumps(guest.change_tree(change, now), ensure_ascii=False)
            output.say(guest.change_line(change, now) if drawn else tree)
            sys.stdout.flush()
            if command:
                _run(command, change, tree, client.endpoint)
            if since is not None:
                _save_state(since, watching.since)
            if once:
                return


def _judge(since: Path) -> None:
    """End the command now where the state could not be saved at the first change."""
    folder = since.absolute().parent
    if not folder.is_dir():
        why = f"there is no folder {folder}"
    elif since.is_dir():
        why = "it is a folder: name a file"
    elif not os.access(folder, os.W_OK | os.X_OK):
        why = f"this user may not write to the folder {folder}"
    else:
        return
    raise Failed(ExitStatus.USAGE, f"cannot save the state in {since} (--since): {why}")


class Troubles:
    """Prints why the endpoint cannot be asked: for the name and for the events once, if alike."""

    def __init__(self) -> None:
        self._last = ""

    def tell(self, trouble: "Trouble") -> None:
        """Print it, unless the line before ends with it."""
        if not self._last.endswith(trouble.message):
            output.note(output.printable(f"forewarn: {trouble.message}"))
            self._last = trouble.message


def _save_state(path: Path, text: str) -> None:
    # A crash in the middle leaves the state before.
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        message = f"could not save the state in {path}: {error}"
        raise Failed(ExitStatus.USAGE, message) from error


def _run(command: str, change: "Change", tree: str, endpoint: str) -> None:
    """Run the command for one change, to its end; its output goes to stderr."""
    asked: list[int] = []  # a signal while it starts must not leave it behind
    process = None
    try:
        with handled(lambda number, _: asked.append(number), "SIGTERM", "SIGINT"):
            process = subprocess.Popen(  # noqa: S602 - the operator's own line
                command,
                shell=True,
                stdin=subprocess.PIPE,
                stdout=sys.stderr.fileno(),
                env={**os.environ, **_variables(change, endpoint)},
            )
        for number in asked:
            signal.raise_signal(number)
        process.communicate(tree.encode() + b"\n")
    except BaseException:
        if process is not None:
            process.terminate()
        raise
    if process.returncode:
        what = output.printable(f"{change.kind} of {change.event.event_id}")
        output.note(f"forewarn: the command ended with {process.returncode} for {what}")


def _variables(change: "Change", endpoint: str) -> dict[str, str]:
    tree = guest.tree(change.event)
    names = {
        "FOREWARN_CHANGE": change.kind,
        "FOREWARN_ENDPOINT": endpoint,
        "FOREWARN_RESOURCES": " ".join(tree.pop("resources")),
        "FOREWARN_CONCERNS_ME": {True: "yes", False: "no", None: ""}[tree.pop("concerns_me")],
    }
    rest = {f"FOREWARN_{key.upper()}": value for key, value in tree.items()}
    found = {
        name: "" if value is None else str(value).replace("\0", "")
        for name, value in {**rest, **names}.items()
    }
    return {name: value for name, value in found.items() if len(value.encode()) <= MAX_VARIABLE}


def _end(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(ExitStatus.TERMINATED)
