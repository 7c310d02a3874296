"""The operator plane as the commands ask it: over a unix socket, or TCP with a token.

`OperatorClient` answers with the documents of the API; every failure becomes one `Failed` with its
exit status.
"""

import contextlib
import functools
import importlib
import json
import os
import re
import secrets  # noqa: TID251 - a key that no other request has
import socket
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from forewarn import times
from forewarn.cli import login, output
from forewarn.cli.exits import OF_CODE, ExitStatus, Failed, settings_are_usable, system_can
from forewarn.vocabulary import ErrorCode

if TYPE_CHECKING:
    import ssl

    from forewarn.client.transport import RequestFailed
    from forewarn.protocol.message import Reply
    from forewarn.server import settings

CONNECT_SECONDS: Final = 10.0
"""To connect: without a limit an address that nobody has would wait forever."""

ANSWER_SECONDS: Final = 120.0
"""For an answer: to apply a hundred thousand machines takes up to 20 seconds."""

QUIET_SECONDS: Final = 3.0
"""The wait for an answer after which the command says that it waits."""

MAX_ANSWER: Final = 64 * 1024 * 1024
"""The most bytes of an answer; the longest page is a small part of it."""

MAX_TOKEN: Final = 4096
"""The most bytes of the token file."""

TOKEN_FILE: Final = "FOREWARN_TOKEN_FILE"  # noqa: S105 - a variable's name
"""The variable with the path of a token's file; it goes before a remembered login."""

HOST_AND_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]+")
"""An address without `http://`: no path of a socket that anybody has looks like it."""

LOOPBACK: Final = re.compile(r"(localhost|127(\.[0-9]+){3}|\[::1\]):[0-9]+", re.IGNORECASE)
"""The addresses of these where a service may listen without TLS."""

PASSING: Final = frozenset({ExitStatus.UNREACHABLE, ExitStatus.UNAVAILABLE})
"""The failures after which it is asked again: the service restarts, or its database is away."""

LOST: Final = frozenset({"cut", "no-answer"})
"""The reasons of the transport where the service may have had the whole request."""

GATEWAYS: Final = frozenset({502, 504})
"""The statuses of a proxy that had no answer of the service, or not in time."""

MAY_BE_DONE: Final = "it may have been done all the same: look before you repeat it"
"""The warning about a change whose answer did not come."""

IS_DONE: Final = "it is done all the same"
"""The end of the message where the answer to a change cannot be shown."""

AGAIN_SECONDS: Final = (0.1, 1.0, 4.0, 10.0)
"""The pauses before a request whose answer was lost is sent again: a restart takes ten seconds."""

KINDS: Final = {"machine": "/v1/fleet/machines", "scope": "/v1/fleet/scopes", "host": "/v1/hosts"}
"""The kinds of things with names that may be mistyped, and the list of each."""

MAX_COMPARED: Final = 1000
"""The names that are compared with one that does not exist: one page of a list."""

Shape = TypeVar("Shape")

Show = Callable[[Any], object]
"""A printer of answers: an `AnswerTable`, or a function whose argument has the answer's type."""

SCHEMAS: Final = "forewarn.server.operator"
"""The package with the types of answers; a command imports only the one that it shows."""


@contextlib.contextmanager
def waiting(address: str, quiet_seconds: float = QUIET_SECONDS) -> Iterator[threading.Thread]:
    """Say on stderr, once the block has taken so long, that the service's answer is awaited."""
    text = f"Waiting for the answer of {address}, for {ANSWER_SECONDS:g} s at most."
    timer = threading.Timer(quiet_seconds, output.note, [text])
    timer.daemon = True
    timer.start()
    try:
        yield timer
    finally:
        timer.cancel()


class AnswerLost(Failed):
    """The failure of a change that may have been made all the same: its answer was lost."""


