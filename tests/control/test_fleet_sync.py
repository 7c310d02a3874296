"""The fleet in step with its hosts, which are in memory here; time passes by steps."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest

import patience
from builders import NOW
from control.conftest import House, done
from forewarn.clock import ManualClock
from forewarn.connectors.port import Unanswered
from forewarn.control import fleet_sync
from forewarn.control.fleet_sync import REST, SURVEY_EVERY, FleetSync
from forewarn.control.outbox import everything, state_of
from forewarn.control.plane import Plane
from forewarn.maintenance import fleet_file
from forewarn.maintenance.alerts import AlertKind
from forewarn.maintenance.fleet_import import Domain
from forewarn.maintenance.host_observations import LOST_AFTER
from forewarn.maintenance.model import Changes, HostState, Machine, StartCause
from forewarn.vocabulary import EventStatus, EventType
from store.values import drain

G = [f"00000000-0000-4000-8000-00000000000{n}" for n in range(3)]


class HostsInMemory:
    """Hosts that answer with the domains that a test gives them."""

    def __init__(self, **domains: list[Domain]) -> None:
        self.domains = domains
        self.lost: dict[str, str] = {}
        self.hanging: set[str] = set()
        self.asked: dict[str, int] = dict.fromkeys(domains, 0)
        self.tags_of: dict[str, set[str]] = {}
        self._closed = asyncio.Event()

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(self.domains)

    async def survey(self, host: str, tags_of: Iterable[str] = ()) -> tuple[Domain, ...]:
        self.asked[host] += 1
        self.tags_of[host] = set(tags_of)
        if host in self.hanging:
            await self._closed.wait()
        if host in self.lost:
            raise Unanswered(self.lost[host])
        return tuple(self.domains[host])

    async def close(self) -> None:
        self._closed.set()


class Hosts:
    """The two hosts h0 and h1, and the service that watches them."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.real = ManualClock(NOW)
        self.kept = HostsInMemory(h0=[domain(0), domain(2)], h1=[domain(1)])
        self.sync: FleetSync

    @asynccontextmanager
    async def watched(self, plane: Plane | None = None) -> AsyncIterator[None]:
        self.sync = FleetSync(plane or self.house.plane, self.house.clock, self.real, self.kept)
        with self.house.store.read() as reading:
            self.sync.learn(everything(state_of(reading)))
        self.house.feed.subscribe(self.sync.learn)
        running = asyncio.create_task(self.sync.run())
        await patience.settled()
        try:
            yield
            assert not running.done()
        finally:
            self.sync.stop()
            await asyncio.wait_for(running, patience.SECONDS)

    async def round(self) -> None:
        """Let the hosts be surveyed once more."""
        for time in (REST, SURVEY_EVERY - REST):
            await self.passes(time)

    async def passes(self, time: timedelta) -> None:
        for clock in (self.house.clock, self.real):
            clock.advance(time)
        await patience.settled()

    def fails(self, n: int) -> None:
        """Let a machine's QEMU be killed on h0."""
        others = [one for one in self.kept.domains["h0"] if one.uuid != G[n]]
        self.kept.domains["h0"] = [*others, domain(n, "off", "failed")]

    def machine(self, n: int) -> Machine:
        with self.house.store.read() as reading:
            return reading.machines()[f"g{n}"]

    def crashed(self) -> list[str]:
        """Return the machines with an unforeseen event."""
        return [name for operation in self.operations() for name in operation.machines]

    def operations(self) -> list[Any]:
        with self.house.store.read() as reading:
            return [*reading.live_operations().values()]

    def alerts(self) -> list[tuple[AlertKind, str]]:
        return [(alert.kind, alert.about) for alert in self.sync.alerts()]


@pytest.fixture
def hosts(house: House) -> Hosts:
    machines = tuple(
        fleet_file.NamedMachine(name=f"g{n}", vm_id=vm_id, host=f"h{n % 2}", update_domain=0)
        for n, vm_id in enumerate(G)
    )
    group = fleet_file.AvailabilitySet(name="guests", machines=machines)
    done(house.plane.apply_fleet(fleet_file.Fleet(availability_set=(group,))))
    return Hosts(house)


def domain(n: int, state: str = "running", reason: str = "", **more: Any) -> Domain:
    return Domain(**{"uuid": G[n], "name": f"g{n}", "state": state, "reason": reason, **more})


async def test_a_host_whose_relay_hears_a_stranger_is_surveyed_within_a_second(
    hosts: Hosts,
) -> None:
    async with hosts.watched():
        await hosts.round()
        hosts.kept.domains = {"h0": [domain(2)], "h1": [domain(1), domain(0)]}
        surveys = hosts.kept.asked["h1"]
        for _ in range(3):
            hosts.sync.survey_soon("h1")
        hosts.sync.survey_soon("unknown")
        await patience.settled()
        assert hosts.kept.asked["h1"] == surveys, "strangers have it surveyed once a second"
        await hosts.passes(REST)
        assert hosts.kept.asked["h1"] == surveys + 1
        assert hosts.machine(0).host == "h1", "and the host that it left is asked, too"


