"""The service as a whole: what it fills, what it survives, what it refuses to limp on without."""

import asyncio
import gc
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import patience
from forewarn.clock import ManualClock, SystemClock
from forewarn.control.changefeed import Changefeed
from forewarn.control.plane import Plane
from forewarn.control.service_clock import ClockJumped
from forewarn.control.ticker import FAILING
from forewarn.control.writer import ThreadWriter
from forewarn.maintenance.fleet_file import Fleet
from forewarn.maintenance.model import Changes
from forewarn.maintenance.planner import Request
from forewarn.server import process, settings
from forewarn.server.service import CLOCK_SETTING, Crashed, clock_of
from forewarn.server.sockets import SocketUnusable
from forewarn.store import sqlite
from forewarn.store.port import StoreUnavailable, StoreUnusable
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import EventType
from guest.room import SkippingLoop
from patience import eventually, settled
from server.exchange import Exchanges, scraped
from server.running import (
    NOON,
    Client,
    Flaky,
    Hurried,
    Running,
    fleet,
    guids,
    request_reboot,
    settings_in,
)
from stories import stories_beside


def quick(folder: Path, **operator: Any) -> settings.Settings:
    """Return settings by which every act is over at once."""
    at_once = settings.SimulatedSettings(reboot_seconds=0.0, preempt_seconds=0.0)
    return settings_in(folder, at_once, **operator)


def test_a_thread_that_hangs_does_not_keep_the_process_from_ending() -> None:
    hangs = "import threading as t; from concurrent.futures import ThreadPoolExecutor as Pool; "
    hangs += "from forewarn.server import process; Pool().submit(t.Event().wait); "
    ends = (sys.executable, "-c", hangs + "process.end_soon(7)")
    assert subprocess.run(ends, timeout=patience.SECONDS, check=False).returncode == 7


def test_threads_that_compute_give_way_to_the_loop_soon() -> None:
    usual, thresholds = sys.getswitchinterval(), gc.get_threshold()
    try:
        process.answer_soon()
        assert sys.getswitchinterval() == pytest.approx(process.SWITCH_SECONDS)
    finally:
        sys.setswitchinterval(usual)
        gc.set_threshold(*thresholds)
        gc.unfreeze()


class Lives(Exchanges):
    """A story so far, of a service with a fleet: each life over the same folder and port."""

    def __init__(self, folder: Path, lives: ExitStack) -> None:
        self._folder, self._lives = folder, lives
        self._begin(settings_in(folder, listen="127.0.0.1:0"))
        self.carry_out("PUT /v1/fleet $fleet")

    def _begin(self, wanted: settings.Settings) -> None:
        self._store = Flaky(sqlite.open_store(self._folder / "forewarn.db"))
        super().__init__(self._lives.enter_context(Running(wanted, self._store)))
        self.clock = SystemClock()

    def restart(self) -> None:
        """Stop, and start again: acts are over at once then."""
        self._lives.close()
        before = self.bound
        self._begin(quick(self._folder, listen="127.0.0.1:0"))
        self.bound |= before

    def learned(self, **counts: str) -> None:
        known = self.service.guests.learned[0]
        assert {name: str(len(getattr(known, name))) for name in counts} == counts

    def away(self, how: str = "") -> None:
        """Have the store be away, or be broken in a way that is our own fault."""
        self._store.away = how != "no"
        self._store.error = RuntimeError("secret") if how == "broken" else Flaky.error


@pytest.mark.parametrize("rows", stories_beside(__file__, "lives.txt"))
def test_a_service_survives_restarts_and_a_store_that_is_away(
    tmp_path: Path, rows: list[tuple[int, str]]
) -> None:
    with ExitStack() as lives:
        assert Lives(tmp_path, lives).play("lives.txt", rows)


def test_whoever_is_told_of_a_change_finds_it_in_memory(tmp_path: Path) -> None:
    with Running(settings_in(tmp_path), InMemoryStore()) as running:
        client = running.client()
        for number in range(50):
            client.ask("PUT", "/v1/fleet", {"machine": [{"name": f"m{number}"}]})
            assert client.ask("GET", f"/v1/fleet/machines/m{number}").status == 200
        assert len(running.guests.learned) == 1 + 50, "what there is at the start comes first"


