"""The fleet in step with its hosts: programs that speak the lines of the real one."""

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import patience
from builders import NOW, mint
from control import told_host
from control.conftest import Counting, House, done
from forewarn.clock import ManualClock
from forewarn.control import fleet_sync
from forewarn.control.fleet_sync import PAUSES, SILENT_SECONDS, FleetSync
from forewarn.control.outbox import everything, known_of
from forewarn.control.plane import Plane
from forewarn.control.writer import InlineWriter
from forewarn.maintenance import fleet_file, planner
from forewarn.maintenance.alerts import AlertKind
from forewarn.maintenance.host_observations import LOOK_AGAIN, LOST_AFTER
from forewarn.maintenance.model import Changes, HostState, Machine, StartCause
from forewarn.vocabulary import EventStatus, EventType
from store.values import drain

G = [f"00000000-0000-4000-8000-00000000000{n}" for n in range(3)]
MOMENT = timedelta(milliseconds=1)


class Host:
    """One run of a host's program."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def says(self, line: dict[str, Any] | str) -> None:
        text = line if isinstance(line, str) else json.dumps(line)
        self._writer.write(f"{text}\n".encode())
        await self._writer.drain()

    async def lists(self, *domains: dict[str, Any]) -> None:
        await self.says({"domains": domains})

    async def hears(self) -> str:
        async with asyncio.timeout(patience.SECONDS):
            return (await self._reader.readline()).decode().strip()

    async def dies(self) -> None:
        self._writer.close()


class RecordedClock(ManualClock):
    """A clock that knows how long it was waited for."""

    def __init__(self) -> None:
        super().__init__(NOW)
        self.waits: list[float] = []

    async def wait(self, seconds: float, wake: asyncio.Event) -> None:
        self.waits.append(seconds)
        await super().wait(seconds, wake)


class Hosts:
    """The two hosts h0 and h1, and what watches them."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.real = RecordedClock()
        self._came: dict[str, asyncio.Queue[Host]] = {"h0": asyncio.Queue(), "h1": asyncio.Queue()}
        self._writers: list[asyncio.StreamWriter] = []
        self.sync: FleetSync

    @asynccontextmanager
    async def watched(
        self, plane: Plane | None = None, **others: tuple[str, ...]
    ) -> AsyncIterator[None]:
        with tempfile.TemporaryDirectory(prefix="fw-") as folder:
            place = str(Path(folder) / "told")
            server = await asyncio.start_unix_server(self._accept, place)
            programs = {
                host: (sys.executable, "-I", told_host.__file__, place, host) for host in self._came
            }
            programs |= others
            plane = plane or self.house.plane
            self.sync = FleetSync(plane, self.house.clock, self.real, programs, {"A": "b"})
            with self.house.store.read() as reading:
                self.sync.learn(everything(known_of(reading)))
            self.house.feed.subscribe(self.sync.learn)
            running = asyncio.create_task(self.sync.run())
            try:
                yield
                assert not running.done()
            finally:
                self.sync.stop()
                async with asyncio.timeout(patience.SECONDS):
                    await running
                server.close()
                for writer in self._writers:
                    writer.close()
                    with contextlib.suppress(OSError):
                        await writer.wait_closed()

    async def run_of(self, host: str) -> Host:
        """Return the next run of a host's program."""
        async with asyncio.timeout(patience.SECONDS):
            return await self._came[host].get()

    async def lost(self, host: str) -> None:
        """Wait until a host is an alert, for as long as that takes by the service's clock."""

        def is_told() -> bool:
            self.house.clock.advance(timedelta(seconds=1))
            return (AlertKind.HOST_LOST, f"host {host}") in self.alerts()

        await patience.reached(is_told)

    def saw(self, *hosts: str) -> bool:
        """Tell whether the lists of hosts were taken."""
        later = self.house.clock.now() + LOST_AFTER
        found = self.sync._observed.alerts(self.sync._fleet, later)
        return not {f"host {host}" for host in hosts} & {alert.about for alert in found}

    def machine(self, n: int) -> Machine:
        with self.house.store.read() as reading:
            return reading.machines()[f"g{n}"]

    def operations(self) -> list[Any]:
        with self.house.store.read() as reading:
            return [*reading.live_operations().values()]

    def alerts(self) -> list[tuple[AlertKind, str]]:
        return [(alert.kind, alert.about) for alert in self.sync.alerts()]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        host = (await reader.readline()).decode().strip()
        self._came[host].put_nowait(Host(reader, writer))


