"""`forewarn watch`: what happens to the events of this machine, as it happens."""

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
"""The most that is read of a state's file: what the largest document can make it."""


def watch(
    *,
    endpoint: Annotated[
        str | None,
        typer.Option(
            "--endpoint",
            metavar="URL",
            show_default=False,
            help="The metadata endpoint. Left out: FOREWARN_ENDPOINT, else http://169.254.169.254.",
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
            help="Run this for each change, one after the other: JSON on stdin, FOREWARN_*.",
        ),
    ] = "",
    since: Annotated[
        Path | None,
        typer.Option(
            "--since",
            metavar="FILE",
            show_default=False,
            help="Keep what was told in this file, and go on from there the next time.",
        ),
    ] = None,
) -> None:
    """Tell what happens to events, until Ctrl-C.

    A line for each change on a terminal, a JSON document in a line where it is read by a program.
    """
    from forewarn.clock import SystemClock

    clock = SystemClock()
    state = _Kept(since)
    drawn = sys.stdout.isatty()
    with _ended_by_sigterm(), guest.told(), guest.connected(endpoint) as client:
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
    output.note(f"forewarn: {trouble.message}")


class _Kept:
    """The state in its file: what was told, so that it is not told again.

    Args:
        path: The file; None for none.
    """

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
            message = f"the state in {path} cannot be read: {error}"
            raise Failed(ExitStatus.USAGE, message) from error

    def keep(self, text: str) -> None:
        """Write the state; a crash in the middle leaves the one before.

        Raises:
            Failed: It cannot be written: what follows would be told twice.
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
            message = f"the state cannot be kept in {self._path}: {error}"
            raise Failed(ExitStatus.USAGE, message) from error


def _run(command: str, change: "Change", tree: str, endpoint: str) -> None:
    """Run the command for one change, to its end; what it prints goes to stderr."""
    asked: list[int] = []  # a signal while it is being begun must not leave it behind
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
        what = f"{change.kind} of {change.event.event_id}"
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
    return {name: value.replace("\0", "") for name, value in shown.items()}


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the command at once, and quietly, wherever it is."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise SystemExit(ExitStatus.TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
