"""How commands end: the exit statuses, the exception that carries one, files, signals."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Final

from forewarn.vocabulary import ErrorCode


class ExitStatus(IntEnum):
    """What a script finds in `$?`; docs/reference/cli.md explains each."""

    OK = 0
    """Done."""
    INTERNAL = 1
    """A fault of Forewarn's own, here or in the service."""
    USAGE = 2
    """The command line, a file that it names, or the settings are invalid."""
    REFUSED = 3
    """The rules do not allow it; the message says why, and what to do."""
    UNREACHABLE = 4
    """Forewarn does not answer at the address of the operator plane, or no endpoint at its own."""
    UNAUTHORIZED = 5
    """The operator plane refuses the token."""
    UNAVAILABLE = 6
    """The store of the service is unavailable, or a store cannot be used. Nothing changed."""
    MISSING_EXTRA = 7
    """The command needs packages that are not installed."""
    NOT_FOUND = 8
    """The command names something that does not exist."""
    DEMO_FAILED = 9
    """Something in the demo did not happen as it should."""
    SOCKET_UNUSABLE = 10
    """`serve` cannot use a socket, the token file or a proxy secret; the log says why."""
    ALERTS = 11
    """`alerts` has found something."""
    SCENARIO_BROKEN = 12
    """A line of the scenario does not hold."""
    INTERRUPTED = 130
    """Ctrl-C, by the convention of shells."""
    BROKEN_PIPE = 141
    """The reader of the output stopped reading, by the convention of shells."""
    TERMINATED = 143
    """SIGTERM ended `watch`, or a second one `serve`; by the convention of shells."""


OF_CODE: Final[Mapping[ErrorCode, ExitStatus]] = MappingProxyType(
    {
        ErrorCode.INVALID: ExitStatus.USAGE,
        ErrorCode.NOT_FOUND: ExitStatus.NOT_FOUND,
        ErrorCode.CONFLICT: ExitStatus.REFUSED,
        ErrorCode.NOTICE_TOO_SHORT: ExitStatus.REFUSED,
        ErrorCode.NOT_ELIGIBLE: ExitStatus.REFUSED,
        ErrorCode.TOO_LATE: ExitStatus.REFUSED,
        ErrorCode.LIMIT: ExitStatus.REFUSED,
        ErrorCode.STALE: ExitStatus.REFUSED,
        ErrorCode.UNAUTHORIZED: ExitStatus.UNAUTHORIZED,
        ErrorCode.UNAVAILABLE: ExitStatus.UNAVAILABLE,
        ErrorCode.INTERNAL: ExitStatus.INTERNAL,
    }
)
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
def server_is_installed(command: str) -> Iterator[None]:
    """End the command if what is imported within needs packages of `forewarn[server]`."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "forewarn":
            raise
        message = f"{command!r} needs the package {error.name}: pip install 'forewarn[server]'"
        raise Failed(ExitStatus.MISSING_EXTRA, message) from error


def read_text(file: str, most: int) -> str:
    """Return the text, of at most so many bytes, of a file that the command line names, or `-`."""
    shown = "stdin" if file == "-" else file
    try:
        if file == "-":
            content = sys.stdin.buffer.read(most + 1)
        else:
            with Path(file).open("rb") as opened:
                content = opened.read(most + 1)
        text = content.decode()
    except OSError as error:
        message = f"cannot read {shown}: {error.strerror or error}"
        raise Failed(ExitStatus.USAGE, message) from error
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
    """Handle signals, by their names, within; leave out those that this system does not have."""
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