@pytest.fixture
def hosts(house: House) -> Hosts:
    machines = tuple(
        fleet_file.NamedMachine(name=f"g{n}", vm_id=vm_id, host=f"h{n % 2}", update_domain=0)
        for n, vm_id in enumerate(G)
    )
    group = fleet_file.AvailabilitySet(name="guests", machines=machines)
    done(house.plane.apply_fleet(fleet_file.Fleet(availability_set=(group,))))
    return Hosts(house)


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await story()

    asyncio.run(run())


def domain(n: int, state: str = "running", reason: str = "", **more: Any) -> dict[str, Any]:
    return {"uuid": G[n], "name": f"g{n}", "state": state, "reason": reason, **more}


def event(kind: str, detail: str, found: dict[str, Any]) -> dict[str, Any]:
    return {"event": kind, "detail": detail, "domain": found}


FAILED = event("STOPPED", "FAILED", domain(0, "off", "failed"))


def test_a_machine_that_moves_has_its_new_host_in_the_fleet(hosts: Hosts) -> None:
    async def story() -> None:
        async with hosts.watched():
            h0, h1 = await hosts.run_of("h0"), await hosts.run_of("h1")
            await h0.lists(domain(0))
            await h1.lists(domain(1))
            await h1.says(event("RESUMED", "1", domain(0)))
            await h0.says(event("STOPPED", "MIGRATED", domain(0, "off", "migrated")))
            await patience.reached(lambda: hosts.machine(0).host == "h1")
            assert hosts.machine(1).host == "h1"
            # One that the fleet learns of later is watched as well.
            vm_id = "00000000-0000-4000-8000-0000000000ff"
            late = fleet_file.StandaloneMachine(name="g7", vm_id=vm_id, host="h9")
            done(hosts.house.plane.apply_fleet(fleet_file.Fleet(machine=(late,))))
            await h0.says(event("STARTED", "0", {"uuid": vm_id, "name": "x", "state": "running"}))
            await patience.reached(lambda: hosts.machine(7).host == "h0")

    play(story)


def test_a_crash_is_an_unforeseen_reboot_of_that_machine(hosts: Hosts) -> None:
    async def story() -> None:
        async with hosts.watched():
            h0, h1 = await hosts.run_of("h0"), await hosts.run_of("h1")
            await h0.lists(domain(0), domain(2))
            await h1.lists(domain(1))
            await patience.reached(lambda: hosts.saw("h0", "h1"))
            await h0.says(FAILED)
            for host in (h0, h1):
                assert await host.hears() == f"look {G[0]}"
            assert not hosts.operations()
            await h1.says({"domain": domain(0, "gone")})
            await h0.says({"domain": domain(0, "off", "failed", migrating=False)})
            await patience.reached(hosts.operations)
            (operation,) = hosts.operations()
            assert (operation.event_type, operation.machines) == (EventType.REBOOT, ("g0",))
            assert operation.status is EventStatus.STARTED
            assert operation.start_cause is StartCause.NO_NOTICE
            assert operation.description == fleet_sync.DESCRIPTION
            # What it does to the machine is not a crash.
            await h0.says(event("STARTED", "0", domain(0)))
            await h0.says(FAILED)
            await h0.says(event("STARTED", "0", domain(2)))
            await h0.says(event("STOPPED", "FAILED", domain(2, "off", "failed")))
            assert await h0.hears() == f"look {G[2]}"

    play(story)