async def test_a_machine_that_moves_has_its_new_host_in_the_fleet(hosts: Hosts) -> None:
    async with hosts.watched():
        hosts.kept.domains = {"h0": [domain(2)], "h1": [domain(1), domain(0)]}
        await hosts.round()
        assert hosts.machine(0).host == "h1"
        assert hosts.machine(1).host == "h1"
        # One that the fleet learns of later is watched as well.
        vm_id = "00000000-0000-4000-8000-0000000000ff"
        late = fleet_file.StandaloneMachine(name="g7", vm_id=vm_id, host="h9")
        done(hosts.house.plane.apply_fleet(fleet_file.Fleet(machine=(late,))))
        hosts.kept.domains["h0"].append(Domain(uuid=vm_id, name="x", state="running"))
        await hosts.round()
        assert hosts.machine(7).host == "h0"


async def test_machines_that_swap_their_vm_ids_are_followed_on(hosts: Hosts) -> None:
    async with hosts.watched():
        machines = hosts.machine(0), hosts.machine(2)
        swapped = tuple(
            msgspec.structs.replace(one, vm_id=other.vm_id)
            for one, other in (machines, machines[::-1])
        )
        hosts.house.put(Changes(machines=swapped))
        hosts.kept.domains = {"h0": [], "h1": [domain(n) for n in range(3)]}
        for _ in range(2):
            await hosts.round()
        assert [hosts.machine(n).host for n in range(3)] == ["h1", "h1", "h1"]


async def test_a_crash_is_an_unforeseen_reboot_of_that_machine_in_one_round(hosts: Hosts) -> None:
    async with hosts.watched():
        hosts.fails(0)
        await hosts.round()  # in which all hosts are asked once more
        (operation,) = hosts.operations()
        assert (operation.event_type, operation.machines) == (EventType.REBOOT, ("g0",))
        assert operation.status is EventStatus.STARTED
        assert operation.start_cause is StartCause.NO_NOTICE
        assert operation.description == fleet_sync.DESCRIPTION
        # What it does to the machine is not a crash.
        hosts.kept.domains["h0"] = [domain(0), domain(2)]
        await hosts.round()
        hosts.fails(0)
        await hosts.round()
        assert hosts.crashed() == ["g0"]
        hosts.fails(2)
        await hosts.round()
        assert sorted(hosts.crashed()) == ["g0", "g2"]


@pytest.mark.parametrize(
    ("status", "crashed"),
    [
        (EventStatus.SCHEDULED, True),
        (EventStatus.STARTED, False),
        (EventStatus.RETURNING, False),
        (EventStatus.COMPLETED, True),
    ],
)
async def test_a_crash_under_an_operation_is_the_operations_while_that_is_at_work(
    hosts: Hosts, status: EventStatus, *, crashed: bool
) -> None:
    asked = []

    class Asked(Plane):
        def request(self, *given: Any, **more: Any) -> Any:
            asked.append(given[0].machines)
            return super().request(*given, **more)

    (operation,) = hosts.house.ask(EventType.REBOOT, "g0", no_notice=True).operations
    async with hosts.watched(hosts.house.plane_of(Asked)):
        changed = msgspec.structs.replace(operation, status=status)
        hosts.sync.learn(Changes(operations=(changed,)))
        hosts.fails(0)
        await hosts.round()
        assert asked == ([("g0",)] if crashed else [])


async def test_a_host_is_surveyed_at_once_when_an_operation_of_its_machine_has_ended(
    hosts: Hosts,
) -> None:
    (operation,) = hosts.house.ask(EventType.REBOOT, "g0", no_notice=True).operations
    async with hosts.watched():
        asked = dict(hosts.kept.asked)
        over = msgspec.structs.replace(operation, status=EventStatus.COMPLETED)
        hosts.sync.learn(Changes(operations=(over,)))
        await patience.settled()
        assert hosts.kept.asked == {"h0": asked["h0"] + 1, "h1": asked["h1"]}


async def test_a_host_that_does_not_answer_is_an_alert_and_delays_no_other(hosts: Hosts) -> None:
    async with hosts.watched():
        hosts.kept.lost["h1"] = "no route"
        hosts.kept.hanging.add("h0")
        for _ in range(3):
            await hosts.round()
        assert hosts.alerts() == [(AlertKind.HOST_LOST, "host h1")]
        (alert,) = hosts.sync.alerts()
        assert "no route" in alert.message
        assert hosts.kept.asked == {"h0": 2, "h1": 4}
        hosts.kept.lost.clear()
        hosts.kept.domains["h1"] = [domain(1, "off", "unknown")]  # it lost its power
        await hosts.round()
        assert hosts.alerts() == []
        assert hosts.operations() == [], "h0 may run it"


