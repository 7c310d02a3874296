"""Services that share a database: what they tell each other, and what a replica does alone."""

import http.client
import threading
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import psycopg
import pytest

from forewarn.clock import ManualClock
from forewarn.connectors.command import CommandUnusable
from forewarn.connectors.settings import CommandConnectorSettings
from forewarn.control.plane import PROBE
from forewarn.control.service_clock import ClockJumped
from forewarn.server import settings
from forewarn.server.process import Crashed
from forewarn.server.service import connector_of
from forewarn.store.port import StoreUnusable
from patience import eventually
from server.running import NOON, Flaky, Hurried, Running, fleet, request_reboot, settings_in
from store.engines import NEEDS_POSTGRESQL, open_postgresql
from store.shared import Member, SharedStore


def replica(folder: Path, name: str) -> settings.Settings:
    folder.mkdir()
    own = settings.ReplicaSettings(name=name, max_stale_seconds=5.0)
    return msgspec.structs.replace(settings_in(folder), replica=own)


def test_a_replica_tells_its_operators_what_another_one_did(tmp_path: Path) -> None:
    store = SharedStore()
    with (
        Running(replica(tmp_path / "a", "a"), store, real=Hurried()) as first,
        Running(replica(tmp_path / "b", "b"), store, real=Hurried()) as second,
    ):
        first.client().ask("PUT", "/v1/fleet", fleet())
        request_reboot(first.client())
        eventually(lambda: len(second.client().get("/v1/events")["events"]), 1)
        second.client().ask("POST", "/v1/approvals", {"references": ["1"]})
        eventually(lambda: first.client().get("/v1/events")["events"][0]["status"], "Started")
        eventually(lambda: len(first.client().get("/v1/replicas")["replicas"]), 2)
        rows = first.client().get("/v1/replicas")["replicas"]
        assert [(row["name"], row["this"], row["live"]) for row in rows] == [
            ("a", True, True),
            ("b", False, True),
        ]
        with pytest.raises(StoreUnusable), Running(replica(tmp_path / "c", "a"), store):
            pass  # its name is taken


def test_a_replica_that_crashed_counts_as_lost_and_one_that_was_asked_to_stop_does_not(
    tmp_path: Path,
) -> None:
    store, wanted = SharedStore(), replica(tmp_path / "a", "a")

    def crash() -> None:
        with Running(wanted, store, real=Hurried()) as running:
            running.end_a_part("the ticker")

    def stopped() -> bool:
        with store.read() as reading:
            return reading.replicas()["a"].stopped

    with pytest.raises(Crashed):
        crash()
    assert not stopped()
    with Running(wanted, store, real=Hurried()):
        assert not stopped()
    assert stopped()


def test_a_replica_does_not_take_over_the_folder_of_another_ones_runs(tmp_path: Path) -> None:
    command = CommandConnectorSettings(program=("true",), state=str(tmp_path / "commands"))
    connector = settings.ConnectorSettings(kind="command", command=command)
    wanted = msgspec.structs.replace(settings_in(tmp_path), connector=connector)
    clock = ManualClock(NOON)
    (tmp_path / "commands").mkdir()
    (tmp_path / "commands" / "replica").touch()  # as a full disk leaves it
    for name in ("", "a", "a"):
        connector_of(wanted, clock, {"PATH": "/usr/bin:/bin"}, tuple, name)
    with pytest.raises(CommandUnusable):
        connector_of(wanted, clock, {"PATH": "/usr/bin:/bin"}, tuple, "b")


def test_a_replica_that_is_cut_off_says_so_and_lets_its_guests_go(tmp_path: Path) -> None:
    store = Flaky(SharedStore())
    with Running(replica(tmp_path / "a", "a"), store, real=Hurried()) as running:
        client = running.client()
        client.ask("PUT", "/v1/fleet", fleet())
        store.away = True
        eventually(lambda: running.guests.suspended, True)
        not_ready = client.ask("GET", "/readyz")
        assert not_ready.status == 503
        assert any("has not been reached" in reason for reason in not_ready.json["reasons"])
        store.away = False
        eventually(lambda: running.guests.suspended, False)
        eventually(lambda: client.ask("GET", "/readyz").status, 200)


def test_replicas_are_probed_by_few_writes_however_often_they_are_asked(tmp_path: Path) -> None:
    store, probes = SharedStore(), set[str | None]()
    with Running(replica(tmp_path / "a", "a"), store, ManualClock(NOON)) as running:
        client = running.client()
        for _ in range(30):
            assert client.get("/readyz")["ready"]
            with store.read() as reading:
                probes.add(reading.setting(PROBE))
        assert len(probes) == 1  # by a clock that stands still


@NEEDS_POSTGRESQL
def test_where_the_databases_clock_jumps_all_replicas_end_and_nothing_starts_early(
    tmp_path: Path,
) -> None:
    def replica(name: str) -> Running:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        own = settings.ReplicaSettings(name=name)
        wanted = msgspec.structs.replace(settings_in(folder), replica=own)
        return Running(wanted, open_postgresql(tmp_path))

    open_postgresql(tmp_path).close()
    place = (tmp_path / "postgresql.url").read_text()
    with psycopg.connect(place, autocommit=True) as database:
        name = database.info.dbname
        database.execute("CREATE TABLE wrong AS SELECT interval '0' AS by")
        database.execute(
            "CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE "
            "AS 'SELECT pg_catalog.clock_timestamp() + by FROM public.wrong'"
        )
        database.execute(f"ALTER DATABASE {name} SET search_path = public, pg_catalog")
        first, second = replica("a").__enter__(), replica("b").__enter__()
        client = first.client()
        client.ask("PUT", "/v1/fleet", fleet())
        request_reboot(client)
        (before,) = client.get("/v1/history")["operations"]
        promised = datetime.fromisoformat(before["not_before"])
        for by in ("1 hour", "-1 hour"):
            database.execute("UPDATE wrong SET by = by + %s", [by])
            for running in (first, second):
                with suppress(OSError, http.client.HTTPException):  # it may have ended by now
                    running.client().ask("PUT", "/v1/fleet", fleet())
                with pytest.raises(ClockJumped):
                    running.end()
            # One start knows what happened, and one finds a replica that does by then.
            first, second = replica("a").__enter__(), replica("b").__enter__()
            (found,) = second.client().get("/v1/history")["operations"]
            assert found["status"] == "Scheduled"
            moved = datetime.fromisoformat(found["not_before"]) - promised
            assert timedelta(hours=1) <= moved < timedelta(hours=2)
            assert second.client().get("/readyz")["ready"]
        for running in (first, second):
            running.__exit__(None, None, None)


class Deaf(SharedStore):
    """A store whose second replica hears of no change of the first."""

    def join(self, name: str) -> Member:
        return Unheard(self, name) if name == "b" else super().join(name)


class Unheard(Member):
    def wait(self, seconds: float) -> int:
        threading.Event().wait(seconds)
        return 0


def test_a_drain_is_shown_as_it_is_by_a_replica_that_has_not_heard_of_it(tmp_path: Path) -> None:
    store, clock = Deaf(), ManualClock(NOON)
    with (
        Running(replica(tmp_path / "a", "a"), store, clock) as first,
        Running(replica(tmp_path / "b", "b"), store, clock) as second,
    ):
        first.client().ask("PUT", "/v1/fleet", fleet())
        second.client().ask("GET", "/readyz")  # a write of its own: it knows the fleet
        first.client().ask("POST", "/v1/hosts/drain", {"hosts": ["h1"], "reboot": True})
        assert second.client().get("/v1/hosts/h1")["host"]["status"] == "draining"
