"""Replicas of two releases share a database while an upgrade goes on."""

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

import forewarn
import postgres
from kills.cluster import Cluster
from kills.processes import TESTS
from replicas import stage

OTHER: Final = os.environ.get("REPLICA_OTHER", "")
"""The `src` folder of another release, to run beside this one; by default, a copy of this one."""

LATER: Final = "99.0"
EDITS: Final = (
    ("version.py", "0.1.0", LATER),
    # Rows that this release does not know the format of, and could not read.
    ("control/outbox.py", "JSON: Final = 1", "JSON: Final = 2"),
    (
        "control/outbox.py",
        "_encode = msgspec.json.Encoder().encode",
        '_encode = lambda saved: b"2" + msgspec.json.encode(saved)',
    ),
    (
        "control/outbox.py",
        "decode: Final = msgspec.json.Decoder(list[Changes]).decode",
        "decode = lambda body: msgspec.json.decode(body[1:], type=list[Changes])",
    ),
)
"""What makes a later release of the package: in which file, what, and what in its place."""

pytestmark = [pytest.mark.usefixtures("postgresql"), pytest.mark.timeout(180)]


def later_release(folder: Path) -> Path:
    """Make a copy of the package whose outbox has another format; return where it is."""
    package = folder / "forewarn"
    shutil.copytree(Path(forewarn.__file__).parent, package)
    for name, text, instead in EDITS:
        file = package / name
        assert text in file.read_text(encoding="utf-8"), f"{name} has no {text!r} any more"
        file.write_text(file.read_text(encoding="utf-8").replace(text, instead), encoding="utf-8")
    return folder


def test_two_releases_serve_guests_and_operators_side_by_side(
    tmp_path: Path, database: postgres.Postgres
) -> None:
    url = database.create_database("two_releases")
    other = Path(OTHER) if OTHER else later_release(tmp_path / "later")
    variables = {"r2": {"PYTHONPATH": f"{other}{os.pathsep}{TESTS}"}}
    with Cluster(
        tmp_path / "replicas", url, 1, stage.TWO, variables=variables, held=True
    ) as cluster:
        ours, theirs = stage.prepare(cluster)
        made = []
        with stage.reading(ours, "m0") as at_ours, stage.reading(theirs, "m0") as at_theirs:
            for turn, machine in enumerate(stage.MACHINES):
                one, two = (theirs, ours) if turn % 2 else (ours, theirs)
                made.append(stage.carry_out(machine, one, two))
        for reads in (at_ours, at_theirs):
            assert reads.documents
            assert (reads.refused, stage.complaints({"": reads})) == (0, [])
        runs = [run for run in cluster.runs() if run["what"] == "start"]
        assert sorted(run["operation"] for run in runs) == sorted(made)
        if not OTHER:
            told = {r["name"]: r["version"] for r in ours.ask("GET", "/v1/replicas")["replicas"]}
            assert told == {"r1": forewarn.__version__, "r2": LATER}
            formats = database.sql("SELECT DISTINCT format FROM changes", "two_releases").split()
            assert {"1", "2"} <= set(formats)
        for replica in (ours, theirs):  # no part of either ended by itself
            assert replica.stop() == 0
