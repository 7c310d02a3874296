"""What must hold of every change, judged by a record of its own and not by the decider's words."""

from collections import ChainMap, Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from forewarn.connectors.port import Outcome, Task
from forewarn.maintenance import invariants, model
from forewarn.maintenance.world import LiveState, World
from forewarn.vocabulary import EventStatus, EventType, TargetKind
from simulation.clocks import Clocks
from simulation.turn_judge import TurnJudge, Wrong
from store.model import Model
from trace_judge import Trace

ROUNDING = timedelta(milliseconds=1)
"""What adding seconds as floating-point numbers may come to in a whole seed."""

DELETIONS = {EventType.PREEMPT, EventType.TERMINATE}
OVER = {EventStatus.COMPLETED, EventStatus.FAILED, EventStatus.CANCELED}


class Judge:
    """Looks at each change before it is committed; `answered` keeps what guests were promised."""

    def __init__(
        self,
        memory: Model,
        clocks: Clocks,
        queues: Callable[[model.Scope], bool],
        sightings: Mapping[str, model.Sighting],
    ) -> None:
        self._sightings = sightings
        self._queues = queues
        self._memory = memory
        self._clocks = clocks
        self._notices: dict[str, timedelta] = {}
        """When each operation's notice is over, in time that guests have to read in."""
        self._highest: dict[str, int] = {}
        """The highest incarnation that each scope's guests have read, removed scopes' too."""
        self._left: dict[str, tuple[str, int]] = {}
        """The scope that each removed machine was in, by key, and that one's incarnation."""
        self.approved: set[str] = set()
        """Events of which somebody was told that they are approved."""
        self._trace = Trace()
        self.ordered = ""
        """The host whose drain the change is about that an operator orders just now."""
        self.running_on: Callable[[str], list[str]] = lambda _: []
        """The machines that really run on a host."""
        self.boot_id: Callable[[str], str] = str
        """The host's present boot."""
        self.drained: Counter[model.HostState] = Counter()
        """How often drains came to each state."""
        self.turns = TurnJudge(memory)
        self.starts = 0
        self.ends = 0

    def see(self, changes: model.Changes, now: datetime) -> None:
        """Judge a change against what was committed before it."""
        for drain in changes.drains:
            self._see_drain(drain)
        for operation in changes.operations:
            old = self._memory.all_operations.get(operation.id)
            self._see(old, operation, now)
            if operation.started_at is not None and (old is None or old.started_at is None):
                self._see_holds(operation, changes)
                self._see_host(operation, changes)
            self._see_place(operation, changes)
            self._see_recovery(operation, {o.id: o for o in changes.operations})
        self._see_hosts(changes)
        self.turns.see(changes, now)
        if changes.machines or changes.removed_machines:
            self._see_fleet(changes)
        for scope in changes.scopes:
            old = self._memory.all_scopes.get(scope.key)
            highest = self._highest.get(scope.key, 0)
            self._highest[scope.key] = max(highest, scope.incarnation)
            if old is None:
                if highest and scope.incarnation <= highest:
                    raise Wrong(f"{scope.name} is new at {scope.incarnation}, and was at {highest}")
                continue
            if scope.incarnation < old.incarnation:
                raise Wrong(f"{scope.name}: incarnation {old.incarnation} -> {scope.incarnation}")
            if old.asked_at is not None and (
                scope.asked_at is None or scope.asked_at < old.asked_at
            ):
                raise Wrong(f"{scope.name} was asked at {old.asked_at}, now {scope.asked_at}")

    def _see(self, old: model.Operation | None, new: model.Operation, now: datetime) -> None:
        self._trace.changed(old, new)
        self._raise_complaint()
        if old is not None:
            kept = {event.id: event for event in (*new.events, *new.dropped)}
            for before in old.events:
                if before.approval is not None and kept[before.id].approval != before.approval:
                    raise Wrong(f"{new.id}: the approval of {before.id} is gone")
        if new.status is EventStatus.STARTED and (
            old is None or old.status is not EventStatus.STARTED
        ):
            self.starts += 1
            self._see_start(old, new, now)
        elif new.status is EventStatus.SCHEDULED and (
            old is None or old.status is EventStatus.QUEUED
        ):
            due = self._counted() + (new.not_before - now)
            self._notices[new.id] = due
        elif new.status in OVER and (old is None or old.status not in OVER):
            self.ends += 1

    def _see_drain(self, new: model.Drain) -> None:
        """A drain follows its table, and believes a host empty or rebooted when it is."""
        old = self._memory.all_drains.get(new.host)
        self._trace.drained(old, new, ordered=self.ordered == new.host)
        self._raise_complaint()
        if old is None or old.state is new.state:
            return
        self.drained[new.state] += 1
        if new.state in {model.HostState.EMPTY, model.HostState.REBOOTING} and (
            on := self.running_on(new.host)
        ):
            raise Wrong(f"{new.host} is {new.state}, and has {', '.join(on)}")
        if new.state is model.HostState.BACK and self.boot_id(new.host) == new.boot_id:
            raise Wrong(f"{new.host} is back, and has not rebooted")

    def see_claim(self, act: Task) -> None:
        """A host that is drained is no target."""
        closed = {drain.host for drain in self._memory.all_drains.values() if drain.closed}
        if act.to_host in closed or not closed <= {*act.closed_hosts}:
            raise Wrong(f"{act.operation} may go to a host that is drained")
        operation = self._memory.all_operations[act.operation]
        wanted = self._host_of(operation, self._memory.all_maintenances)
        if act.target is TargetKind.HOST and {*act.hosts} != {wanted}:
            raise Wrong(f"{act.operation} is told {act.hosts}, and {wanted} was ordered")

    @staticmethod
    def _host_of(operation: model.Operation, maintenances: Mapping[int, model.Maintenance]) -> str:
        """The host that was ordered, where the operation is about one."""
        ordered = maintenances[operation.maintenance]
        if operation.unit is None:
            return ordered.targets[0]
        return ordered.units[operation.unit].name

    def _raise_complaint(self) -> None:
        if self._trace.complaints:
            raise Wrong(self._trace.complaints[0])

    def _see_start(self, old: model.Operation | None, new: model.Operation, now: datetime) -> None:
        """Never early: by the NotBefore that guests had read, and by approvals as recorded."""
        why = self._clocks.forbidden()
        if why and new.start_cause is not model.StartCause.NO_NOTICE:
            raise Wrong(f"{new.id} started while {why}")
        if new.opens_at is not None and now < new.opens_at:
            raise Wrong(f"{new.id} started before its window opened at {new.opens_at}")
        if new.closes_at is not None and now >= new.closes_at:
            raise Wrong(f"{new.id} started after its window closed at {new.closes_at}")
        if old is None or old.status is EventStatus.QUEUED:
            return  # it struck: the rules refuse that where notice is due
        missing = [e.id for e in new.events if not e.silent and e.approval is None]
        short = self._notices[new.id] - (self._counted() + ROUNDING)
        if missing and short > timedelta(0):
            raise Wrong(f"{new.id} started {short} before its guests had their notice")

    def _see_holds(self, new: model.Operation, changes: model.Changes) -> None:
        """Nothing starts on a host that is on hold, by where its machines are now."""
        if new.start_cause is model.StartCause.NO_NOTICE:
            return
        holds = {*self._memory.holds(), *changes.holds}.difference(changes.released)
        held = {hold.name for hold in holds if hold.kind is model.HoldKind.HOST}
        names = [model.key(name) for name in new.machines]
        known = self._memory.machines(names) | {m.key: m for m in changes.machines}
        if on := held & {new.to_host, *(known[name].host for name in names if name in known)}:
            raise Wrong(f"{new.id} started on {min(on)}, which is on hold")

    def _see_hosts(self, changes: model.Changes) -> None:
        """A hold covers what is on its host now: what came is held, and what left is free."""
        scopes = {machine.scope for machine in changes.machines}
        known = {o.id: o for o in changes.operations}
        operations = self._live_in(*scopes) | known
        holds = {*self._memory.holds(), *changes.holds}.difference(changes.released)
        now_on = {machine.key: machine.host for machine in changes.machines}
        for operation in operations.values():
            if not operation.unstarted:
                continue
            names = [model.key(name) for name in operation.machines]
            on = {m.key: m.host for m in self._memory.machines(names).values()} | now_on
            hosts = {on[name] for name in names if on.get(name)}
            if {*operation.hosts} != hosts:
                raise Wrong(f"{operation.id} is on {hosts}, and says {operation.hosts}")
            covered = any(hold.covers(operation) for hold in holds)
            if operation.pending and covered != (operation.held_at is not None):
                raise Wrong(f"{operation.id} is {'not ' * covered}held by {operation.hosts}")

    def _see_host(self, new: model.Operation, changes: model.Changes) -> None:
        """What starts on a host has what is there: nothing that left, and nothing unannounced."""
        if new.target is not TargetKind.HOST or new.start_cause is model.StartCause.NO_NOTICE:
            return
        maintenances = self._memory.all_maintenances | {m.number: m for m in changes.maintenances}
        host = self._host_of(new, maintenances)
        fleet = self._memory.all_machines | {m.key: m for m in changes.machines}
        own = {model.key(name) for name in new.machines}
        if gone := [n for n in own if n in fleet and fleet[n].host not in {"", host}]:
            raise Wrong(f"{new.id} started on {host} with {gone[0]}, which has left")
        here = {name for name, machine in fleet.items() if machine.host == host}
        here.difference_update(changes.removed_machines)
        if new.unit is None and new.event_type not in DELETIONS and here - own:
            raise Wrong(f"{new.id} started on {host}, and {min(here - own)} had no notice")

    def _see_place(self, new: model.Operation, changes: model.Changes) -> None:
        """Nobody hears of maintenance while another domain of the scope is down or announced."""
        old = self._memory.all_operations.get(new.id)
        announced = new.status is EventStatus.SCHEDULED and (
            old is None or old.status is EventStatus.QUEUED
        )
        if not announced or new.event_type in DELETIONS:
            return
        changed = {operation.id: operation for operation in changes.operations}
        scopes = ChainMap({scope.key: scope for scope in changes.scopes}, self._memory.all_scopes)
        for event in (one for one in new.events if self._queues(scopes[one.scope])):
            known = self._live_in(event.scope) | changed
            for other in known.values():
                taken = {e.update_domain for e in other.events if e.scope == event.scope}
                if (other.down or other.pending) and taken - {event.update_domain}:
                    raise Wrong(f"{new.id} is announced although {other.id} is {other.status}")

    def _see_recovery(self, new: model.Operation, changed: dict[str, model.Operation]) -> None:
        """A failure keeps its domains down until it is acknowledged, or its machines are repaired.

        A machine that is awaited no more asked again, left the fleet, or was repaired.
        """
        old = self._memory.all_operations.get(new.id)
        if old is None or new.status is EventStatus.CANCELED:
            return
        names = set(old.awaited) if old.status is EventStatus.RETURNING else set()
        if new.status is EventStatus.RETURNING:
            names -= set(new.awaited)
        elif new.status is EventStatus.FAILED:
            if new.acknowledged_by:
                return
            names = set(new.machines if old.status is not new.status else old.awaited)
            names -= set(new.awaited)
        done = old.carried_out_at
        asked = old.status is EventStatus.RETURNING and new.status is not EventStatus.FAILED
        for name in names:
            known = model.key(name) in self._memory.all_machines
            seen = self._sightings.get(model.key(name))
            if asked and known and not (seen and done and seen.asked_at > done):
                raise Wrong(f"{new.id} awaits {name} no more, which has not asked again")
            if not asked and known and not self._repaired(name, new, changed):
                raise Wrong(f"{new.id} failed, {name} is up, and nobody has acknowledged it")

    @staticmethod
    def _repaired(name: str, failed: model.Operation, changed: dict[str, model.Operation]) -> bool:
        return any(
            other.status is EventStatus.COMPLETED
            and model.key(name) in map(model.key, other.machines)
            for other in changed.values()
            if other.id != failed.id
        )

    def _counted(self) -> timedelta:
        """The time that the service may count as readable."""
        return self._clocks.readable + self._clocks.slack

    def _see_fleet(self, changes: model.Changes) -> None:
        """Who has a live event stays where it is; who moves meets only higher incarnations."""
        ending = {o.id for o in changes.operations if o.status in OVER}
        fresh = {scope.key: scope.incarnation for scope in changes.scopes}
        for machine in changes.machines:
            old = self._memory.all_machines.get(machine.key)
            if old is None:
                scope, left = self._left.pop(machine.key, (machine.scope, 0))
            else:
                if (old.scope, old.update_domain) != (machine.scope, machine.update_domain):
                    self._see_idle(old.scope, machine.name, ending)
                scope, left = old.scope, self._memory.all_scopes[old.scope].incarnation
            if scope != machine.scope:
                known = self._memory.all_scopes.get(machine.scope)
                entered = fresh.get(machine.scope, known.incarnation if known else 0)
                if left and entered <= left:
                    raise Wrong(f"{machine.name} was at incarnation {left} and is at {entered}")
        for name in changes.removed_machines:
            scope = self._memory.all_machines[name].scope
            self._see_idle(scope, name, ending)
            known = self._memory.all_scopes[scope].incarnation
            self._left[name] = scope, fresh.get(scope, known)

    def _live_in(self, *scopes: str) -> dict[str, model.Operation]:
        live = self._memory.live.items()
        return {name: o for name, o in live if any(event.scope in scopes for event in o.events)}

    def _see_idle(self, scope: str, name: str, ending: set[str]) -> None:
        for operation in self._live_in(scope).values():
            if operation.status in OVER or operation.id in ending:
                continue
            if model.key(name) in map(model.key, operation.machines):
                raise Wrong(f"{name} moves or goes, and {operation.id} is {operation.status}")

    def see_end(self, act: Task, outcome: Outcome, hosts: dict[str, str]) -> int:
        """Judge where an act's machines are, now that it has ended; return how many have moved.

        Args:
            act: What was carried out.
            outcome: How, as it was reported.
            hosts: Where each machine was just before, by key.
        """
        gone = outcome.succeeded and act.event_type in {EventType.PREEMPT, EventType.TERMINATE}
        moves = act.live_migration or act.event_type is EventType.REDEPLOY
        redeployed = outcome.succeeded and moves
        named = {model.key(name): host for name, host in outcome.hosts.items()}
        moved = 0
        for name, before in hosts.items():
            machine = self._memory.all_machines.get(name)
            if (machine is None) != gone:
                raise Wrong(f"{name} is {'still there' if gone else 'gone'} after {act.operation}")
            if machine is None:
                continue
            wanted = named.get(name, "" if redeployed else before)
            if machine.host != wanted:
                raise Wrong(f"{name} is on {machine.host!r} after {act.operation}, not {wanted!r}")
            moved += machine.host != before
        return moved

    def kept(self) -> None:
        """Every approval that was answered is there; the whole fleet is sound."""
        memory = self._memory
        for event_id in self.approved:
            (operation,) = memory.operations_of_events([event_id]).values()
            known = (*operation.events, *operation.dropped)
            (event,) = [e for e in known if e.id == event_id]
            if (
                event.approval is None
                and event in operation.events
                and operation.start_cause is None
                and operation.status.visible
            ):
                raise Wrong(f"{event_id} was approved, and the store does not know")
        live = memory.live_operations()
        invariants.check(World(LiveState(scopes=memory.all_scopes, operations=live)))
