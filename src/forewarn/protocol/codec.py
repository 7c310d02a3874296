"""Turns values into bytes and back: the only module that knows JSON names and date formats.

A server's side comes first: it writes documents and reads approvals. A client's reads the answer of
any server in any version. Its machine must get its notice from servers of versions that it does not
know: unknown values are kept as text, missing ones are None, unknown keys are skipped. Each event
is read by itself: one with an invalid date, or without an id, hides no other, and the fault is
reported. A document without a list of events is refused: reading it as "no such event" would say
that a machine's maintenance is over. Last is the header that reports a machine's state, which a
client writes and a server reads. `versions` has the content of each api-version.
"""

import codecs
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NoReturn

import msgspec
from msgspec import UNSET

from forewarn.protocol import refusals
from forewarn.protocol.instance import Tree
from forewarn.protocol.message import ascii_lower, ascii_upper, shown
from forewarn.protocol.versions import EventsDocument, Version
from forewarn.vocabulary import RESOURCE_TYPE, AgentStatus, EventSource, EventStatus, EventType

PREVIEW_PREFIX: Final = "_"
"""The prefix of the names of machines outside cloud services in the preview."""


class Malformed(ValueError):  # noqa: N818 - describes the body, not an error of the service
    """A body is not as expected; the message says what is wrong, as `is not JSON` does."""


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
"""The JSON names in `compute` of a machine's names and place."""


class _WireError(msgspec.Struct, frozen=True, omit_defaults=True):
    error: str
    error_description: str = ""
    newest_versions: tuple[str, ...] = msgspec.field(name="newest-versions", default=())


_encoder: Final = msgspec.json.Encoder()
_error_decoder: Final = msgspec.json.Decoder(_WireError)


def encode_document(document: EventsDocument, version: Version) -> bytes:
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
            f"invalid date {shown(written)!r}: expected RFC 1123 or ISO 8601"
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
        event_ids[ascii_upper(_event_id(entry, number))] = None
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
    alike = (given for given in content if len(given) == len(name))  # a body has room for 9,000
    spelled = [given for given in alike if ascii_lower(given) == ascii_lower(name)]
    if len(spelled) > 1:
        raise Malformed(f"names '{name}' twice in one object")
    return content[spelled[0]] if spelled else UNSET


def _is_unicode(value: str) -> bool:
    """Return True if a string can be encoded: JSON's escapes can spell half a character."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _json(body: bytes) -> object:
    """Parse any JSON, its numbers as None, in UTF-8, UTF-16 or UTF-32, with or without a mark.

    Windows PowerShell 5.1 writes ISO 8859-1, and a client may send whole events with their
    descriptions back. Names and EventIds are ASCII, so other bytes need not be understood.
    """
    if not body:
        raise Malformed("is empty")
    try:
        return _decode_any(body.decode(json.detect_encoding(body), "replace"))
    except json.JSONDecodeError as error:
        raise Malformed("is not JSON") from error
    except RecursionError as error:
        raise Malformed("is nested too deeply") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        name = next(name for name, count in counts.items() if count > 1)
        raise Malformed(f"names '{shown(name)}' twice in one object")
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


def encode_error(message: str, newest_versions: tuple[str, ...] = (), *, code: str = "") -> bytes:
    """Return an error's body (section 9).

    Args:
        message: The fault, in words.
        newest_versions: For a wrong version only.
        code: An error code that `message` describes, as in OAuth (RFC 6749, 5.2).
    """
    wire = _WireError(code, message) if code else _WireError(message)
    return _encoder.encode(msgspec.structs.replace(wire, newest_versions=newest_versions))


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


MAX_EVENTS: Final = 10_000
"""Events of one document: far more than a scope can have, and few enough to parse quickly."""

MAX_ID_LENGTH: Final = 256
"""Characters of an EventId: a GUID has 36."""

MAX_NAME_LENGTH: Final = 256
"""Characters of a machine's name: Azure's have at most 80."""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """An event of an answer; fields that an older version does not show are None."""

    event_id: str
    """As written; compare by `key`."""
    status: str
    """An EventStatus if known, else the text; `""` where missing."""
    event_type: str
    """An EventType if known, else the text; `""` where missing."""
    resource_type: str
    resources: tuple[str, ...]
    """As written; the preview puts `_` before them."""
    not_before: datetime | None
    """In UTC; None where it is empty, as in a Started event, or missing."""
    description: str | None = None
    source: str | None = None
    """An EventSource if known, else the text."""
    duration_seconds: int | None = None

    @property
    def key(self) -> str:
        """The EventId in upper case, for comparison (protocol.md section 5)."""
        return ascii_upper(self.event_id)


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The document of an answer."""

    incarnation: int | None
    """None where it was missing or not a whole number."""
    events: tuple[Listed, ...]
    """Each event once, in the answer's order."""
    unreadable: tuple[str, ...] = ()
    """The faults of single events, in words; what can be read of them is among the events."""
    nameless: tuple[tuple[str, ...], ...] = ()
    """The names in the Resources of each entry without an EventId; empty where it has none."""


