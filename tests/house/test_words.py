"""What no committed file may hold, and what every test must."""

import ast
import re
from pathlib import Path

import pytest

from house import tree

INDEX_ADDRESS = re.compile(
    r"--(?:extra-)?index-url|--find-links [^-]|https?://\S*/simple\b|https?://registry\."
)
MACHINE_PATH = re.compile(
    r"(?<![\w.])/(?:work|root|home/\w+|Users/\w+)/(?!\.)\w+"  # a checkout's own place
)
REAL_TIME = re.compile(r"\btime\.sleep\(|asyncio\.sleep\((?!0\))")
FAKE = re.compile(r"mock\.patch|monkeypatch\.setattr|\bunittest\.mock\b")
JUDGES = re.compile(r"\bassert\b|raises|\bcheck|\bverify|\bconform|\bexpect|fail\(")
THIS_FILE = Path(__file__)


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


@pytest.mark.parametrize("pattern", [INDEX_ADDRESS, MACHINE_PATH], ids=["index", "machine"])
def test_no_file_names_a_package_index_or_a_path_of_one_machine(pattern: re.Pattern[str]) -> None:
    found = [
        f"{tree.shown(path)}:{number}: {line.strip()[:80]}"
        for path in tree.committed_files()
        if path != THIS_FILE
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, found


@pytest.mark.parametrize("path", tree.python_files("tests"), ids=tree.shown)
def test_tests_neither_sleep_nor_patch(path: Path) -> None:
    if path == THIS_FILE:
        return
    text = text_of(path)
    assert not FAKE.search(text)
    if "end_to_end" not in path.parts:
        assert not REAL_TIME.search(text)


@pytest.mark.parametrize("path", tree.python_files("tests"), ids=tree.shown)
def test_a_test_can_fail(path: Path) -> None:
    source = text_of(path)
    silent = [
        f"{node.name}:{node.lineno}"
        for node in ast.walk(tree.syntax_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not JUDGES.search(ast.get_source_segment(source, node) or "")
    ]
    assert not silent, silent


@pytest.mark.parametrize("path", tree.python_files("src"), ids=tree.shown)
def test_a_lint_exception_has_its_reason_on_the_line(path: Path) -> None:
    bare = [
        f"{number}: {line.strip()}"
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if re.search(r"#\s*(?:noqa|type: ignore)", line)
        and not re.search(r"(?:noqa|type: ignore)[^#]*?\s-\s\w+", line)
        and not re.search(r"(?:noqa|type: ignore)[^#]*#\s*\w+", line)
    ]
    assert not bare, bare
