"""Shapes and names of files: sizes (ruff has columns and arguments), words and phrases."""

import re
from collections import defaultdict
from pathlib import Path

from house import tree

MAX_MODULE_LINES = 800
MAX_FUNCTION_LINES = 70
EMPTY_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "core", "base", "manager"}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b")
PHRASES = re.compile(
    r"\banew\b|of the fleet is called|is no (?:json|number|time|toml)\b|\bwanted is\b"
    r"|nothing of this is still to come|nothing of maintenance .* has stopped"
    r"|until when guests could read was not|no state that a watch wrote|say what became of"
    r"|again, as far as nobody|on azure unmodified|nobody is asked who"
    r"|after settings that cannot be used|what is wanted",
    re.IGNORECASE,
)
"""What plain English has other words for, as far as a search finds it."""


def test_a_module_is_short_enough_to_read() -> None:
    lengths = {tree.shown(path): len(tree.lines_of(path)) for path in tree.python_files()}
    assert not {path: length for path, length in lengths.items() if length > MAX_MODULE_LINES}


def test_a_function_is_short_enough_to_read() -> None:
    lengths = {
        f"{tree.shown(path)}:{node.line} {node.name}": node.last_line - node.line + 1
        for path in tree.python_files()
        for node in tree.definitions(path)
        if node.is_function
    }
    assert not {place: length for place, length in lengths.items() if length > MAX_FUNCTION_LINES}


def test_a_file_is_named_for_what_is_in_it() -> None:
    places = [tree.shown(path) for path in tree.python_files()]
    assert not [p for p in places if EMPTY_NAMES & set(p.lower().removesuffix(".py").split("/"))]


def test_nothing_is_left_for_later() -> None:
    assert not [
        f"{tree.shown(path)}:{number}: {line.strip()}"
        for path in tree.python_files("src")
        for number, line in enumerate(tree.lines_of(path), 1)
        if UNFINISHED.search(line)
    ]


def test_a_room_says_what_is_in_it() -> None:
    silent = []
    for path in tree.python_files("src"):
        if path.name != "__init__.py" or "versions" in path.parts:
            continue
        docstring = tree.docstring(path)
        rooms = {each.stem for each in path.parent.glob("*.py")} - {"__init__", "version"}
        silent += [
            f"{tree.shown(path)}: {room}"
            for room in sorted(rooms)
            if not re.search(rf"\b{room}\b", docstring)
        ]
        if len(docstring) <= 60:
            silent.append(tree.shown(path))
    assert not silent


def package() -> list[Path]:
    return [path for path in tree.python_files("src") if "versions" not in path.parts]


def test_a_class_name_stands_for_one_thing() -> None:
    places = defaultdict(list)
    for path in package():
        for node in tree.definitions(path):
            if not node.is_function:
                places[node.name.lstrip("_")].append(f"{tree.shown(path)}:{node.line}")
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_no_file_speaks_in_retired_phrases() -> None:
    spoken = {".py", ".md", ".toml", ".service"}
    rooms = (tree.ROOT / "README.md", tree.ROOT / "src", tree.ROOT / "docs")
    assert not [
        f"{tree.shown(path)}:{number}: {found[0]}"
        for path in tree.committed_files()
        if path.suffix in spoken and any(path.is_relative_to(room) for room in rooms)
        for number, line in enumerate(tree.lines_of(path), 1)
        if (found := PHRASES.search(line))
    ]
