"""The control plane: one method for each thing asked.

Each method is a job of the writer: read a snapshot, decide, check the invariants, save, publish. It
returns a future, because requests that wait together share a commit; a refusal or a store that is
away is raised by the future. Questions do not wait for whoever writes. Any thread may call them.

A reference is an event's id, an operation (`12.1`) or a maintenance (`12`); where several are
given, a command concerns all of them or is refused. `by` is the operator's name, or the machine's.
"""

import copy
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import msgspec

from forewarn.connectors.port import Outcome, Task
from forewarn.control import lookup, tombstones
from forewarn.control.accounts import AuditedWriter, OperatorRequest
from forewarn.control.unit_of_work import Decide, Needs, UnitOfWork, Work
from forewarn.control.writer import Writer
from forewarn.maintenance import (
    commands,
    fleet_file,
    host_drain,
    host_plan,
    invariants,
    planner,
    rollout_check,
)
from forewarn.maintenance.host_drain import DrainStep, DrainView
from forewarn.maintenance.host_plan import HostPlan, HostSurvey
from forewarn.maintenance.model import (
    LISTENING,
    Approval,
    Changes,
    Drain,
    Hold,
    HoldKind,
    HostState,
    Machine,
    Operation,
    Policy,
    Refused,
    Sightings,
    Snapshot,
    Verdict,
    key,
    unseen,
)
from forewarn.maintenance.rollout_check import CheckRun
from forewarn.maintenance.transitions import Decision, NotLoaded, Transitions
from forewarn.store.port import Reading
from forewarn.vocabulary import ApproverKind, EventStatus

ADVANCE_BATCH = 1000
"""The most operations that start in one transaction (ten thousand are ten of them)."""

FORGET_BATCH = 1000
"""The most of each kind that is forgotten in one transaction."""

MAX_REFUSALS: Final = 100_000
"""The most refused requests in the audit log, some 30 MB: strangers add to them."""

PROBE: Final = "probe"
"""The setting that `probe` writes."""


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long what is over is kept."""

    history: timedelta = timedelta(days=90)
    """Operations, from their end on."""
    audit: timedelta = timedelta(days=365)
    news: timedelta = timedelta(days=7)
    outbox: timedelta = timedelta(hours=1)
    """Changes: a replica that stood still for longer reads all again."""


class Stepped(msgspec.Struct, frozen=True, kw_only=True):
    """What is left to do after a step of a drain or a rollout."""

    changed: bool = False
    """Whether another step follows at once."""
    survey: bool = False
    """Whether to look at the hosts before it."""
    reboot: bool = False
    """Whether to run the host's reboot command now, once."""
    check: CheckRun | None = None
    """The check to run now; whoever took the step has it until its lease is over."""
    wake_at: datetime | None = None
    """When the next step is due if nothing changes before."""


P = ParamSpec("P")
T = TypeVar("T")

Operations = tuple[Operation, ...]
"""What most commands answer: the operations that they were about."""


