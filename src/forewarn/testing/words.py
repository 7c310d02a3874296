"""The words of a line, taken one after the other; what does not fit is an error with its place."""

import re
from collections.abc import Iterable
from datetime import timedelta
from enum import StrEnum
from typing import Final, TypeVar

from forewarn.maintenance import fleet

SPAN: Final = re.compile(r"(?:(\d{1,4})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9})s)?", re.ASCII)
TOKEN: Final = re.compile(r'"[^"]*"|,|[^\s,"]+')
OPERATION: Final = re.compile(r"\d{1,9}\.\d{1,6}", re.ASCII)
NUMBER: Final = re.compile(r"\d{1,9}", re.ASCII)

Word = TypeVar("Word", bound=StrEnum)


class ScriptError(Exception):
    """A scenario file is not what the language allows; the message names file and line."""


class Words:
    """The words of one line, taken one after the other.

    Args:
        row: The line.
        where: Its file and number, for messages.

    Raises:
        ScriptError: A quoted text has no end.
    """

    def __init__(self, row: str, where: str) -> None:
        self.where = where
        self._words: list[str] = []
        self.spoken = ""
        position = 0
        while position < len(row):
            if row[position].isspace():
                position += 1
                continue
            if row[position] == "#":
                break
            match = TOKEN.match(row, position)
            if match is None:
                message = f'{where}: a quoted text begins with " and has no end'
                raise ScriptError(message)
            self._words.append(match[0])
            position = match.end()
            self.spoken = row[:position]
        self._next = 0

    @property
    def empty(self) -> bool:
        """Return whether the line says nothing."""
        return not self._words

    @property
    def more(self) -> bool:
        """Return whether a word is left."""
        return self._next < len(self._words)

    def error(self, expected: str) -> ScriptError:
        """Return what is wrong with the next word."""
        found = f"found {self._words[self._next]!r}" if self.more else "the line ends"
        return ScriptError(f"{self.where}: {found}; expected {expected}")

    def take(self, *words: str) -> bool:
        """Take these words if they come next."""
        if self._words[self._next : self._next + len(words)] != list(words):
            return False
        self._next += len(words)
        return True

    def need(self, *words: str) -> None:
        """Take these words, or complain."""
        if not self.take(*words):
            raise self.error(repr(" ".join(words)))

    def word(self, expected: str) -> str:
        """Take the next word, whatever it is."""
        if not self.more or self._words[self._next] == ",":
            raise self.error(expected)
        self._next += 1
        return self._words[self._next - 1]

    def end(self) -> None:
        """Complain if a word is left."""
        if self.more:
            raise self.error("the end of the line")

    def quoted(self) -> str:
        """Take a text in quotes, if one comes next."""
        if self.more and self._words[self._next].startswith('"'):
            return self.word("a text").strip('"')
        return ""

    def name(self, expected: str = "a name") -> str:
        """Take a name as the fleet file allows it."""
        if self.more and not fleet.NAME.fullmatch(self._words[self._next]):
            raise self.error(expected)
        return self.word(expected)

    def names(self, expected: str) -> tuple[str, ...]:
        """Take names with commas between them."""
        found = [self.name(expected)]
        while self.take(","):
            found.append(self.name(expected))
        return tuple(found)

    def span(self, expected: str) -> timedelta:
        """Take a span of time."""
        match = SPAN.fullmatch(self._words[self._next]) if self.more else None
        if match is None:
            raise self.error(expected)
        self._next += 1
        return _span(match)

    def signed_span(self) -> timedelta:
        """Take a span with its sign, such as `+24h`."""
        expected = "a span with its sign, such as +24h or -1h"
        found = self._words[self._next] if self.more else ""
        match = SPAN.fullmatch(found[1:])
        if found[:1] not in {"+", "-"} or not found[1:] or match is None:
            raise self.error(expected)
        self._next += 1
        return _span(match) if found[0] == "+" else -_span(match)

    def number(self, expected: str) -> int:
        """Take a whole number."""
        if not self.more or not NUMBER.fullmatch(self._words[self._next]):
            raise self.error(expected)
        return int(self.word(expected))

    def reference(self) -> str:
        """Take an operation (`1.2`) or a maintenance (`1`)."""
        expected = "an operation such as 1.2, or a maintenance such as 1"
        return self.operation() if self.at_operation() else str(self.number(expected))

    def at_operation(self) -> bool:
        """Tell whether an operation such as `1.2` comes next."""
        return self.more and OPERATION.fullmatch(self._words[self._next]) is not None

    def operation(self) -> str:
        """Take an operation, such as `1.2`."""
        if not self.at_operation():
            raise self.error("an operation, such as 1.2")
        return self.word("an operation")

    def one_of(self, kind: type[Word], expected: str) -> Word:
        """Take a member of an enum."""
        if not self.is_one_of(kind):
            raise self.error(f"{expected}: {', '.join(kind)}")
        return kind(self.word(expected))

    def is_one_of(self, known: Iterable[str]) -> bool:
        """Tell whether one of these words comes next."""
        return self.more and self._words[self._next] in set(known)

    def one_of_these(self, known: Iterable[str], expected: str) -> str:
        """Take one of these words."""
        if not self.is_one_of(known):
            raise self.error(f"{expected}: {', '.join(known)}")
        return self.word(expected)


def _span(match: re.Match[str]) -> timedelta:
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
