"""What the service refuses of a fleet file is told of the file, and of whose entry it is."""

from pathlib import Path

import pytest

from forewarn.cli import fleet
from forewarn.cli.exits import ExitStatus, Failed

TOML = """
[[availability_set]]
name = "web"
machines = [{ name = "web-0" }, { name = "web-1", host = "h1" }]
[[scale_set]]
name = "batch"
machines = [{ index = 7 }]
[[machine]]
address = "10.0.0.1"
"""


def told(folder: Path, message: str, text: str = TOML, **facts: str) -> str:
    """What is said of a file that the service refuses with this message."""
    path = folder / "fleet"
    path.write_text(text)
    failed = fleet.read_file(str(path)).blamed(Failed(ExitStatus.USAGE, message, facts))
    assert (failed.status, failed.facts) == (ExitStatus.USAGE, facts)
    return failed.message.replace(str(path), "FILE")


@pytest.mark.parametrize("text", [TOML, '{"machine": [{"name": "a"}]}'])
def test_a_byte_order_mark_is_no_part_of_a_fleet_file(tmp_path: Path, text: str) -> None:
    for name, encoding in (("plain", "utf-8"), ("marked", "utf-8-sig")):
        (tmp_path / name).write_text(text, encoding=encoding)
    plain, marked = (fleet.read_file(str(tmp_path / name)) for name in ("plain", "marked"))
    assert marked.body == plain.body


@pytest.mark.parametrize(
    ("where", "place", "shown"),
    [
        ("availability_set[0]", "availability_set[0]", "availability_set[0] 'web'"),
        (
            "availability_set[0].machines[1]",
            "availability_set[0].machines[1]",
            "availability_set[0].machines[1] 'web-1'",
        ),
        (
            "availability_set[0].machines[1]",
            "availability_set[0].machines[1].host",
            "availability_set[0].machines[1].host of 'web-1'",
        ),
        (
            "availability_set[0].machines[1].name",
            "availability_set[0].machines[1].name",
            "availability_set[0].machines[1].name",
        ),
        (
            "scale_set[0].machines[0]",
            "scale_set[0].machines[0].host",
            "scale_set[0].machines[0].host of 'batch'",
        ),
        ("machine[0]", "machine[0]", "machine[0]"),
        ("machine[9]", "machine[9]", "machine[9]"),
    ],
)
def test_a_place_has_the_files_name_and_its_entrys(
    where: str, place: str, shown: str, tmp_path: Path
) -> None:
    assert (
        told(tmp_path, f"at {place}: it is: wrong", where=where) == f"FILE: {shown}: it is: wrong"
    )


def test_what_concerns_the_whole_body_is_said_of_the_file(tmp_path: Path) -> None:
    said = "there is no key 'x' here; known are machine"
    assert told(tmp_path, f"the body: {said}", where="", key="x") == f"FILE: {said}"
    assert told(tmp_path, "the body is over 9 bytes, the most") == "FILE is over 9 bytes, the most"


def test_what_is_no_place_of_the_file_is_said_as_it_is(tmp_path: Path) -> None:
    for message, facts in (
        ("web-0 has the live event X: wait", {"machine": "web-0"}),
        ("at by: 'x' holds characters that cannot be printed", {"where": "by"}),
    ):
        assert told(tmp_path, message, **facts) == message


def test_a_toml_file_is_told_in_its_own_words(tmp_path: Path) -> None:
    message = "at availability_set[0].machines: expected `array`, got `object`"
    facts = {"where": "availability_set[0].machines"}
    toml = '[[availability_set]]\nname = "web"\n[availability_set.machines]\nname = "a"\n'
    place = "FILE: availability_set[0].machines 'a': expected `array`, got"
    assert told(tmp_path, message, toml, **facts) == f"{place} `table`"
    json = '{"availability_set": [{"name": "web", "machines": {"name": "a"}}]}'
    assert told(tmp_path, message, json, **facts) == f"{place} `object`"
