"""Files made of other files are made of those: editors' schemas, the manual, completions."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from forewarn.maintenance import fleet_file
from house import tree

PACKAGING = tree.ROOT / "packaging"


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, PACKAGING / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


write_schemas = script("write_schemas")
write_manual = script("write_manual")

PAGE = (tree.ROOT / "docs" / "reference" / "fleet-file.md").read_text(encoding="utf-8")


def properties(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key of a schema with its own schema, at whatever depth."""
    nodes = schema.values() if isinstance(schema, dict) else schema
    if isinstance(schema, dict) and isinstance(schema.get("properties"), dict):
        yield from schema["properties"].items()
    for node in nodes:
        if isinstance(node, dict | list):
            yield from properties(node)


@pytest.mark.parametrize("name", sorted(write_schemas.FILES))
def test_a_schema_is_that_of_the_types(name: str) -> None:
    committed = (PACKAGING / "schemas" / name).read_text(encoding="utf-8")
    assert committed == write_schemas.written()[name], "run 'make schemas'"


def test_the_fleet_files_page_has_every_key_and_no_other() -> None:
    schema = json.loads((PACKAGING / "schemas" / "fleet.json").read_text(encoding="utf-8"))
    keys = dict(properties(schema))
    tables = set(re.findall(r"^### `\[\[(\w+)\]\]`$", PAGE, re.MULTILINE))
    assert tables == set(fleet_file.Fleet.__struct_fields__)
    assert set(re.findall(r"^### `(\w+)`$", PAGE, re.MULTILINE)) | tables == set(keys)
    assert [name for name, found in properties(schema) if "description" not in found] == []


def test_the_fleet_files_page_shows_a_fleet_that_can_be_applied() -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    shown = msgspec.convert(tomllib.loads(example), fleet_file.Fleet)
    machines = [member.name for group in fleet_file.flatten(shown) for member in group.members]
    assert machines == ["web-0", "web-1", "batch_0", "batch_1", "FrontEnd_IN_0", "bastion"]


def test_sample_files_name_a_schema_that_is_there() -> None:
    samples = [*PACKAGING.glob("*.toml"), tree.ROOT / "docs" / "reference" / "fleet-file.md"]
    assert len(samples) == 4
    for sample in samples:
        (url,) = re.findall(r"^#:schema (\S+)$", sample.read_text(encoding="utf-8"), re.MULTILINE)
        assert url.startswith(write_schemas.URL)
        assert url.removeprefix(write_schemas.URL) in write_schemas.FILES


@pytest.mark.skipif(shutil.which("go-md2man") is None, reason="the manual needs go-md2man")
def test_the_manual_is_that_of_the_reference() -> None:
    written = write_manual.written()
    there = [*write_manual.MAN.iterdir(), *write_manual.COMPLETION.iterdir()]
    assert sorted(written) == sorted(there)
    wrong = [path.name for path in there if path.read_text(encoding="utf-8") != written[path]]
    assert wrong == [], "run 'make manual'"


@pytest.mark.skipif(shutil.which("man") is None, reason="man-db formats the manual")
@pytest.mark.parametrize("name", sorted(write_manual.PAGES))
def test_man_shows_each_page_without_a_warning(name: str) -> None:
    shown = subprocess.run(
        ["man", "--warnings", "--local-file", str(write_manual.MAN / name)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "MANWIDTH": "80", "LC_ALL": "C.UTF-8"},
    )
    assert shown.stderr == ""
    assert "DESCRIPTION" in shown.stdout
