"""What a response means: a document, a name, or a failure with its likely cause."""

import functools
from collections.abc import Callable
from datetime import datetime
from typing import Final, TypeVar

import msgspec
from msgspec.structs import asdict

from forewarn.client import event
from forewarn.client.discovery import EndpointAddress
from forewarn.client.errors import BadAnswer, ClientError, Refused, Unreachable
from forewarn.protocol import codec, text, tolerant
from forewarn.protocol.message import Reply
from forewarn.protocol.tolerant import Listed

CLOCKS_AGREE_SECONDS: Final = 2.0
"""The server's Date is in whole seconds and has travelled: within this, our own clock is better."""

MAX_TEXT: Final = 500
"""Characters of a server's own words that an error repeats."""

REFUSALS: Final = frozenset({400, 401, 403})
"""Statuses after which the same question fails again."""

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
"""Where all requests look alike: there the path tells the machines apart."""

NAME_PREFIX: Final = "/vm"
"""What stands before a machine's name in an address that asks as one (protocol.md section 10)."""


T = TypeVar("T")


class ClockReading(msgspec.Struct, frozen=True):
    """When something happens: the deciders' only time."""

    now: datetime
    """The wall clock's, aware."""
    monotonic: float
    """In seconds, from an origin of the machine's own."""


class FailedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Why a question has no good answer."""

    reason: str
    """A word to compare: logged, and reported once for each change of it."""
    message: str
    """For people: what is wrong, and the likely cause."""
    answered: bool = False
    """Whether anything came: a whole answer, or bytes that are not HTTP."""
    status: int | None = None
    """The answer's; None where none came, or the status was not what was wrong."""
    text: str = ""
    """What the server said."""
    newest_versions: tuple[str, ...] = ()
    """The versions that a refusal names."""
    retry_after_seconds: float | None = None

    def error(self, prefix: str = "") -> ClientError:
        """Return it as what a caller catches, its message after a prefix."""
        message = prefix + self.message
        if self.status in REFUSALS:
            return Refused(message, status=self.status or 0, text=self.text)
        return BadAnswer(message) if self.answered else Unreachable(message)


_CAUSES: Final = {
    300: "a redirect, which the client never follows: a captive proxy answers for the endpoint",
    400: "the server does not accept this request",
    401: "the metadata service never asks for credentials: a proxy or another service answers at "
    "this address",
    403: "no machine is registered with the address that this request came from "
    "(a container or a proxy changes it)",
    404: "there are no scheduled events at this address, or not yet",
    407: "a proxy answers for the endpoint: connect to the metadata service directly",
    410: "the service is away for now, for example while the host is updated",
    429: "too many requests: several agents on one machine share its rate",
    500: "the server has a fault of its own",
}
_NO_NAME: Final = "this server does not tell machines their names: set the name yourself"


def failure_of(reply: Reply, endpoint: EndpointAddress, *, of_name: bool = False) -> FailedAnswer:
    """Return the failure that a response to a question for events, or for a name, reports."""
    said, newest = codec.decode_error(reply.body)
    said = said or reply.body.decode("utf-8", "replace").strip()
    said = " ".join(said[:MAX_TEXT].split())
    quoted = f" and said {said!r}" if said else ""
    cause = _cause(reply.status, endpoint, of_name=of_name)
    return FailedAnswer(
        reason=f"status-{reply.status}",
        message=f"the server answered {reply.status}{quoted}; likely cause: {cause}",
        answered=True,
        status=reply.status,
        text=said,
        newest_versions=newest,
        retry_after_seconds=_retry_after(reply),
    )


