"""The tree as the house's tests look at it."""

import ast
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


@cache
def committed_files() -> tuple[Path, ...]:
    """Every file that git tracks or would track, in one order."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = (ROOT / line for line in sorted(set(listing.stdout.splitlines())))
    return tuple(path for path in paths if path.is_file())


@cache
def python_files(top: str = "") -> tuple[Path, ...]:
    """Every committed Python file below `top`, a folder of the root."""
    base = ROOT / top
    return tuple(p for p in committed_files() if p.suffix == ".py" and p.is_relative_to(base))


@cache
def lines_of(path: Path) -> list[str]:
    """The lines of a file; none of one that is not text."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return []


class Definition(NamedTuple):
    """A class or a function, also one within another."""

    name: str
    line: int
    last_line: int
    is_function: bool


def definitions(path: Path) -> tuple[Definition, ...]:
    """Every class and function of a file."""
    return _outline(path)[1]


def docstring(path: Path) -> str:
    """What a file says of itself; `""` if nothing."""
    return _outline(path)[0]


@cache
def _outline(path: Path) -> tuple[str, tuple[Definition, ...]]:
    """The docstring of a file, and its definitions: parsing all files takes seconds."""
    found: list[Definition] = []
    syntax = ast.parse(path.read_text(encoding="utf-8"))
    rest: list[ast.AST] = [syntax]
    while rest:
        node = rest.pop()
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            last = node.end_lineno or node.lineno
            kind = not isinstance(node, ast.ClassDef)
            found.append(Definition(node.name, node.lineno, last, kind))
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            within = getattr(node, block, ())
            if isinstance(within, list):  # a lambda's body is an expression
                rest.extend(within)
    return ast.get_docstring(syntax) or "", tuple(found)


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))