_WHOLE_NUMBER: Final = r"(?a)-?\d{1,19}"
"""A number written as text; a 64-bit counter has no more digits."""

_WORDS: Final[dict[type[StrEnum], dict[str, str]]] = {
    kind: {ascii_lower(each): each for each in kind}
    for kind in (EventStatus, EventType, EventSource)
}


def decode_listing(body: bytes) -> Listing:
    """Read the answer to a GET of the scheduled events, each event by itself."""
    content = _content(body)
    entries = content.get(EVENTS)
    if not isinstance(entries, list):
        raise Malformed("has no list of Events")
    if len(entries) > MAX_EVENTS:
        raise Malformed(f"has {len(entries)} Events, more than {MAX_EVENTS}")
    events: dict[str, Listed] = {}
    faults: list[str] = []
    nameless: list[tuple[str, ...]] = []
    for number, entry in enumerate(entries, 1):
        event = _listed(entry, number, faults)
        if event is None:
            written = entry if isinstance(entry, dict) else {}
            nameless.append(_names(written.get(EVENT_NAMES["resources"])))
        else:
            events.setdefault(event.key, event)
    return Listing(
        incarnation=_whole(content.get(INCARNATION)),
        events=tuple(events.values()),
        unreadable=tuple(faults),
        nameless=tuple(nameless),
    )


def _content(body: bytes) -> dict[str, Any]:
    stripped = body.removeprefix(codecs.BOM_UTF8).strip()  # which some writers put first
    if not stripped:
        raise Malformed("is empty")
    if stripped.startswith(b"<"):
        raise Malformed("is HTML or XML, as a proxy's own page is")
    try:
        content: object = msgspec.json.decode(stripped)
    except RecursionError as error:
        raise Malformed("is nested too deeply") from error
    except ValueError as error:  # msgspec's own errors are ValueErrors
        content = _mended(stripped, error)
    if not isinstance(content, dict):
        raise Malformed("is JSON, but not an object")
    return content


def _mended(body: bytes, error: ValueError) -> object:
    """Read JSON with texts that are not Unicode, such as half a surrogate: "?" stands for it."""
    try:
        content = json.loads(body.decode("utf-8", "replace"))
        text = json.dumps(content, ensure_ascii=False, allow_nan=False)
        return msgspec.json.decode(text.encode("utf-8", "replace"))
    except RecursionError as deep:
        raise Malformed("is nested too deeply") from deep
    except ValueError:
        raise Malformed(f"is not JSON: {shown(str(error))}") from error


def _listed(entry: object, number: int, faults: list[str]) -> Listed | None:
    """Return the readable part of an event, and note its faults; None without an EventId."""
    if not isinstance(entry, dict):
        faults.append(f"has no object as event {number}")
        return None
    values = {name: entry.get(written) for name, written in EVENT_NAMES.items()}
    event_id, source = values["event_id"], _text(values["source"])
    if not isinstance(event_id, str) or not 0 < len(event_id) <= MAX_ID_LENGTH:
        faults.append(f"has no EventId of 1 to {MAX_ID_LENGTH} characters in event {number}")
        return None
    return Listed(
        event_id=event_id,
        status=known_word(EventStatus, _text(values["status"]) or ""),
        event_type=known_word(EventType, _text(values["event_type"]) or ""),
        resource_type=_text(values["resource_type"]) or RESOURCE_TYPE,
        resources=_names(values["resources"]),
        not_before=_not_before(values["not_before"], event_id, faults),
        description=_text(values["description"]),
        source=source and known_word(EventSource, source),
        duration_seconds=_whole(values["duration_seconds"]),
    )


