"""The control plane: one method for each request.

Each method is a job of the writer: decide on the World, check the invariants, save, publish. It
returns a future, because requests that wait together share a commit; a refusal or a store that is
away is raised by the future. Questions do not wait for writers. Any thread may call them.

A reference is an event's id, an operation (`12.1`) or a maintenance (`12`); where several are
given, a command concerns all of them or is refused. `by` is the operator's name, or the machine's.
"""

import copy
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from functools import partial, wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import msgspec

from forewarn.connectors.port import Outcome, Task
from forewarn.control import accounts, lookup, tombstones
from forewarn.control.accounts import Describe, OperatorRequest, expired
from forewarn.control.unit_of_work import Job, UnitOfWork
from forewarn.control.writer import Writer
from forewarn.maintenance import (
    commands,
    fleet_file,
    host_drain,
    planner,
    turn_check,
)
from forewarn.maintenance.host_drain import DrainStep, DrainView
from forewarn.maintenance.host_plan import HostSurvey
from forewarn.maintenance.model import (
    LISTENING,
    Approval,
    Changes,
    Drain,
    Hold,
    HoldKind,
    Machine,
    Operation,
    Policy,
    Sightings,
    Verdict,
    key,
    mapped,
    unseen,
)
from forewarn.maintenance.transitions import Decision, Transitions
from forewarn.maintenance.turn_check import CheckRun
from forewarn.maintenance.world import World
from forewarn.store.queries import Reading
from forewarn.vocabulary import ApproverKind, EventStatus

ADVANCE_BATCH = 1000
"""The most operations that start in one transaction (ten thousand are ten of them)."""

FORGET_BATCH = 1000
"""The most of each kind that is forgotten in one transaction."""

MAX_REFUSALS: Final = 100_000
"""The most refused requests in the audit log, some 30 MB: strangers add to them."""

PROBE: Final = "probe"


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """The times for which finished things are kept."""

    history: timedelta = timedelta(days=90)
    """Operations, from their end on."""
    audit: timedelta = timedelta(days=365)
    news: timedelta = timedelta(days=7)
    replicas: timedelta = timedelta(days=7)
    """The row of a replica that says nothing: long enough to notice that it is gone. Names of hosts
    and containers come and go."""
    outbox: timedelta = timedelta(hours=1)
    """Changes: a replica that stood still for longer reads all again."""


class Stepped(msgspec.Struct, frozen=True, kw_only=True):
    """The work that is left after a step of a drain or a maintenance."""

    changed: bool = False
    survey: bool = False
    """True if the hosts are to be looked at before it."""
    reboot: bool = False
    """True if the host's reboot command is to run now, once."""
    check: CheckRun | None = None
    """The check to run now; the replica that took the step has it until its lease is over."""
    blocked: bool = False
    """True if other maintenance, or a hold, may be in the way."""
    wake_at: datetime | None = None
    """The time of the next step if nothing changes before."""


P = ParamSpec("P")
T = TypeVar("T")

Operations = tuple[Operation, ...]
"""The answer of most commands: the operations that they were about."""


