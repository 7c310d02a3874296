"""The public types are what a caller's type checker is told."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def checked(path: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores"]
    command += ["--config-file", os.devnull, "--cache-dir", str(cache), str(path)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
    )


def test_a_handler_is_checked_by_the_types_it_sees(tmp_path: Path) -> None:
    told = checked(HERE / "sample.py", tmp_path)
    assert told.returncode == 0, told.stdout + told.stderr
    wrong = tmp_path / "wrong.py"
    text = (HERE / "sample.py").read_text(encoding="utf-8")
    wrong.write_text(text.replace("assert_type(change.kind, str)", "assert_type(change.kind, int)"))
    told = checked(wrong, tmp_path)
    assert told.returncode == 1
    assert "Expression is of type" in told.stdout
