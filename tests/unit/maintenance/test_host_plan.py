"""What of a drain can be told, or is refused, before it begins: host_plans.txt."""

from typing import Any

import msgspec
import pytest

from builders import NOW, Bench
from forewarn.maintenance import fleet_file, host_plan, model
from forewarn.maintenance.host_plan import HostPlan, HostSurvey
from forewarn.vocabulary import EventType
from stories import Told, listed, stories_beside

FLEET = msgspec.convert(
    {
        "availability_set": [
            {
                "name": "web",
                "update_domains": 3,
                "machines": [
                    {"name": f"web-{n}", "host": f"h{1 + n % 3}", "update_domain": n % 3}
                    for n in range(6)
                ],
            }
        ],
        "machine": [{"name": f"db-{n}", "host": f"h{1 + n % 3}"} for n in range(4)],
    },
    fleet_file.Fleet,
)


EMPTY = HostSurvey(began_at=NOW, hosts={}, keys={})


class PlanStory(Told):
    """A fleet, where its machines really are, and the drains that are planned."""

    wanted: list[model.Drain]

    def __init__(self) -> None:
        self.bench = Bench(FLEET)
        machines = self.bench.snapshot.machines.values()
        self.places = {machine.vm_id: machine.host for machine in machines}
        self.stopped: set[str] = set()
        self.obstacles: dict[str, tuple[str, ...]] = {}
        self.memory_of = {"db-0": 4096, "web-3": 2048}
        self.left = {"h1": 64_000, "h2": 64_000, "h3": 32_000}
        self.quiet: set[str] = set()
        self.can_reboot, self.boot_id = True, "1"
        self.guests: list[model.DrainGuest] = []
        self.drains: dict[str, model.Drain] = {}
        self.look: HostSurvey | None = None

    @property
    def world(self) -> Any:
        world = self.bench.world()
        for host, drain in self.drains.items():
            world.drains[host] = drain
        return world

    def id_of(self, name: str) -> str:
        return self.bench.snapshot.machines[name].vm_id

    def survey(self) -> HostSurvey:
        machines = {m.vm_id: m for m in self.bench.snapshot.machines.values()}
        found: dict[str, list[model.GuestFacts]] = {host: [] for host in self.left}
        for vm_id, host in self.places.items():
            name = machines[vm_id].name
            found[host].append(
                model.GuestFacts(
                    vm_id=vm_id,
                    name=name,
                    running=vm_id not in self.stopped,
                    memory_mib=self.memory_of.get(name, 1024),
                    obstacles=self.obstacles.get(name, ()),
                )
            )
        facts = {
            host: model.HostFacts(
                answers=host not in self.quiet,
                why="no route to host" if host in self.quiet else "",
                boot_id=self.boot_id,
                free_memory_mib=self.left[host],
                can_reboot=self.can_reboot,
                guests=tuple(guests),
            )
            for host, guests in found.items()
        }
        keys = {m.vm_id: m.key for m in machines.values()}
        return HostSurvey(began_at=NOW, hosts=facts, keys=keys)

    # What is so.

    def where(self, name: str, host: str) -> None:
        self.places[self.id_of(name)] = host

    def off(self, name: str) -> None:
        self.stopped.add(self.id_of(name))

    def obstacle(self, name: str, *why: str) -> None:
        self.obstacles[name] = why

    def memory(self, name: str, mib: str) -> None:
        self.memory_of[name] = int(mib)

    def free(self, *told: str) -> None:
        self.left = {host: int(mib) for host, mib in (each.split(":") for each in told)}

    def silent(self, host: str) -> None:
        self.quiet.add(host)

    def answers(self, host: str) -> None:
        self.quiet.remove(host)

    def no_boot_id(self) -> None:
        self.boot_id = ""

    def no_reboot(self) -> None:
        self.can_reboot = False

    def unseen(self, trouble: str = "") -> None:
        """No look has found a host."""
        self.look = msgspec.structs.replace(EMPTY, trouble=trouble)

    def hold(self, kind: str, name: str = "", reason: str = "") -> None:
        held = model.Hold(kind=model.HoldKind(kind), name=name, reason=reason, by="relay", at=NOW)
        self.world.holds[held.kind, name] = held

    def moves(self, name: str, to: str) -> None:
        self.bench.ask(EventType.FREEZE, name, live_migration=True, to_host=to)

    def cancel(self, operation: str) -> None:
        self.bench.cancel(operation)

    def guest(
        self, name: str, way: str, to: str = "", memory: str = "0", leaves: str = "0"
    ) -> None:
        told = {"memory_mib": int(memory), "leaves_by": int(leaves), "to_host": to}
        self.guests.append(
            model.DrainGuest(name=name, vm_id=self.id_of(name), way=model.Way(way), **told)
        )

    def drained(self, host: str, **more: Any) -> model.Drain:
        guests = tuple(self.guests)
        return model.Drain(host=host, guests=guests, requested_at=NOW, changed_at=NOW, **more)

    def drain(self, host: str, state: str) -> None:
        self.drains[host] = self.drained(host, state=model.HostState(state), reboot=True)
        self.guests.clear()

    def wants(
        self, *hosts: str, reboot: str = "yes", stay: str = "refuse", avoid: str = ""
    ) -> None:
        more = {"reboot": reboot == "yes", "stay": model.Stay(stay), "avoid": tuple(listed(avoid))}
        self.wanted = [self.drained(host, state=model.HostState.UP, **more) for host in hosts]
        self.guests.clear()

    # What must be so.

    def plans(self) -> dict[str, HostPlan]:
        found = host_plan.plans(self.world, self.wanted, self.survey())
        return {plan.host: plan for plan in found}

    def check(self) -> None:
        host_plan.check(self.world, self.wanted, self.look or self.survey())

    def hosts(self, *expected: str) -> None:
        assert [*self.plans()] == [*expected]

    def plan(self, host: str, *expected: str) -> None:
        guests = self.plans()[host].guests
        assert [f"{guest.name}:{guest.to_host}" for guest in guests] == [*expected]

    def order(self, host: str, prefix: str, *expected: str) -> None:
        names = [guest.name for guest in self.plans()[host].guests]
        assert [name for name in names if name.startswith(prefix)] == [*expected]

    def targets(self, host: str, *expected: str) -> None:
        assert {guest.to_host for guest in self.plans()[host].guests} == {*expected}

    def target(self, host: str, expected: str) -> None:
        assert expected in {guest.to_host for guest in self.plans()[host].guests}

    def problems(self, host: str, count: str) -> None:
        assert len(self.plans()[host].problems) == int(count)

    def problem(self, host: str, says: str) -> None:
        assert any(says in problem for problem in self.plans()[host].problems)

    def visits(self, host: str, *expected: str) -> None:
        assert {each.name for each in self.plans()[host].guests if each.visits} == {*expected}

    def ways(self, host: str, *expected: str) -> None:
        guests = self.plans()[host].guests
        assert sorted(f"{g.name}:{g.way}:{g.to_host}" for g in guests) == [*expected]

    def way(self, host: str, name: str, way: str) -> None:
        assert {each.name: each.way for each in self.plans()[host].guests}[name] == way

    def first(self, host: str, name: str, **told: str) -> None:
        self.compare(self.plans()[host].guests[0], {"name": name, **told})


@pytest.mark.parametrize("rows", stories_beside(__file__, "host_plans.txt"))
def test_the_story_holds(rows: list[tuple[int, str]]) -> None:
    assert PlanStory().play("host_plans.txt", rows)


def test_a_host_that_no_look_found_does_not_answer() -> None:
    facts = EMPTY.of("h1")
    assert not facts.answers
    assert facts.why
    assert msgspec.structs.replace(EMPTY, trouble="no library").of("h1").why == "no library"


def test_a_look_goes_over_the_machines_at_the_first_look_up_and_once() -> None:
    looked: list[str] = []

    class Machine:
        @property
        def vm_id(self) -> str:
            looked.append("web-0")
            return "guid"

        key = "web-0"

    one: Any = Machine()
    keys = host_plan.MachineKeys([one])
    assert looked == []
    assert [keys["guid"], keys.get("other")] == ["web-0", None]
    assert looked == ["web-0"]
