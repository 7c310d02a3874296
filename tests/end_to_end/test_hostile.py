"""One hostile guest from processes of its own, as `make bench` has it, in short."""

import json
import subprocess
import sys

import pytest

from house import tree

WAYS = {"none", "silent", "drip", "flood", "heads", "pipeline", "sip", "six together"}
CROWDS = {"20 strangers: headers", "20 strangers: chunks", "20 strangers: idle"}


@pytest.mark.soak
def test_other_guests_are_all_answered_whatever_one_of_them_does() -> None:
    benchmarks = tree.ROOT / "benchmarks"
    ran = subprocess.run(
        [sys.executable, str(benchmarks), "hostile", "--quick"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads((benchmarks / "results" / "hostile.json").read_text(encoding="utf-8"))
    assert {row["the hostile one"] for row in found["hostile"]} >= WAYS | CROWDS
    assert {row["refused"] for row in found["hostile"]} == {0}
    assert all(row["peak MiB"] - row["before MiB"] < 64 for row in found["hostile"])
    assert set(found["store away"]["GETs"]) == {"200"}
    assert found["outages"]["notices moved"] == 0
    assert found["store away"]["approvals, away and back"] == "503 200"
