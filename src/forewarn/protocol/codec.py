"""Turns values into bytes and back: the only module that knows JSON names and date formats."""

import codecs
import json
import re
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

import msgspec
from msgspec import UNSET

from forewarn.protocol import refusals, text
from forewarn.protocol.document import Document
from forewarn.protocol.instance import Tree
from forewarn.protocol.versions import Version

PREVIEW_PREFIX: Final = "_"
"""What the preview puts before the names of machines outside cloud services."""


class Malformed(ValueError):  # noqa: N818 - describes the body, not an error of the service
    """A body is not what was expected; the message says what is wrong, as `is not JSON` does."""


INCARNATION: Final = "DocumentIncarnation"
EVENTS: Final = "Events"

EVENT_NAMES: Final = {
    "event_id": "EventId",
    "status": "EventStatus",
    "event_type": "EventType",
    "resource_type": "ResourceType",
    "resources": "Resources",
    "not_before": "NotBefore",
    "description": "Description",
    "source": "EventSource",
    "duration_seconds": "DurationInSeconds",
}
"""The JSON names of an event's attributes, in the order of the answer."""

MACHINE_NAMES: Final = {
    "name": "name",
    "vm_id": "vmId",
    "resource_id": "resourceId",
    "subscription_id": "subscriptionId",
    "resource_group": "resourceGroupName",
    "scale_set": "vmScaleSetName",
    "location": "location",
    "zone": "zone",
}
"""The JSON names in `compute` of what a machine is called."""


class _WireError(msgspec.Struct, frozen=True, omit_defaults=True):
    error: str
    newest_versions: tuple[str, ...] = msgspec.field(name="newest-versions", default=())


_encoder: Final = msgspec.json.Encoder()
_error_decoder: Final = msgspec.json.Decoder(_WireError)


def encode_document(document: Document, version: Version) -> bytes:
    """Return the body of a GET: the events that the version shows, in the order given."""
    prefix = PREVIEW_PREFIX if version.prefixed_names and not document.cloud_service else ""
    names = [(EVENT_NAMES[attribute], attribute) for attribute in version.fields]
    events = []
    for event in document.events:
        if event.event_type in version.event_types:
            written = {name: getattr(event, attribute) for name, attribute in names}
            written[EVENT_NAMES["not_before"]] = _written(event.not_before, version)
            if prefix:
                written[EVENT_NAMES["resources"]] = [prefix + name for name in event.resources]
            events.append(written)
    return _encoder.encode({INCARNATION: document.incarnation, EVENTS: events})


_ISO_8601: Final = r"(?a)\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d\S{0,24}"
MAX_DATE_LENGTH: Final = 64
"""Characters of a date that are looked at: the longest that anybody writes has 35."""


def http_date(moment: datetime) -> bytes:
    """Write an aware moment by RFC 1123, in English, without fractions of a second."""
    from email.utils import format_datetime  # noqa: PLC0415 - a starting client has no dates yet

    return format_datetime(_in_utc(moment), usegmt=True).encode()


def _in_utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone: expected an aware datetime")
    return moment.astimezone(UTC)


def _written(not_before: datetime | None, version: Version) -> str:
    if not_before is None:
        return ""
    if version.iso_dates:
        return _in_utc(not_before).strftime("%Y-%m-%dT%H:%M:%SZ")
    return http_date(not_before).decode()


def any_date(written: str) -> datetime:
    """Read a date by RFC 1123 or ISO 8601, in any version's answer, in UTC; ValueError if invalid.

    The weekday is ignored: some servers get it wrong. A date without a zone is taken for UTC.
    """
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - likewise

    stripped = written.strip()
    known = len(stripped) <= MAX_DATE_LENGTH and stripped.isascii()
    try:
        if known and re.fullmatch(_ISO_8601, stripped):
            moment = datetime.fromisoformat(stripped.upper())
        else:
            moment = parsedate_to_datetime(stripped if known else "")
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"invalid date {text.shown(written)!r}: expected RFC 1123 or ISO 8601"
        ) from error


