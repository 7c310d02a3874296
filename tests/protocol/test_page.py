"""The page docs/protocol.md says what the code says."""

import re
from pathlib import Path

from forewarn.maintenance import planner
from forewarn.protocol import refusals
from forewarn.protocol.instance import ADDED_IN, INSTANCE_VERSIONS
from forewarn.protocol.versions import VERSIONS

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
