"""An answer of any server and any version, read as a client must: tolerantly.

`codec.decode_document` takes what we write ourselves and nothing else. A client meets other
servers, of versions that it does not know, and its machine must get its notice all the same:
what is not understood is kept as text, what is missing is None, unknown keys are passed over. What
cannot be acted on (no list of events, an event without an id, a date that is none) is refused
whole, since reading it as "no such event" would tell a machine that its maintenance is over.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from forewarn.protocol import codec, text
from forewarn.vocabulary import RESOURCE_TYPE, EventSource, EventStatus, EventType

MAX_EVENTS: Final = 10_000
"""Events of one document: more than a scope can have by far, and less than would hurt."""

MAX_ID_LENGTH: Final = 256
"""Characters of an EventId: a GUID has 36."""

MAX_NAME_LENGTH: Final = 256
"""Characters of a machine's name: Azure's have at most 80."""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """An event as an answer lists it; what an older version does not show is None."""

    event_id: str
    """As written: compare `key`."""
    status: str
    """An EventStatus where it is one, else the text; `""` where it was missing."""
    event_type: str
    """An EventType where it is one, else the text; `""` where it was missing."""
    resource_type: str
    resources: tuple[str, ...]
    """As written: the preview puts `_` before them."""
    not_before: datetime | None
    """In UTC; None where it is empty, as once Started, or missing."""
    description: str | None = None
    source: str | None = None
    """An EventSource where it is one, else the text."""
    duration_seconds: int | None = None

    @property
    def key(self) -> str:
        """What EventIds are compared by: their case does not count (protocol.md section 5)."""
        return text.upper(self.event_id)


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """A document as an answer has it."""

    incarnation: int | None
    """None where it was missing, or no whole number."""
    events: tuple[Listed, ...]
    """Each event once, in the answer's order."""


_WHOLE_NUMBER: Final = r"(?a)-?\d{1,19}"
"""A number that is written as text: no counter of 64 bits has more digits."""

_STATUSES: Final[dict[str, str]] = {text.lower(each): each for each in EventStatus}
_TYPES: Final[dict[str, str]] = {text.lower(each): each for each in EventType}
_SOURCES: Final[dict[str, str]] = {text.lower(each): each for each in EventSource}


def listing(body: bytes) -> Listing:
    """Read the answer to a GET of the scheduled events.

    Raises:
        codec.Malformed: It is no document; the message says what it is instead.
    """
    content = _content(body)
    if not isinstance(content, dict):
        message = "is JSON, but no object"
        raise codec.Malformed(message)
    entries = content.get(codec.DOCUMENT_NAMES["events"])
    if not isinstance(entries, list):
        message = "has no list of Events"
        raise codec.Malformed(message)
    if len(entries) > MAX_EVENTS:
        message = f"has {len(entries)} Events, more than {MAX_EVENTS}"
        raise codec.Malformed(message)
    events: dict[str, Listed] = {}
    for number, entry in enumerate(entries, 1):
        event = _listed(entry, number)
        events.setdefault(event.key, event)
    return Listing(
        incarnation=_whole(content.get(codec.DOCUMENT_NAMES["incarnation"])),
        events=tuple(events.values()),
    )


def _content(body: bytes) -> object:
    stripped = body.removeprefix(b"\xef\xbb\xbf").strip()  # some writers begin with a UTF-8 mark
    if not stripped:
        message = "is empty"
        raise codec.Malformed(message)
    if stripped.startswith(b"<"):
        message = "is HTML or XML, as a proxy's own page is"
        raise codec.Malformed(message)
    try:
        content: object = msgspec.json.decode(stripped)
    except RecursionError as error:
        message = "is nested too deeply"
        raise codec.Malformed(message) from error
    except ValueError as error:  # msgspec's own errors are ValueErrors
        message = f"is not JSON: {text.shown(str(error))}"
        raise codec.Malformed(message) from error
    return content


def _listed(entry: object, number: int) -> Listed:
    if not isinstance(entry, dict):
        message = f"has no object as event {number}"
        raise codec.Malformed(message)
    values = {name: entry.get(written) for name, written in codec.EVENT_NAMES.items()}
    event_id = values["event_id"]
    if not isinstance(event_id, str) or not 0 < len(event_id) <= MAX_ID_LENGTH:
        message = f"has no EventId of 1 to {MAX_ID_LENGTH} characters in event {number}"
        raise codec.Malformed(message)
    return Listed(
        event_id=event_id,
        status=status(_text(values["status"]) or ""),
        event_type=event_type(_text(values["event_type"]) or ""),
        resource_type=_text(values["resource_type"]) or RESOURCE_TYPE,
        resources=_names(values["resources"]),
        not_before=_not_before(values["not_before"], event_id),
        description=_text(values["description"]),
        source=source(_text(values["source"])),
        duration_seconds=_whole(values["duration_seconds"]),
    )


def status(written: str) -> str:
    """Return the EventStatus that a text is in any case, else the text."""
    return _STATUSES.get(text.lower(written), written)


def event_type(written: str) -> str:
    """Return the EventType that a text is in any case, else the text."""
    return _TYPES.get(text.lower(written), written)


def source(written: str | None) -> str | None:
    """Return the EventSource that a text is in any case, else the text; None for None."""
    return None if written is None else _SOURCES.get(text.lower(written), written)


def _text(value: object) -> str | None:
    """Return a text as it is, None for what is none."""
    return value if isinstance(value, str) else None


def _names(value: object) -> tuple[str, ...]:
    """Return the names in a list; a name alone is a list of one."""
    if isinstance(value, str):
        value = [value]
    names: Sequence[object] = value if isinstance(value, list) else ()
    return tuple(name for name in names if isinstance(name, str) and name)


def _whole(value: object) -> int | None:
    """Return a whole number, also of one that is written as text or with a fraction of nothing."""
    if isinstance(value, str) and re.fullmatch(_WHOLE_NUMBER, value):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _not_before(value: object, event_id: str) -> datetime | None:
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, str):
        try:
            return codec.any_date(value)
        except (ValueError, OverflowError) as error:
            message = f"has a NotBefore that is no date in event {text.shown(event_id)}: {error}"
            raise codec.Malformed(message) from error
    message = f"has a NotBefore that is no text in event {text.shown(event_id)}"
    raise codec.Malformed(message)


def machine_name(body: bytes) -> str:
    """Read the answer for the leaf `compute/name`: a bare name.

    Raises:
        codec.Malformed: It is none; a name has no blanks and is of one line.
    """
    name = body.decode("utf-8", "replace").strip()
    if not 0 < len(name) <= MAX_NAME_LENGTH or not set(name).isdisjoint('<>{}"\ufffd \t\r\n'):
        message = f"is no machine's name: {text.shown(name)!r}"
        raise codec.Malformed(message)
    return name


def compute(body: bytes) -> dict[str, str]:
    """Read the answer for the sub-tree `compute`: its single values by name.

    Raises:
        codec.Malformed: It is no JSON object, or has no name in it.
    """
    content = _content(body)
    if not isinstance(content, dict):
        message = "is JSON, but no object"
        raise codec.Malformed(message)
    values = {name: value for name, value in content.items() if isinstance(value, str)}
    if not values.get("name"):
        message = "has no machine's name"
        raise codec.Malformed(message)
    return values


def concerns(resources: Sequence[str], name: str) -> bool:
    """Tell whether a machine is among an event's resources.

    Without regard to case, and with the `_` that the preview puts before names (section 2).
    """
    wanted = text.lower(name)
    return any(text.lower(each) in {wanted, codec.PREVIEW_PREFIX + wanted} for each in resources)