@pytest.mark.parametrize(
    ("status", "asked"),
    [
        (EventStatus.SCHEDULED, 0),
        (EventStatus.STARTED, 2),
        (EventStatus.RETURNING, 2),
        (EventStatus.COMPLETED, 0),
    ],
)
def test_a_crash_under_an_operation_is_the_operations_while_that_is_at_work(
    hosts: Hosts, status: EventStatus, asked: int
) -> None:
    async def story() -> None:
        (operation,) = hosts.house.ask(EventType.REBOOT, "g0", no_notice=True).operations
        async with hosts.watched():
            h0, h1 = await hosts.run_of("h0"), await hosts.run_of("h1")
            await h0.lists(domain(0), domain(2))
            await h1.lists()
            changed = msgspec.structs.replace(operation, status=status)
            hosts.sync.learn(Changes(operations=(changed,)))
            await h0.says(FAILED)
            await h0.says(event("STOPPED", "FAILED", domain(2, "off", "failed")))
            assert await h0.hears() == f"look {G[asked]}"

    play(story)


def test_a_program_that_dies_is_started_again_after_growing_pauses(hosts: Hosts) -> None:
    async def story() -> None:
        async with hosts.watched():
            h0, h1 = await hosts.run_of("h0"), await hosts.run_of("h1")
            await h1.lists(domain(1))
            pause, longest = PAUSES
            for _ in range(3):
                await h0.lists(domain(0))
                await patience.reached(lambda: hosts.saw("h0", "h1"))
                await h0.says({"error": "end of file"})
                await h0.dies()
                await hosts.lost("h0")
                assert "end of file" in hosts.sync.alerts()[0].message
                assert hosts.real.waits[-1] == pause
                hosts.real.advance(timedelta(seconds=pause))
                h0 = await hosts.run_of("h0")
                pause = min(2 * pause, longest)
            # It went while nobody watched, to a host that told of it too early.
            await h1.says(event("STARTED", "1", domain(0, "handover")))
            await h0.lists(domain(0, "off", "migrated"))
            await patience.reached(lambda: hosts.saw("h0"))
            await h1.says(event("RESUMED", "1", domain(0)))
            await patience.reached(lambda: hosts.machine(0).host == "h1")
            assert hosts.alerts() == []

    play(story)


def test_a_host_that_its_drain_has_rebooted_is_no_alert_and_is_tried_at_once(hosts: Hosts) -> None:
    async def story() -> None:
        async with hosts.watched():
            h0, h1 = await hosts.run_of("h0"), await hosts.run_of("h1")
            await h0.lists(domain(0))
            await h1.lists(domain(1))
            await patience.reached(lambda: hosts.saw("h0", "h1"))
            at_work = drain("h0", state=HostState.REBOOTING)
            hosts.sync.learn(Changes(drains=(at_work,)))
            waits = len(hosts.real.waits)
            await h0.dies()
            await patience.reached(lambda: PAUSES[0] in hosts.real.waits[waits:])
            hosts.house.clock.advance(2 * LOST_AFTER)
            assert hosts.alerts() == []
            back = msgspec.structs.replace(at_work, state=HostState.BACK)
            hosts.sync.learn(Changes(drains=(back,)))
            assert hosts.alerts() == []
            h0 = await hosts.run_of("h0")  # although no time has passed
            await h0.dies()
            await hosts.lost("h0")

    play(story)


def test_a_program_that_says_nothing_is_killed(hosts: Hosts) -> None:
    async def story() -> None:
        async with hosts.watched():
            h0, h1 = await hosts.run_of("h0"), await hosts.run_of("h1")
            await h0.lists(domain(0))
            await h1.lists(domain(1))
            await patience.reached(lambda: hosts.saw("h0", "h1"))
            hosts.real.advance(timedelta(seconds=SILENT_SECONDS) - MOMENT)
            await h1.says({"alive": True})
            # The answer shows that the line before was read.
            await h1.says(FAILED | {"domain": domain(1, "off", "failed")})
            assert await h1.hears() == f"look {G[1]}"
            hosts.real.advance(MOMENT)
            assert await h0.hears() == f"look {G[1]}"
            assert await h0.hears() == ""
            await hosts.lost("h0")
            assert [about for kind, about in hosts.alerts() if kind is AlertKind.HOST_LOST] == [
                "host h0"
            ]

    play(story)