def _job(
    method: Callable[Concatenate["Plane", UnitOfWork, P], Work[T]],
) -> Callable[Concatenate["Plane", P], "Future[T]"]:
    """Have the writer run a method, which reads and decides within a unit of work."""

    @functools.wraps(method)
    def submit(plane: "Plane", /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        writer = plane._writer  # noqa: SLF001 - it wraps the class's own methods
        return writer.submit(lambda unit: method(plane, unit, *args, **kwargs))

    return submit


class Plane:
    """The control plane.

    Each transaction asks `may_start` whether anything may start now, and `listening` how long ago
    a machine may have asked that still listens.
    """

    def __init__(
        self,
        writer: Writer,
        mint: Callable[[], str],
        policy: Policy = commands.ALWAYS_ON,
        *,
        may_start: Callable[[], bool] = lambda: True,
        listening: Callable[[], timedelta] = lambda: LISTENING,
        sighting: Sightings = unseen,
    ) -> None:
        self._writer = writer
        self._mint = mint
        self._policy = policy
        self.may_start = may_start
        self._listening = listening
        self._sighting = sighting

    # The fleet.

    @_job
    def apply_fleet(
        self,
        unit: UnitOfWork,
        wanted: fleet_file.Fleet,
        *,
        prune: bool = False,
        again: bool = False,
        allow_empty: bool = False,
        dry_run: bool = False,
    ) -> Work[fleet_file.Applied]:
        """Make the fleet match a fleet file; `dry_run` changes nothing."""
        store = unit.store
        snapshot = Snapshot(
            scopes=store.scopes(),
            machines=store.machines(),
            operations=unit.live_operations(),
            tombstones=store.tombstones(),
            retired=tombstones.scopes(store),
            holds=store.holds(),
        )
        applied = fleet_file.apply(
            snapshot, wanted, prune=prune, mint=self._mint, again=again, allow_empty=allow_empty
        )
        if dry_run:
            return Work(applied)
        changes = applied.changes
        if any(operation.unstarted for operation in snapshot.operations.values()):
            gone = {*changes.removed_machines}
            machines = snapshot.machines | {machine.key: machine for machine in changes.machines}
            after = msgspec.structs.replace(
                snapshot,
                scopes=snapshot.scopes | {scope.key: scope for scope in changes.scopes},
                machines={name: one for name, one in machines.items() if name not in gone},
                maintenances=unit.open_maintenances(),
            )
            changes = self._followed(unit, after, changes, snapshot.machines)
        tombstones.forget(store, changes)
        return Work(applied, changes)

    @_job
    def remove_machines(self, unit: UnitOfWork, names: Collection[str]) -> Work[fleet_file.Applied]:
        """Take machines out of the fleet, all or none, with scopes that they leave empty."""
        scopes = {m.scope for m in unit.machines([key(name) for name in names]).values()}
        snapshot = Snapshot(
            scopes=unit.scopes(scopes),
            machines=unit.machines_of(scopes),
            operations=unit.live_operations(scopes),
            holds=unit.holds(),
        )
        applied = fleet_file.remove(snapshot, names)
        after = lookup.for_moves(unit, dict.fromkeys(applied.changes.removed_machines))
        return Work(applied, self._followed(unit, after, applied.changes, snapshot.machines))

    @_job
    def record_hosts(self, unit: UnitOfWork, hosts: Mapping[str, str]) -> Work[tuple[Machine, ...]]:
        """Record the hosts of machines, by key; the answer is the machines whose host is new."""
        before = unit.machines(list(hosts))
        moved = tuple(
            msgspec.structs.replace(machine, host=hosts[machine.key])
            for machine in before.values()
            if machine.host != hosts[machine.key]
        )
        after = lookup.for_moves(unit, {machine.key: machine for machine in moved})
        return Work(moved, self._followed(unit, after, Changes(machines=moved), before))

    def _followed(
        self, unit: UnitOfWork, after: Snapshot, changes: Changes, before: Mapping[str, Machine]
    ) -> Changes:
        """Return changes of the fleet with what follows for operations from where machines are.

        `after` has the machines as they are after the changes, `before` those that changed.
        """
        where = {name: machine.host for name, machine in before.items()}
        moved = {m.key for m in changes.machines if where.get(m.key) != m.host}
        moved.update(changes.removed_machines)
        if not moved:
            return changes
        decided = self._decide(unit, after, commands.follow_moves, moved).changes
        scopes = {scope.key: scope for scope in (*changes.scopes, *decided.scopes)}
        return msgspec.structs.replace(
            changes,
            operations=decided.operations,
            maintenances=decided.maintenances,
            scopes=tuple(scopes.values()),
        )

    # Maintenance, and the guests' approvals.

    @_job
    def request(
        self, unit: UnitOfWork, request: planner.Request, *, dry_run: bool = False
    ) -> Work[planner.Plan]:
        """Request maintenance; the answer is the plan that it became.

        `dry_run` tells only what it would become; its maintenance is number 0 then. A request that
        was granted already under its idempotency key is answered with what it became, as that is
        now.
        """
        if request.idempotency_key and (known := lookup.granted(unit, request)) is not None:
            operations = tuple(unit.store.operations_of_maintenance(known.number).values())
            return Work(planner.Plan(maintenance=known, operations=operations))
        limited = self._policy.user_initiated_limit > 0
        snapshot = lookup.for_request(unit, request, limited=limited)
        number = 0 if dry_run else unit.next_maintenance_number()
        decision = self._decide(unit, snapshot, commands.request_maintenance, request, number)
        assert decision.maintenance is not None
        plan = planner.Plan(
            maintenance=decision.maintenance,
            operations=decision.operations,
            superseded=tuple(
                operation
                for operation in decision.changes.operations
                if operation.status is EventStatus.CANCELED
            ),
        )
        return Work(plan, Changes() if dry_run else decision.changes)

    def approve(
        self, scope: str, event_ids: Sequence[str], *, by: str, address: str
    ) -> "Future[Operations]":
        """Approve events for a machine of this scope, by its key (protocol.md section 5)."""
        ids = tuple(event_id.upper() for event_id in event_ids)

        def job(unit: UnitOfWork) -> Work[Operations]:
            approval = Approval(kind=ApproverKind.GUEST, by=by, address=address, at=unit.now)
            return self._approve(unit, ids, approval, scope)

        return self._writer.submit(job, Needs(scopes=(scope,), events=ids))

    @_job
    def approve_for_guests(
        self, unit: UnitOfWork, references: Sequence[str], *, by: str, address: str = ""
    ) -> Work[Operations]:
        """Approve on the guests' behalf, recorded as the operator's own approval."""
        ids: list[str] = []
        for reference in references:
            if lookup.EVENT.fullmatch(reference):
                ids.append(reference.upper())
                continue
            for operation in lookup.resolve(unit, reference).values():
                ids.extend(event.id for event in operation.events)
        approval = Approval(kind=ApproverKind.OPERATOR, by=by, address=address, at=unit.now)
        return self._approve(unit, tuple(ids), approval, None)

    @_job
    def cancel(
        self, unit: UnitOfWork, references: Sequence[str], *, reason: str
    ) -> Work[Operations]:
        """Cancel operations that have not started, and whatever has not of maintenances."""
        named = lookup.resolve(unit, *references)
        whole = [int(one) for one in references if lookup.MAINTENANCE.fullmatch(one)]
        snapshot = lookup.around(unit, named, rolling=True)
        return self._run(unit, snapshot, commands.cancel_operations, named, reason, whole)

    @_job
    def resume(self, unit: UnitOfWork, number: int) -> Work[Operations]:
        """Resume a maintenance's paused rolling updates; the answer is what was announced."""
        snapshot = lookup.for_maintenance(unit, number)
        return self._run(unit, snapshot, commands.resume_rolling, number)

    @_job
    def hold(
        self, unit: UnitOfWork, kind: HoldKind, name: str, *, reason: str, by: str
    ) -> Work[Operations]:
        """Block maintenance from starting until released; the answer is what that holds now.

        The name is `""` for everything.
        """
        hold = _hold(unit, kind, name, reason, by)
        return self._run(unit, lookup.for_hold(unit, hold), commands.place_hold, hold)

    @_job
    def release(self, unit: UnitOfWork, kind: HoldKind, name: str) -> Work[Operations]:
        """Release a hold; the answer is what it covered."""
        hold = _hold(unit, kind, name)
        return self._run(unit, lookup.for_hold(unit, hold), commands.release_hold, hold)

    @_job
    def postpone(
        self, unit: UnitOfWork, references: Sequence[str], not_before: datetime
    ) -> Work[Operations]:
        """Move what is Scheduled later than what guests have read."""
        named = lookup.chosen(unit, references, lambda o: o.status is EventStatus.SCHEDULED)
        snapshot = lookup.around(unit, named)
        return self._run(unit, snapshot, commands.postpone_operations, named, not_before)

    @_job
    def acknowledge(
        self, unit: UnitOfWork, references: Sequence[str], by: str, *, even_if_down: bool = False
    ) -> Work[Operations]:
        """Acknowledge failures, so that they are no alerts any more; all or none."""
        named = lookup.resolve(unit, *references)
        rule = commands.acknowledge_failures
        return self._run(
            unit, lookup.ending(unit, named), rule, named, by, even_if_down=even_if_down
        )

    @_job
    def record_requests(self, unit: UnitOfWork, scopes: Collection[str]) -> Work[None]:
        """Record that machines of these scopes (keys) asked for their events."""
        known = unit.scopes(scopes)
        decision = self._decide(unit, Snapshot(scopes=known), commands.record_requests, known)
        return Work(None, decision.changes)

    # Time.

    @_job
    def extend_notices(
        self,
        unit: UnitOfWork,
        length: timedelta,
        *,
        setting: tuple[str, str] | None = None,
        limit: Callable[[Reading, datetime, timedelta], timedelta] | None = None,
    ) -> Work[int]:
        """Move every notice later by an outage; the answer is how many operations that concerned.

        The setting, a name and its value, is written in the same transaction. `limit` returns how
        much of the outage counts, by what the store has and the time of the transaction.
        """
        store = unit.store
        if limit is not None:
            length = limit(store, unit.now, length)
        if not length:
            return Work(0)
        snapshot = Snapshot(scopes=store.scopes(), operations=unit.live_operations())
        decision = self._decide(unit, snapshot, commands.extend_notices, length)
        if setting is not None:
            store.put_setting(*setting)
        return Work(len(decision.operations), decision.changes)

    def due(self) -> "Future[tuple[str, ...]]":
        """Tell which operations `advance` would start, or end."""

        def job(unit: UnitOfWork) -> Work[tuple[str, ...]]:
            return Work(tuple(unit.store.due(unit.now, ADVANCE_BATCH)))

        return self._writer.submit(job)

    @_job
    def advance(self, unit: UnitOfWork, operation: str = "") -> Work[int]:
        """Start what is due, or this operation alone; the answer is how many that concerned.

        ADVANCE_BATCH means that there may be more; 0 also that nothing may start.
        """
        due = unit.store.due(unit.now, ADVANCE_BATCH) if self._starts(unit) else {}
        if operation:
            due = {operation: due[operation]} if operation in due else {}
        if not due:
            return Work(0)
        if all(o.pending and not o.closed(unit.now) for o in due.values()):
            snapshot = lookup.around(unit, due)
        else:  # some are over, or come up, and let others go on
            snapshot = lookup.ending(unit, due)
        return Work(len(due), self._decide(unit, snapshot, commands.advance_time, due).changes)

    @_job
    def record_returns(self, unit: UnitOfWork, operations: Collection[str]) -> Work[Operations]:
        """Look again at the machines that these operations await."""
        known = unit.operations(operations)
        return self._run(unit, lookup.ending(unit, known), commands.record_returns, known)

    def next_wakeup(self) -> "Future[datetime | None]":
        """Tell when `advance` has something to do next; None while nothing is scheduled."""
        return self._writer.read(lambda reading: reading.next_wakeup())

    @_job
    def forget(self, unit: UnitOfWork, keep: Retention) -> Work[bool]:
        """Forget what is old, and refused requests that are too many; tell if more may be left."""
        store, now, most = unit.store, unit.now, FORGET_BATCH
        written = store.now() or now  # by this clock changes and news have their times
        forgotten = (
            store.purge(now - keep.history, most),
            store.purge_audit(now - keep.audit, most, refusals=MAX_REFUSALS),
            store.trim(written - keep.outbox, most),
            store.trim_news(written - keep.news, most),
        )
        return Work(most in forgotten)

    # What executors do.

    @_job
    def claimable(self, unit: UnitOfWork, limit: int) -> Work[tuple[str, ...]]:
        """Return the ids of the operations that `claim` would claim."""
        return Work(tuple(unit.store.claimable(unit.now, limit)))

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
    ) -> Work[tuple[Task, ...]]:
        """Claim Started operations that nobody holds, or this one alone, for a lease's length.

        Of those that are found, it is the share of one of so many replicas, rounded up.
        """
        free = unit.learn(unit.store.claimable(unit.now, limit))
        if operation:
            free = {operation: free[operation]} if operation in free else {}
        if not free:
            return Work(())
        share = -(-len(free) // replicas)
        free = dict(itertools.islice(free.items(), share))
        snapshot = Snapshot(operations=free)
        decision = self._decide(unit, snapshot, commands.claim_tasks, free, executor, lease)
        tasks = lookup.tasks(unit, decision.operations)
        return Work(tasks, decision.changes)

    def renew(self, operation: str, attempt: int, lease: timedelta) -> "Future[Operations]":
        """Lengthen a claim; a stale attempt is refused."""

        def job(unit: UnitOfWork) -> Work[Operations]:
            snapshot = Snapshot(operations=unit.operations([operation]))
            return self._run(unit, snapshot, commands.renew_lease, operation, attempt, lease)

        return self._writer.submit(job, Needs(operations=(operation,)))

    def finish(self, operation: str, attempt: int, outcome: Outcome) -> "Future[Operations]":
        """Record how an operation ended; a stale attempt is refused."""

        def finish(working: Transitions) -> list[str]:
            return commands.finish_task(
                working,
                operation,
                attempt,
                succeeded=outcome.succeeded,
                message=outcome.message,
                hosts=outcome.hosts,
            )

        return self._end(operation, finish, outcome.hosts.values())

    def report_unknown(self, operation: str, attempt: int, message: str) -> "Future[Operations]":
        """Record that nobody knows how an operation ended; a stale attempt is refused.

        It stays Started, and nobody carries it out, until `resolve`.
        """
        report = commands.report_unknown_outcome
        return self._end(operation, lambda working: report(working, operation, attempt, message))

    @_job
    def resolve(
        self, unit: UnitOfWork, references: Sequence[str], verdict: Verdict, by: str
    ) -> Work[Operations]:
        """Record the result of operations whose outcome is unknown, or have them repeated."""
        named = lookup.chosen(unit, references, lambda o: bool(o.outcome_unknown))
        snapshot = lookup.ending(unit, named)
        return self._run(unit, snapshot, commands.resolve_outcomes, named, verdict, by)

    def started(self) -> "Future[frozenset[str]]":
        """Return the ids of the operations that are Started."""

        def question(reading: Reading) -> frozenset[str]:
            live = reading.live_operations().values()
            return frozenset(o.id for o in live if o.status is EventStatus.STARTED)

        return self._writer.read(question)

    @_job
    def unknown_tasks(self, unit: UnitOfWork, executor: str) -> Work[tuple[Task, ...]]:
        """Return the tasks that this executor claimed, and another one could tell nothing of."""
        known = (
            msgspec.structs.replace(operation, executor=executor)
            for operation in unit.live_operations().values()
            if commands.may_be_known_to(operation, executor)
        )
        return Work(lookup.tasks(unit, known))

    @_job
    def release_claims(
        self, unit: UnitOfWork, executor: str = "", *, alone: bool = True
    ) -> Work[int]:
        """Void this executor's claims; the answer is how many operations it held.

        At the start that is safe: one process at a time has its name. One that is alone with the
        store takes over all claims, whatever it was called before. Checks of rollouts that it ran
        are run again.
        """
        live = unit.live_operations().values()
        claimed = {o.id: o for o in live if o.attempt and o.status is EventStatus.STARTED}
        held = {i: o for i, o in claimed.items() if o.lease_until is not None}
        heir = executor if alone else ""
        if not alone:
            held = {i: o for i, o in held.items() if o.executor == executor}
        renamed = {i: o for i, o in claimed.items() if heir and o.claimed_by != (heir,)}
        concerned = held | renamed
        decision = self._decide(
            unit, Snapshot(operations=concerned), commands.release_leases, concerned, heir
        )
        known = unit.store.rollouts().values()
        lost = [one for one in known if alone or one.check.replica == executor]
        checks = tuple(rollout_check.released(one) for one in lost if one.check.lease_until)
        return Work(len(held), msgspec.structs.replace(decision.changes, rollouts=checks))

    # The drain of hosts.

    @_job
    def drain_hosts(
        self, unit: UnitOfWork, wanted: Sequence[Drain], survey: HostSurvey
    ) -> Work[tuple[Drain, ...]]:
        """Drain hosts, all or none, one after another; the answer is their drains as they are."""
        before = unit.drains()
        machines = lookup.on_hosts(unit, survey)
        host_plan.check(wanted, before, survey, machines, unit.holds())
        drains = tuple(host_drain.request(before.get(one.host), one, unit.now) for one in wanted)
        return Work(drains, Changes(drains=drains))

    @_job
    def plan_drains(
        self, unit: UnitOfWork, wanted: Sequence[Drain], survey: HostSurvey
    ) -> Work[tuple[HostPlan, ...]]:
        """Tell how hosts would be drained; nothing changes."""
        machines = lookup.on_hosts(unit, survey)
        return Work(host_plan.plans(wanted, unit.drains(), survey, machines, unit.holds()))

    @_job
    def step_drain(self, unit: UnitOfWork, host: str, survey: HostSurvey | None) -> Work[Stepped]:
        """Do what follows for the drain of a host, of its requests the first that is possible."""
        view = lookup.drain(unit, host, survey)
        step = host_drain.step(view, unit.now, self._policy.host_back)
        refusals: list[Refused] = []
        for ask in step.asks:
            try:
                number = unit.next_maintenance_number()
                snapshot = lookup.for_request(unit, ask.request, limited=False)
                decision = self._decide(
                    unit, snapshot, commands.request_maintenance, ask.request, number
                )
            except Refused as refusal:
                refusals.append(refusal)
                continue
            drain = host_drain.asked(step.drain, ask, number)
            changes = msgspec.structs.replace(decision.changes, drains=(drain,))
            return Work(Stepped(changed=True), changes)
        if refusals:
            at = msgspec.structs.replace(view, drain=step.drain)
            step = host_drain.refused(at, refusals, unit.now)
        stepped = Stepped(
            changed=step.drain.state is not view.drain.state,
            survey=step.survey,
            reboot=step.reboot,
            wake_at=step.wake_at,
        )
        return Work(stepped, self._changes_of(unit, view.drain, step))

    @_job
    def order_drain(
        self, unit: UnitOfWork, host: str, order: Callable[[DrainView, datetime], DrainStep]
    ) -> Work[Drain]:
        """Do what an operator orders about the drain of a host."""
        view = lookup.drain(unit, host, None)
        step = order(view, unit.now)
        changes = self._changes_of(unit, view.drain, step)
        if step.drain.state is HostState.UP:
            given_up = host_drain.given_up(view.drains, host, unit.now)
            changes = msgspec.structs.replace(changes, drains=(*changes.drains, *given_up))
        return Work(step.drain, changes)

    @_job
    def record_failed_reboot(self, unit: UnitOfWork, host: str, message: str) -> Work[None]:
        """Record that the reboot command of a host reported a failure, which proves nothing."""
        before = unit.drains()[host]
        return Work(None, Changes(drains=(host_drain.reboot_failed(before, message),)))

    def _changes_of(self, unit: UnitOfWork, before: Drain, step: DrainStep) -> Changes:
        changes = Changes()
        if step.cancel:
            snapshot = lookup.around(unit, unit.operations(step.cancel), rolling=True)
            reason = f"the drain of host {before.host} stopped"
            rule = commands.cancel_operations
            changes = self._decide(unit, snapshot, rule, step.cancel, reason).changes
        if step.drain != before:
            changes = msgspec.structs.replace(changes, drains=(step.drain,))
        return changes

    # Rollouts, the relays on hosts, webhooks, and tokens.

    def order(
        self,
        order: Callable[Concatenate[UnitOfWork, Decide, P], Work[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> "Future[T]":
        """Run a function of `relay_watch`, `rollouts`, `webhooks` or `accounts` as a job."""
        return self._writer.submit(lambda unit: order(unit, self._decide, *args, **kwargs))

    # Operators' accounts, and what they asked.

    def audited(
        self, request: OperatorRequest, describe: Callable[[Any], str] = lambda _: ""
    ) -> "Plane":
        """Return this plane for one request: what it changes is recorded in the audit log.

        `describe` returns the record's detail, by what the change came to; `""` for that of the
        request.
        """
        plane = copy.copy(self)
        plane._writer = AuditedWriter(self._writer, request, describe)  # noqa: SLF001 - a copy
        return plane

    @_job
    def record(self, unit: UnitOfWork, request: OperatorRequest, outcome: str) -> Work[None]:
        """Record a request that changed nothing in the store."""
        unit.note(request.record(unit.now, outcome))
        return Work(None)

    # What the service keeps for itself.

    def setting(self, name: str) -> "Future[str | None]":
        """Return what the service wrote down for itself, None if it never did."""
        return self._writer.read(lambda reading: reading.setting(name))

    @_job
    def put_setting(self, unit: UnitOfWork, name: str, value: str) -> Work[None]:
        """Write something down for the service itself."""
        unit.store.put_setting(name, value)
        return Work(None)

    @_job
    def probe(self, unit: UnitOfWork) -> Work[None]:
        """Write and commit something small, to find out whether anything can be written."""
        unit.store.put_setting(PROBE, unit.now.isoformat())
        return Work(None)

    def _end(
        self, operation: str, command: commands.Command, hosts: Collection[str] = ()
    ) -> "Future[Operations]":
        def job(unit: UnitOfWork) -> Work[Operations]:
            snapshot = lookup.ending(unit, unit.operations([operation]), hosts)
            return self._run(unit, snapshot, command)

        return self._writer.submit(job, Needs(operations=(operation,), ending=True))

    def _approve(
        self, unit: UnitOfWork, ids: tuple[str, ...], approval: Approval, scope: str | None
    ) -> Work[Operations]:
        snapshot = lookup.around(unit, unit.operations_of_events(ids))
        return self._run(unit, snapshot, commands.approve_events, ids, approval, scope)

    def _run(
        self,
        unit: UnitOfWork,
        snapshot: Snapshot,
        command: Callable[Concatenate[Transitions, P], Iterable[str]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Work[Operations]:
        decision = self._decide(unit, snapshot, command, *args, **kwargs)
        return Work(decision.operations, decision.changes)

    def _starts(self, unit: UnitOfWork) -> bool:
        if unit.may_start is None:
            unit.may_start = self.may_start()
        return unit.may_start

    def _decide(
        self,
        unit: UnitOfWork,
        snapshot: Snapshot,
        command: Callable[Concatenate[Transitions, P], Iterable[str]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Decision:
        """Decide, and check what the decision leads to before it is saved."""
        policy = msgspec.structs.replace(
            self._policy, starts=self._starts(unit), listening=self._listening()
        )
        try:
            decision = commands.decide(
                snapshot,
                lambda working: command(working, *args, **kwargs),
                unit.now,
                self._mint,
                policy,
                sighting=self._sighting,
            )
        except NotLoaded:
            more = lookup.wider(unit, snapshot)
            if more.loaded == snapshot.loaded:  # a defect, and no way out of it
                raise
            return self._decide(unit, more, command, *args, **kwargs)
        changes = decision.changes
        if changes:
            after = Snapshot(
                scopes=snapshot.scopes | {scope.key: scope for scope in changes.scopes},
                machines=snapshot.machines | {m.key: m for m in changes.machines},
                operations=snapshot.operations | {o.id: o for o in changes.operations},
                holds=(*(h for h in snapshot.holds if h not in changes.released), *changes.holds),
            )
            invariants.check(after, changes.operations)
            invariants.check_succession(snapshot, after, changes)
        return decision


def _hold(unit: UnitOfWork, kind: HoldKind, name: str, reason: str = "", by: str = "") -> Hold:
    name = name if kind is HoldKind.HOST else key(name)
    return Hold(kind=kind, name=name, reason=reason, by=by, at=unit.now)
