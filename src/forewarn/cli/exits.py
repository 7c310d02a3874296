"""The ends of commands: the exit statuses, the exception that carries one, files, signals."""

import contextlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from forewarn import clock
from forewarn.vocabulary import ErrorCode

if TYPE_CHECKING:
    import subprocess


class ExitStatus(IntEnum):
    """The status that a script finds in `$?`; docs/reference/cli.md explains each."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    REFUSED = 3
    UNREACHABLE = 4
    UNAUTHORIZED = 5
    UNAVAILABLE = 6
    MISSING_EXTRA = 7
    NOT_FOUND = 8
    DEMO_FAILED = 9
    SOCKET_UNUSABLE = 10
    ALERTS = 11
    UNSOUND = 12
    NOT_CERTIFIED = 13
    INTERRUPTED = 130
    """Ctrl-C: like the next two, by the convention of shells."""
    BROKEN_PIPE = 141
    TERMINATED = 143


ENDING: Final = ("SIGINT", "SIGTERM", "SIGHUP")
"""Ctrl-C, SIGTERM and a closed terminal: by each of them a command ends what it began."""


def ended_by(number: int) -> ExitStatus:
    """Return the status of a command that a signal of ENDING ended."""
    return ExitStatus.INTERRUPTED if number == signal.SIGINT else ExitStatus.TERMINATED


OF_CODE: Final[Mapping[ErrorCode, ExitStatus]] = dict.fromkeys(ErrorCode, ExitStatus.REFUSED) | {
    ErrorCode.INVALID: ExitStatus.USAGE,
    ErrorCode.NOT_FOUND: ExitStatus.NOT_FOUND,
    ErrorCode.UNAUTHORIZED: ExitStatus.UNAUTHORIZED,
    ErrorCode.FORBIDDEN: ExitStatus.UNAUTHORIZED,
    ErrorCode.UNAVAILABLE: ExitStatus.UNAVAILABLE,
    ErrorCode.UNKNOWN_OUTCOME: ExitStatus.UNREACHABLE,
    ErrorCode.INTERNAL: ExitStatus.INTERNAL,
}
"""The exit status of a command that the service refused with this code."""


class Failed(Exception):  # noqa: N818 - the end of a command, told in one line
    """A command fails with an exit status and a line: what is wrong, what was expected, what to do.

    The facts are those of the message, as the service gave them.
    """

    def __init__(
        self, status: ExitStatus, message: str, facts: Mapping[str, str | int] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.facts = facts or {}


@contextlib.contextmanager
def settings_are_usable() -> Iterator[None]:
    """End the command if the settings read within are invalid."""
    from forewarn.settings import SettingsError

    try:
        yield
    except SettingsError as error:
        raise Failed(ExitStatus.USAGE, str(error)) from error


@contextlib.contextmanager
def server_is_installed(command: str, extra: str = "server") -> Iterator[None]:
    """End the command if what is imported within needs packages of this extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "forewarn":
            raise
        extra = "postgresql" if error.name == "psycopg" else extra
        needs = f"{command!r} needs {error.name}, from Forewarn's extra {extra!r}"
        message = f"{needs}: pip install '.[{extra}]' in a clone"
        raise Failed(ExitStatus.MISSING_EXTRA, message) from error


def need_program(name: str) -> None:
    """End the command if there is no such program, before it is needed."""
    if shutil.which(name) is None:
        raise Failed(ExitStatus.USAGE, f"no executable program {name!r}")


def become(program: str, options: Sequence[str]) -> None:
    """Go on as a program of ours, where a process can; else the caller runs it in this one."""
    if os.name == "posix":
        # Ctrl-C waits until the program handles it: Python's own start would show a traceback.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        # The same process, without the command line's memory; -P: not the current folder's modules.
        os.execv(  # noqa: S606 - no shell is the point
            sys.executable, [sys.executable, "-P", "-m", program, *options]
        )


@contextlib.contextmanager
def system_can(do: str, advice: str = "") -> Iterator[None]:
    """End the command, with advice, if the system refuses what is done within, `read x` say."""
    try:
        yield
    except OSError as error:
        message = f"cannot {do}: {error.strerror or error}{advice}"
        raise Failed(ExitStatus.USAGE, message) from error


def read_text(file: str, most: int) -> str:
    """Return the text of a file that the command line names, or of stdin for `-`."""
    shown = "stdin" if file == "-" else file
    try:
        with system_can(f"read {shown}"):
            if file == "-":
                content = sys.stdin.buffer.read(most + 1)
            else:
                with Path(file).open("rb") as opened:
                    content = opened.read(most + 1)
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"{shown} is not UTF-8 text ({error.reason} at byte {error.start})"
        raise Failed(ExitStatus.USAGE, message) from error
    if len(content) > most:
        raise Failed(ExitStatus.USAGE, f"{shown} is longer than {most} bytes")
    return text


@contextlib.contextmanager
def handled(
    handler: Callable[[int, FrameType | None], None] | signal.Handlers, *names: str
) -> Iterator[None]:
    """Handle signals, by their names, within; leave out those that this system does not have.

    SIGHUP stays ignored where nohup has the command outlive its terminal.
    """
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        numbers = [number for number in numbers if number != signal.SIGHUP]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextlib.contextmanager
def interrupted_by(
    *names: str, close: Callable[[], object] = lambda: None
) -> Iterator[Callable[[], None]]:
    """End the body by signals: each calls `close`, and raises KeyboardInterrupt or SystemExit.

    Python ignores an exception that a signal raises while an object is destroyed. So a loop calls
    the function that this provides, which raises the same exception again.
    """
    caught: list[int] = []

    def check() -> None:
        if caught:
            is_interrupt = caught[0] == signal.SIGINT
            raise KeyboardInterrupt if is_interrupt else SystemExit(ended_by(caught[0]))

    def take(number: int, _: FrameType | None) -> None:
        caught.append(number)
        close()
        check()

    with handled(take, *names):
        yield check


END_SECONDS: Final = 10.0
"""The time for a program to end after SIGTERM, as an action of the agent has it."""

LOOK_SECONDS: Final = 0.02


def end_session(process: "subprocess.Popen[bytes]") -> None:
    """End a program that leads a session, and all that it began there; kill what does not end.

    A signal that raises in the meantime has all of it killed at once. On Windows only the program
    itself is ended.
    """
    until = clock.monotonic() + END_SECONDS
    try:
        is_there = _send(process, signal.SIGTERM)
        while is_there and clock.monotonic() < until:
            threading.Event().wait(LOOK_SECONDS)
            process.poll()  # a program that has ended is not there any more once it was waited for
            is_there = _send(process, 0)
    finally:
        if sys.platform != "win32":
            _send(process, signal.SIGKILL)
        process.wait()


def _send(process: "subprocess.Popen[bytes]", number: int) -> bool:
    """Send all of a session's first group a signal; return False if nothing is left of it."""
    if sys.platform == "win32":
        if number:
            process.terminate()
        return process.returncode is None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
        return True
    return False
