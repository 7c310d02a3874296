"""The guide to certifying: its workflow for GitHub is read, and its lines are run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from end_to_end import installed
from forewarn.testing import certify, handler_process
from house.tree import ROOT
from recipes import pages

WORKFLOW = yaml.safe_load(pages.block("certify", "yaml"))
STEPS = WORKFLOW["jobs"]["certify"]["steps"]
LINES = [step["run"] for step in STEPS if "run" in step]
TOLD = '#!/bin/sh\necho "$(basename "$0") $*" >>"$TOLD"\n'
"""A program that changes nothing, and says how it was called."""


def test_the_workflow_has_what_github_needs() -> None:
    assert {str(key) for key in WORKFLOW} == {"name", "True", "jobs"}  # YAML 1.1 reads on as True
    assert WORKFLOW[True] == ["push"]
    assert WORKFLOW["jobs"]["certify"]["runs-on"]
    assert all(len({"uses", "run"} & step.keys()) == 1 for step in STEPS)
    assert all("@" in step["uses"] for step in STEPS if "uses" in step)
    assert len(LINES) == 3


@pytest.mark.soak
@pytest.mark.skipif(
    sys.platform != "linux" or not (shutil.which("curl") and shutil.which("jq")),
    reason="needs Linux, curl and jq",
)
def test_the_lines_of_the_workflow_run_in_a_new_environment(tmp_path: Path) -> None:
    try:
        handler_process.isolation()
    except handler_process.CannotIsolate as error:
        pytest.skip(str(error))
    wheel = installed.built(tmp_path / "dist")
    machine = installed.Machine(tmp_path / "root", wheel, sys.executable)
    place, programs = tmp_path / "checkout", tmp_path / "programs"
    for folder in (place, programs):
        folder.mkdir()
    shutil.copy(ROOT / "docs" / "examples" / "handle.sh", place)
    for name in ("pip", "sudo"):
        (programs / name).write_text(TOLD)
        (programs / name).chmod(0o755)
    path = f"{programs}:{machine.environment}/bin:{os.environ['PATH']}"
    for line in LINES:
        ran = subprocess.run(
            ["bash", "-e", "-c", line],
            cwd=place,
            env=os.environ | {"PATH": path, "TOLD": str(tmp_path / "told")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, (line, ran.stdout, ran.stderr)
    changed = (tmp_path / "told").read_text().splitlines()
    assert changed == [
        "pip install forewarn[testing] @ git+https://github.com/forewarn/forewarn",
        LINES[1],
    ]
    suite = ET.parse(place / "certify.xml").getroot()
    assert suite.get("tests") == str(len(certify.SCENARIOS))
    assert suite.get("failures") == "0"
