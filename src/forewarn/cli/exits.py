"""How a command ends: the exit statuses, and the one exception that carries them."""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from forewarn.vocabulary import ErrorCode


class ExitStatus(IntEnum):
    """What a script learns from `$?`; docs/reference/cli.md speaks of each."""

    OK = 0
    """It was done."""
    INTERNAL = 1
    """A fault of Forewarn's own, here or in the service."""
    USAGE = 2
    """The command line, or a file it names, is not what was expected."""
    REFUSED = 3
    """The rules do not allow it; the message says which, and what to do."""
    UNREACHABLE = 4
    """Nothing that is Forewarn answers at the operator plane's address; or nothing that speaks the
    protocol at the endpoint's."""
    UNAUTHORIZED = 5
    """The operator plane wants another token."""
    UNAVAILABLE = 6
    """The service answers, and its store is away; or a store cannot be used. Nothing changed."""
    MISSING_EXTRA = 7
    """This command needs packages that are not installed."""
    NOT_FOUND = 8
    """What the command names does not exist."""
    DEMO_FAILED = 9
    """In the demo something did not happen as it should."""
    SOCKET_UNUSABLE = 10
    """`serve` cannot use a socket, the token's file or a proxies' secret; the log says why."""
    ATTENTION = 11
    """`attention` has found something that needs an operator."""
    SCENARIO_BROKEN = 12
    """A line of the scenario that `simulate` played does not hold."""
    INTERRUPTED = 130
    """Ctrl-C, as shells count it."""
    BROKEN_PIPE = 141
    """Whoever read the output stopped reading, as shells count it."""
    TERMINATED = 143
    """SIGTERM ended `watch` at once, or a second one `serve`; as shells count it."""


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
"""How a command ends that the service refused for this reason."""


class Failed(Exception):  # noqa: N818 - a command's end, told in one line; not a fault of the code
    """A command cannot do what it was asked.

    Args:
        status: How the process ends.
        message: One line: what is wrong, what was expected, what to do.
        facts: What the service said that its message speaks of, by name.
    """

    def __init__(
        self, status: ExitStatus, message: str, facts: Mapping[str, str | int] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.facts = facts or {}
