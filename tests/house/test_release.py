"""The workflow of a release, as far as it can be judged without GitHub; what it brings, and makes.

Packages and bytes of the locked versions are as docs/internals/decisions/0001 has them. Whoever
raises a number says there what the growth buys.
"""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import build_deb
import pytest
import reference
import write_manual
import write_schemas
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import forewarn
from forewarn.agent.settings import AgentSettings
from forewarn.maintenance import fleet_file
from forewarn.relay.settings import HostRelaySettings
from forewarn.server.settings import Settings
from forewarn.version import __version__
from house import tree

FILE = tree.ROOT / ".github" / "workflows" / "release.yml"
WORKFLOW: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
STEPS = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]
RUNS = {step["name"]: step["run"] for step in STEPS if "run" in step}


def test_a_step_is_a_script_of_the_shell() -> None:
    for name, script in RUNS.items():
        checked = subprocess.run(["sh", "-n"], input=script, text=True, check=False)
        assert checked.returncode == 0, name


def test_what_others_wrote_is_pinned_by_its_commit() -> None:
    used = [step["uses"] for step in STEPS if "uses" in step]
    assert used
    assert not [name for name in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", name)]


def test_a_tag_that_is_not_the_version_is_refused() -> None:
    for tag, status in ((f"v{__version__}", 0), ("v999", 1)):
        given = {"GITHUB_REF_NAME": tag, "PATH": "/usr/bin:/bin"}
        argv = ["sh", "-ec", RUNS["The tag is the version"]]
        assert subprocess.run(argv, cwd=tree.ROOT, env=given, check=False).returncode == status


def test_each_thing_that_is_built_is_in_a_release() -> None:
    lines = {line for text in RUNS.values() for line in text.splitlines()}
    assert lines >= {"make deb", ".venv/bin/python -m hatchling build -d dist"}
    assert any("cyclonedx-py" in line for line in lines)


def test_the_source_distribution_has_every_file(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(argv, cwd=tree.ROOT, capture_output=True, check=True)
    (made,) = tmp_path.iterdir()
    with tarfile.open(made) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert names >= {str(path.relative_to(tree.ROOT)) for path in tree.committed_files()}


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="dpkg is needed")
def test_a_package_of_a_release_replaces_those_of_its_candidates() -> None:
    told = ("1.0.dev1", "1.0a1.dev2", "1.0a1", "1.0b2", "1.0rc1", "1.0", "1.0.post1", "1.0.1")
    versions = [build_deb.debian_version(one) for one in told]
    for earlier, later in itertools.pairwise(versions):
        argv = ["dpkg", "--compare-versions", earlier, "lt", later]
        assert subprocess.run(argv, check=False).returncode == 0, (earlier, later)


def packages(extra: str) -> set[str]:
    """Return the names of Forewarn and of all that it requires on this machine."""
    left, seen = [("forewarn", ""), ("forewarn", extra)], set[tuple[str, str]]()
    while left:
        name, wanted = left.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        for needed in map(Requirement, metadata.requires(name) or []):
            if needed.marker is None or needed.marker.evaluate({"extra": wanted}):
                other = canonicalize_name(needed.name)
                left += [(other, each) for each in ("", *needed.extras)]
    return {name for name, _ in seen}


def size(name: str) -> int:
    """Return the bytes of a package's files, without bytecode."""
    if name == "forewarn":
        files = (path for path in (tree.ROOT / "src" / "forewarn").rglob("*") if path.is_file())
        return sum(path.stat().st_size for path in files if path.suffix != ".pyc")
    return sum(each.size or 0 for each in metadata.files(name) or [])


@pytest.mark.parametrize(
    ("extra", "most", "megabytes"), [("", 8, 10.0), ("server", 21, 30.0), ("relay", 11, 26.0)]
)
def test_an_installation_does_not_grow_unnoticed(extra: str, most: int, megabytes: float) -> None:
    found = packages(extra)
    assert len(found) <= most, found
    sizes = {name: size(name) for name in found}
    assert sum(sizes.values()) <= megabytes * 1e6, sizes


# What is written where a package is built: editors' schemas, the manual, completions.

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
