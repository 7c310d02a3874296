"""The schemas that editors read are those of the types, and know every key and what it is for."""

import importlib.util
import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from forewarn.maintenance import fleet
from house import tree

PACKAGING = tree.ROOT / "packaging"
SPEC = importlib.util.spec_from_file_location("write_schemas", PACKAGING / "write_schemas.py")
assert SPEC is not None
assert SPEC.loader is not None
write_schemas = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(write_schemas)

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
    assert tables == set(fleet.Fleet.__struct_fields__)
    assert set(re.findall(r"^### `(\w+)`$", PAGE, re.MULTILINE)) | tables == set(keys)
    assert [name for name, found in properties(schema) if "description" not in found] == []


def test_the_fleet_files_page_shows_a_fleet_that_can_be_applied() -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    shown = msgspec.convert(tomllib.loads(example), fleet.Fleet)
    machines = [member.name for group in fleet.flatten(shown) for member in group.members]
    assert machines == ["web-0", "web-1", "batch_0", "batch_1", "FrontEnd_IN_0", "bastion"]


def test_sample_files_name_a_schema_that_is_there() -> None:
    samples = [*PACKAGING.glob("*.toml"), tree.ROOT / "docs" / "reference" / "fleet-file.md"]
    assert len(samples) == 4
    for sample in samples:
        (url,) = re.findall(r"^#:schema (\S+)$", sample.read_text(encoding="utf-8"), re.MULTILINE)
        assert url.startswith(write_schemas.URL)
        assert url.removeprefix(write_schemas.URL) in write_schemas.FILES