async def test_a_host_that_its_drain_has_rebooted_is_no_alert_and_is_surveyed_at_once(
    hosts: Hosts,
) -> None:
    async with hosts.watched():
        at_work = drain("h0", state=HostState.REBOOTING)
        hosts.sync.learn(Changes(drains=(at_work,)))
        hosts.kept.lost["h0"] = "it reboots"
        await hosts.round()
        hosts.house.clock.advance(2 * LOST_AFTER)
        assert hosts.alerts() == []
        before = hosts.kept.asked["h0"]
        back = msgspec.structs.replace(at_work, state=HostState.BACK)
        hosts.sync.learn(Changes(drains=(back,)))
        assert hosts.alerts() == []
        await patience.settled()  # and no time has passed
        assert hosts.kept.asked["h0"] == before + 1
        hosts.house.clock.advance(LOST_AFTER)
        assert hosts.alerts() == [(AlertKind.HOST_LOST, "host h0")]


async def test_tags_are_read_of_domains_that_are_not_in_the_fleet(hosts: Hosts) -> None:
    stranger = Domain(uuid="00000000-0000-4000-8000-0000000000fe", name="x", state="off")
    hosts.kept.domains["h1"].append(stranger)
    async with hosts.watched():
        await hosts.round()
        assert hosts.kept.tags_of == {"h0": set(), "h1": {stranger.uuid}}


async def test_a_crash_and_a_move_wait_for_a_store_that_is_away(hosts: Hosts) -> None:
    store = hosts.house.store
    async with hosts.watched():
        hosts.fails(0)
        hosts.kept.domains["h0"].append(hosts.kept.domains["h1"].pop())
        store.away = True
        await hosts.round()
        await hosts.round()
        assert store.refused
        assert (hosts.operations(), hosts.machine(1).host) == ([], "h1")
        store.away = False
        await hosts.round()
        assert (hosts.crashed(), hosts.machine(1).host) == (["g0"], "h0")
        assert hosts.alerts() == []


async def test_an_internal_error_about_one_machine_loses_nothing_of_the_others(
    hosts: Hosts,
) -> None:
    class Broken(Plane):
        whole = False

        def request(self, request: Any, *given: Any, **more: Any) -> Any:
            if request.machines == ("g0",) and not self.whole:
                raise RuntimeError(request)
            return super().request(request, *given, **more)

        def record_hosts(self, hosts: Mapping[str, str]) -> Any:
            if not self.whole:
                raise RuntimeError(hosts)
            return super().record_hosts(hosts)

    plane = hosts.house.plane_of(Broken)
    assert isinstance(plane, Broken)
    async with hosts.watched(plane):
        hosts.fails(0)
        hosts.fails(2)
        hosts.kept.domains["h0"].append(hosts.kept.domains["h1"].pop())
        for _ in range(2):
            await hosts.round()
        assert hosts.crashed() == ["g2"]
        assert {(AlertKind.FAILING, "g0"), (AlertKind.FAILING, "g1")} <= {*hosts.alerts()}
        assert not hosts.sync.obstacle
        plane.whole = True
        await hosts.round()
        assert sorted(hosts.crashed()) == ["g0", "g2"]
        assert hosts.machine(1).host == "h0"


async def test_a_crash_that_the_plane_refuses_is_left_out(hosts: Hosts) -> None:
    async with hosts.watched():
        # One of two leaves the fleet, and this is not told.
        hosts.house.feed._listeners.remove(hosts.sync.learn)
        done(hosts.house.plane.remove_machines(["g0"]))
        hosts.fails(0)
        hosts.fails(2)
        await hosts.round()
        assert hosts.crashed() == ["g2"]
        asked = hosts.kept.asked["h0"]
        await hosts.round()
        assert hosts.kept.asked["h0"] == asked + 1


async def test_without_hosts_nothing_is_kept(house: House) -> None:
    sync = FleetSync(house.plane, house.clock, house.clock, HostsInMemory())
    with house.store.read() as reading:
        sync.learn(everything(state_of(reading)))
    house.feed.subscribe(sync.learn)
    house.ask(EventType.REBOOT, "web-0", no_notice=True)
    assert not sync._machines
    assert not sync._work
    running = asyncio.create_task(sync.run())
    await patience.settled()
    assert sync.alerts() == []
    sync.stop()
    await asyncio.wait_for(running, patience.SECONDS)
