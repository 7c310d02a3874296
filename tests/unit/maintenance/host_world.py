"""Hosts, machines and operators for drains: the real rules, and a truth that drains must not hurt.

`World.drive` does what the service does around `host_drain.step`, and checks at each reboot and
each request what must never happen.
"""

from datetime import timedelta
from typing import Any

import msgspec

from builders import MINUTE, SECOND, Bench
from forewarn.maintenance import commands, fleet_file, host_drain, planner
from forewarn.maintenance.host_drain import DrainStep, DrainView
from forewarn.maintenance.host_plan import HostSurvey
from forewarn.maintenance.model import (
    Drain,
    GuestFacts,
    HostFacts,
    HostState,
    Operation,
    Stay,
    key,
)
from forewarn.vocabulary import EventStatus

HOST_BACK = 30 * MINUTE
MAX_STEPS = 200

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
"""On h1: web-0, web-3, db-0, db-3; on h2: web-1, web-4, db-1; on h3: web-2, web-5, db-2."""

replace = msgspec.structs.replace


class World:
    def __init__(self) -> None:
        self.bench = Bench(FLEET)
        machines = self.bench.snapshot.machines.values()
        self.where = {machine.vm_id: machine.host for machine in machines}
        self.off: set[str] = set()
        self.strangers: dict[str, str] = {}
        self.obstacles: dict[str, tuple[str, ...]] = {}
        self.memory = {"db-0": 4096, "web-3": 2048}
        self.free = {"h1": 64_000, "h2": 64_000, "h3": 32_000}
        self.boots = dict.fromkeys(("h1", "h2", "h3"), 0)
        self.silent: set[str] = set()
        self.can_reboot = True
        self.states: set[HostState] = set()
        self.reboots: dict[str, int] = {}
        self.lose_reboots = False
        self.step: DrainStep | None = None

    @property
    def now(self) -> Any:
        return self.bench.now

    @property
    def world(self) -> Any:
        return self.bench.world()

    @property
    def drains(self) -> dict[str, Drain]:
        drains: dict[str, Drain] = self.world.drains
        return drains

    def id_of(self, name: str) -> str:
        return self.bench.snapshot.machines[name].vm_id

    def survey(self) -> HostSurvey:
        machines = {m.vm_id: m for m in self.bench.snapshot.machines.values()}
        found: dict[str, list[GuestFacts]] = {host: [] for host in self.boots}
        for vm_id, host in self.where.items():
            name = machines[vm_id].name
            found[host].append(
                GuestFacts(
                    vm_id=vm_id,
                    name=name,
                    running=vm_id not in self.off,
                    memory_mib=self.memory.get(name, 1024),
                    obstacles=self.obstacles.get(name, ()),
                )
            )
        for name, host in self.strangers.items():
            found[host].append(GuestFacts(vm_id=name, name=name, running=True, memory_mib=512))
        facts = {
            host: HostFacts(
                answers=True,
                boot_id=f"{host}-{self.boots[host]}",
                free_memory_mib=self.free[host],
                can_reboot=self.can_reboot,
                guests=tuple(guests),
            )
            for host, guests in found.items()
        }
        for host in self.silent:
            facts[host] = HostFacts(answers=False, why="no route to host")
        keys = {m.vm_id: m.key for m in machines.values()}
        return HostSurvey(began_at=self.now, hosts=facts, keys=keys)

    def view(self, host: str, survey: HostSurvey | None = None) -> DrainView:
        return DrainView(world=self.world, drain=self.drains[host], survey=survey)

    # What operators order.

    def drain(self, *names: str, stay: Stay = Stay.REFUSE, **more: Any) -> None:
        for host in names:
            wanted = Drain(
                host=host,
                state=HostState.UP,
                stay=stay,
                requested_at=self.now,
                changed_at=self.now,
                **more,
            )
            self.put(host_drain.request(self.drains.get(host), wanted, self.now))

    def order(self, host: str, order: Any, *arguments: Any) -> None:
        self.save(order(self.view(host), *arguments, self.now))

    def put(self, drain: Drain) -> None:
        before = self.drains.get(drain.host)
        if before is not None and before.state is not drain.state:
            assert drain.state in {
                after
                for (state, _), after in host_drain.TRANSITIONS.items()
                if state is before.state
            }
        self.drains[drain.host] = drain
        self.states.add(drain.state)

    def save(self, step: DrainStep) -> None:
        self.put(step.drain)
        if step.cancel:
            self.bench.decide(commands.cancel_operations, step.cancel, "the drain stopped")

    # What the service does around the decider.

    def drive(self, host: str) -> DrainStep:
        survey = None
        for _ in range(MAX_STEPS):
            view = self.view(host, survey)
            step = self.step = host_drain.step(view, self.now, HOST_BACK)
            changed = step.drain != view.drain
            if step.asks:
                changed |= self.ask(view, step)
            else:
                self.save(step)
            if step.reboot:
                self.reboot(host)
            if step.survey:
                survey = self.survey()
            elif not changed:
                return step
        raise AssertionError(f"{host} never rests: {step.drain}")

    def ask(self, view: DrainView, step: DrainStep) -> bool:
        def ask(request: planner.Request) -> int:
            self.is_free(view, request.machines[0])
            number = next(self.bench.numbers)
            self.bench.decide(commands.request_maintenance, request, number)
            return number

        before = self.drains[view.drain.host]
        after = host_drain.ask_first(view, step, ask, self.now)
        self.save(after)
        is_asked = after.drain.maintenances != before.maintenances
        return is_asked or after.drain.state is not before.state

    def is_free(self, view: DrainView, name: str) -> None:
        """Check that a drain never asks for a machine that it has something under way for."""
        for operation in filter(None, map(view.operation, view.drain.maintenances)):
            assert name not in operation.machines or operation.status.over, f"{name} twice"

    def reboot(self, host: str) -> None:
        running = [i for i, at in self.where.items() if at == host and i not in self.off]
        running += [name for name, at in self.strangers.items() if at == host]
        assert not running, f"{host} is rebooted under {running}"
        self.reboots[host] = self.reboots.get(host, 0) + 1
        if not self.lose_reboots:
            self.boots[host] += 1

    def drive_all(self) -> None:
        for host in [*self.drains]:
            self.drive(host)

    # What happens to operations.

    def live(self) -> list[Operation]:
        return [o for o in self.bench.snapshot.operations.values() if not o.status.over]

    def approve(self) -> None:
        for operation in self.live():
            if operation.pending:
                for event in operation.events:
                    self.bench.approve(event.id)

    def carry_out(self, operation: Operation, *, succeeded: bool = True) -> None:
        """Let a Started operation end, or its machine be off until its host has rebooted."""
        (name,) = operation.machines
        vm_id = self.id_of(key(name))
        if operation.host_boot_id and succeeded:
            host = self.where[vm_id]
            if f"{host}-{self.boots[host]}" == operation.host_boot_id and host not in self.silent:
                self.off.add(vm_id)
                return
            self.off.discard(vm_id)
        self.off -= set() if succeeded else {vm_id}  # whatever failed, it is started again
        moved = {}
        if succeeded and operation.to_host:
            moved = {name: operation.to_host}
            self.where[vm_id] = operation.to_host
        self.bench.claim(operation.id)
        self.bench.decide(
            commands.finish_task,
            operation_id=operation.id,
            attempt=self.bench.operation(operation.id).attempt,
            succeeded=succeeded,
            message="" if succeeded else "no memory",
            hosts=moved,
        )

    def carry_all_out(self) -> None:
        for operation in self.live():
            if operation.status is EventStatus.STARTED:
                self.carry_out(operation)

    def go_on(self, rounds: int = 12) -> None:
        """Let everything succeed for a while."""
        for _ in range(rounds):
            self.drive_all()
            self.approve()
            self.carry_all_out()
            self.bench.let_pass(2 * SECOND)
        self.drive_all()

    def go_on_until(self, state: HostState, host: str = "h1") -> None:
        for _ in range(40):
            self.drive_all()
            if self.state(host) is state:
                return
            self.approve()
            self.carry_all_out()
            self.bench.let_pass(2 * SECOND)
        raise AssertionError(f"{host} is {self.state(host)}, not {state}")

    def wait(self, time: timedelta) -> None:
        self.bench.let_pass(time)
        self.drive_all()

    def state(self, host: str = "h1") -> HostState:
        return self.drains[host].state

    def hosts_of(self, *names: str) -> list[str]:
        return [self.where[self.id_of(name)] for name in names]
