"""The house's rules about the shape of files, as far as ruff has none (columns, arguments)."""

import re

from house import tree

MAX_MODULE_LINES = 800
MAX_FUNCTION_LINES = 70
EMPTY_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "core", "base", "manager"}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b")


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
