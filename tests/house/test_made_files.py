"""What is written where a package is built: editors' schemas, the manual, completions."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
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

INSTALLED_AT = "file:///usr/share/forewarn/schemas/"
PAGE = (tree.ROOT / "docs" / "reference" / "fleet-file.md").read_text(encoding="utf-8")


def properties(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key of a schema with its own schema, at whatever depth."""
    nodes = schema.values() if isinstance(schema, dict) else schema
    if isinstance(schema, dict) and isinstance(schema.get("properties"), dict):
        yield from schema["properties"].items()
    for node in nodes:
        if isinstance(node, dict | list):
            yield from properties(node)


def test_the_fleet_files_page_has_every_key_and_no_other() -> None:
    schema = json.loads(write_schemas.written()["fleet.json"])
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
        assert url.startswith(INSTALLED_AT)
        assert url.removeprefix(INSTALLED_AT) in write_schemas.FILES


@pytest.mark.skipif(
    not (shutil.which("man") and shutil.which("go-md2man")),
    reason="go-md2man makes the manual, and man-db formats it",
)
def test_man_shows_each_page_without_a_warning(tmp_path: Path) -> None:
    write_manual.write(tmp_path)
    assert len(list((tmp_path / "completion").iterdir())) == len(write_manual.SHELLS)
    for name in write_manual.PAGES:
        shown = subprocess.run(
            ["man", "--warnings", "--local-file", str(tmp_path / "man" / name)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "MANWIDTH": "80", "LC_ALL": "C.UTF-8"},
        )
        assert shown.stderr == ""
        assert "DESCRIPTION" in shown.stdout
