"""What fails around replicas: the stories of faults.txt, silence, and another release."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg
import pytest

import forewarn
import postgres
from forewarn.store.postgresql import Access, Patience
from kills.processes import let_pass, release
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
