"""Recordings of a real endpoint: scenario files whose documents are played back to the byte.

`Recording` turns answers into the text of a file; whoever asks the endpoint writes it. Names and
EventIds are replaced by made-up ones, the same for the same, unless they are to be kept: nothing
else of a document changes. Nothing here does I/O.
"""

import json
import re
from datetime import datetime, timedelta
from typing import Final

import msgspec

from forewarn.protocol import codec

OWN_NAME: Final = "vm-0"
"""What the machine is called in a recording without names, and where its name is not known."""

KEPT_HEADERS: Final = frozenset(("content-type", "date", "etag", "server"))
"""Headers that a handler may read. The others name connections and requests that are over."""

_DESCRIPTION: Final = re.compile(rb'("Description":\s*")((?:[^"\\]|\\.)*)')


class RecordedAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An answer with a document, as it came; the block below `endpoint answers`."""

    body: str
    headers: tuple[tuple[str, str], ...] = ()

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


class Recording:
    """The text of a scenario file, answer by answer.

    The machine is its name in events, or `""` where that is not known.
    """

    def __init__(self, machine: str, *, keep_names: bool = False) -> None:
        self._keep_names = keep_names
        self._names: dict[str, str] = {machine: OWN_NAME} if machine else {}
        self._ids: dict[str, str] = {}
        self._began: datetime | None = None
        self._latest: bytes | None = None
        self._machine = machine if keep_names and machine else OWN_NAME

    def beginning(self) -> str:
        """Return what the file begins with."""
        return (
            "# Recorded by 'forewarn record'; Emulator.play gives it back to handlers.\n"
            f'fleet\n  [[machine]]\n  name = "{self._machine}"\n'
        )

    def answer(self, body: bytes, headers: tuple[tuple[str, str], ...], at: datetime) -> str:
        """Return what the file has of a document; `""` if it is the one before.

        Args:
            body: Of an answer with status 200, to the byte.
            headers: Of the same answer.
            at: When it came.

        Raises:
            ValueError: It is no document.
        """
        if body == self._latest:
            return ""
        try:
            shown = body if self._keep_names else self._anonymous(body)
            text = shown.decode()
        except (codec.Malformed, UnicodeDecodeError) as error:
            raise ValueError(f"no document: {error}") from error
        self._latest = body
        self._began = self._began or at
        kept = [[name, value] for name, value in headers if name.lower() in KEPT_HEADERS]
        return (
            f"\nat {_span(at - self._began)}  endpoint answers\n"
            f"  body = {_quoted(text)}\n"
            f"  headers = {json.dumps(kept)}\n"
            f"expect {self._machine} has read it\n"
        )

    def _anonymous(self, body: bytes) -> bytes:
        for event in codec.decode_listing(body).events:
            self._ids.setdefault(
                event.event_id, f"{len(self._ids) + 1:08X}-0000-4000-8000-000000000000"
            )
            for written in event.resources:
                name = written.removeprefix(codec.PREVIEW_PREFIX)
                self._names.setdefault(name, f"vm-{len(self._names)}")
        made_up = {**self._ids, **self._names}
        made_up |= {
            codec.PREVIEW_PREFIX + name: codec.PREVIEW_PREFIX + other
            for name, other in self._names.items()
        }
        for name, other in made_up.items():
            body = body.replace(json.dumps(name).encode(), json.dumps(other).encode())
        return _DESCRIPTION.sub(self._without_names, body)

    def _without_names(self, found: "re.Match[bytes]") -> bytes:
        text = found[2]
        for name in sorted(self._names, key=len, reverse=True):
            text = text.replace(name.encode(), self._names[name].encode())
        return found[1] + text


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _span(length: timedelta) -> str:
    return f"{max(0, int(length.total_seconds()))}s"
