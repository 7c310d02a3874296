"""The tree as the house's tests look at it."""

import ast
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "forewarn"


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


@cache
def syntax_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))
