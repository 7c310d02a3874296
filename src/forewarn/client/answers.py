"""What an answer means: a document, or a failure with its likely cause."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from forewarn.client import event
from forewarn.client.discovery import Endpoint
from forewarn.client.errors import BadAnswer, ClientError, Refused, Unreachable
from forewarn.client.pace import Moment
from forewarn.protocol import codec, text, tolerant
from forewarn.protocol.message import Reply
from forewarn.protocol.tolerant import Listed, Listing

CLOCKS_AGREE_SECONDS: Final = 2.0
"""The server's Date is in whole seconds and has travelled: within this, our own clock is better."""

MAX_TEXT: Final = 500
"""Characters of a server's own words that an error repeats."""

REFUSALS: Final = frozenset({400, 401, 403})
"""Statuses after which the same question fares no better."""


NAMING: Final = "/vm"
"""What stands before a machine's name in an address that asks as one (protocol.md section 10)."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a question has no good answer."""

    reason: str
    """A word to compare: logged, and told, once for each change of it."""
    message: str
    """For people: what is wrong, and the likely cause."""
    answered: bool = False
    """Whether a whole answer, or something else than silence, came."""
    status: int | None = None
    """The answer's; None where none came, or the status was not what was wrong."""
    text: str = ""
    """What the server said."""
    newest_versions: tuple[str, ...] = ()
    """The versions that a refusal of ours names."""
    retry_after_seconds: float | None = None

    def error(self, prefix: str = "") -> ClientError:
        """Return it as what a caller catches.

        Args:
            prefix: What is to be said before the message.
        """
        message = prefix + self.message
        if self.status in REFUSALS:
            return Refused(message, status=self.status or 0, text=self.text)
        return BadAnswer(message) if self.answered else Unreachable(message)


_CAUSES: Final = {
    300: "a redirect, which is never followed: a captive proxy answers for the endpoint",
    400: "the server does not take this request",
    401: "the metadata service asks nobody for credentials: a proxy or another service answers at "
    "this address",
    403: "the likely cause: no machine is registered with the address that this request came from "
    "(a container or a proxy changes it)",
    404: "there are no scheduled events at this address, or not yet",
    407: "a proxy answers for the endpoint: the metadata service is to be asked directly",
    410: "the service is away for now, as while the host is being updated",
    429: "asked too often: several agents on one machine share its rate",
    500: "the server has a fault of its own",
}


_NAMED: Final = (
    "the likely cause: no machine is registered with the name that the address asks as, "
)
"""Before that name; instead of the cause of a 403 above."""


def _cause(status: int, endpoint: Endpoint) -> str:
    """Return the likely cause of a status from an endpoint."""
    before, _, name = endpoint.prefix.rpartition("/")
    if status == 403 and before.lower().endswith(NAMING):
        return f"{_NAMED}{text.shown(name)!r}"
    hundred = status // 100 * 100
    return _CAUSES.get(status) or _CAUSES.get(hundred, "no answer of this protocol")


def failure_of(reply: Reply, endpoint: Endpoint) -> Failure:
    """Return what an answer of an endpoint that is no success says."""
    said, newest = codec.decode_error(reply.body)
    if not said:
        said = reply.body.decode("utf-8", "replace").strip()
    said = " ".join(said[:MAX_TEXT].split())
    quoted = f" and said {said!r}" if said else ""
    return Failure(
        reason=f"status-{reply.status}",
        message=f"the server answered {reply.status}{quoted}: {_cause(reply.status, endpoint)}",
        answered=True,
        status=reply.status,
        text=said,
        newest_versions=newest,
        retry_after_seconds=_retry_after(reply),
    )


def listing_of(reply: Reply, endpoint: Endpoint) -> Listing | Failure:
    """Return the document that an answer is, or why it is none."""
    if reply.status != 200:
        return failure_of(reply, endpoint)
    try:
        return tolerant.listing(reply.body)
    except codec.Malformed as error:
        return no_document(f"the answer {error}")


def no_document(message: str) -> Failure:
    """Return the failure of an answer with status 200 that is not what was asked for."""
    return Failure(reason="no-document", message=message, answered=True)


def header(reply: Reply, name: bytes) -> bytes | None:
    """Return the first header of a name, which is given in lower case; None without one."""
    for each, value in reply.headers:
        if each.lower() == name:
            return value
    return None


def server_time(reply: Reply) -> datetime | None:
    """Return the server's Date; None where it has none that can be read."""
    return _date(header(reply, b"date"))


def _date(value: bytes | None) -> datetime | None:
    if value is None:
        return None
    try:
        return codec.any_date(value.decode("ascii", "replace"))
    except (ValueError, OverflowError):
        return None


def _retry_after(reply: Reply) -> float | None:
    """Return a Retry-After in seconds, also of one that names a date (RFC 9110, 10.2.3)."""
    value = header(reply, b"retry-after")
    if value is None:
        return None
    if value.isdigit():
        return float(value[:9])
    date, sent = _date(value), server_time(reply)
    return None if date is None or sent is None else max(0.0, (date - sent).total_seconds())


def seen(listed: Listed, name: str | None, moment: Moment, sent: datetime | None) -> event.Event:
    """Return a listed event as a handler sees it.

    Args:
        listed: As the answer has it.
        name: This machine's; None where it is not known.
        moment: When the answer came.
        sent: The server's Date; None where it said none.
    """
    return event.Event(
        event_id=listed.event_id,
        status=listed.status,
        event_type=listed.event_type,
        resource_type=listed.resource_type,
        resources=listed.resources,
        not_before=listed.not_before,
        description=listed.description or "",
        source=listed.source,
        duration_seconds=(
            event.UNKNOWN_DURATION if listed.duration_seconds is None else listed.duration_seconds
        ),
        concerns_me=concerns(listed.resources, name),
        starts_by=starts_by(listed.not_before, moment, sent),
    )


def concerns(resources: Sequence[str], name: str | None) -> bool | None:
    """Tell whether a machine is among the resources; None where its name is not known."""
    return None if name is None else tolerant.concerns(resources, name)


def starts_by(
    not_before: datetime | None, moment: Moment, sent: datetime | None = None
) -> float | None:
    """Return a NotBefore on the monotonic clock.

    Where this machine's wall clock and the server's Date part, the server's counts: NotBefore is
    written by it.
    """
    if not_before is None:
        return None
    now = moment.now
    if sent is not None and abs((sent - now).total_seconds()) > CLOCKS_AGREE_SECONDS:
        now = sent
    return moment.monotonic + (not_before - now).total_seconds()


def name_in(reply: Reply, endpoint: Endpoint) -> str | Failure:
    """Return the machine's name that an answer for its leaf is, or why it is none."""
    if reply.status != 200:
        return failure_of(reply, endpoint)
    try:
        return tolerant.machine_name(reply.body)
    except codec.Malformed as error:
        return no_document(f"the answer {error}")


def machine_in(reply: Reply, endpoint: Endpoint) -> event.Machine | Failure:
    """Return what an answer for `compute` says of this machine, or why it says nothing."""
    if reply.status != 200:
        return failure_of(reply, endpoint)
    try:
        values = tolerant.compute(reply.body)
    except codec.Malformed as error:
        return no_document(f"the answer {text.shown(str(error))}")
    return event.Machine(
        name=values["name"],
        vm_id=values.get("vmId", ""),
        resource_id=values.get("resourceId", ""),
        subscription_id=values.get("subscriptionId", ""),
        resource_group=values.get("resourceGroupName", ""),
        scale_set=values.get("vmScaleSetName", ""),
        location=values.get("location", ""),
        zone=values.get("zone", ""),
    )