def known_word(kind: type[StrEnum], written: str) -> str:
    """Return the word of an event's enum that a text names in any case, else the text."""
    return _WORDS[kind].get(ascii_lower(written), written)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    names: Sequence[object] = value if isinstance(value, list) else ()
    return tuple(name for name in names if isinstance(name, str) and name)


def _whole(value: object) -> int | None:
    if isinstance(value, str) and re.fullmatch(_WHOLE_NUMBER, value):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _not_before(value: object, event_id: str, faults: list[str]) -> datetime | None:
    where = f"in event {shown(event_id)}"
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if not isinstance(value, str):
        faults.append(f"has a NotBefore that is not a string {where}")
        return None
    try:
        return any_date(value)
    except ValueError as error:
        faults.append(f"has an invalid NotBefore {where}: {error}")
        return None


def decode_machine_name(body: bytes) -> str:
    """Read the answer for the leaf `compute/name`: one line without blanks."""
    name = body.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace").strip()
    is_one = name.isprintable() and set(name).isdisjoint('<>{}"\ufffd ')
    if not 0 < len(name) <= MAX_NAME_LENGTH or not is_one:
        raise Malformed(f"is not a machine's name: {shown(name)!r}")
    return name


def decode_compute(body: bytes) -> dict[str, str]:
    """Read the answer for the subtree `compute`: a machine's names and place."""
    content = _content(body)
    found = {attribute: content.get(name) for attribute, name in MACHINE_NAMES.items()}
    values = {attribute: value for attribute, value in found.items() if isinstance(value, str)}
    if not values.get("name"):
        raise Malformed("has no machine's name")
    return values


def concerns(resources: Sequence[str], name: str) -> bool:
    """Return True if a machine is among the names, in any case, with or without the `_`."""
    wanted = ascii_lower(name)
    return any(ascii_lower(each) in {wanted, PREVIEW_PREFIX + wanted} for each in resources)


AGENT_HEADER: Final = b"forewarn-agent"
"""The name, in lower case, of the header that reports a machine's state (section 10):

    Forewarn-Agent: held; reason="the drain of web-0 failed"
"""

MAX_AGENT_REASON: Final = 200
"""The most bytes of a reason, in UTF-8; more makes the header malformed."""

_MAX_AGENT_VALUE: Final = 512
"""The longest value that is read, or remembered: a reason whose every byte is escaped, and the
state. Strangers cannot fill the memory with it."""

_KNOWN_AGENT_VALUES: Final = 1024
"""Values that are remembered: agents repeat theirs with each poll."""

_AGENT_VALUE: Final = re.compile(
    rb'([a-z]++)[ \t]*+(?:;[ \t]*+[Rr][Ee][Aa][Ss][Oo][Nn]="((?:[^"\\]|\\.)*+)"[ \t]*+)?+',
    re.DOTALL,
)


class AgentReport(msgspec.Struct, frozen=True, gc=False):
    """An agent's latest report of its machine."""

    status: AgentStatus
    reason: str = ""
    """The reason, in one line for operators; `""` where it gave none."""


def decode_agent_report(value: bytes) -> AgentReport | None:
    """Return the report in a header's value; None where it is malformed.

    Then it is ignored: a guest's mistake must not cost it its document.
    """
    return _agent_report(value) if len(value) <= _MAX_AGENT_VALUE else None


@lru_cache(maxsize=_KNOWN_AGENT_VALUES)
def _agent_report(value: bytes) -> AgentReport | None:
    found = _AGENT_VALUE.fullmatch(value.strip(b" \t"))
    if found is None:
        return None
    reason = re.sub(rb"\\(.)", rb"\1", found[2] or b"", flags=re.DOTALL)
    try:
        status = AgentStatus(found[1].decode())
        text = reason.decode()
    except ValueError:
        return None
    if len(reason) > MAX_AGENT_REASON or not text.isprintable():
        return None
    return AgentReport(status, text)


def encode_agent_report(report: AgentReport) -> str:
    """Return the header's value; a reason that is too long is cut, and kept to one line."""
    line = "".join(c if c.isprintable() else " " for c in report.reason)
    cut = line.encode()[:MAX_AGENT_REASON].decode(errors="ignore")
    if not cut:
        return report.status.value
    quoted = cut.replace("\\", r"\\").replace('"', r"\"")
    return f'{report.status.value}; reason="{quoted}"'
