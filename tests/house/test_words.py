"""What no committed file may hold, and what every test must."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from house import tree

INDEX_ADDRESS = re.compile(
    r"--(?:extra-)?index-url|--find-links [^-]|https?://\S*/simple\b|https?://registry\."
)
MACHINE_PATH = re.compile(
    r"(?<![\w.])/(?:work|root|home/\w+|Users/\w+)/(?!\.)\w+"  # a checkout's own place
)
REAL_TIME = re.compile(r"\btime\.sleep\(|asyncio\.sleep\((?!0\))")
CHANCE = re.compile(
    r"(?<![.\w])(?:random|secrets)\.[a-z]\w*\(|\bRandom\(\)|SystemRandom|\buuid4\(|\burandom\("
)
FAKE = re.compile(r"mock\.patch|monkeypatch\.setattr|\bunittest\.mock\b")
LIMIT = re.compile(
    r"\.(?:wait|join|result|settimeout|acquire|communicate)\((?:timeout=)?(?P<a>[\d_.]+)\)"
    r"|wait_for\(.*, (?P<b>[\d_.]+)\)"
    r"|\b(?:timeout|(?:until|reached)\(.*seconds)=(?P<c>[\d_.]++)(?! \*)"
    r"|^\w*(?:PATIENCE|TIMEOUT|WAIT_SECONDS)\w*(?:: \S+)? = (?P<d>[\d_.]+)"
)
"""How a test would bound a wait by a number of its own."""

UNWAITED = re.compile(
    r"\.(?:count|all|all_text_contents|all_inner_texts|title|content)\(\)"
    r"|\.is_(?:visible|hidden|enabled|disabled|checked|editable)\(\)"
    r"|\.(?:evaluate_all|query_selector\w*|eval_on_\w+|element_handles?)\("
    r"|document\.(?:querySelector|getElementById)\("
    r"|get_by_role\(\"(?:link|button)\".*\.click\(\)$"
)
"""How a test would look at a page that is not there yet: playwright does not wait for these.

`expect` and `Locator.evaluate` wait, and so does `follow` of tests/page/site.py after its click; a
link or a button that leads to no other page has a comment that says so.
"""

LABS = {
    "attacks",
    "field_clients",
    "fuzz",
    "hosts",
    "kills",
    "machines",
    "mutation",
    "relays",
    "replicas",
}
THIS_FILE = Path(__file__)


def lines_with(pattern: re.Pattern[str], paths: Iterable[Path]) -> Iterator[tuple[Path, str, str]]:
    """Yield the lines of files in which something is found: the file, its place, the line."""
    for path in paths:
        if path != THIS_FILE:
            for number, line in enumerate(tree.lines_of(path), 1):
                if pattern.search(line):
                    yield path, f"{tree.shown(path)}:{number}: {line.strip()[:80]}", line


def test_no_file_names_a_package_index_or_a_path_of_one_machine() -> None:
    for pattern in (INDEX_ADDRESS, MACHINE_PATH):
        assert not [place for _, place, _ in lines_with(pattern, tree.committed_files())]


def test_tests_neither_sleep_nor_patch() -> None:
    """Only `tests/patience.py` pauses, for all of them."""
    tests = [path for path in tree.python_files("tests") if path.name != "patience.py"]
    assert not [place for _, place, _ in lines_with(FAKE, tests)]
    assert not [
        place for path, place, _ in lines_with(REAL_TIME, tests) if "end_to_end" not in path.parts
    ]


def test_no_number_of_seconds_bounds_a_wait() -> None:
    """All waits have the patience of tests/patience.py; labs live in real time."""
    tests = [
        path
        for path in tree.python_files("tests")
        if path.name != "patience.py" and not LABS & {*path.relative_to(tree.ROOT).parts}
    ]
    assert not [
        place
        for _, place, line in lines_with(LIMIT, tests)
        for found in LIMIT.finditer(line)
        if float(next(filter(None, found.groups()))) and line[: found.start()].count('"') % 2 == 0
    ]


def test_no_page_is_read_before_it_is_there() -> None:
    browsers = [
        path
        for path in tree.python_files("tests")
        if any("playwright" in line for line in tree.lines_of(path))
    ]
    assert not [place for _, place, _ in lines_with(UNWAITED, browsers)]


def test_what_tests_leave_to_chance_has_a_seed() -> None:
    """The one of tests/seeds.py, which CI sets, or a fixed one: what is refused can be repeated."""
    tests = [path for path in tree.python_files("tests") if path.name != "seeds.py"]
    assert not [place for _, place, _ in lines_with(CHANCE, tests)]


def test_a_lint_exception_has_its_reason_on_the_line() -> None:
    exception = re.compile(r"#\s*(?:noqa|type: ignore)")
    reason = re.compile(r"(?:noqa|type: ignore)[^#]*?(?:\s-\s|#\s*)\w+")
    src = tree.python_files("src")
    assert not [place for _, place, line in lines_with(exception, src) if not reason.search(line)]
