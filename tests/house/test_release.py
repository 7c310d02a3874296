"""The workflow of a release, as far as it can be judged without GitHub; what it brings.

Packages and bytes of the locked versions are as docs/internals/decisions/0001 has them. Whoever
raises a number says there what the growth buys.
"""

import re
import subprocess
from importlib import metadata
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from forewarn.version import __version__
from house import tree

FILE = tree.ROOT / ".github" / "workflows" / "release.yml"
WORKFLOW: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
STEPS = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]
RUNS = {step["name"]: step["run"] for step in STEPS if "run" in step}


@pytest.mark.parametrize("name", RUNS)
def test_a_step_is_a_script_of_the_shell(name: str) -> None:
    checked = subprocess.run(["sh", "-n"], input=RUNS[name], text=True, check=False)
    assert checked.returncode == 0


def test_what_others_wrote_is_pinned_by_its_commit() -> None:
    used = [step["uses"] for step in STEPS if "uses" in step]
    assert used
    assert not [name for name in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", name)]


@pytest.mark.parametrize(("tag", "status"), [(f"v{__version__}", 0), ("v999", 1)])
def test_a_tag_that_is_not_the_version_is_refused(tag: str, status: int) -> None:
    given = {"GITHUB_REF_NAME": tag, "PATH": "/usr/bin:/bin"}
    argv = ["sh", "-ec", RUNS["The tag is the version"]]
    assert subprocess.run(argv, cwd=tree.ROOT, env=given, check=False).returncode == status


def test_each_thing_that_is_built_is_in_a_release() -> None:
    lines = {line for text in RUNS.values() for line in text.splitlines()}
    assert lines >= {"make deb", ".venv/bin/python -m hatchling build -d dist"}
    assert any("cyclonedx-py" in line for line in lines)


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
