"""What is written where a package is built: editors' schemas, the manual, completions."""

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
import reference
import write_manual
import write_schemas

import forewarn
from forewarn.agent.settings import AgentSettings
from forewarn.maintenance import fleet_file
from forewarn.relay.settings import HostRelaySettings
from forewarn.server.settings import Settings
from house import tree

PACKAGING = tree.ROOT / "packaging"


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


@pytest.mark.parametrize(
    ("page", "holder"),
    [
        ("agent-settings.md", AgentSettings),
        ("relay-settings.md", HostRelaySettings),
        ("settings.md", Settings),
    ],
)
def test_each_setting_has_its_heading_and_its_default(page: str, holder: type) -> None:
    """An action's terms have theirs once, and with a kind where its default differs."""
    told = dict(
        re.findall(r"^### `([^`]+)`\n\nDefault: `(.*?)`", reference.page(page), re.MULTILINE)
    )
    for path, default in reference.each_setting(holder):
        if path.startswith("guest.") and holder is HostRelaySettings:
            continue  # the service's
        kind = path.removeprefix("rule[].") if ".prepare" in path else path
        shared = re.sub(r"\[\]\.\w+\.", "[].(kind).", kind)
        assert told.get(kind, told.get(shared)) == reference.written(default), path


def test_every_public_name_has_its_heading() -> None:
    named = re.findall(r"^### `(\w+)", reference.page("client.md"), re.MULTILINE)
    assert sorted(named) == sorted(set(forewarn.__all__) - {"__version__"})
