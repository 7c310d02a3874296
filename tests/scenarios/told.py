"""A reader of stories whose world is smaller than a house: its verbs are the methods of a class.

A line has one verb, its words and its options, as in `story.py`; `at 5m` before a verb is a time
from the beginning, and `refused=conflict` says that a line must be refused, and may name facts;
`refused_saying` and `refused_without` are about its words. A line that begins with spaces belongs
to the one above.
"""

import shlex
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from builders import NOW
from forewarn.maintenance.model import Refused
from scenarios import story


class Told:
    """A story so far. Its public methods are the verbs, with `-` for `_`."""

    def go_to(self, elapsed: timedelta) -> None:
        """Let time pass until then."""
        raise NotImplementedError

    def play(self, name: str, rows: list[tuple[int, str]]) -> int:
        """Carry the rows of a story out, up to the first that does not hold; return how many."""
        for number, row in joined(rows):
            try:
                self.carry_out(row)
            except (AssertionError, Refused, LookupError, TypeError, ValueError) as error:
                raise AssertionError(f"{name}:{number}: {row}\n    but {error!r}") from error
        return len(rows)

    def carry_out(self, row: str) -> None:
        words = shlex.split(row, comments=True)
        if words and words[0] == "at":
            self.go_to(story.elapsed(words[1]))
            del words[:2]
        if not words:
            return
        options = dict(word.split("=", 1) for word in words if story.OPTION.match(word))
        verb, *names = [word for word in words if not story.OPTION.match(word)]
        refused = options.pop("refused", "").split()
        says, unsaid = options.pop("refused_saying", ""), options.pop("refused_without", "\0")
        act = getattr(self, verb.replace("-", "_"))
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


def joined(rows: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return rows with those that begin with spaces at the end of the one above."""
    whole: list[tuple[int, str]] = []
    for number, row in rows:
        if row.startswith(" "):
            whole[-1] = (whole[-1][0], f"{whole[-1][1]} {row.strip()}")
        else:
            whole.append((number, row))
    return whole


class WithoutTimes(yaml.SafeLoader):
    """YAML in which a time is a text."""


WithoutTimes.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in known if not tag.endswith(":timestamp")]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def stories_beside(test: str, name: str) -> list[Any]:
    """Return the stories of a text in the folder of a test, as what that test is given."""
    text = (Path(test).parent / name).read_text(encoding="utf-8")
    return [pytest.param(rows, id=title) for title, rows in story.stories(text).items()]


def split(told: str) -> list[str]:
    """Return words that have commas between them."""
    return [word for word in told.split(",") if word]


def elapsed_at(moment: Any) -> timedelta:
    """Return how far a moment is from the beginning."""
    assert moment is not None
    return timedelta(seconds=round((moment - NOW).total_seconds(), 6))