def test_a_part_whose_rounds_fail_is_told_by_readiness_and_an_alert(tmp_path: Path) -> None:
    # No round of its own follows while the clock stands, and takes the failures back.
    with Running(settings_in(tmp_path), InMemoryStore(), ManualClock(NOON)) as running:
        assert running._service is not None
        for _ in range(FAILING):
            with running._service._backend.maintenances._contained():
                raise ArithmeticError("no")
        client = running.client()
        not_ready = client.ask("GET", "/readyz")
        assert not_ready.status == 503
        assert "maintenances" in not_ready.json["reasons"][0]
        (alert,) = client.get("/v1/alerts")["items"]
        assert (alert["kind"], alert["about"]) == ("failing", "maintenances")


def health(client: Client) -> tuple[int, float, float]:
    """Return what `/readyz`, `forewarn_ready` and `forewarn_store_up` say."""
    ready = client.ask("GET", "/readyz")
    told = scraped(client)
    assert ready.json["ready"] == (ready.json["reasons"] == [])
    return ready.status, told["forewarn_ready"], told["forewarn_store_up"]


def test_a_writer_that_is_stuck_is_not_ready(tmp_path: Path) -> None:
    store = Flaky(InMemoryStore())
    go_on = threading.Event()
    with Running(settings_in(tmp_path), store, real=Hurried()) as running:
        client = running.client()
        store.trouble = go_on.wait
        try:
            assert health(client) == (503, 0, 0)
            assert client.get("/healthz")["status"] == "alive"
        finally:
            go_on.set()
        eventually(lambda: health(client), (200, 1, 1))


def check_crash(running: Running, act: Callable[[Running], None], part: str) -> None:
    """Hold that the whole service ends when something is done that ends a part of it."""

    def story() -> None:
        with running:
            act(running)
            running.wait()

    with pytest.raises(Crashed, match=part):
        story()
    assert running.guests.closed


def test_a_writer_that_died_ends_the_service(tmp_path: Path) -> None:
    def die() -> None:
        raise SystemExit

    store = Flaky(InMemoryStore())

    def act(running: Running) -> None:
        store.trouble = die
        with pytest.raises(StoreUnavailable):
            running.plane.probe().result()

    check_crash(Running(settings_in(tmp_path), store), act, "the writer")


def test_memory_that_cannot_follow_the_store_ends_the_service(tmp_path: Path) -> None:
    """A start fills it again, before a socket opens: nobody reads what is neither old nor new."""

    def fail(changes: Changes) -> None:
        if changes.machines:
            raise KeyError("web-0")

    def act(running: Running) -> None:
        running.plane.apply_fleet(msgspec.convert(fleet(), Fleet)).result()

    running = Running(settings_in(tmp_path), InMemoryStore())
    running.guests.learn = fail  # type: ignore[method-assign] # a defect of ours
    check_crash(running, act, "the changefeed")


def test_a_part_that_ends_by_itself_ends_the_service(tmp_path: Path) -> None:
    def act(running: Running) -> None:
        running.end_a_part("the ticker")

    check_crash(
        Running(settings_in(tmp_path), InMemoryStore()), act, "the ticker has ended by itself"
    )


def test_a_socket_that_cannot_be_opened_leaves_nothing_behind(tmp_path: Path) -> None:
    with Running(settings_in(tmp_path), InMemoryStore()) as running:
        listening = settings_in(tmp_path, socket=str(tmp_path / "operator.sock"))
        other = Running(listening, InMemoryStore())
        with pytest.raises(SocketUnusable, match="another server answers"), other:
            pass
        assert other.guests.closed
        assert running.client().get("/healthz")["status"] == "alive"
    assert not (tmp_path / "operator.sock").exists()


