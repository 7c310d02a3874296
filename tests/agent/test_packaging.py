"""What packages ship for the agent."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from forewarn.agent import steps
from forewarn.agent.machine import GRACE_SECONDS
from house import tree

UNIT = tree.ROOT / "packaging" / "forewarn-agent.service"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_agents_unit_is_taken_by_systemd(tmp_path: Path) -> None:
    unit = re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text(encoding="utf-8"))
    (tmp_path / UNIT.name).write_text(unit, encoding="utf-8")
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / UNIT.name)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert [line for line in checked.stderr.splitlines() if "forewarn" in line] == []


def test_stopping_waits_longer_than_any_action_of_the_defaults_takes() -> None:
    (seconds,) = re.findall(r"(?m)^TimeoutStopSec=(\d+)$", UNIT.read_text(encoding="utf-8"))
    longest = max(
        terms(**required).time_limit_seconds
        for terms, required in (
            (steps.Command, {"run": ("x",)}),
            (steps.Service, {}),
            (steps.Signal, {}),
            (steps.Ready, {}),
            (steps.Haproxy, {"socket": "x", "server": "x"}),
            (steps.Http, {"url": "x"}),
            (steps.Notify, {"urls_file": "x"}),
            (steps.Log, {}),
        )
    )
    assert int(seconds) > longest + GRACE_SECONDS
