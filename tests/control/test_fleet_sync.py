"""The fleet in step with its hosts, which are in memory here: fleet_sync.txt."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
import pytest

import patience
from builders import NOW
from control.conftest import House, done
from control.orders import PlaneStory
from forewarn.clock import ManualClock
from forewarn.connectors.port import Unanswered
from forewarn.control import fleet_sync
from forewarn.control.fleet_sync import REST, SURVEY_EVERY, FleetSync
from forewarn.control.outbox import everything, state_of
from forewarn.control.plane import Plane
from forewarn.maintenance import fleet_file
from forewarn.maintenance.alerts import Alert
from forewarn.maintenance.fleet_import import Domain
from forewarn.maintenance.model import Changes, HostState
from forewarn.vocabulary import EventStatus, EventType
from store.values import drain
from stories import RUNNER, elapsed, stories_beside

replace = msgspec.structs.replace


def vm_id(name: str) -> str:
    return f"00000000-0000-4000-8000-{name.encode().hex():0>12.12}"


def domain(told: str) -> Domain:
    """A domain, told as `name:state:reason`."""
    name, state, reason = [*told.split(":"), "", ""][:3]
    return Domain(uuid=vm_id(name), name=name, state=state or "running", reason=reason)


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


class Troubled(Plane):
    """Notes what is requested; everything about one machine fails as long as that is so."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.requested: list[str] = []
        self.failing = ""
        self.meanwhile: list[Callable[[], None]] = []

    def request(self, request: Any, *given: Any, **more: Any) -> Any:
        while self.meanwhile:
            self.meanwhile.pop()()
        self.requested += request.machines
        if self.failing in request.machines:
            raise RuntimeError(request)
        return super().request(request, *given, **more)

    def record_hosts(self, hosts: Mapping[str, str]) -> Any:
        if self.failing:
            raise RuntimeError(hosts)
        return super().record_hosts(hosts)


class SyncStory(PlaneStory):
    """Two hosts, and the service that watches them."""

    settles = True

    def __init__(self, house: House) -> None:
        self.house = house
        self.stored, self.clock = house.store, house.clock
        self.real = ManualClock(NOW)
        self.kept = HostsInMemory(h0=[domain("g0"), domain("g2")], h1=[domain("g1")])
        machines = tuple(
            fleet_file.NamedMachine(
                name=f"g{n}", vm_id=vm_id(f"g{n}"), host=f"h{n % 2}", update_domain=0
            )
            for n in range(3)
        )
        group = fleet_file.AvailabilitySet(name="guests", machines=machines)
        done(house.plane.apply_fleet(fleet_file.Fleet(availability_set=(group,))))
        self.troubled: Troubled = house.plane_of(Troubled)
        self.sync = FleetSync(self.troubled, house.clock, self.real, self.kept)
        self.counted: dict[str, int] = {}
        self.running: asyncio.Task[None] | None = None

    @property
    def plane(self) -> Plane:
        return self.house.plane

    def watch(self) -> None:
        with self.stored.read() as reading:
            self.sync.learn(everything(state_of(reading)))
        self.house.feed.subscribe(self.sync.learn)
        self.running = RUNNER.get_loop().create_task(self.sync.run())

    def end(self) -> None:
        assert self.running is not None
        assert not self.running.done()
        self.sync.stop()
        RUNNER.run(asyncio.wait_for(self.running, patience.SECONDS))

    def round(self) -> None:
        """Let the hosts be surveyed once more."""
        for time in (REST, SURVEY_EVERY - REST):
            for clock in (self.clock, self.real):
                clock.advance(time)
            RUNNER.run(patience.settled())

    def pass_(self, span: str) -> None:
        for clock in (self.clock, self.real):
            clock.advance(elapsed(span))

    def later(self, span: str) -> None:
        self.clock.advance(elapsed(span))

    def on(self, host: str, *domains: str) -> None:
        self.kept.domains[host] = [*map(domain, domains)]

    def lose(self, host: str, why: str) -> None:
        self.kept.lost[host] = why

    def answers(self, host: str) -> None:
        del self.kept.lost[host]

    def hang(self, host: str) -> None:
        self.kept.hanging.add(host)

    def stranger(self, host: str) -> None:
        self.sync.survey_soon(host)

    def apply(self, name: str, host: str) -> None:
        late = fleet_file.StandaloneMachine(name=name, vm_id=vm_id(name), host=host)
        done(self.house.plane.apply_fleet(fleet_file.Fleet(machine=(late,))))

    def unheard(self) -> None:
        """Nothing that changes is told to the watch."""
        self.house.feed._listeners.remove(self.sync.learn)

    def swap(self, *names: str) -> None:
        known = self.look_up(lambda reading: reading.machines())
        first, second = (known[name] for name in names)
        swapped = replace(first, vm_id=second.vm_id), replace(second, vm_id=first.vm_id)
        self.house.put(Changes(machines=swapped))

    def swap_meanwhile(self, *names: str) -> None:
        """Swap two machines' ids while the next crash is recorded."""
        self.troubled.meanwhile.append(lambda: self.swap(*names))

    def becomes(self, operation: str, status: str) -> None:
        """The watch hears that an operation has a status."""
        known = self.found(operation)
        self.sync.learn(Changes(operations=(replace(known, status=EventStatus(status)),)))

    def drain(self, host: str, state: str) -> None:
        self.sync.learn(Changes(drains=(drain(host, state=HostState(state)),)))

    def fails(self, machine: str) -> None:
        self.troubled.failing = machine

    def mended(self) -> None:
        assert not self.sync.obstacle
        self.troubled.failing = ""

    # What must be so.

    def surveys(self, host: str, count: str) -> None:
        before, self.counted[host] = self.counted.get(host, 0), self.kept.asked[host]
        assert self.kept.asked[host] - before == int(count)

    def crashed(self, *machines: str) -> None:
        """The machines with an unforeseen event."""
        live = [*self.look_up(lambda reading: reading.live_operations()).values()]
        assert sorted(name for each in live for name in each.machines) == [*machines]
        assert {each.description for each in live} <= {fleet_sync.DESCRIPTION}

    def requested(self, *machines: str) -> None:
        assert self.troubled.requested == [*machines]

    def tags(self, host: str, *domains: str) -> None:
        assert self.kept.tags_of[host] == {*map(vm_id, domains)}

    def alerting(self) -> Iterable[Alert]:
        return sorted(self.sync.alerts(), key=lambda one: (one.kind, one.about))

    def alert(self, says: str) -> None:
        (alert,) = self.sync.alerts()
        assert says in alert.message


@pytest.fixture
def told(house: House) -> Iterator[SyncStory]:
    story = SyncStory(house)
    yield story
    story.end()


@pytest.mark.parametrize("rows", stories_beside(__file__, "fleet_sync.txt"))
def test_the_story_holds(told: SyncStory, rows: list[tuple[int, str]]) -> None:
    assert told.play("fleet_sync.txt", rows)


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