def _job(
    method: Callable[Concatenate["Plane", UnitOfWork, P], T],
) -> Callable[Concatenate["Plane", P], "Future[T]"]:
    """Turn a method that decides within a unit of work into one that submits it to the writer."""

    @wraps(method)
    def submit(plane: "Plane", /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        submitted = plane._submit  # noqa: SLF001 - it wraps the class's own methods
        return submitted(lambda unit: method(plane, unit, *args, **kwargs))

    return submit


@dataclass(eq=False, repr=False)
class Plane:
    """The control plane.

    Each transaction asks `may_start` for permission to start anything, and `listening` for the time
    within which a machine must have asked to count as listening.
    """

    writer: Writer
    mint: Callable[[], str]
    policy: Policy = commands.ALWAYS_ON
    _: KW_ONLY
    may_start: Callable[[], bool] = lambda: True
    listening: Callable[[], timedelta] = lambda: LISTENING
    sighting: Sightings = unseen
    _audited: tuple[OperatorRequest, Describe] | None = None

    # The fleet.

    @_job
    def apply_fleet(
        self,
        unit: UnitOfWork,
        /,
        wanted: fleet_file.Fleet,
        **options: Any,  # noqa: ANN401 - those of `fleet_file.apply`
    ) -> fleet_file.Applied:
        """Make the fleet match a fleet file."""
        applied = fleet_file.apply(unit.world, wanted, mint=self.mint, **options)
        self._change_fleet(unit, applied.changes)
        return applied

    @_job
    def remove_machines(self, unit: UnitOfWork, names: Collection[str]) -> fleet_file.Applied:
        """Take machines out of the fleet, all or none, with scopes that they leave empty."""
        applied = fleet_file.remove(unit.world, names)
        self._change_fleet(unit, applied.changes)
        return applied

    @_job
    def record_hosts(self, unit: UnitOfWork, hosts: Mapping[str, str]) -> tuple[Machine, ...]:
        """Record the hosts of machines, by key; the answer is the machines whose host is new."""
        known = unit.world.machines
        moved = tuple(
            msgspec.structs.replace(known[name], host=host)
            for name, host in hosts.items()
            if name in known and known[name].host != host
        )
        self._change_fleet(unit, Changes(machines=moved))
        return moved

    def _change_fleet(self, unit: UnitOfWork, changes: Changes) -> None:
        """Change the fleet, with the consequences for operations."""
        world = unit.world
        moved = {
            machine.key
            for machine in changes.machines
            if (before := world.machines.get(machine.key)) is None or before.host != machine.host
        }
        moved.update(changes.removed_machines)
        tombstones.record(world, changes.removed_machines, unit.now)
        world.take(changes)
        if moved and any(one.unstarted for one in world.operations.values()):
            # It is one change with that of the fleet, which is not told by itself.
            unit.decided(unit, partial(commands.follow_moves, moved=moved))

    # Maintenance, and the guests' approvals.

    @_job
    def request(self, unit: UnitOfWork, request: planner.Request) -> planner.Plan:
        """Request maintenance; the answer is the plan.

        A request that was granted already under its idempotency key is answered with its earlier
        result, as that is now.
        """
        if (known := lookup.granted(unit.store, request)) is not None:
            operations = tuple(unit.operations_of_maintenance(known.number).values())
            return planner.Plan(maintenance=known, operations=operations)
        number = unit.next_maintenance_number()
        return _plan(unit.decide(commands.request_maintenance, request, number))

    def plan(self, request: planner.Request, world: World, now: datetime) -> planner.Plan:
        """Return the plan of a request, as maintenance 0, in a World that is thrown away.

        Any thread may: it does not wait for the writer, which viewers may not occupy.
        """

        def ask(working: Transitions) -> Iterable[str]:
            return commands.request_maintenance(working, request, 0)

        return _plan(self._decided(world, ask, now, starts=self.may_start()))

    @_job
    def approve(
        self, unit: UnitOfWork, scope: str, event_ids: Sequence[str], *, by: str, address: str
    ) -> Operations:
        """Approve events for a machine of this scope, by its key (protocol.md section 5)."""
        approval = Approval(kind=ApproverKind.GUEST, by=by, address=address, at=unit.now)
        return self._approve(unit, event_ids, approval, scope)

    @_job
    def approve_for_guests(
        self, unit: UnitOfWork, references: Sequence[str], *, by: str, address: str = ""
    ) -> Operations:
        """Approve on the guests' behalf, recorded as the operator's own approval."""
        ids: list[str] = []
        for reference in references:
            if lookup.EVENT.fullmatch(reference):
                ids.append(reference)
                continue
            for operation in lookup.chosen(unit, [reference], lambda o: o.pending).values():
                ids.extend(event.id for event in operation.events)
        approval = Approval(kind=ApproverKind.OPERATOR, by=by, address=address, at=unit.now)
        return self._approve(unit, ids, approval, None)

    @_job
    def cancel(
        self, unit: UnitOfWork, references: Sequence[str], *, reason: str, by: str = ""
    ) -> Operations:
        """Cancel operations that have not started, and the unstarted part of maintenances."""
        whole = [int(one) for one in references if lookup.MAINTENANCE.fullmatch(one)]
        # One whose units all wait has no operations yet.
        waiting = {str(n) for n in whole if n in unit.world.maintenances}
        named = lookup.resolve(unit, *(one for one in references if one not in waiting))
        for number in waiting:
            named |= unit.operations_of_maintenance(int(number))
        return unit.decide(commands.cancel_operations, named, reason, whole, by).operations

    @_job
    def hold(
        self,
        unit: UnitOfWork,
        kind: HoldKind,
        name: str,
        *,
        reason: str,
        by: str,
        until: datetime | None = None,
        hosts: Container[str] = (),
    ) -> Operations:
        """Block maintenance from starting until released; the answer is the operations held now.

        The name is `""` for everything. The hold ends by itself at `until`. `hosts` are known to
        the connector, though no machine may be there.
        """
        hold = msgspec.structs.replace(_hold(unit, kind, name, reason, by), until=until)
        lookup.known_place(unit, hold, hosts)
        return unit.decide(commands.place_hold, hold).operations

    @_job
    def release(self, unit: UnitOfWork, kind: HoldKind, name: str) -> Operations:
        """Release a hold; the answer is the operations that it covered."""
        hold = _hold(unit, kind, name)
        lookup.known_place(unit, hold)
        return unit.decide(commands.release_hold, hold).operations

    @_job
    def postpone(
        self, unit: UnitOfWork, references: Sequence[str], not_before: datetime
    ) -> Operations:
        """Move operations later than what guests have read; of a maintenance what is Scheduled."""
        named = lookup.chosen(unit, references, lambda o: o.status is EventStatus.SCHEDULED)
        return unit.decide(commands.postpone_operations, named, not_before).operations

    @_job
    def acknowledge(
        self, unit: UnitOfWork, references: Sequence[str], by: str, *, even_if_down: bool = False
    ) -> Operations:
        """Acknowledge failures, so that their alerts end; all or none."""
        named = lookup.resolve(unit, *references)
        rule = commands.acknowledge_failures
        return unit.decide(rule, named, by, even_if_down=even_if_down).operations

    @_job
    def record_requests(self, unit: UnitOfWork, scopes: Collection[str]) -> None:
        """Record that machines of these scopes (keys) asked for their events."""
        known = [name for name in scopes if name in unit.world.scopes]
        unit.decide(commands.record_requests, known)

    # Time.

    @_job
    def extend_notices(
        self,
        unit: UnitOfWork,
        length: timedelta,
        *,
        setting: tuple[str, str] | None = None,
        limit: Callable[[Reading, datetime, timedelta], timedelta] | None = None,
    ) -> int:
        """Move every notice later by an outage; the answer is how many operations that concerned.

        The setting, a name and its value, is written in the same transaction. `limit` returns the
        part of the outage that counts, by the content of the store and the time of the transaction.
        """
        store = unit.store
        if limit is not None:
            length = limit(store, unit.now, length)
        if not length:
            return 0
        moved = unit.decide(commands.extend_notices, length).operations
        if setting is not None:
            store.put_setting(*setting)
        return len(moved)

    @_job
    def due(self, unit: UnitOfWork) -> list[str]:
        """Return the operations that `advance` would start, or end."""
        return unit.world.due(unit.now, ADVANCE_BATCH)

    @_job
    def advance(self, unit: UnitOfWork, operation: str = "") -> int:
        """Start the operations that are due, or this one; the answer is how many that concerned.

        ADVANCE_BATCH means that there may be more; 0 also that nothing may start.
        """
        due = unit.world.due(unit.now, ADVANCE_BATCH) if self._starts(unit) else []
        if operation:
            due = [operation] if operation in due else []
        if due:
            unit.decide(commands.advance_time, due)
        return len(due)

    @_job
    def expire_holds(self, unit: UnitOfWork) -> int:
        """Release the holds whose time is over; the answer is how many they were."""
        ended = unit.world.expired_holds(unit.now) if self._starts(unit) else []
        if ended:
            unit.decide(commands.expire_holds)
        for hold in ended:
            unit.note(expired(hold, unit.now))
        return len(ended)

    @_job
    def record_returns(self, unit: UnitOfWork, operations: Collection[str]) -> Operations:
        """Look again at the machines that these operations await."""
        return unit.decide(commands.record_returns, unit.operations(operations)).operations

    @_job
    def forget(self, unit: UnitOfWork, keep: Retention) -> bool:
        """Delete old history and what is too much; answer True if more may be left."""
        store, now, most = unit.store, unit.now, FORGET_BATCH
        written = store.now() or now  # by this clock changes, news and replicas have their times
        store.forget_replicas(written - keep.replicas)
        forgotten = (
            store.purge(now - keep.history, most),
            store.purge_audit(now - keep.audit, most, refusals=MAX_REFUSALS),
            store.trim(written - keep.outbox, most),
            store.trim_news(written - keep.news, most),
            tombstones.forget(unit.world, most),
        )
        return most in forgotten

    # What executors do.

    @_job
    def claimable(self, unit: UnitOfWork, limit: int) -> list[str]:
        """Return the ids of the operations that `claim` would claim."""
        return unit.world.claimable(unit.now, limit)

    @_job
    def claim(
        self,
        unit: UnitOfWork,
        executor: str,
        lease: timedelta,
        limit: int,
        *,
        replicas: int = 1,
        operation: str = "",
    ) -> tuple[Task, ...]:
        """Claim Started operations that nobody holds, or this one alone, for a lease's length.

        Of those that are found, it is the share of one of so many replicas, rounded up.
        """
        free = unit.world.claimable(unit.now, limit)
        if operation:
            free = [operation] if operation in free else []
        if not free:
            return ()
        share = -(-len(free) // replicas)
        claimed = unit.decide(commands.claim_tasks, free[:share], executor, lease).operations
        return lookup.tasks(unit, claimed)

    @_job
    def renew(self, unit: UnitOfWork, attempts: Mapping[str, int], lease: timedelta) -> Operations:
        """Lengthen claims, each an operation with its attempt; stale ones are not in the answer."""
        return unit.decide(commands.renew_leases, attempts, lease).operations

    @_job
    def renewed_task(
        self, unit: UnitOfWork, operation: str, attempt: int, lease: timedelta
    ) -> Task | None:
        """Lengthen a claim, and return its task as it is now; None if another attempt has it."""
        known = unit.decide(commands.renew_leases, {operation: attempt}, lease).operations
        return lookup.tasks(unit, known)[0] if known else None

    @_job
    def finish(
        self, unit: UnitOfWork, operation: str, attempt: int, outcome: Outcome
    ) -> Operations:
        """Record the outcome of an operation; a stale attempt is refused."""
        unit.operations([operation])
        reported = msgspec.structs.asdict(outcome)
        return unit.decide(commands.finish_task, operation, attempt, **reported).operations

    @_job
    def report_unknown(
        self, unit: UnitOfWork, operation: str, attempt: int, message: str
    ) -> Operations:
        """Record that the outcome of an operation is unknown; a stale attempt is refused.

        It stays Started, and nobody carries it out, until `resolve`.
        """
        unit.operations([operation])
        return unit.decide(commands.report_unknown_outcome, operation, attempt, message).operations

    @_job
    def resolve(
        self, unit: UnitOfWork, references: Sequence[str], verdict: Verdict, by: str
    ) -> Operations:
        """Record the result of operations whose outcome is unknown, or repeat them."""
        named = lookup.chosen(unit, references, lambda o: bool(o.outcome_unknown))
        return unit.decide(commands.resolve_outcomes, named, verdict, by).operations

    @_job
    def started(self, unit: UnitOfWork) -> frozenset[str]:
        """Return the ids of the operations that are Started."""
        return frozenset(unit.world.started)

    @_job
    def unknown_tasks(self, unit: UnitOfWork, executor: str) -> tuple[Task, ...]:
        """Return the tasks that this executor claimed, and whose outcome another did not know."""
        known = (
            msgspec.structs.replace(operation, executor=executor)
            for operation in unit.world.operations.values()
            if commands.may_be_known_to(operation, executor)
        )
        return lookup.tasks(unit, known)

    @_job
    def release_claims(self, unit: UnitOfWork, executor: str = "", *, alone: bool = True) -> int:
        """Void this executor's claims; the answer is how many operations it held.

        At the start that is safe: one process at a time has its name. One that is alone with the
        store takes over all claims, whatever it was called before. Checks of maintenances that it
        ran are run again.
        """
        heir = executor if alone else ""
        started = [unit.world.operations[name] for name in unit.world.started]
        claimed = [one for one in started if one.attempt]
        own = [one for one in claimed if alone or one.executor == executor]
        held = [one.id for one in own if one.lease_until is not None]
        renamed = [one.id for one in claimed if heir and one.claimed_by != (heir,)]
        unit.decide(commands.release_leases, dict.fromkeys([*held, *renamed]), heir)
        known = unit.world.maintenances
        for number, one in [*known.items()]:
            if one.check.lease_until and (alone or one.check.replica == executor):
                known[number] = turn_check.released(one)
        return len(held)

    # The drain of hosts.

    @_job
    def drain_host(self, unit: UnitOfWork, wanted: Drain, survey: HostSurvey) -> Drain:
        """Drain a host; the answer is its drain as it is now."""
        return host_drain.begin(unit.world, wanted, survey, unit.now)

    @_job
    def step_drain(self, unit: UnitOfWork, host: str, survey: HostSurvey | None) -> Stepped:
        """Take the next step of a host's drain; of its requests, the first that is possible."""
        view = lookup.drain(unit, host, survey)
        step = host_drain.step(view, unit.now, self.policy.host_back)

        def ask(request: planner.Request) -> int:
            number = unit.next_maintenance_number()
            unit.decide(commands.request_maintenance, request, number)
            return number

        step = host_drain.ask_first(view, step, ask, unit.now)
        self._follow(unit, step)
        asked = step.drain.maintenances != view.drain.maintenances
        return mapped(Stepped, step, changed=asked or step.drain.state is not view.drain.state)

    @_job
    def order_drain(
        self, unit: UnitOfWork, host: str, order: Callable[[DrainView, datetime], DrainStep]
    ) -> Drain:
        """Carry out an operator's order about the drain of a host."""
        step = order(lookup.drain(unit, host, None), unit.now)
        self._follow(unit, step)
        return step.drain

    @_job
    def record_failed_reboot(
        self, unit: UnitOfWork, host: str, asked_at: datetime | None, message: str
    ) -> None:
        """Record that the reboot command of a host reported a failure, which proves nothing.

        `asked_at` is when it was about to run: another may have been ordered since.
        """
        drain = unit.world.drains.get(host)
        if drain is not None and drain.reboot_asked_at == asked_at:
            unit.world.drains[host] = host_drain.reboot_failed(drain, message)

    def _follow(self, unit: UnitOfWork, step: DrainStep) -> None:
        host = step.drain.host
        unit.world.drains[host] = step.drain
        if step.cancel:
            unit.operations(step.cancel)
            reason = f"the drain of host {host} stopped"
            unit.decide(commands.cancel_operations, step.cancel, reason)

    # Units of maintenances, the relays on hosts, webhooks, and tokens.

    def order(
        self,
        order: Callable[Concatenate[UnitOfWork, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> "Future[T]":
        """Run a function of `maintenances`, `relay_watch`, `webhooks` or `accounts` as a job."""
        return self._submit(lambda unit: order(unit, *args, **kwargs))

    def _submit(self, job: Job) -> "Future[Any]":
        def ruled(unit: UnitOfWork) -> Any:  # noqa: ANN401 - whatever the job returns
            unit.decided = self._decision  # no circle, which the collector would have to find
            return job(unit)

        if self._audited is None:
            return self.writer.submit(ruled)
        return accounts.submit(self.writer, ruled, *self._audited)

    # Operators' accounts, and what they asked.

    def audited(self, request: OperatorRequest, describe: Describe = lambda _: "") -> "Plane":
        """Return this plane for one request: its changes are recorded in the audit log."""
        plane = copy.copy(self)
        plane._audited = request, describe  # noqa: SLF001 - a copy
        return plane

    @_job
    def record(self, unit: UnitOfWork, request: OperatorRequest, outcome: str) -> None:
        """Record a request that changed nothing in the store."""
        unit.note(request.record(unit.now, outcome))

    # What the service keeps for itself.

    def setting(self, name: str) -> "Future[str | None]":
        """Return a value that the service saved for itself; None without one."""
        return self.writer.read(lambda reading: reading.setting(name))

    @_job
    def put_setting(self, unit: UnitOfWork, name: str, value: str) -> None:
        """Save a value for the service itself."""
        unit.store.put_setting(name, value)

    @_job
    def probe(self, unit: UnitOfWork) -> None:
        """Write and commit something small, to test that the store takes writes."""
        unit.store.put_setting(PROBE, unit.now.isoformat())

    def _approve(
        self, unit: UnitOfWork, events: Iterable[str], approval: Approval, scope: str | None
    ) -> Operations:
        ids = [event_id.upper() for event_id in events]
        unit.operations_of_events(ids)
        return unit.decide(commands.approve_events, ids, approval, scope).operations

    def _starts(self, unit: UnitOfWork) -> bool:
        if unit.may_start is None:
            unit.may_start = self.may_start()
        return unit.may_start

    def _decision(self, unit: UnitOfWork, command: commands.Command) -> Decision:
        return self._decided(unit.world, command, unit.now, starts=self._starts(unit))

    def _decided(
        self, world: World, command: commands.Command, now: datetime, *, starts: bool
    ) -> Decision:
        policy = msgspec.structs.replace(self.policy, starts=starts, listening=self.listening())
        return commands.decide(world, command, now, self.mint, policy, sighting=self.sighting)


def _plan(decision: Decision) -> planner.Plan:
    assert decision.maintenance is not None
    changed = decision.changes.operations
    superseded = tuple(one for one in changed if one.status is EventStatus.CANCELED)
    return planner.Plan(
        maintenance=decision.maintenance,
        operations=decision.operations,
        superseded=superseded,
    )


def _hold(unit: UnitOfWork, kind: HoldKind, name: str, reason: str = "", by: str = "") -> Hold:
    name = name if kind is HoldKind.HOST else key(name)
    return Hold(kind=kind, name=name, reason=reason, by=by, at=unit.now)
