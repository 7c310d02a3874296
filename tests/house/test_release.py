"""The workflow of a release, which GitHub has not run: as far as it can be judged without it."""

import re
import subprocess
from typing import Any

import pytest
import yaml

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
