"""`forewarn watch`: reports changes of this machine's events, as they happen."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from forewarn.cli import guest, output
from forewarn.cli.exits import ExitStatus, Failed

if TYPE_CHECKING:
    from forewarn.client.event import Change, Trouble

MAX_STATE_BYTES: Final = 32 * 1024 * 1024
"""The most that is read of a state file: the largest document makes no longer one."""

MAX_VARIABLE: Final = 64 * 1024
"""The longest variable, in bytes: the kernel refuses 128 KiB. Longer ones are in the JSON only."""


def watch(
    *,
    endpoint: Annotated[
        str | None,
        typer.Option(
            "--endpoint",
            metavar="URL",
            show_default=False,
            help="The metadata endpoint. Default: FOREWARN_ENDPOINT, else http://169.254.169.254.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            show_default=False,
            help="This machine's name in events. Default: ask the endpoint.",
        ),
    ] = None,
    mine: Annotated[
        bool, typer.Option("--mine", help="Leave out events that concern other machines only.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="End after the first change.")] = False,
    command: Annotated[
        str,
        typer.Option(
            "--exec",
            metavar="CMD",
            help="Run this for each change, one at a time: JSON on stdin, FOREWARN_* variables.",
        ),
    ] = "",
    since: Annotated[
        Path | None,
        typer.Option(
            "--since",
            metavar="FILE",
            show_default=False,
            help="Save the state in this file, and resume from there the next time.",
        ),
    ] = None,
) -> None:
    """Report changes of events, until Ctrl-C.

    Prints one line per change: text on a terminal, JSON in a pipe.
    """
    from forewarn.clock import SystemClock

    clock = SystemClock()
    state = _StateFile(since)
    drawn = sys.stdout.isatty()
    with _ended_by_sigterm(), guest.told(), guest.connected(endpoint, name) as client:
        watching = client.watch(since=state.text, mine=mine, on_trouble=_trouble)
        for change in watching:
            now = clock.now()
            tree = json.dumps(guest.change_tree(change, now), ensure_ascii=False)
            output.say(guest.change_line(change, now) if drawn else tree)
            sys.stdout.flush()
            if command:
                _run(command, change, tree, client.endpoint)
            state.keep(watching.since)
            if once:
                return


def _trouble(trouble: "Trouble") -> None:
    output.note(guest.printable(f"forewarn: {trouble.message}"))


class _StateFile:
    """The state of the watch in its file, so that no change is reported twice."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.text = None if path is None else self._read(path)

    @staticmethod
    def _read(path: Path) -> str | None:
        try:
            with path.open("rb") as file:
                return file.read(MAX_STATE_BYTES).decode()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            message = f"could not read the state in {path}: {error}"
            raise Failed(ExitStatus.USAGE, message) from error

    def keep(self, text: str) -> None:
        """Write the state; a crash in the middle leaves the one before.

        Raises:
            Failed: It cannot be written: the next watch would report the change again.
        """
        if self._path is None:
            return
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            with draft.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._path)
        except OSError as error:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            message = f"could not save the state in {self._path}: {error}"
            raise Failed(ExitStatus.USAGE, message) from error


def _run(command: str, change: "Change", tree: str, endpoint: str) -> None:
    """Run the command for one change, to its end; its output goes to stderr."""
    asked: list[int] = []  # a signal while it starts must not leave it behind
    before = {
        number: signal.signal(number, lambda number, _: asked.append(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        process = subprocess.Popen(  # noqa: S602 - the operator's own line
            command,
            shell=True,
            stdin=subprocess.PIPE,
            stdout=sys.stderr.fileno(),
            env={**os.environ, **_variables(change, endpoint)},
        )
    except BaseException:
        _restore(before)
        raise
    try:
        _restore(before)
        for number in asked:
            signal.raise_signal(number)
        process.communicate(tree.encode() + b"\n")
    except BaseException:
        process.terminate()
        raise
    if process.returncode:
        what = guest.printable(f"{change.kind} of {change.event.event_id}")
        output.note(f"forewarn: the command ended with {process.returncode} for {what}")


def _restore(handlers: "dict[signal.Signals, Any]") -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _variables(change: "Change", endpoint: str) -> dict[str, str]:
    tree = guest.tree(change.event)
    names = {
        "FOREWARN_CHANGE": change.kind,
        "FOREWARN_ENDPOINT": endpoint,
        "FOREWARN_RESOURCES": " ".join(tree.pop("resources")),
        "FOREWARN_CONCERNS_ME": {True: "yes", False: "no", None: ""}[tree.pop("concerns_me")],
    }
    rest = {f"FOREWARN_{key.upper()}": value for key, value in tree.items()}
    shown = {name: "" if value is None else str(value) for name, value in {**rest, **names}.items()}
    kept = {name: value.replace("\0", "") for name, value in shown.items()}
    return {name: value for name, value in kept.items() if len(value.encode()) <= MAX_VARIABLE}


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the command at once, and quietly."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise SystemExit(ExitStatus.TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
