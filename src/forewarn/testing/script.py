"""The language of scenario files: text in, values out.

A line is a moment and a sentence: `at 5m  web-0 approves`. docs/guides/scenarios.md has the whole
language. The parser is strict: what it does not know is an error that names the file and the line,
what was found there and what was expected.
"""

import tomllib
from datetime import timedelta
from typing import Annotated, Final, TypeVar

import msgspec

from forewarn.maintenance import fleet
from forewarn.maintenance.model import Enablement, Policy
from forewarn.testing import sentences
from forewarn.testing.statements import Applies, Statement
from forewarn.testing.words import ScriptError, Words
from forewarn.vocabulary import ErrorCode

MAX_LINES: Final = 10_000
"""The most lines of a scenario: more is no text that somebody reviews."""

Block = TypeVar("Block")


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One sentence of a scenario."""

    number: int
    text: str
    at: timedelta
    """From the scenario's beginning."""
    before_ticker: bool
    """Whether it comes before what time itself does in that instant."""
    statement: Statement
    refused: ErrorCode | None
    """Why it must be refused; None where it must not."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A whole file."""

    name: str
    wanted: fleet.Fleet
    policy: Policy
    lines: tuple[Line, ...]


class _Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enablement: Enablement = Enablement.ALWAYS
    disable_after_seconds: Annotated[int, msgspec.Meta(ge=1)] = 24 * 3600
    user_initiated_limit: Annotated[int, msgspec.Meta(ge=0)] = 0


def parse(text: str, name: str) -> Scenario:
    """Read a scenario.

    Args:
        text: The file's text.
        name: The file's name, for messages.

    Raises:
        ScriptError: A line is not what the language allows.
    """
    rows = text.splitlines()
    if len(rows) > MAX_LINES:
        message = f"{name}: {len(rows)} lines; a scenario has at most {MAX_LINES}"
        raise ScriptError(message)
    return _Reader(rows, name).scenario()


class _Reader:
    """Lines and blocks: what stands indented below a line belongs to it."""

    def __init__(self, rows: list[str], name: str) -> None:
        self._rows = rows
        self._name = name
        self._next = 0
        self._at = timedelta()
        self._before_ticker = False

    def scenario(self) -> Scenario:
        wanted: fleet.Fleet | None = None
        policy = Policy()
        lines: list[Line] = []
        while self._next < len(self._rows):
            number = self._next
            words = Words(self._rows[number], f"{self._name}:{number + 1}")
            self._next += 1
            if words.empty:
                continue
            if self._rows[number][0].isspace():
                raise words.error("a line that is not indented: no block is open here")
            if not lines and words.take("fleet"):
                words.end()
                wanted = self._block(fleet.Fleet, number)
            elif not lines and words.take("settings"):
                words.end()
                policy = _policy(self._block(_Settings, number))
            elif wanted is None:
                raise words.error("'fleet', with the machines indented below it")
            else:
                lines.append(self._line(words, number))
        if wanted is None or not lines:
            message = (
                f"{self._name}:{len(self._rows)}: expected a fleet and lines that happen to it"
            )
            raise ScriptError(message)
        return Scenario(name=self._name, wanted=wanted, policy=policy, lines=tuple(lines))

    def _line(self, words: Words, number: int) -> Line:
        if words.take("at"):
            at = words.span("a time from the beginning, such as 5m or 1h30m")
            if at < self._at:
                raise words.error(f"a time that is not before the line above it, {self._at}")
            edge = words.take("before", "the", "ticker")
            if at == self._at and edge and not self._before_ticker and at:
                raise words.error("no 'before the ticker': it has looked in this instant already")
            self._at, self._before_ticker = at, edge
        statement = sentences.read(words)
        if statement is None:
            prune = words.take("and", "prunes")
            words.end()
            statement = Applies(self._block(fleet.Fleet, number), prune)
        refused = None
        if words.take("refused"):
            words.need("as")
            refused = words.one_of(ErrorCode, "a reason")
        words.end()
        return Line(
            number=number + 1,
            text=" ".join(words.spoken.split()),
            at=self._at,
            before_ticker=self._before_ticker,
            statement=statement,
            refused=refused,
        )

    def _block(self, wanted: type[Block], opened: int) -> Block:
        first = self._next
        while self._next < len(self._rows):
            row = self._rows[self._next]
            if row.strip() and not row[0].isspace():
                break
            self._next += 1
        where = f"{self._name}:{opened + 1}"
        try:
            tree = tomllib.loads("\n".join(self._rows[first : self._next]))
            return msgspec.convert(tree, wanted)
        except tomllib.TOMLDecodeError as error:
            message = f"{where}: the block below is no TOML: {error} of the block"
            raise ScriptError(message) from error
        except msgspec.ValidationError as error:
            message = f"{where}: in the block below: {error}"
            raise ScriptError(message) from error


def _policy(settings: _Settings) -> Policy:
    return Policy(
        enablement=settings.enablement,
        disable_after=timedelta(seconds=settings.disable_after_seconds),
        user_initiated_limit=settings.user_initiated_limit,
    )
