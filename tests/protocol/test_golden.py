"""The exact bytes, against files that were typed by hand, and the words of docs/protocol.md."""

import re
from pathlib import Path

import pytest

from forewarn.maintenance import planner
from forewarn.protocol import codec, exchange, instance, refusals
from forewarn.protocol.instance import ADDED_IN, INSTANCE_VERSIONS
from forewarn.protocol.versions import NEWEST_VERSION, VERSIONS, Version
from forewarn.vocabulary import ScopeKind
from protocol import cases, world

REFUSED = {
    "body_too_large": (refusals.BODY_TOO_LARGE, {"limit": refusals.MAX_BODY_BYTES}),
    "head_too_large": (refusals.HEAD_TOO_LARGE, {"limit": refusals.MAX_HEAD_BYTES}),
    "malformed": (refusals.MALFORMED, {"what": "invalid method"}),
    "too_slow": (refusals.TOO_SLOW, {}),
    "internal": (refusals.INTERNAL, {}),
}
"""What no request of requests.txt can lead to."""


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
@pytest.mark.parametrize("kind", cases.DOCUMENTS, ids=lambda kind: kind.value)
def test_each_version_writes_each_kind_of_scope_exactly(version: Version, kind: ScopeKind) -> None:
    typed = cases.golden(f"{version.name}/{kind.value}.json")
    assert codec.encode_document(cases.DOCUMENTS[kind], version) == typed


def test_the_example_of_section_4_is_written_byte_for_byte() -> None:
    typed = cases.golden("section_4.json")
    assert codec.encode_document(cases.SECTION_4, NEWEST_VERSION) == typed


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_a_scope_without_events_reads_the_same_in_every_version(version: Version) -> None:
    assert codec.encode_document(cases.EMPTY, version) == cases.golden("empty.json")


def test_what_the_connection_refuses_is_written_byte_for_byte() -> None:
    for name, (refusal, facts) in REFUSED.items():
        written = world.as_golden(exchange.refuse(refusal, **facts))
        assert written == cases.golden(f"errors/{name}.http"), name


TREES = {
    "whole": (cases.WHOLE_INSTANCE, "2025-04-07"),
    "bare": (cases.BARE_INSTANCE, "2025-04-07"),
    "2017-04-02": (cases.WHOLE_INSTANCE, "2017-04-02"),
    "2019-08-15": (cases.WHOLE_INSTANCE, "2019-08-15"),
}
"""The names of the last two are those of captures, at every depth and in their order."""


@pytest.mark.parametrize("name", TREES)
def test_the_instance_tree_is_written_byte_for_byte(name: str) -> None:
    written = codec.encode_tree(instance.tree(*TREES[name]))
    assert written == cases.golden(f"instance/{name}.json")


def test_every_golden_file_is_used() -> None:
    told = Path(__file__).with_name("requests.txt").read_text(encoding="utf-8")
    used = {
        *(f"{v.name}/{kind.value}.json" for v in VERSIONS for kind in cases.DOCUMENTS),
        *(f"errors/{name}.http" for name in REFUSED),
        *(f"{name}.http" for name in re.findall(r" bytes=(\S+)", told)),
        *("empty.json", *re.findall(r" golden=(\S+)", told)),
        *(f"instance/{name}.json" for name in TREES),
    }
    there = {
        path.relative_to(cases.GOLDEN).as_posix()
        for path in cases.GOLDEN.rglob("*")
        if path.is_file() and path.suffix in {".json", ".http"}
    }
    assert there == used


def test_nothing_in_the_tree_can_write_a_golden_file() -> None:
    root = Path(__file__).parents[2]
    files = [path for top in ("src", "tests") for path in (root / top).rglob("*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in files if path != Path(__file__)}
    assert cases.GOLDEN.parent / "cases.py" in texts
    writing = ("write_bytes", "write_text", "open(", "shutil", "os.")
    for path, text in texts.items():
        if path.parent == cases.GOLDEN.parent:
            assert not [word for word in writing if word in text], path
        knows = re.search(r"protocol/golden|cases\.GOLDEN", text)
        assert not knows, f"{path} speaks of the golden files: does it write them?"


# The page docs/protocol.md says what the code says.


PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")


def test_the_sections_are_numbered_as_the_specification_is() -> None:
    assert re.findall(r"^## (\d+)\. ", PAGE, re.MULTILINE) == [str(n) for n in range(1, 12)]


def test_each_refusal_is_on_the_page_with_its_status_and_standing() -> None:
    for refusal in refusals.REFUSALS.values():
        row = next(line for line in PAGE.splitlines() if f"`{refusal.text}`" in line)
        assert f"| {refusal.status} |" in row
        assert row.endswith(f"| [{refusal.standing}] |")
    for version in VERSIONS:
        assert re.search(rf"^\| {version.name}\b", PAGE, re.MULTILINE)


def test_the_instance_versions_are_listed_in_order() -> None:
    assert ", ".join(INSTANCE_VERSIONS) + "." in " ".join(PAGE.split())


def test_what_an_instance_version_added_has_its_row() -> None:
    for version in set(ADDED_IN.values()):
        (row,) = re.findall(rf"^\| {version} \[[DO]\] \|(.*?)\|", PAGE, re.MULTILINE)
        told = re.sub(r" \([^)]*\)|, which.*", "", row)
        added = {".".join(path[1:]) for path, since in ADDED_IN.items() if since == version}
        assert set(told.strip().split(", ")) == added, version


def test_each_description_is_on_the_page() -> None:
    for (event_type, source), text in planner.DESCRIPTIONS.items():
        if text:
            assert f"| {event_type.value} | {source.value} | `{text}` |" in PAGE
    assert f"`{planner.LIVE_MIGRATION}`" in PAGE


def test_the_example_is_the_golden_one() -> None:
    golden = Path(__file__).parent / "golden" / "section_4.json"
    assert golden.read_text(encoding="utf-8").strip() in PAGE
