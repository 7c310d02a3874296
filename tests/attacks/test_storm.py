"""A storm whose judge is to see that neighbours are hindered."""

import os
import subprocess
import sys

import pytest

from house import tree


@pytest.mark.soak
def test_neighbours_who_are_refused_are_seen() -> None:
    path = os.pathsep.join(str(tree.ROOT / folder) for folder in ("tests", "benchmarks"))
    command = [sys.executable, "-m", "attacks", "--seed=1", "--seconds=4", "--break=rate"]
    ran = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "other0 was answered 429" in ran.stdout, ran.stdout + ran.stderr