@dataclass(frozen=True)
class Answer:
    """A document of the service, and whether `show` prints it as JSON."""

    body: bytes
    as_json: bool
    is_change: bool = False

    def tree(self) -> dict[str, Any]:
        """Return the document as JSON values."""
        return self.read(dict[str, Any])

    def read(self, shape: type[Shape]) -> Shape:
        """Return the document as a value of the API."""
        import msgspec

        try:
            return msgspec.json.decode(self.body, type=shape)
        except msgspec.DecodeError as error:
            message = (
                f"this release cannot read the answer ({error}): is 'forewarn --version' "
                "the version of the service?"
            )
            # Another release's answer stays unreadable, and another server may go.
            of_another = isinstance(error, msgspec.ValidationError)
            status = ExitStatus.INTERNAL if of_another else ExitStatus.UNREACHABLE
            raise Failed(status, message) from error

    def show(self, draw: Show) -> None:
        """Print the document: as JSON, or as `draw` does with a value of its type."""
        try:
            self._print(draw)
        except Failed as failed:
            failed.message += f"; {IS_DONE}" * self.is_change
            raise

    def _print(self, draw: Show) -> None:
        if self.as_json:
            output.document(self.tree())
            return
        module, name = shape_of(draw).split(".")
        found = self.read(getattr(importlib.import_module(f"{SCHEMAS}.{module}"), name))
        draw(found)
        if cursor := getattr(found, "next", ""):
            output.note(f"There is more: add --cursor {cursor}, or --all.")


