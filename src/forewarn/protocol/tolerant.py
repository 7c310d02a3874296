"""Reads the answer of any server in any version: the client's side of the wire.

A client meets servers of versions that it does not know, and its machine must get its notice all
the same: unknown values are kept as text, missing ones are None, unknown keys are skipped. What
nobody can act on (no list of events, an event without an id, an invalid date) is refused whole,
since reading it as "no such event" would tell a machine that its maintenance is over.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec

from forewarn.protocol import codec, text
from forewarn.vocabulary import RESOURCE_TYPE, EventSource, EventStatus, EventType

MAX_EVENTS: Final = 10_000
"""Events of one document: far more than a scope can have, and few enough to parse quickly."""

MAX_ID_LENGTH: Final = 256
"""Characters of an EventId: a GUID has 36."""

MAX_NAME_LENGTH: Final = 256
"""Characters of a machine's name: Azure's have at most 80."""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """An event of an answer; what an older version does not show is None."""

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
        return text.upper(self.event_id)


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The document of an answer."""

    incarnation: int | None
    """None where it was missing or not a whole number."""
    events: tuple[Listed, ...]
    """Each event once, in the answer's order."""


_WHOLE_NUMBER: Final = r"(?a)-?\d{1,19}"
"""A number written as text; a 64-bit counter has no more digits."""

_WORDS: Final[dict[type[StrEnum], dict[str, str]]] = {
    kind: {text.lower(each): each for each in kind}
    for kind in (EventStatus, EventType, EventSource)
}


def listing(body: bytes) -> Listing:
    """Read the answer to a GET of the scheduled events."""
    content = _content(body)
    entries = content.get(codec.EVENTS)
    if not isinstance(entries, list):
        raise codec.Malformed("has no list of Events")
    if len(entries) > MAX_EVENTS:
        raise codec.Malformed(f"has {len(entries)} Events, more than {MAX_EVENTS}")
    events: dict[str, Listed] = {}
    for number, entry in enumerate(entries, 1):
        event = _listed(entry, number)
        events.setdefault(event.key, event)
    return Listing(
        incarnation=_whole(content.get(codec.INCARNATION)),
        events=tuple(events.values()),
    )


def _content(body: bytes) -> dict[str, Any]:
    stripped = body.removeprefix(b"\xef\xbb\xbf").strip()  # a byte-order mark, of some writers
    if not stripped:
        raise codec.Malformed("is empty")
    if stripped.startswith(b"<"):
        raise codec.Malformed("is HTML or XML, as a proxy's own page is")
    try:
        content: object = msgspec.json.decode(stripped)
    except RecursionError as error:
        raise codec.Malformed("is nested too deeply") from error
    except ValueError as error:  # msgspec's own errors are ValueErrors
        raise codec.Malformed(f"is not JSON: {text.shown(str(error))}") from error
    if not isinstance(content, dict):
        raise codec.Malformed("is JSON, but not an object")
    return content


def _listed(entry: object, number: int) -> Listed:
    if not isinstance(entry, dict):
        raise codec.Malformed(f"has no object as event {number}")
    values = {name: entry.get(written) for name, written in codec.EVENT_NAMES.items()}
    event_id, source = values["event_id"], _text(values["source"])
    if not isinstance(event_id, str) or not 0 < len(event_id) <= MAX_ID_LENGTH:
        raise codec.Malformed(
            f"has no EventId of 1 to {MAX_ID_LENGTH} characters in event {number}"
        )
    return Listed(
        event_id=event_id,
        status=known(EventStatus, _text(values["status"]) or ""),
        event_type=known(EventType, _text(values["event_type"]) or ""),
        resource_type=_text(values["resource_type"]) or RESOURCE_TYPE,
        resources=_names(values["resources"]),
        not_before=_not_before(values["not_before"], event_id),
        description=_text(values["description"]),
        source=source and known(EventSource, source),
        duration_seconds=_whole(values["duration_seconds"]),
    )


def known(kind: type[StrEnum], written: str) -> str:
    """Return the word of an event's enum that a text names in any case, else the text."""
    return _WORDS[kind].get(text.lower(written), written)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _names(value: object) -> tuple[str, ...]:
    """Return the names in a list; a single string counts as a list of one."""
    if isinstance(value, str):
        value = [value]
    names: Sequence[object] = value if isinstance(value, list) else ()
    return tuple(name for name in names if isinstance(name, str) and name)


def _whole(value: object) -> int | None:
    """Return a whole number, also one written as text or with a zero fraction."""
    if isinstance(value, str) and re.fullmatch(_WHOLE_NUMBER, value):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _not_before(value: object, event_id: str) -> datetime | None:
    where = f"in event {text.shown(event_id)}"
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if not isinstance(value, str):
        raise codec.Malformed(f"has a NotBefore that is not a string {where}")
    try:
        return codec.any_date(value)
    except ValueError as error:
        raise codec.Malformed(f"has an invalid NotBefore {where}: {error}") from error


def machine_name(body: bytes) -> str:
    """Read the answer for the leaf `compute/name`: one line without blanks."""
    name = body.decode("utf-8", "replace").strip()
    if not 0 < len(name) <= MAX_NAME_LENGTH or not set(name).isdisjoint('<>{}"\ufffd \t\r\n'):
        raise codec.Malformed(f"is not a machine's name: {text.shown(name)!r}")
    return name


def compute(body: bytes) -> dict[str, str]:
    """Read the answer for the subtree `compute`: what a machine is called."""
    content = _content(body)
    found = {attribute: content.get(name) for attribute, name in codec.MACHINE_NAMES.items()}
    values = {attribute: value for attribute, value in found.items() if isinstance(value, str)}
    if not values.get("name"):
        raise codec.Malformed("has no machine's name")
    return values


def concerns(resources: Sequence[str], name: str) -> bool:
    """Tell whether a machine is among the names, in any case, with or without the `_`."""
    wanted = text.lower(name)
    return any(text.lower(each) in {wanted, codec.PREVIEW_PREFIX + wanted} for each in resources)