def encode_start_requests(event_ids: Iterable[str]) -> bytes:
    """Return the body of a POST that approves these events, in this order."""
    return _encoder.encode({"StartRequests": [{"EventId": each} for each in event_ids]})


def decode_start_requests(body: bytes) -> tuple[str, ...]:
    """Return the EventIds that a guest approves: upper-cased, each once, in the guest's order.

    The two keys count in any ASCII case, since .NET's clients write them in camel case by default;
    the exact name goes first. Other keys are ignored, whatever their values (section 5). JSON with
    the same key twice in one object is Malformed: readers differ on which one counts.
    """
    entries = _entries(body)
    if len(entries) > refusals.MAX_START_REQUESTS:
        raise Malformed(f"has {len(entries)} StartRequests")
    event_ids: dict[str, None] = {}
    for number, entry in enumerate(entries, 1):
        event_ids[text.upper(_event_id(entry, number))] = None
    return tuple(event_ids)


def _entries(body: bytes) -> list[Any]:
    content = _json(body)
    if not isinstance(content, dict):
        raise Malformed("is not an object")
    entries = _member(content, "StartRequests")
    if entries is UNSET:
        raise Malformed("has no StartRequests")
    if not isinstance(entries, list):
        raise Malformed("has StartRequests that is not a list")
    return entries


def _event_id(entry: object, number: int) -> str:
    place = f"entry {number} of StartRequests"
    if not isinstance(entry, dict):
        raise Malformed(f"has no object as {place}")
    event_id = _member(entry, "EventId")
    if event_id is UNSET:
        raise Malformed(f"has no EventId in {place}")
    if not isinstance(event_id, str) or not _is_unicode(event_id):
        raise Malformed(f"has an EventId that is not a string in {place}")
    return event_id


def _member(content: dict[str, Any], name: str) -> object:
    """Return a value by its exact name, else by one in another ASCII case, else UNSET."""
    if name in content:
        return content[name]
    spelled = [given for given in content if text.lower(given) == text.lower(name)]
    if len(spelled) > 1:
        raise Malformed(f"names '{name}' twice in one object")
    return content[spelled[0]] if spelled else UNSET


def _is_unicode(value: str) -> bool:
    """Tell whether a string can be encoded: JSON's escapes can spell half a character."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _json(body: bytes) -> object:
    """Parse any JSON, its numbers as None; skip a byte-order mark, which .NET may write."""
    if not body:
        raise Malformed("is empty")
    try:
        return _decode_any(body.removeprefix(codecs.BOM_UTF8).decode())
    except UnicodeDecodeError as error:
        raise Malformed("is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise Malformed("is not JSON") from error
    except RecursionError as error:
        raise Malformed("is nested too deeply") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        name = next(name for name, count in counts.items() if count > 1)
        raise Malformed(f"names '{text.shown(name)}' twice in one object")
    return content


def _no_constant(_: str) -> NoReturn:
    """Refuse NaN and the infinities, which Python's parser accepts."""
    raise Malformed("is not JSON")


def _no_number(_: str) -> None:
    return None


_decode_any: Final = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_constant=_no_constant,
    parse_float=_no_number,
    parse_int=_no_number,
).decode


def encode_error(message: str, newest_versions: tuple[str, ...] = ()) -> bytes:
    """Return an error's body (section 9), with `newest_versions` only for a wrong version."""
    return _encoder.encode(_WireError(message, newest_versions))


def decode_error(body: bytes) -> tuple[str, tuple[str, ...]]:
    """Return the message of an error's body and the newest versions, both empty for another."""
    try:
        wire = _error_decoder.decode(body)
    except (ValueError, RecursionError):  # msgspec's own errors are ValueErrors
        return "", ()
    return wire.error, wire.newest_versions


def encode_versions(names: tuple[str, ...]) -> bytes:
    """Return the body of /metadata/versions."""
    return _encoder.encode({"apiVersions": names})


def encode_tree(tree: Tree) -> bytes:
    """Return an instance tree, or a part of one, as JSON."""
    return _encoder.encode(tree)