class OperatorClient:
    """A client of the operator plane, set up by the options of a command."""

    def __init__(
        self,
        *,
        limit: int = 100,
        cursor: str | None = None,
        whole: bool = False,
        as_json: bool = False,
        address: str | None = None,
        token: str | None = None,
    ) -> None:
        self._given = None if address is None else _spelled(address)
        self._shown = token
        self.as_json = as_json
        self._page = {"limit": limit, "cursor": cursor}
        self._whole = whole

    def get(self, path: str, **query: object) -> Answer:
        """Ask for a document."""
        return self._ask("GET", path, query)

    def post(self, path: str, **body: object) -> Answer:
        """Send a request with a body of these values, except None; times may be spans from now."""
        return self._ask("POST", path, {}, self._encoded(body))

    def post_once(self, path: str, **body: object) -> Answer:
        """Send a request that counts once: while its answer is lost, it is sent again."""
        encoded = self._encoded({**body, "idempotency_key": secrets.token_hex(16)})
        lost: Failed | None = None
        for seconds in (0.0, *AGAIN_SECONDS):
            if lost is not None:
                output.note("No answer came, and it may have been done: asking again counts once.")
                threading.Event().wait(seconds)
            try:
                return self._ask("POST", path, {}, encoded)
            except Failed as failed:
                if failed.status not in PASSING or not isinstance(lost or failed, AnswerLost):
                    raise
                lost = lost or failed
        assert lost is not None
        raise lost

    def _encoded(self, body: Mapping[str, object]) -> bytes:
        given = {name: value for name, value in body.items() if value is not None}
        return json.dumps(given, default=self.moment).encode()

    def put(self, path: str, body: bytes, **query: object) -> Answer:
        """Send a request with a body of JSON."""
        return self._ask("PUT", path, query, body)

    def delete(self, path: str, **query: object) -> Answer:
        """Send a request without a body."""
        return self._ask("DELETE", path, query)

    def pages(self, path: str, key: str, **query: object) -> Answer:
        """Return a page of the list at a path, or all as one; `key` names its entries."""
        query |= self._page
        if not self._whole:
            return self.get(path, **query)
        found = {key: self.entries(path, key, **query), "next": ""}
        return Answer(json.dumps(found).encode(), as_json=self.as_json)

    def entries(self, path: str, key: str, **query: object) -> list[dict[str, Any]]:
        """Return the entries of all pages of the list at a path."""
        found: list[dict[str, Any]] = []
        while True:
            page = self.get(path, **query).tree()
            found += page[key]
            if not page["next"]:
                return found
            query["cursor"] = page["next"]

    def moment(self, given: datetime | timedelta | time) -> str:
        """Return a time in UTC as the API takes it.

        A span counts from the service's time; a time of day is the next in this machine's zone.
        """
        if not isinstance(given, datetime):
            now = datetime.fromisoformat(self.get("/v1/clock").tree()["now"])
            given = times.next_time_of_day(given, now) if isinstance(given, time) else now + given
        return given.astimezone(UTC).isoformat()

    def _told(self, values: Mapping[str, object]) -> dict[str, object]:
        return {
            name: self.moment(value) if isinstance(value, datetime | timedelta | time) else value
            for name, value in values.items()
        }

    def _ask(
        self, method: str, path: str, query: Mapping[str, object], body: bytes | None = None
    ) -> Answer:
        """Send a request. Parameters that are None, empty or False are left out."""
        from forewarn.client import transport

        headers = [] if body is None else [("Content-Type", "application/json")]
        is_change = method != "GET" and "?dry_run=true" not in path and not query.get("dry_run")
        try:
            place = self._place(path, self._told(query), headers)
            with waiting(self.address):
                reply = transport.request(
                    method, seconds=ANSWER_SECONDS, body=body, max_body=MAX_ANSWER, **place
                )
        except transport.RequestFailed as failed:
            message = self._unreachable(failed)
            if not is_change or failed.reason not in LOST:
                raise Failed(ExitStatus.UNREACHABLE, message) from failed
            raise AnswerLost(ExitStatus.UNREACHABLE, f"{message}; {MAY_BE_DONE}") from failed
        except KeyboardInterrupt:
            if is_change:
                output.note(f"Interrupted: {MAY_BE_DONE}")
            raise
        if 200 <= reply.status < 300:
            return Answer(reply.body, self.as_json, is_change)
        failure = self._failure(reply)
        if is_change and reply.status in GATEWAYS and failure.status is ExitStatus.UNREACHABLE:
            raise AnswerLost(failure.status, f"{failure.message}; {MAY_BE_DONE}")
        raise failure

    def stream(
        self, path: str, silence_seconds: float, last_id: str, **query: object
    ) -> Iterator[bytes]:
        """Yield what comes of a stream, until the service ends it.

        `last_id` is the id of the last event that was read, `""` for none.
        """
        import msgspec

        from forewarn.client import transport

        headers = [("Last-Event-ID", last_id)] if last_id else []
        refused = b""
        reply = None
        try:
            for reply in transport.stream(
                silence_seconds=silence_seconds, **self._place(path, query, headers)
            ):
                if reply.status == 200:
                    yield reply.body
                else:
                    refused += reply.body
        except transport.RequestFailed as failed:
            raise Failed(ExitStatus.UNREACHABLE, self._unreachable(failed)) from failed
        if reply is not None and reply.status != 200:
            raise self._failure(msgspec.structs.replace(reply, body=refused))

    def _place(
        self, path: str, query: Mapping[str, object], headers: list[tuple[str, str]]
    ) -> dict[str, Any]:
        """Return where a request goes, and by what right, as `transport` takes it."""
        given = {name: "true" if value is True else value for name, value in query.items() if value}
        if given:
            path += f"?{urllib.parse.urlencode(given, doseq=True)}"
        is_url = "://" in self.address
        if is_url and (token := self._token()):
            headers.append(("Authorization", f"Bearer {token}"))
        return {
            "url": (self.address if is_url else "http://localhost") + path,
            "unix_socket": "" if is_url else self.address,
            "headers": headers,
            "connect_seconds": CONNECT_SECONDS,
            "tls": self._tls if is_url else None,
        }

    @property
    def _tls(self) -> "ssl.SSLContext | None":
        """The verification by the authorities that the settings name; None for the system's."""
        ca_file = self._settings.operator.tls_ca
        if not ca_file or self.address.startswith("http:"):
            return None
        import ssl

        with system_can(f"use operator.tls_ca {ca_file}"):
            return ssl.create_default_context(cafile=ca_file)

    def _failure(self, reply: "Reply") -> Failed:
        failure = self._refused(reply.status, reply.body)
        if failure.status is ExitStatus.NOT_FOUND and failure.facts.get("what") in KINDS:
            failure.message += self._suggestion(**failure.facts)
        if reply.status == 401 and "://" in self.address:
            failure.message += f"; {self._sent(self._token())}"
        return failure

    def similar(self, name: str, *kinds: str) -> str:
        """Return the most similar name of the first thousand of these kinds; `""` for none."""
        from forewarn.settings import nearest

        return nearest(
            name, (entry["name"] for kind in kinds for entry in self._named(KINDS[kind]))
        )

    def _named(self, path: str) -> list[dict[str, Any]]:
        """Return the first page of a list; that of the hosts has no pages."""
        limit = {} if path == KINDS["host"] else {"limit": MAX_COMPARED}
        found: list[dict[str, Any]] = self.get(path, **limit).tree()[path.rpartition("/")[2]]
        return found

    def _suggestion(self, what: str | int, name: str | int, **_: str | int) -> str:
        """Return a message with the other kind that has this name, or with a similar name."""
        try:
            for kind in KINDS:
                if kind != what and self.similar(str(name), kind) == name:
                    return f"; there is a {kind} named {name!r}"
            near = self.similar(str(name), str(what))
        except Failed:  # a role may not list: the refusal itself is the answer
            return ""
        return f" (did you mean {near!r}?)" if near not in {"", name} else ""

    @functools.cached_property
    def address(self) -> str:
        """The path of the socket, or the URL, checked."""
        address = self._given
        if address is None:
            address = self._login.address if self._login else own_address(self._settings)
        if address.startswith(("http://", "https://")):
            _check_url(address)
        elif "://" in address or not address:
            raise Failed(ExitStatus.USAGE, _invalid(address))
        elif not hasattr(socket, "AF_UNIX"):
            message = "this system has no unix sockets: use --operator http://HOST:PORT"
            raise Failed(ExitStatus.USAGE, message)
        return address

    @functools.cached_property
    def _settings(self) -> "settings.Settings":
        return settings_in_use(of_service=self._given is None and self._login is None)

    @functools.cached_property
    def _login(self) -> login.Login | None:
        """The remembered login; None where an address, or the settings, are given instead."""
        from forewarn.server.settings import CONFIG_VARIABLE

        if self._given is None and os.environ.get(CONFIG_VARIABLE):
            return None  # or the commands of a test would reach the service of the login
        known = login.read(os.environ)
        return known if known and self._given in {None, known.address} else None

    @property
    def _token_file(self) -> str:
        return os.environ.get(TOKEN_FILE) or self._settings.operator.token_file

    def _token(self) -> str:
        """Return the token for TCP: the remembered one, or that in a file; `""` without one."""
        if self._shown is not None:
            return self._shown
        if self._login and not os.environ.get(TOKEN_FILE):
            return self._login.token
        path = Path(self._token_file)
        try:
            with path.open("rb") as file:
                words = file.read(MAX_TOKEN).decode("ascii").split()
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            message = f"cannot read the operators' token in {path}: {error}"
            raise Failed(ExitStatus.UNAUTHORIZED, message) from error
        if len(words) > 1:
            message = f"{path} has {len(words)} words: expected one token"
            raise Failed(ExitStatus.UNAUTHORIZED, message)
        return "".join(words)

    def _sent(self, token: str) -> str:
        """Return which token was sent, or why none was, and what to do."""
        if self._shown is not None:
            return "the token that was typed was sent"
        if self._login and not os.environ.get(TOKEN_FILE):
            return "the remembered token was sent: run 'forewarn login' with another one"
        if token:
            return f"the token in {self._token_file} was sent"
        is_there = Path(self._token_file).exists()
        why = f"{self._token_file} is empty" if is_there else f"there is no {self._token_file}"
        return (
            f"no token was sent, because {why}: run 'forewarn login {self.address}', or set "
            f"{TOKEN_FILE} to the file of a token"
        )

    def _is_systems_closed(self) -> bool:
        """Tell whether the system has a service whose default socket is closed to us."""
        from forewarn.settings import SYSTEM_STATE

        is_default = self._given is None and self._login is None and "://" not in self.address
        return is_default and SYSTEM_STATE.is_dir() and not os.access(SYSTEM_STATE, os.X_OK)

    def _unreachable(self, failed: "RequestFailed") -> str:
        import ssl

        from forewarn.settings import SYSTEM_STATE

        where = f"the operator plane at {self.address}"
        closed = "is not open to this user: use sudo, or run as the user of the service"
        match failed.__cause__:
            case FileNotFoundError() | ConnectionRefusedError():
                if self._is_systems_closed():
                    return (
                        f"permission denied: the service's folder {SYSTEM_STATE} {closed}; no "
                        f"service of your own listens at {self.address}"
                    )
                return (
                    f"nothing listens at {self.address}: start 'forewarn serve', or use "
                    "--operator or FOREWARN_OPERATOR"
                )
            case PermissionError():
                return f"permission denied: {where} {closed}"
            case ssl.SSLCertVerificationError(verify_code=62 | 64) as error:
                told = error.verify_message.rstrip(".")
                return f"{where} has a certificate of another name ({told}): use a name that it has"
            case ssl.SSLCertVerificationError() as error:
                return (
                    f"{where} has a certificate that is not trusted ({error.verify_message}): set "
                    "FOREWARN_SET_OPERATOR__TLS_CA to the file of its CA"
                )
            case ssl.SSLError(reason="WRONG_VERSION_NUMBER"):
                return f"{where} speaks HTTP without TLS: use http:// in its address"
            case TimeoutError():
                return f"{where} did not answer in time: is the address right?"
        messages = {
            "no-http": f"{self.address} does not speak HTTP: is this the address of Forewarn?",
            "too-large": f"the answer is longer than {MAX_ANSWER} bytes: use --limit",
            "no-connection": f"cannot reach {where}: {failed.__cause__ or failed}",
            "no-answer": f"{where} did not answer in time: see the log of the service",
        }
        hung_up = f"{where} hung up during its answer: see the log of the service"
        if self.address.startswith("http:"):
            hung_up += ", or use https:// in its address if it speaks TLS"
        return messages.get(failed.reason, hung_up)

    def _refused(self, status: int, body: bytes) -> Failed:
        try:
            error = json.loads(body)["error"]
            code, message = ErrorCode(error["code"]), str(error["message"])
            facts = dict(error.get("facts", {}))
        except (ValueError, KeyError, TypeError):
            message = (
                f"{self.address} answered with status {status}, not as Forewarn does: "
                "is this its operator plane?"
            )
            return Failed(ExitStatus.UNREACHABLE, message)
        kind = AnswerLost if code is ErrorCode.UNKNOWN_OUTCOME else Failed
        return kind(OF_CODE[code], message, facts)


