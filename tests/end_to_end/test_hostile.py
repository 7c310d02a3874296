"""Hostile guests and strangers from processes of their own, as `make bench` has them, in short."""

import json
import subprocess
import sys

import pytest

from house import tree

WHO = {"nobody", "1 machine", "20 strangers", "2 behind a proxy"}


@pytest.mark.soak
def test_other_guests_are_all_answered_whatever_some_of_them_do() -> None:
    benchmarks = tree.ROOT / "benchmarks"
    ran = subprocess.run(
        [sys.executable, str(benchmarks), "hostile", "--quick"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads((benchmarks / "results" / "hostile.json").read_text(encoding="utf-8"))
    assert {row["who"] for row in found["hostile"]} == WHO
    assert {row["refused"] for row in found["hostile"]} == {0}
    assert {row["notices moved"] for row in found["hostile"]} == {0}
    assert found["approvals lost"] == 0
    assert set(found["store away"]["GETs"]) == {"200"}
    assert found["store away"]["approvals, away and back"] == "503 200"