def is_refused(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as other:
        return other.connect_ex(path) != 0


def test_guests_are_served_while_an_operators_last_request_arrives(tmp_path: Path) -> None:
    loop = SkippingLoop()
    running = Running(settings_in(tmp_path), InMemoryStore(), loop=loop)
    with running, socket.socket(socket.AF_UNIX) as operator:
        path = running.settings.operator.socket
        operator.connect(path)
        operator.sendall(
            b"PUT /v1/fleet HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        )
        assert operator.recv(100).startswith(b"HTTP/1.1 100 ")
        running.stop()
        eventually(lambda: is_refused(path), wanted=True)
        loop.ahead += 2
        asyncio.run_coroutine_threadsafe(settled(), loop).result()
        assert not running.guests.closed
        operator.sendall(b"{}")
        assert operator.recv(100).startswith(b"HTTP/1.1 200 ")


async def test_a_caller_who_went_away_takes_neither_the_job_nor_the_writer_with_him() -> None:
    store = Flaky(InMemoryStore())
    begun, go_on = threading.Event(), threading.Event()

    def trouble() -> None:
        begun.set()
        go_on.wait()

    store.trouble = trouble
    writer = ThreadWriter(store, SystemClock(), Changefeed())
    plane = Plane(writer, guids())
    wanted = msgspec.convert(fleet(), Fleet)
    asking = asyncio.ensure_future(asyncio.wrap_future(plane.apply_fleet(wanted)))
    await asyncio.to_thread(begun.wait)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    go_on.set()
    request = Request(event_type=EventType.REBOOT, machines=("web-0",))
    assert plane.request(request).result().maintenance.number == 1
    writer.close()
    store.close()


# The clock.


def test_the_clock_is_the_machines_own_where_nothing_was_ever_scaled() -> None:
    store = InMemoryStore()
    real = ManualClock(NOON)
    assert clock_of(store, 1.0, real).now() == NOON
    store.close()


def real_time() -> datetime:
    return SystemClock().now()


def test_a_scaled_clock_goes_on_after_a_restart_as_if_it_had_run() -> None:
    store = InMemoryStore()
    an_hour_ago = ManualClock(real_time() - timedelta(hours=1))
    clock_of(store, 100.0, an_hour_ago)
    after = clock_of(store, 100.0, SystemClock())
    ahead = after.now() - real_time()
    assert timedelta(hours=98) < ahead < timedelta(hours=100)
    store.close()


@pytest.mark.parametrize(("first", "then"), [(100.0, 1.0), (100.0, 200.0), (1.0, 100.0)])
def test_a_database_keeps_its_scale_and_another_is_refused(first: float, then: float) -> None:
    store = InMemoryStore()
    clock_of(store, first, SystemClock())
    with store.read() as reading:
        kept = reading.setting(CLOCK_SETTING)
    with pytest.raises(StoreUnusable) as refusal:
        clock_of(store, then, SystemClock())
    assert f"clock.scale = {first:g}" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    with store.read() as reading:
        assert reading.setting(CLOCK_SETTING) == kept
    clock_of(store, first, SystemClock())
    store.close()


# The wall clock.


def test_a_wall_clock_that_jumps_ends_the_service_and_the_next_start_extends_the_notices(
    tmp_path: Path,
) -> None:
    clock, store = ManualClock(NOON), InMemoryStore()
    running = Running(settings_in(tmp_path), store, clock).__enter__()
    client = running.client()
    client.ask("PUT", "/v1/fleet", fleet())
    request_reboot(client)
    clock.jump(timedelta(days=1))
    with pytest.raises(ClockJumped, match=r"86400\.0 s ahead"):
        running.end()
    with Running(settings_in(tmp_path), store, clock) as again:
        client = again.client()
        assert client.get("/v1/clock") == {"now": "2026-03-02T12:00:00Z", "scale": 1.0}
        assert client.get("/readyz")["ready"]
        (moved,) = client.get("/v1/history")["operations"]
        assert (moved["status"], moved["not_before"]) == ("Scheduled", "2026-03-02T12:15:00Z")


def test_a_start_waits_for_no_dry_run(tmp_path: Path) -> None:
    with Running(settings_in(tmp_path), InMemoryStore()) as running:
        client = running.client()
        assert client.ask("PUT", "/v1/fleet", fleet()).status == 200
        assert running._service is not None
        planning = running._service._operators.backend.whole
        asyncio.run_coroutine_threadsafe(planning.acquire(), running._loop).result()
        request_reboot(client, machines=[], scopes=["web"], policy={})