def own_address(settings: "settings.Settings") -> str:
    """Return the socket, or else the URL, where a service with these settings listens."""
    from forewarn.settings import OFF

    own = settings.operator
    scheme = "https" if own.tls_certificate else "http"
    return f"{scheme}://{own.listen}" if own.socket == OFF else own.socket


def settings_in_use(*, of_service: bool = True) -> "settings.Settings":
    """Return the settings that the service has if no option names a file.

    A client with an address of its own passes `of_service=False`: it needs no file that nobody
    named and this user may not read, for the environment has all that concerns it.
    """
    from forewarn.server import settings
    from forewarn.settings import SettingsError

    with settings_are_usable():
        try:
            return settings.load(None, os.environ)
        except SettingsError as error:
            is_named = bool(os.environ.get(settings.CONFIG_VARIABLE))
            if of_service or is_named or not isinstance(error.__cause__, OSError):
                raise
            return settings.load(None, os.environ, without_file=True)


def shape_of(show: Show) -> str:
    """Return module and name of the type that this shows, such as `schemas.HoldList`."""
    if isinstance(show, output.AnswerTable):
        return show.shape
    return str(next(iter(show.__annotations__.values())))


def segment(name: str) -> str:
    """Return a name as one segment of a path."""
    return urllib.parse.quote(name, safe="")


def _spelled(address: str) -> str:
    """Return an address in one form: that of a login is compared with the one that is given."""
    if HOST_AND_PORT.fullmatch(address):
        # A token goes over no network in plain text unless somebody has written http://.
        scheme = "http" if LOOPBACK.fullmatch(address) else "https"
        return f"{scheme}://{address}"
    url = address.rstrip("/")
    return url if "://" in url else address.removeprefix("unix:")  # as `serve` prints it


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
        "HOST:PORT, or a URL such as https://forewarn.example:8172"
    )
