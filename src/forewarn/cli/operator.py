"""The operator plane as a client: plain http.client over a unix socket or TCP.

`Service` asks and answers in the API's own documents; what goes wrong becomes one `Failed` with
its exit status.
"""

import getpass
import http.client
import json
import os
import socket
import urllib.parse
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from forewarn.cli.exits import OF_CODE, ExitStatus, Failed
from forewarn.vocabulary import ErrorCode

if TYPE_CHECKING:
    from forewarn.server import settings

CONNECT_LIMIT: Final = 10.0
"""Seconds to be connected: an address that nobody has lets one wait for ever."""

ANSWER_LIMIT: Final = 120.0
"""Seconds to wait for an answer: applying a hundred thousand machines takes up to 20."""

MAX_ANSWER: Final = 64 * 1024 * 1024
"""The most bytes of an answer: the longest page is a small part of it."""

MAX_TOKEN: Final = 4096
"""The most bytes of a token's file."""

OperatorOption = Annotated[
    str | None,
    typer.Option(
        "--operator",
        envvar="FOREWARN_OPERATOR",
        metavar="ADDRESS",
        show_default=False,
        help="The operator plane: a unix socket's path or an http:// URL. "
        "Left out: where 'forewarn serve' listens by default.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document instead of a table.")
]

LimitOption = Annotated[
    int, typer.Option("--limit", metavar="N", min=1, max=1000, help="The entries of one page.")
]
CursorOption = Annotated[
    str, typer.Option("--cursor", metavar="CURSOR", help="Where the page before said to go on.")
]
AllOption = Annotated[bool, typer.Option("--all", help="Follow the pages to the end.")]

Query = Mapping[str, str | int | Sequence[str] | None]
Shape = TypeVar("Shape")


class Answer:
    """What the service said.

    Args:
        body: The JSON document as it came.
    """

    def __init__(self, body: bytes) -> None:
        self.body = body

    def tree(self) -> dict[str, Any]:
        """Return the document as JSON's own values.

        Raises:
            Failed: It is no JSON object: something else answers at this address.
        """
        try:
            read = json.loads(self.body)
        except ValueError:
            read = None
        if not isinstance(read, dict):
            message = "the answer is no JSON object: is it Forewarn that answers at this address?"
            raise Failed(ExitStatus.UNREACHABLE, message)
        return read

    def read(self, shape: type[Shape]) -> Shape:
        """Return the document as a value of the API's.

        Raises:
            Failed: It is none: something else answers at this address, or another release.
        """
        import msgspec

        try:
            return msgspec.json.decode(self.body, type=shape)
        except msgspec.DecodeError as error:
            message = (
                f"the answer is not what this release understands ({error}): does "
                "'forewarn --version' agree with the service's?"
            )
            raise Failed(ExitStatus.UNREACHABLE, message) from error