def _cause(status: int, endpoint: EndpointAddress, *, of_name: bool) -> str:
    before, _, name = endpoint.prefix.rpartition("/")
    if status == 403 and before.lower().endswith(NAME_PREFIX):
        return f"no machine is registered with the name in the address, {text.shown(name)!r}"
    if status == 403 and not endpoint.prefix and endpoint.host in LOOPBACK:
        return f"{_CAUSES[403]}; on a loopback address, ask at {endpoint}{NAME_PREFIX}/NAME"
    if status == 404 and of_name:
        return _NO_NAME
    hundred = status // 100 * 100
    return _CAUSES.get(status) or _CAUSES.get(hundred, "this is not an answer of the protocol")


def _no_document(message: str) -> FailedAnswer:
    return FailedAnswer(reason="no-document", message=message, answered=True)


def _content(
    read: Callable[[bytes], T], reply: Reply, endpoint: EndpointAddress, *, of_name: bool = True
) -> T | FailedAnswer:
    if reply.status != 200:
        return failure_of(reply, endpoint, of_name=of_name)
    if (failure := _encoded(reply)) is not None:
        return failure
    try:
        return read(reply.body)
    except codec.Malformed as error:
        return _no_document(f"the answer {text.shown(str(error))}")


listing_of = functools.partial(_content, tolerant.listing, of_name=False)
"""Return the document in a response, or why there is none."""

name_in = functools.partial(_content, tolerant.machine_name)
"""Return the machine's name in a response for its leaf, or why there is none."""

machine_in = functools.partial(_content, lambda body: event.Machine(**tolerant.compute(body)))
"""Return what a response for `compute` says of this machine, or why it says nothing."""


def confirmation_in(reply: Reply, endpoint: EndpointAddress) -> FailedAnswer | None:
    """Return None where a response confirms an approval, else why it does not."""
    if reply.status != 200:
        return failure_of(reply, endpoint)
    if reply.body.lstrip().startswith(b"<"):  # a server's own confirmation has no body
        return _no_document("the answer is HTML or XML, like a proxy's own page")
    return _encoded(reply)


def _encoded(reply: Reply) -> FailedAnswer | None:
    coding = header(reply, b"content-encoding") or b"identity"
    if coding.lower() == b"identity":
        return None
    message = f"the answer has the coding {coding.decode('ascii', 'replace')!r}, unasked"
    return FailedAnswer(reason="encoded", message=message, answered=True)


def header(reply: Reply, name: bytes) -> bytes | None:
    """Return the first header of a name, which is given in lower case; None without one."""
    return next((value for each, value in reply.headers if each.lower() == name), None)


def server_time(reply: Reply) -> datetime | None:
    """Return the server's Date; None without one that can be read."""
    return _date(header(reply, b"date"))


def _date(value: bytes | None) -> datetime | None:
    if value is None:
        return None
    try:
        return codec.any_date(value.decode("ascii", "replace"))
    except ValueError:
        return None


def _retry_after(reply: Reply) -> float | None:
    # In seconds, or a date (RFC 9110, 10.2.3).
    value = header(reply, b"retry-after")
    if value is None:
        return None
    if value.isdigit():
        return float(value[:9])
    date, sent = _date(value), server_time(reply)
    return None if date is None or sent is None else max(0.0, (date - sent).total_seconds())


def seen(listed: Listed, name: str | None, at: ClockReading, sent: datetime | None) -> event.Event:
    """Return a listed event as a handler sees it, by this machine's name and the server's Date."""
    shown = {name: value for name, value in asdict(listed).items() if value is not None}
    return event.Event(
        **{"not_before": None, **shown},
        concerns_me=None if name is None else tolerant.concerns(listed.resources, name),
        starts_by=starts_by(listed.not_before, at, sent),
    )


def starts_by(
    not_before: datetime | None, at: ClockReading, sent: datetime | None = None
) -> float | None:
    """Return a NotBefore on the monotonic clock, by the server's Date where the clocks differ."""
    if not_before is None:
        return None
    now = at.now
    if sent is not None and abs((sent - now).total_seconds()) > CLOCKS_AGREE_SECONDS:
        now = sent
    return at.monotonic + (not_before - now).total_seconds()
