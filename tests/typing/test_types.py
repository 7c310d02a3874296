"""The public types are what a caller's type checker is told."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def test_a_handler_is_checked_by_the_types_it_sees(tmp_path: Path) -> None:
    """The sample has mistakes, too: an ignore that mypy does not need is an error."""
    command = [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores"]
    command += ["--config-file", os.devnull, "--cache-dir", str(tmp_path), str(HERE / "sample.py")]
    told = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
    )
    assert told.returncode == 0, told.stdout + told.stderr
