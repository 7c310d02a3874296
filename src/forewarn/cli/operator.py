"""The operator plane as the commands ask it: over a unix socket, or TCP with a token.

`OperatorClient` answers with the documents of the API; every failure becomes one `Failed` with its
exit status.
"""

import getpass
import json
import os
import socket
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from forewarn.cli import output
from forewarn.cli.exits import OF_CODE, ExitStatus, Failed
from forewarn.vocabulary import ErrorCode

if TYPE_CHECKING:
    from forewarn.client.transport import RequestFailed
    from forewarn.server import settings

CONNECT_SECONDS: Final = 10.0
"""To connect: without a limit an address that nobody has would wait forever."""

ANSWER_SECONDS: Final = 120.0
"""For an answer: to apply a hundred thousand machines takes up to 20 seconds."""

MAX_ANSWER: Final = 64 * 1024 * 1024
"""The most bytes of an answer; the longest page is a small part of it."""

MAX_TOKEN: Final = 4096
"""The most bytes of the token file."""

OperatorOption = Annotated[
    str | None,
    typer.Option(
        "--operator",
        envvar="FOREWARN_OPERATOR",
        metavar="ADDRESS",
        show_default=False,
        help="The operator plane: the path of a unix socket, or an http:// URL. "
        "Default: where 'forewarn serve' listens.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
LimitOption = Annotated[
    int, typer.Option("--limit", metavar="N", min=1, max=1000, help="Entries on one page.")
]
CursorOption = Annotated[
    str,
    typer.Option("--cursor", metavar="CURSOR", help="The cursor printed below the page before."),
]
AllOption = Annotated[bool, typer.Option("--all", help="Show all pages.")]
ReasonOption = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why; the history records it.")
]

Query = Mapping[str, str | int | bool | Sequence[str] | None]
Shape = TypeVar("Shape")


class Answer:
    """A document of the service.

    Args:
        body: The JSON as it came.
    """

    def __init__(self, body: bytes) -> None:
        self.body = body

    def tree(self) -> dict[str, Any]:
        """Return the document as JSON values.

        Raises:
            Failed: It is not a JSON object: something else answers at this address.
        """
        try:
            tree = json.loads(self.body)
        except ValueError:
            tree = None
        if not isinstance(tree, dict):
            message = "the answer is not a JSON object: is this the address of Forewarn?"
            raise Failed(ExitStatus.UNREACHABLE, message)
        return tree

    def read(self, shape: type[Shape]) -> Shape:
        """Return the document as a value of the API.

        Raises:
            Failed: It is none: something else answers at this address, or another release.
        """
        import msgspec

        try:
            return msgspec.json.decode(self.body, type=shape)
        except msgspec.DecodeError as error:
            message = (
                f"this release cannot read the answer ({error}): is 'forewarn --version' "
                "the version of the service?"
            )
            raise Failed(ExitStatus.UNREACHABLE, message) from error

    def show(self, shape: type[Shape], draw: Callable[[Shape], None], *, as_json: bool) -> None:
        """Print the document: as JSON, or as a value that `draw` prints."""
        if as_json:
            output.document(self.tree())
        else:
            draw(self.read(shape))


class OperatorClient:
    """The operator plane at one address.

    Args:
        address: The path of a unix socket, or an http:// URL; None for the service's default.
    """

    def __init__(self, address: str | None) -> None:
        self._address = _default() if address is None else address
        self._unix_socket = ""
        if self._address.startswith("http://"):
            _check_url(self._address)
        elif "://" in self._address or not self._address:
            raise Failed(ExitStatus.USAGE, _invalid(self._address))
        elif not hasattr(socket, "AF_UNIX"):
            message = "this system has no unix sockets: use --operator http://HOST:PORT"
            raise Failed(ExitStatus.USAGE, message)
        else:
            self._unix_socket = self._address

    def get(self, path: str, **query: str | int | None) -> Answer:
        """Ask for a document."""
        return self.ask("GET", path, query=query)

    def moment(self, given: datetime | timedelta) -> datetime:
        """Return a time in UTC; a span counts from now, by the clock of the service."""
        if isinstance(given, timedelta):
            given = datetime.fromisoformat(self.get("/v1/clock").tree()["now"]) + given
        return given.astimezone(UTC)

    def ask(
        self, method: str, path: str, *, query: Query | None = None, body: object = None
    ) -> Answer:
        """Send a request.

        Args:
            method: The HTTP method.
            path: From the root.
            query: Parameters; those that are None, empty or False are left out, a sequence is
                repeated.
            body: JSON as bytes, or what json.dumps takes; None for no body.

        Raises:
            Failed: It was refused, or Forewarn does not answer.
        """
        from forewarn.client import transport

        given = {
            name: "true" if value is True else value
            for name, value in (query or {}).items()
            if value
        }
        encoded = urllib.parse.urlencode(given, doseq=True)
        headers = []
        if body is not None:
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
            headers.append(("Content-Type", "application/json"))
        token = "" if self._unix_socket else _token()
        if token:
            headers.append(("Authorization", f"Bearer {token}"))
        base = "http://localhost" if self._unix_socket else self._address.rstrip("/")
        try:
            reply = transport.request(
                method,
                f"{base}{path}?{encoded}" if encoded else f"{base}{path}",
                seconds=ANSWER_SECONDS,
                connect_seconds=CONNECT_SECONDS,
                headers=headers,
                body=body,
                unix_socket=self._unix_socket,
                max_body=MAX_ANSWER,
            )
        except transport.RequestFailed as failed:
            raise Failed(ExitStatus.UNREACHABLE, self._unreachable(failed)) from failed
        if 200 <= reply.status < 300:
            return Answer(reply.body)
        failure = self._refused(reply.status, reply.body)
        if failure.status is ExitStatus.UNAUTHORIZED and not self._unix_socket:
            failure.message += f"; {_sent(token)}"
        raise failure

    def _unreachable(self, failed: "RequestFailed") -> str:
        where = f"the operator plane at {self._address}"
        match failed.__cause__:
            case FileNotFoundError() | ConnectionRefusedError():
                return (
                    f"nothing listens at {self._address}: start 'forewarn serve', or use "
                    "--operator or FOREWARN_OPERATOR"
                )
            case PermissionError():
                return f"{where} is not open to this user: run as the user of the service"
            case TimeoutError():
                return f"{where} did not answer in time: is the address right?"
        match failed.reason:
            case "no-http":
                return f"{self._address} does not speak HTTP: is this the address of Forewarn?"
            case "too-large":
                return f"the answer is longer than {MAX_ANSWER} bytes: use --limit"
            case "no-connection":
                return f"cannot reach {where}: {failed.__cause__ or failed}"
            case "no-answer":
                return f"{where} did not answer in time: see the log of the service"
            case _:
                return f"{where} hung up during its answer: see the log of the service"

    def _refused(self, status: int, body: bytes) -> Failed:
        try:
            error = json.loads(body)["error"]
            code, message = ErrorCode(error["code"]), str(error["message"])
            facts = dict(error.get("facts", {}))
        except (ValueError, KeyError, TypeError):
            message = (
                f"{self._address} answered with status {status}, not as Forewarn does: "
                "is this its operator plane?"
            )
            return Failed(ExitStatus.UNREACHABLE, message)
        return Failed(OF_CODE[code], message, facts)


def who() -> str:
    """Return the name of the user, for the history; `""` if it is unknown."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def segment(name: str) -> str:
    """Return a name as one segment of a path."""
    return urllib.parse.quote(name, safe="")


def pages(service: OperatorClient, path: str, key: str, *, whole: bool, query: Query) -> Answer:
    """Return one page of a list, or all of them as one.

    Args:
        service: Whom to ask.
        path: The path of the list.
        key: The name of the entries in the document.
        whole: Whether to follow the pages to the end.
        query: The query of the first page.
    """
    answer = service.ask("GET", path, query=query)
    page = answer.tree()
    if not whole or not page.get("next"):
        return answer
    entries = page[key]
    while page.get("next"):
        page = service.ask("GET", path, query={**query, "cursor": page["next"]}).tree()
        entries.extend(page[key])
    return Answer(json.dumps({key: entries, "next": ""}).encode())


def more(cursor: str) -> None:
    """Say how to get the next page, if there is one."""
    if cursor:
        output.note(f"There is more: add --cursor {cursor}, or --all.")


def _settings() -> "settings.Settings":
    """Return the settings of the service: its addresses and its token file."""
    from forewarn.server import settings
    from forewarn.settings import SettingsError

    try:
        return settings.load(None, os.environ)
    except SettingsError as error:
        raise Failed(ExitStatus.USAGE, str(error)) from error


def _default() -> str:
    from forewarn.server import settings

    operator = _settings().operator
    return f"http://{operator.listen}" if operator.socket == settings.OFF else operator.socket


def _token() -> str:
    """Return the token that the service wrote for TCP; `""` if there is none."""
    path = Path(_settings().operator.token_file)
    try:
        with path.open("rb") as file:
            return file.read(MAX_TOKEN).decode("ascii").strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read the operators' token in {path}: {error}"
        raise Failed(ExitStatus.UNAUTHORIZED, message) from error


def _sent(token: str) -> str:
    """Return which token was sent, or why none was, and what to do."""
    path = _settings().operator.token_file
    if token:
        return f"the token of {path} was sent: is it the one of this service?"
    return (
        f"no token was sent, because there is no {path}: copy the one of the service there, or "
        "set FOREWARN_SET_OPERATOR__TOKEN_FILE"
    )


def _check_url(address: str) -> None:
    try:
        parts = urllib.parse.urlsplit(address)
        usable = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise Failed(ExitStatus.USAGE, f"invalid URL {address!r}: {error}") from error
    if not usable or parts.path not in {"", "/"} or parts.query:
        raise Failed(ExitStatus.USAGE, _invalid(address))


def _invalid(address: str) -> str:
    return (
        f"invalid address {address!r} of an operator plane: expected the path of a unix socket, "
        "or a URL such as http://127.0.0.1:8172"
    )