class Service:
    """The operator plane at one address.

    Args:
        address: A unix socket's path or an http:// URL; None for where the service listens by
            default.
    """

    def __init__(self, address: str | None) -> None:
        self._address = _default() if address is None else address
        self._host = ""
        self._port = 0
        self._path = ""
        if self._address.startswith("http://"):
            self._host, self._port = _tcp(self._address)
        elif "://" in self._address or not self._address:
            message = (
                f"{self._address!r} is no operator's address: give a unix socket's path or a URL "
                "such as http://127.0.0.1:8172"
            )
            raise Failed(ExitStatus.USAGE, message)
        elif not hasattr(socket, "AF_UNIX"):
            message = "this system has no unix sockets: name an http:// address with --operator"
            raise Failed(ExitStatus.USAGE, message)
        else:
            self._path = self._address

    def get(self, path: str, **query: str | int | Sequence[str] | None) -> Answer:
        """Ask for a document."""
        return self.ask("GET", path, query=query)

    def moment(self, given: datetime | timedelta) -> datetime:
        """Return a time in UTC; a span counts from the service's now."""
        from forewarn.server.operator import schemas

        if isinstance(given, timedelta):
            given = self.get("/v1/clock").read(schemas.ServiceTime).now + given
        return given.astimezone(UTC)

    def ask(
        self, method: str, path: str, *, query: Query | None = None, body: object = None
    ) -> Answer:
        """Ask anything.

        Args:
            method: The HTTP method.
            path: From the root.
            query: Parameters; those of None or `""` are left out, a sequence is repeated.
            body: Bytes that are JSON, or what json.dumps takes; None for no body.

        Raises:
            Failed: It was refused, or nothing that is Forewarn answers.
        """
        target = path + _query(query or {})
        payload = body if isinstance(body, bytes) else None
        if payload is None and body is not None:
            payload = json.dumps(body).encode()
        headers = {"Accept": "application/json", "Connection": "close"}
        if payload is not None:
            headers["Content-Type"] = "application/json"
        if self._host and (token := _token()):
            headers["Authorization"] = f"Bearer {token}"
        status, answered = self._exchange(method, target, payload, headers)
        if 200 <= status < 300:
            return Answer(answered)
        failure = self._failure(status, answered)
        if status == http.HTTPStatus.UNAUTHORIZED and self._host:
            failure.message += f"; {_sent(headers)}"
        raise failure

    def _exchange(
        self, method: str, target: str, payload: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        connection: http.client.HTTPConnection
        if self._path:
            connection = _UnixConnection(self._path)
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_LIMIT)
        try:
            connection.connect()
            connection.sock.settimeout(ANSWER_LIMIT)
            connection.request(method, target, body=payload, headers=headers)
            response = connection.getresponse()
            answered = response.read(MAX_ANSWER + 1)
            if response.length and len(answered) <= MAX_ANSWER:
                raise http.client.IncompleteRead(answered, response.length)
        except (OSError, http.client.HTTPException) as error:
            raise Failed(ExitStatus.UNREACHABLE, self._unreachable(error)) from error
        finally:
            connection.close()
        if len(answered) > MAX_ANSWER:
            message = f"the answer is longer than {MAX_ANSWER} bytes: ask for less with --limit"
            raise Failed(ExitStatus.UNREACHABLE, message)
        return response.status, answered

    def _unreachable(self, error: Exception) -> str:
        where = f"the operator plane at {self._address}"
        match error:
            case FileNotFoundError() | ConnectionRefusedError():
                return (
                    f"nothing listens at {self._address}: start 'forewarn serve', or name the "
                    "operator plane with --operator or FOREWARN_OPERATOR"
                )
            case PermissionError():
                return f"{where} is not open to this user: run as the user that the service runs as"
            case TimeoutError():
                return (
                    f"{where} did not answer in time: is the address right? See the service's log"
                )
            case (
                http.client.RemoteDisconnected()
                | http.client.IncompleteRead()
                | ConnectionResetError()
                | BrokenPipeError()
            ):
                return f"{where} hung up before its answer was whole: see the service's log"
            case http.client.HTTPException():
                return f"what answers at {self._address} does not speak HTTP: is it Forewarn's?"
            case _:
                return f"{where} cannot be reached: {error}"

    def _failure(self, status: int, body: bytes) -> Failed:
        try:
            error = json.loads(body)["error"]
            code, message = ErrorCode(error["code"]), str(error["message"])
            facts = dict(error.get("facts", {}))
        except (ValueError, KeyError, TypeError):
            message = (
                f"{self._address} answered with status {status} and nothing that Forewarn says: "
                "is it Forewarn's operator plane?"
            )
            return Failed(ExitStatus.UNREACHABLE, message)
        return Failed(OF_CODE[code], message, facts)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=CONNECT_LIMIT)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket instead of a host."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def who() -> str:
    """Return the user's name, for history; `""` where it has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def segment(name: str) -> str:
    """Return a name as one segment of a path."""
    return urllib.parse.quote(name, safe="")


def pages(service: Service, path: str, key: str, *, whole: bool, query: Query) -> Answer:
    """Return one page of a list, or all of them as one.

    Args:
        service: Who is asked.
        path: Of the list.
        key: The name of the entries in its document.
        whole: Whether to follow the pages to the end.
        query: Of the first page.
    """
    answer = service.ask("GET", path, query=query)
    page = answer.tree()
    if not whole or not page.get("next"):
        return answer
    entries = page[key]
    while page.get("next"):
        following = {**query, "cursor": page["next"]}
        page = service.ask("GET", path, query=following).tree()
        entries.extend(page[key])
    return Answer(json.dumps({key: entries, "next": ""}).encode())


def more(cursor: str) -> None:
    """Say how to get the next page, if there is one."""
    if cursor:
        typer.echo(f"There is more: add --cursor {cursor}, or --all.", err=True)


def _settings() -> "settings.Settings":
    """Return the service's settings as it would find them itself: its sockets and its token."""
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
    """Return the token that the service wrote for TCP; `""` where there is none to find."""
    path = Path(_settings().operator.token_file)
    try:
        with path.open("rb") as file:
            return file.read(MAX_TOKEN).decode("ascii").strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        message = f"the operators' token in {path} cannot be read: {error}"
        raise Failed(ExitStatus.UNAUTHORIZED, message) from error


def _sent(headers: Mapping[str, str]) -> str:
    """Return which token was sent, or why none was, and what to do."""
    path = _settings().operator.token_file
    if "Authorization" in headers:
        return f"the one that was sent is in {path}: is it this service's?"
    return (
        f"none was sent, for there is no {path}: copy the service's there, or let "
        "FOREWARN_SET_OPERATOR__TOKEN_FILE name it"
    )


def _query(query: Query) -> str:
    given = {name: value for name, value in query.items() if value not in (None, "", (), [])}
    return f"?{urllib.parse.urlencode(given, doseq=True)}" if given else ""


def _tcp(address: str) -> tuple[str, int]:
    try:
        parts = urllib.parse.urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise Failed(ExitStatus.USAGE, f"{address!r} is no URL: {error}") from error
    if not host or parts.path not in {"", "/"} or parts.query:
        message = f"{address!r} is no operator's address: give it as http://127.0.0.1:8172"
        raise Failed(ExitStatus.USAGE, message)
    return host, port or 80
