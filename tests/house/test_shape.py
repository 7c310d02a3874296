"""The house's rules about the shape of files, held from the first commit."""

import ast
import re
from pathlib import Path

import pytest

from house import tree

MAX_MODULE_LINES = 800
MAX_FUNCTION_LINES = 70
MAX_POSITIONAL = 5
MAX_COLUMNS = 100
EMPTY_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "core", "base", "manager"}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: Path) -> list[Function]:
    return [node for node in ast.walk(tree.syntax_of(path)) if isinstance(node, Function)]


@pytest.mark.parametrize("path", tree.python_files(), ids=tree.shown)
def test_a_module_and_its_functions_are_short_enough_to_read(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MAX_MODULE_LINES, f"{len(lines)} lines"
    too_wide = [number for number, line in enumerate(lines, 1) if len(line) > MAX_COLUMNS]
    assert not too_wide, f"over {MAX_COLUMNS} columns: {too_wide}"
    if "migrations" in path.parts:
        return
    too_long = {
        f"{node.name}:{node.lineno}": (node.end_lineno or 0) - node.lineno + 1
        for node in functions(path)
        if (node.end_lineno or 0) - node.lineno + 1 > MAX_FUNCTION_LINES
    }
    assert not too_long, too_long


@pytest.mark.parametrize("path", tree.python_files("src"), ids=tree.shown)
def test_a_function_takes_five_positional_arguments_at_most(path: Path) -> None:
    too_many = {
        f"{node.name}:{node.lineno}": len(positional)
        for node in functions(path)
        if len(
            positional := [
                argument.arg
                for argument in node.args.posonlyargs + node.args.args
                if argument.arg not in {"self", "cls"}
            ]
        )
        > MAX_POSITIONAL
        and not is_command(node)
    }
    assert not too_many, too_many


def is_command(node: Function) -> bool:
    """A Typer command's parameters are the command line's, each by its own name."""
    return any("command" in ast.dump(decorator) for decorator in node.decorator_list)


@pytest.mark.parametrize("path", tree.python_files(), ids=tree.shown)
def test_a_file_is_named_for_what_is_in_it(path: Path) -> None:
    names = {part.lower() for part in path.relative_to(tree.ROOT).with_suffix("").parts}
    assert not names & EMPTY_NAMES


@pytest.mark.parametrize("path", tree.python_files("src"), ids=tree.shown)
def test_nothing_is_left_for_later(path: Path) -> None:
    found = [
        f"{number}: {line.strip()}"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert not found, found


@pytest.mark.parametrize(
    "path",
    [p for p in tree.python_files("src") if p.name == "__init__.py" and "versions" not in p.parts],
    ids=tree.shown,
)
def test_a_room_says_what_is_in_it(path: Path) -> None:
    docstring = ast.get_docstring(tree.syntax_of(path)) or ""
    rooms = [p.stem for p in path.parent.glob("*.py") if p.stem not in {"__init__", "version"}]
    missing = [room for room in rooms if not re.search(rf"\b{room}\b", docstring)]
    assert len(docstring) > 60
    assert not missing, f"the docstring of {tree.shown(path)} does not speak of {missing}"


def test_every_module_says_its_one_purpose() -> None:
    silent = [
        tree.shown(path)
        for path in tree.python_files("src")
        if not ast.get_docstring(tree.syntax_of(path))
    ]
    assert not silent
