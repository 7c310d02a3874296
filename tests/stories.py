"""Stories as text: a line has one verb, its words and options (`by=ann`), as a shell splits them.

A line `story TITLE` begins another story, on what stands above the first such line.
"""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

OPTION: Final = re.compile(r"[a-z_]+=")


def stories(text: str) -> dict[str, list[tuple[int, str]]]:
    """Return the numbered rows of each story by its title; `""` of a text that is one story."""
    shared: list[tuple[int, str]] = []
    told: dict[str, list[tuple[int, str]]] = {}
    rows = shared
    for number, row in enumerate(text.splitlines(), 1):
        if not row.startswith("story "):
            rows.append((number, row))
            continue
        title = row.removeprefix("story ")
        if title in told:
            raise ValueError(f"line {number}: another story has this title")
        rows = told[title] = [*shared]
    return told or {"": shared}


def split(row: str) -> tuple[str, list[str], dict[str, str]]:
    """Return the verb of a row, its words and its options; the verb is `""` where there is none."""
    words = shlex.split(row, comments=True)
    options = dict(word.split("=", 1) for word in words if OPTION.match(word))
    verb, *words = [word for word in words if not OPTION.match(word)] or [""]
    return verb, words, options


def check(path: Path, rows: list[tuple[int, str]], carry_out: Callable[[str], None]) -> None:
    """Carry the rows of a story out; fail with the first one that does not hold."""
    for number, row in rows:
        try:
            carry_out(row)
        except Exception as error:  # noqa: BLE001 - whatever a line raises, it does not hold
            instead = f"{type(error).__name__}: {error}"
            pytest.fail(f"{path.name}:{number}: {row}\n    but {instead}")
