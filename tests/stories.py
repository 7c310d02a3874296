"""Stories as text: a line has one verb, its words and options (`by=ann`), as a shell splits them.

A line `story TITLE` begins another story, on what stands above the first such line. A line that
begins with spaces belongs to the one above.
"""

import asyncio
import atexit
import keyword
import re
import shlex
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from builders import NOW
from forewarn import times
from forewarn.maintenance.model import Refused

OPTION: Final = re.compile(r"[a-z][a-z_0-9]*=")

Rows = list[tuple[int, str]]
"""Lines, each with its number."""

RUNNER: Final = asyncio.Runner()
atexit.register(lambda: RUNNER.get_loop().close())


def on_a_loop(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Run to its end what a line waits for, on one loop for all stories.

    To make a loop takes as long as a few lines.
    """
    RUNNER.run(coroutine)


def stories(text: str) -> dict[str, Rows]:
    """Return the rows of each story by its title; `""` of a text that is one story."""
    shared: Rows = []
    told: dict[str, Rows] = {}
    rows = shared
    for number, row in enumerate(text.splitlines(), 1):
        if row.startswith(" ") and rows:
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {row.strip()}")
        elif not row.startswith("story "):
            rows.append((number, row))
        else:
            title = row.removeprefix("story ")
            if title in told:
                raise ValueError(f"line {number}: another story has this title")
            rows = told[title] = [*shared]
    return told or {"": shared}


def stories_beside(test: str, name: str) -> list[Any]:
    """Return the stories of a text in the folder of a test, as what that test is given."""
    text = (Path(test).parent / name).read_text(encoding="utf-8")
    return [pytest.param(rows, id=title) for title, rows in stories(text).items()]


def lines_beside(test: str, name: str) -> list[tuple[str, str]]:
    """Return the lines of a text in the folder of a test: what is told, and what comes of it."""
    text = (Path(test).parent / name).read_text(encoding="utf-8")
    rows = [row for _, row in stories(text)[""] if row and not row.startswith("#")]
    parts = [row.partition(" ->") for row in rows]
    return [(told, expected.strip()) for told, _, expected in parts]


def split(row: str) -> tuple[str, list[str], dict[str, str]]:
    """Return the verb of a row, its words and its options; the verb is `""` where there is none."""
    words = shlex.split(re.sub(r"(^|\s)#.*", "", row))
    options = dict(word.split("=", 1) for word in words if OPTION.match(word))
    verb, *words = [word for word in words if not OPTION.match(word)] or [""]
    return verb, words, options


def method(verb: str) -> str:
    """Return the name of the method for a verb."""
    return verb.replace("-", "_") + "_" * keyword.iskeyword(verb)


def spelled(text: str) -> bytes:
    r"""Return the bytes that a word stands for: `\xff` is a byte, and `<x*500>` so many x."""
    many = re.sub(r"<([^<>]+)\*(\d+)>", lambda found: found[1] * int(found[2]), text)
    return re.sub(
        rb"\\x([0-9a-f]{2})", lambda found: bytes.fromhex(found[1].decode()), many.encode()
    )


def play(name: str, rows: Rows, carry_out: Callable[[str], object]) -> int:
    """Carry the rows of a story out; return how many they are. One that does not hold is named."""
    for number, row in rows:
        try:
            carry_out(row)
        except (Exception, pytest.fail.Exception) as error:
            raise AssertionError(f"{name}:{number}: {row}\n    but {error!r}") from error
    return len(rows)


class Told:
    """A story so far. Its public methods are the verbs, with `-` for `_`; `pass_` is `pass`.

    `at 5m` before a verb is a time from the beginning, and `refused=conflict` says that a line must
    be refused, and may name facts; `refused_saying` and `refused_without` are about its words.
    """

    beginning = NOW

    def go_to(self, elapsed: timedelta) -> None:
        """Let time pass until then."""
        self.now = self.beginning + elapsed

    def moment(self, told: str) -> datetime:
        """Return a time by its distance from the beginning: `-2m`."""
        return self.beginning + elapsed(told)

    def addressed(self, verb: str, names: list[str]) -> list[str]:
        """Return the words of a line without the one that says who is to do it."""
        del verb
        return names

    def compare(self, found: object, told: dict[str, str], **facts: Any) -> None:
        """Compare facts with how a line tells them; a time that is told as `yes` may be any."""
        for name, expected in told.items():
            fact = facts[name] if name in facts else getattr(found, name)
            if isinstance(fact, datetime) and expected not in {"", "yes"}:
                assert fact - self.beginning == elapsed(expected), (name, found)
            else:
                assert said(fact) == expected, (name, found)

    def play(self, name: str, rows: Rows) -> int:
        """Carry the rows of a story out; return how many they are."""
        return play(name, rows, self.carry_out)

    def carry_out(self, row: str) -> None:
        verb, names, options = split(row)
        if verb == "at":
            span, *names = names
            self.go_to(elapsed(span))
            verb, *names = names or [""]
        if not verb:
            return
        names = self.addressed(verb, names)
        refused = options.pop("refused", "").split()
        says, unsaid = options.pop("refused_saying", ""), options.pop("refused_without", "\0")
        act = getattr(self, method(verb))
        if not refused:
            act(*names, **options)
            return
        with pytest.raises(Refused) as refusal:
            act(*names, **options)
        told = {f"{name}={fact}" for name, fact in refusal.value.facts.items()}
        assert refusal.value.code == refused[0], refusal.value
        assert told.issuperset(refused[1:]), told
        assert says in refusal.value.message
        assert unsaid not in refusal.value.message


def said(fact: object) -> str:
    """Return a fact as a line tells it; a time that is not compared is `yes`."""
    match fact:
        case datetime() | True:
            return "yes"
        case None | False:
            return ""
        case tuple():
            return ",".join(map(str, fact))
    return str(fact)


def elapsed(told: str) -> timedelta:
    """Return a span, which may be of a fraction of seconds, or of the past: `1.5s`, `-2m`."""
    if told.startswith("-"):
        return -elapsed(told[1:])
    fraction = "." in told and told.endswith("s")
    return timedelta(seconds=float(told[:-1])) if fraction else times.span(told)


def elapsed_at(moment: datetime | None) -> timedelta:
    """Return how far a moment is from the beginning."""
    assert moment is not None
    return timedelta(seconds=round((moment - NOW).total_seconds(), 6))


def listed(told: str) -> list[str]:
    """Return words that have commas between them."""
    return [word for word in told.split(",") if word]


class WithoutTimes(yaml.SafeLoader):
    """YAML in which a time is a text."""


WithoutTimes.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in known if not tag.endswith(":timestamp")]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
