"""Recordings of a real endpoint: JSON lines whose documents are replayed to the byte.

The first line has the name of the machine, each other an answer. `Recording` turns answers into
such lines; its caller asks the endpoint and writes them. Names and EventIds are replaced by made-up
ones, the same for the same, unless they are to be kept: nothing else of a document changes. Nothing
here does I/O.
"""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Final, TypeVar

import msgspec

from forewarn.protocol import codec
from forewarn.protocol.message import ascii_lower

OWN_NAME: Final = "vm-0"
"""The machine's name in a recording without names, and where its name is not known."""

KEPT_HEADERS: Final = frozenset(("content-type", "date", "etag", "server"))
"""Headers that a handler may read. The others name connections and requests that are over."""

_TEXT: Final = rb'"(?:[^"\\]|\\.)*"'
_NAMED: Final = re.compile(
    rb'("(?:EventId|Resources)"\s*:\s*)(%s|\[(?:[\s,]|%s)*\])' % (_TEXT, _TEXT)
)
_DESCRIPTION: Final = re.compile(rb'("Description"\s*:\s*)(%s)' % _TEXT)
"""The values in which names and EventIds stand; another may be equal to a name by chance."""


MAX_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of a file: documents are a few kilobytes each, and change a few times an hour."""


Line = TypeVar("Line")


class RecordedMachine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line of a file."""

    machine: str


class RecordedAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line with a document, as it came."""

    after_seconds: Annotated[float, msgspec.Meta(ge=0)]
    """Since the first answer."""
    headers: tuple[tuple[str, str], ...] = ()
    body: str

    def message(self, date: str) -> bytes:
        """Return the whole answer; the date is now's, for a real server's goes on."""
        content = self.body.encode()
        lines = ["HTTP/1.1 200 OK"]
        lines += [f"{n}: {date if n.lower() == 'date' else value}" for n, value in self.headers]
        lines += [f"Content-Length: {len(content)}", "", ""]
        return "\r\n".join(lines).encode("latin-1") + content

    @property
    def date(self) -> datetime | None:
        """The date of the answer; None where it had none."""
        for name, value in self.headers:
            if name.lower() == "date":
                try:
                    return codec.any_date(value)
                except ValueError:
                    return None
        return None


def read(text: bytes) -> tuple[str, tuple[RecordedAnswer, ...]]:
    """Read a whole file.

    Returns:
        The machine's name, and the answers in their order.

    Raises:
        ValueError: It is not a recording; the message has the line.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"invalid recording: {len(text)} bytes, at most {MAX_BYTES}")
    first, *rows = text.splitlines() or [b""]
    machine = _decoded(first, 1, RecordedMachine).machine
    return machine, tuple(
        _decoded(row, number, RecordedAnswer) for number, row in enumerate(rows, 2)
    )


def _decoded(row: bytes, number: int, shape: type[Line]) -> Line:
    try:
        return msgspec.json.decode(row, type=shape)
    except ValueError as error:  # msgspec's errors, and those of a text that is not UTF-8
        raise ValueError(f"invalid recording: line {number}: {error}") from error


class Recording:
    """The text of a file, line by line.

    The machine is its name in events, or `""` where that is not known.
    """

    def __init__(self, machine: str, *, keep_names: bool = False) -> None:
        self._keep_names = keep_names
        self._names: dict[str, str] = {ascii_lower(machine): OWN_NAME} if machine else {}
        """By the name in lower case."""
        self._ids: dict[str, str] = {}
        self._began: datetime | None = None
        self._latest: bytes | None = None
        self._machine = machine if keep_names and machine else OWN_NAME

    def beginning(self) -> bytes:
        """Return the first line."""
        return _line(RecordedMachine(self._machine))

    def answer(self, body: bytes, headers: tuple[tuple[str, str], ...], at: datetime) -> bytes:
        """Return the line of a document; `b""` if it is the one before.

        Args:
            body: Of an answer with status 200, to the byte.
            headers: Of the same answer.
            at: The time when it came.

        Raises:
            ValueError: It is not a document.
        """
        if body == self._latest:
            return b""
        try:
            shown = body if self._keep_names else self._anonymous(body)
            text = shown.decode()
        except (codec.Malformed, UnicodeDecodeError) as error:
            raise ValueError(f"no document: {error}") from error
        self._latest = body
        self._began = self._began or at
        kept = tuple(header for header in headers if header[0].lower() in KEPT_HEADERS)
        after = max(0, int((at - self._began).total_seconds()))
        return _line(RecordedAnswer(after_seconds=after, headers=kept, body=text))

    def _anonymous(self, body: bytes) -> bytes:
        listing = codec.decode_listing(body)
        if listing.unreadable:  # it may have names that nobody finds
            raise codec.Malformed(listing.unreadable[0])
        for event in listing.events:
            number = len(self._ids) + 1
            self._ids.setdefault(event.key, f"{number:08X}-0000-4000-8000-000000000000")
            for written in event.resources:
                name = ascii_lower(written.removeprefix(codec.PREVIEW_PREFIX))
                self._names.setdefault(name, f"vm-{len(self._names)}")
        prefixed = {
            codec.PREVIEW_PREFIX + name: codec.PREVIEW_PREFIX + other
            for name, other in self._names.items()
        }
        made_up = {**self._ids, **self._names, **prefixed}
        whole = {json.dumps(each, ensure_ascii=False): f'"{made_up[each]}"' for each in made_up}
        body = _NAMED.sub(lambda found: found[1] + _replaced(found[2], whole), body)
        for event in codec.decode_listing(body).events:
            if {event.event_id, *event.resources} - {*made_up.values()}:
                raise codec.Malformed("writes a name in a way that is not replaced")
        return _DESCRIPTION.sub(lambda found: found[1] + _replaced(found[2], self._names), body)


def _replaced(text: bytes, others: Mapping[str, str]) -> bytes:
    """Replace each of some texts, in any ASCII case, by its other one, all of them at once."""
    if not others:
        return text
    known = {each.encode().lower(): other.encode() for each, other in others.items()}
    longest_first = sorted(known, key=len, reverse=True)
    either = re.compile(b"|".join(map(re.escape, longest_first)), re.IGNORECASE)
    return either.sub(lambda found: known[found[0].lower()], text)


def _line(value: msgspec.Struct) -> bytes:
    return msgspec.json.encode(value) + b"\n"