def test_a_program_that_hangs_is_killed_with_all_that_it_began(hosts: Hosts) -> None:
    async def story() -> None:
        async with hosts.watched(h2=("sh", "-c", "sleep 600; true")):
            h0, h1 = await hosts.run_of("h0"), await hosts.run_of("h1")
            await h0.lists()
            await h1.lists()
            await patience.reached(lambda: "h2" in hosts.sync._running)
        # The end of `run` has waited until nobody holds the program's output.
        assert not hosts.sync._running

    play(story)


def test_a_store_that_takes_long_makes_no_host_silent_and_loses_no_crash(hosts: Hosts) -> None:
    held: Future[Any] = Future()
    asked = []

    class Slow(Plane):
        def request(self, request: planner.Request) -> Any:
            asked.append(request)
            return held

    async def story() -> None:
        house = hosts.house
        plane = Slow(InlineWriter(house.store, house.clock, house.feed), mint("d"))
        async with hosts.watched(plane):
            h0, h1 = await hosts.run_of("h0"), await hosts.run_of("h1")
            await h0.lists(domain(0))
            await h1.lists(domain(1))
            await patience.reached(lambda: hosts.saw("h0", "h1"))
            await h0.says(FAILED)
            for host, state in ((h0, "off"), (h1, "gone")):
                assert await host.hears() == f"look {G[0]}"
                await host.says({"domain": domain(0, state)})
            await patience.reached(lambda: asked)
            hosts.real.advance(timedelta(seconds=SILENT_SECONDS))
            await patience.settled()
            assert not held.cancelled()
            held.set_result(None)

    play(story)


@pytest.mark.parametrize("line", ["nonsense", "[]", '{"domains": 1}', '{"domain": {}}'])
def test_a_line_that_cannot_be_read_is_a_lost_host_and_no_more(hosts: Hosts, line: str) -> None:
    async def story() -> None:
        async with hosts.watched():
            h0, h1 = await hosts.run_of("h0"), await hosts.run_of("h1")
            await h0.lists(domain(0))
            await h1.lists(domain(1))
            await patience.reached(lambda: hosts.saw("h0", "h1"))
            await h0.says(line)
            assert await h0.hears() == ""
            await hosts.lost("h0")

    play(story)


def test_a_program_that_cannot_be_run_is_a_lost_host_and_no_more(hosts: Hosts) -> None:
    async def story() -> None:
        async with hosts.watched(h0=("/nonexistent/python",)):
            h1 = await hosts.run_of("h1")
            await h1.lists(domain(1))
            await hosts.lost("h0")
            assert "/nonexistent/python" in hosts.sync.alerts()[0].message

    play(story)


def test_a_crash_waits_for_a_store_that_is_away(hosts: Hosts) -> None:
    async def story() -> None:
        store = Counting(hosts.house.store)
        plane = Plane(InlineWriter(store, hosts.house.clock, hosts.house.feed), mint("d"))
        async with hosts.watched(plane):
            h0, h1 = await hosts.run_of("h0"), await hosts.run_of("h1")
            await h0.lists(domain(0))
            await h1.lists(domain(1))
            await patience.reached(lambda: hosts.saw("h0", "h1"))
            await h0.says(FAILED)
            store.away = True
            for again in (False, True):
                if again:
                    await patience.settled()
                    store.away = False
                    hosts.house.clock.advance(LOOK_AGAIN)
                    hosts.real.advance(timedelta(seconds=1))
                for host, state in ((h0, "off"), (h1, "gone")):
                    assert await host.hears() == f"look {G[0]}"
                    await host.says({"domain": domain(0, state)})
                recorded = hosts.operations if again else lambda: store.refused
                await patience.reached(recorded)
            (operation,) = hosts.operations()
            assert operation.machines == ("g0",)
            assert store.refused == 1

    play(story)


