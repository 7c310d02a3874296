"""What fails around replicas: the stories of faults.txt, clocks that are wrong, and silence."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

import forewarn
import forked
import postgres
from forewarn.store.postgresql import Access, Patience
from kills.processes import environment, let_pass, release
from patience import until
from postgres import OWNER
from replicas import network
from replicas.stage import LISTENING, MACHINES, Stage
from stories import Rows, stories_beside

pytestmark = [pytest.mark.usefixtures("postgresql"), pytest.mark.timeout(300)]


@pytest.fixture
def stage(tmp_path: Path, database: postgres.Postgres) -> Iterator[Stage]:
    made = Stage(tmp_path, database)
    with made.left:
        yield made


@pytest.mark.parametrize("rows", stories_beside(__file__, "faults.txt"))
def test_whatever_fails_around_replicas_nothing_is_lost_or_done_twice(
    stage: Stage, rows: Rows
) -> None:
    assert stage.play("faults.txt", rows)


ACKNOWLEDGED_SECONDS: Final = 0.5
"""How long until both ends have acknowledged what they were sent: Linux delays it by 0.04 s."""

ASLEEP: Final = "SELECT pg_sleep(3600)"
"""Longer than anybody waits for this test."""


def test_both_ends_of_a_silent_connection_notice_that_its_path_is_dark(stage: Stage) -> None:
    """Nothing is sent that could remain unacknowledged: it takes keepalives to notice."""
    stage.packets()
    server = stage.server
    access = Access(f"postgresql://{OWNER}@{network.FAR}:{server.port}/{OWNER}", None, Patience())
    listening, asking = access.connect(), access.connect()
    listening.execute("LISTEN forewarn")
    asking.patience = None

    def give_up() -> None:
        with pytest.raises(psycopg.OperationalError):
            asking.execute(ASLEEP)

    given_up = stage.threads.submit(give_up)
    asleep = f"SELECT count(*) FROM pg_stat_activity WHERE query = '{ASLEEP}'"
    until(lambda: server.sql(asleep) == "1")
    let_pass(ACKNOWLEDGED_SECONDS)
    network.darken()
    until(lambda: server.sql(LISTENING) == "0")
    given_up.result()
    listening.close()


AHEAD_SECONDS: Final = 1200
NOTICE_SECONDS: Final = 900
"""The notice of a reboot: less than clocks are wrong by."""


def test_replicas_whose_clocks_are_wrong_move_no_notice(stage: Stage) -> None:
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
    if library is None:
        pytest.skip("libfaketime is not installed")
    skewed = {"r2": AHEAD_SECONDS, "r3": -AHEAD_SECONDS}
    variables = {
        name: {
            "LD_PRELOAD": str(library),
            "FAKETIME": f"{seconds:+d}",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        for name, seconds in skewed.items()
    }
    stage.run("r1", "r2", "r3", variables=variables)
    stage.schedule("m0", at="r1")
    stage.note("m0", at="r1")
    for name in skewed:
        stage.kill(name)
        stage.start(name)
    stage.schedule("m1", at="r2")
    stage.note("m1", at="r1")
    stage.as_noted("m0", "m1", at="r1,r2,r3")
    for machine in ("m0", "m1"):
        operation = stage.operation(machine, "r1")
        assert operation
        assert 0 < operation["notice_left_seconds"] <= NOTICE_SECONDS + 1

    def rows() -> dict[str, Any] | None:
        socket = str(stage["r1"].socket)
        command = ["-m", "forewarn", "replicas", "--json", "--operator", socket]
        told = forked.run(command, env=environment())
        assert told.returncode == 0, told.stderr
        found = {row["name"]: row for row in json.loads(told.stdout)["replicas"]}
        return found if all(found[name]["clock_ahead_ms"] for name in skewed) else None

    found = until(rows)
    for name, ahead in {"r1": 0, **skewed}.items():
        assert abs(found[name]["clock_ahead_ms"] / 1000 - ahead) < AHEAD_SECONDS / 10
    stage.ready()


LATER: Final = "99.0"


def test_two_releases_serve_guests_and_operators_side_by_side(stage: Stage) -> None:
    edits = tomllib.loads(Path(__file__).with_name("later.toml").read_text("utf-8"))["edit"]
    stage.run("r1", "r2", variables={"r2": release(stage.folder / "later", edits)})
    stage.reading("m0", at="r1,r2")
    for turn, machine in enumerate(MACHINES):
        one, two = ("r2", "r1") if turn % 2 else ("r1", "r2")
        stage.maintain(machine, at=one, approved_at=two)
        stage.did(machine, "start", "end")
    stage.sound()
    replicas = stage["r1"].ask("GET", "/v1/replicas")["replicas"]
    told = {replica["name"]: replica["version"] for replica in replicas}
    assert told == {"r1": forewarn.__version__, "r2": LATER}
    formats = stage.server.sql("SELECT DISTINCT format FROM changes", stage.folder.name).split()
    assert {"1", "2"} <= set(formats)
    for name in told:  # no part of either ended by itself
        assert stage[name].stop() == 0
