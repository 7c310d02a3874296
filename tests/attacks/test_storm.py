"""A storm whose judge is to see that a limit limits nothing."""

import os
import subprocess
import sys

import pytest

from house import tree


@pytest.mark.soak
def test_a_limit_that_limits_nothing_is_seen() -> None:
    path = os.pathsep.join(str(tree.ROOT / folder) for folder in ("tests", "benchmarks"))
    command = [sys.executable, "-m", "attacks", "--seed=1", "--seconds=6", "--break=connections"]
    ran = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "the attack drip met none of" in ran.stdout, ran.stdout + ran.stderr