def test_an_internal_error_ends_neither_the_watch_nor_the_service(hosts: Hosts) -> None:
    class Broken(Plane):
        def record_hosts(self, hosts: Mapping[str, str]) -> Any:
            raise RuntimeError(hosts)

    async def story() -> None:
        house = hosts.house
        plane = Broken(InlineWriter(house.store, house.clock, house.feed), mint("d"))
        async with hosts.watched(plane):
            h0, h1 = await hosts.run_of("h0"), await hosts.run_of("h1")
            await h1.lists(domain(0))
            await h0.lists(domain(2))
            await patience.reached(lambda: hosts.saw("h0", "h1"))
            hosts.real.advance(timedelta(seconds=1))  # it tries again
            await patience.settled()
            await h0.says(event("STOPPED", "FAILED", domain(2, "off", "failed")))
            assert await h0.hears() == f"look {G[2]}"

    play(story)


def test_a_crash_is_told_again_after_an_internal_error(hosts: Hosts) -> None:
    class BrokenOnce(Plane):
        asked = 0

        def request(self, *given: Any, **more: Any) -> Any:
            self.asked += 1
            if self.asked == 1:
                raise RuntimeError
            return super().request(*given, **more)

    async def story() -> None:
        house = hosts.house
        plane = BrokenOnce(InlineWriter(house.store, house.clock, house.feed), mint("d"))
        async with hosts.watched(plane):
            h0, h1 = await hosts.run_of("h0"), await hosts.run_of("h1")
            await h0.lists(domain(0))
            await h1.lists(domain(1))
            await patience.reached(lambda: hosts.saw("h0", "h1"))
            await h0.says(FAILED)
            for asked in (1, 2):
                for host, state in ((h0, "off"), (h1, "gone")):
                    assert await host.hears() == f"look {G[0]}"
                    await host.says({"domain": domain(0, state)})
                await patience.reached(lambda now=asked: plane.asked == now)
                await patience.settled()
                house.clock.advance(LOOK_AGAIN)
                hosts.real.advance(timedelta(seconds=1))
            assert len(hosts.operations()) == 1

    play(story)


def test_what_the_plane_refuses_is_left_out(hosts: Hosts) -> None:
    async def story() -> None:
        async with hosts.watched():
            h0, h1 = await hosts.run_of("h0"), await hosts.run_of("h1")
            await h0.lists(domain(0), domain(2))
            await h1.lists(domain(1))
            await patience.reached(lambda: hosts.saw("h0", "h1"))
            await h0.says(FAILED)
            assert await h0.hears()
            # It leaves the fleet, and this is not told.
            hosts.house.feed._listeners.remove(hosts.sync.learn)
            done(hosts.house.plane.remove_machines(["g0"]))
            await h1.says({"domain": domain(0, "gone")})
            await h0.says({"domain": domain(0, "off", "failed")})
            await h0.says(event("STOPPED", "FAILED", domain(2, "off", "failed")))
            assert await h0.hears() == f"look {G[2]}"
            assert not hosts.operations()

    play(story)


def test_without_hosts_nothing_is_run(house: House) -> None:
    async def story() -> None:
        sync = FleetSync(house.plane, house.clock, house.clock, {}, {})
        with house.store.read() as reading:
            sync.learn(everything(known_of(reading)))
        house.feed.subscribe(sync.learn)
        house.ask(EventType.REBOOT, "web-0", no_notice=True)
        assert not sync._machines
        assert not sync._work
        running = asyncio.create_task(sync.run())
        await patience.settled()
        assert sync.alerts() == []
        sync.stop()
        await asyncio.wait_for(running, patience.SECONDS)

    play(story)
