"""The control plane: one method for each thing asked.

Each method is one job of the writer: read a snapshot, decide, check the invariants, save, publish.
It returns a future, because requests that wait together share a commit; a refusal or a store that
is away is raised by the future. Any thread may call them.
"""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from forewarn.connectors.port import Outcome, Task
from forewarn.control import loading, tombstones
from forewarn.control.unit_of_work import Needs, UnitOfWork, Work
from forewarn.control.writer import Writer
from forewarn.maintenance import commands, decide, fleet, invariants, planner
from forewarn.maintenance.commands import Command
from forewarn.maintenance.model import (
    Approval,
    Changes,
    Hold,
    HoldKind,
    Operation,
    Policy,
    Refused,
    Snapshot,
    Verdict,
    key,
)
from forewarn.maintenance.working_set import Decision
from forewarn.vocabulary import ApproverKind, ErrorCode, EventStatus

ADVANCE_BATCH = 1000
"""The most operations that start in one transaction (ten thousand are ten of them)."""

PURGE_BATCH = 1000
"""The most operations that are forgotten in one transaction."""

PROBE: Final = "probe"
"""The setting that `probe` writes."""


class Plane:
    """The control plane.

    Args:
        writer: Runs its transactions.
        mint: Gives a new GUID at each call.
        policy: What the settings decide about the rules.
        may_start: Tells whether anything may start now; asked in each transaction.
    """

    def __init__(
        self,
        writer: Writer,
        mint: Callable[[], str],
        policy: Policy = decide.ALWAYS_ON,
        *,
        may_start: Callable[[], bool] = lambda: True,
    ) -> None:
        self._writer = writer
        self._mint = mint
        self._policy = policy
        self._halted = msgspec.structs.replace(policy, starts=False)
        self._may_start = may_start

    # The fleet.

    def apply_fleet(
        self,
        wanted: fleet.Fleet,
        *,
        prune: bool = False,
        again: bool = False,
        allow_empty: bool = False,
        dry_run: bool = False,
    ) -> "Future[fleet.Applied]":
        """Make the fleet match a fleet file, all or nothing.

        Args:
            wanted: The fleet file.
            prune: Whether to remove machines that it does not name.
            again: Whether machines that were preempted or terminated are added again.
            allow_empty: Whether pruning may leave no machine at all.
            dry_run: Whether to tell only what would change.
        """

        def job(unit: UnitOfWork) -> Work:
            store = unit.store
            snapshot = Snapshot(
                scopes=store.scopes(),
                machines=store.machines(),
                operations=store.live_operations(),
                tombstones=store.tombstones(),
                retired=tombstones.scopes(store),
                holds=store.holds(),
            )
            applied = fleet.apply(
                snapshot,
                wanted,
                prune=prune,
                mint=self._mint,
                again=again,
                allow_empty=allow_empty,
            )
            if dry_run:
                return Work(applied)
            tombstones.forget(store, applied.changes)
            return Work(applied, applied.changes)

        return self._writer.submit(job)

    def remove_machines(self, names: Collection[str]) -> "Future[fleet.Applied]":
        """Take machines out of the fleet, all or none, with scopes that they leave empty."""

        def job(unit: UnitOfWork) -> Work:
            machines = unit.machines([key(name) for name in names])
            scopes = {machine.scope for machine in machines.values()}
            snapshot = Snapshot(
                scopes=unit.scopes(scopes),
                machines=unit.machines_of(scopes),
                operations=unit.live_operations(scopes),
                holds=unit.holds(),
            )
            applied = fleet.remove(snapshot, names)
            return Work(applied, applied.changes)

        return self._writer.submit(job)

    # Maintenance, and the guests' word.

    def request(self, request: planner.Request, *, dry_run: bool = False) -> "Future[planner.Plan]":
        """Request maintenance; the answer is the plan that it became.

        Args:
            request: What is asked.
            dry_run: Whether to tell only what it would become; its maintenance is number 0 then.
        """

        def job(unit: UnitOfWork) -> Work:
            limited = self._policy.user_initiated_limit > 0
            snapshot = loading.for_request(unit, request, limited=limited)
            number = 0 if dry_run else unit.next_maintenance_number()
            command = commands.RequestMaintenance(request=request, number=number)
            decision = self._decide(snapshot, command, unit.now)
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

        return self._writer.submit(job)

    def approve(
        self, scope: str, event_ids: Sequence[str], *, by: str, address: str
    ) -> "Future[tuple[Operation, ...]]":
        """Approve events for a machine of their scope (protocol.md section 5).

        Args:
            scope: The key of the machine's scope; events of another are unknown here.
            event_ids: All of them are approved or, if one is unknown, none.
            by: The machine's name.
            address: Where the approval came from.
        """
        ids = tuple(event_id.upper() for event_id in event_ids)

        def job(unit: UnitOfWork) -> Work:
            approval = Approval(kind=ApproverKind.GUEST, by=by, address=address, at=unit.now)
            return self._approve(unit, ids, approval, scope)

        return self._writer.submit(job, Needs(events=ids))

    def approve_for_guests(
        self, references: Sequence[str], *, by: str, address: str = ""
    ) -> "Future[tuple[Operation, ...]]":
        """Approve on the guests' behalf, recorded as the operator's own approval.

        Args:
            references: Event ids, operations (`12.1`) or maintenances (`12`); all or none.
            by: The operator's name.
            address: Where the approval came from, if known.
        """

        def job(unit: UnitOfWork) -> Work:
            ids: list[str] = []
            for reference in references:
                if loading.EVENT.fullmatch(reference):
                    ids.append(reference.upper())
                    continue
                for operation in loading.resolve(unit, reference).values():
                    ids.extend(event.id for event in operation.events)
            approval = Approval(kind=ApproverKind.OPERATOR, by=by, address=address, at=unit.now)
            return self._approve(unit, tuple(ids), approval, None)

        return self._writer.submit(job)

    def cancel(self, reference: str, *, reason: str) -> "Future[tuple[Operation, ...]]":
        """Cancel what has not started.

        Args:
            reference: An event's id or an operation (`12.1`): its operation, if still Scheduled;
                a maintenance (`12`): whatever of it is still Scheduled.
            reason: Kept in history.
        """

        def job(unit: UnitOfWork) -> Work:
            named = loading.resolve(unit, reference)
            whole = loading.MAINTENANCE.fullmatch(reference) is not None
            command = commands.CancelOperations(
                operations=tuple(named),
                reason=reason,
                maintenance=int(reference) if whole else None,
            )
            return self._work(unit, loading.around(unit, named, rolling=True), command)

        return self._writer.submit(job)

    def resume(self, number: int, *, by: str) -> "Future[tuple[Operation, ...]]":
        """Resume a maintenance's paused rolling updates; the answer is what was announced."""

        def job(unit: UnitOfWork) -> Work:
            if not unit.store.maintenances([number]):
                message = f"no maintenance {number}: see 'forewarn maintenance list'"
                raise Refused(ErrorCode.NOT_FOUND, message, reference=str(number))
            snapshot = loading.for_maintenance(unit, number)
            return self._work(unit, snapshot, commands.ResumeRolling(number, by))

        return self._writer.submit(job)

    def hold(
        self, kind: HoldKind, name: str, *, reason: str, by: str
    ) -> "Future[tuple[Operation, ...]]":
        """Block maintenance from starting until released; the answer is what that holds now.

        Args:
            kind: What is held.
            name: The scope's, host's or machine's name; `""` for everything.
            reason: Kept, and shown to whoever asks why nothing starts.
            by: The operator's name.
        """

        def job(unit: UnitOfWork) -> Work:
            hold = Hold(kind=kind, name=_held_name(kind, name), reason=reason, by=by, at=unit.now)
            return self._work(unit, loading.for_hold(unit, hold), commands.PlaceHold(hold))

        return self._writer.submit(job)

    def release(self, kind: HoldKind, name: str, *, by: str) -> "Future[tuple[Operation, ...]]":
        """Release a hold; the answer is what it covered."""

        def job(unit: UnitOfWork) -> Work:
            hold = Hold(kind=kind, name=_held_name(kind, name), reason="", by=by, at=unit.now)
            return self._work(unit, loading.for_hold(unit, hold), commands.ReleaseHold(hold))

        return self._writer.submit(job)

    def postpone(
        self, reference: str, not_before: datetime, *, by: str
    ) -> "Future[tuple[Operation, ...]]":
        """Move what is Scheduled later: an event's operation, an operation, or a maintenance's.

        Args:
            reference: An event's id, an operation (`12.1`) or a maintenance (`12`).
            not_before: Aware, and later than what guests have read.
            by: The operator's name.
        """

        def job(unit: UnitOfWork) -> Work:
            named = loading.resolve(unit, reference)
            if loading.MAINTENANCE.fullmatch(reference):
                pending = {i: o for i, o in named.items() if o.status is EventStatus.SCHEDULED}
                named = pending or named
            command = commands.PostponeOperations(
                operations=tuple(named), not_before=not_before, by=by
            )
            return self._work(unit, loading.around(unit, named), command)

        return self._writer.submit(job)

    def acknowledge(self, references: Sequence[str], by: str) -> "Future[tuple[Operation, ...]]":
        """Acknowledge failures, so that they are no alerts any more; all or none."""

        def job(unit: UnitOfWork) -> Work:
            named: dict[str, Operation] = {}
            for reference in references:
                named |= loading.resolve(unit, reference)
            command = commands.AcknowledgeFailures(operations=tuple(named), by=by)
            return self._work(unit, loading.around(unit, named), command)

        return self._writer.submit(job)

    def record_requests(self, scopes: Collection[str]) -> "Future[None]":
        """Record that machines of these scopes (keys) asked for their events."""

        def job(unit: UnitOfWork) -> Work:
            known = unit.scopes(scopes)
            command = commands.RecordRequests(tuple(known))
            return Work(None, self._decide(Snapshot(scopes=known), command, unit.now).changes)

        return self._writer.submit(job)

    # Time.

    def extend_notices(
        self, length: timedelta, *, setting: tuple[str, str] | None = None
    ) -> "Future[int]":
        """Move every notice later by an outage; the answer is how many operations that concerned.

        Args:
            length: How long guests could not read, or the clock was set forward.
            setting: A name and its value, written in the same transaction.
        """

        def job(unit: UnitOfWork) -> Work:
            store = unit.store
            snapshot = Snapshot(scopes=store.scopes(), operations=store.live_operations())
            decision = self._decide(snapshot, commands.ExtendNotices(length), unit.now)
            if setting is not None:
                store.put_setting(*setting)
            return Work(len(decision.operations), decision.changes)

        return self._writer.submit(job)

    def advance(self) -> "Future[int]":
        """Start what is due; the answer is how many operations that concerned.

        ADVANCE_BATCH means that there may be more; 0 also that nothing may start.
        """

        def job(unit: UnitOfWork) -> Work:
            if not self._may_start():
                return Work(0)
            due = unit.store.due(unit.now, ADVANCE_BATCH)
            if not due:
                return Work(0)
            command = commands.AdvanceTime(tuple(due))
            decision = self._decide(loading.around(unit, due), command, unit.now)
            return Work(len(due), decision.changes)

        return self._writer.submit(job)

    def next_wakeup(self) -> "Future[datetime | None]":
        """Tell when `advance` has something to do next; None while nothing is scheduled."""
        return self._writer.submit(lambda unit: Work(unit.store.next_wakeup()))

    def purge(self, keep: timedelta) -> "Future[int]":
        """Forget operations that ended longer ago than `keep`; PURGE_BATCH means maybe more."""
        return self._writer.submit(
            lambda unit: Work(unit.store.purge(unit.now - keep, PURGE_BATCH))
        )

    # What executors do.

    def claim(self, executor: str, lease: timedelta, limit: int) -> "Future[tuple[Task, ...]]":
        """Claim Started operations that nobody holds.

        Args:
            executor: The name of who claims them.
            lease: How long the claim holds unless it is renewed.
            limit: How many at most.
        """

        def job(unit: UnitOfWork) -> Work:
            free = unit.store.claimable(unit.now, limit)
            if not free:
                return Work(())
            command = commands.ClaimTasks(operations=tuple(free), executor=executor, lease=lease)
            decision = self._decide(Snapshot(operations=free), command, unit.now)
            names = {key(name) for operation in free.values() for name in operation.machines}
            machines = unit.machines(names)
            tasks = tuple(loading.task(operation, machines) for operation in decision.operations)
            return Work(tasks, decision.changes)

        return self._writer.submit(job)

    def renew(
        self, operation: str, attempt: int, lease: timedelta
    ) -> "Future[tuple[Operation, ...]]":
        """Lengthen a claim; a stale attempt is refused."""
        command = commands.RenewLease(operation=operation, attempt=attempt, lease=lease)

        def job(unit: UnitOfWork) -> Work:
            return self._work(unit, Snapshot(operations=unit.operations([operation])), command)

        return self._writer.submit(job, Needs(operations=(operation,)))

    def finish(
        self, operation: str, attempt: int, outcome: Outcome
    ) -> "Future[tuple[Operation, ...]]":
        """Record how an operation ended; a stale attempt is refused."""
        command = commands.FinishTask(
            operation=operation,
            attempt=attempt,
            succeeded=outcome.succeeded,
            message=outcome.message,
            hosts=outcome.hosts,
        )
        return self._end(operation, command)

    def report_unknown(
        self, operation: str, attempt: int, message: str
    ) -> "Future[tuple[Operation, ...]]":
        """Record that nobody knows how an operation ended; a stale attempt is refused.

        It stays Started, and nobody carries it out, until `resolve`.
        """
        command = commands.ReportUnknownOutcome(
            operation=operation, attempt=attempt, message=message
        )
        return self._end(operation, command)

    def resolve(self, operation: str, verdict: Verdict, by: str) -> "Future[Operation]":
        """Record the result of an operation whose outcome is unknown, or have it repeated.

        Args:
            operation: Its id, such as `12.1`; CONFLICT where its outcome is not unknown.
            verdict: What became of it, or what is to.
            by: Who says so.
        """
        command = commands.ResolveOutcome(operation=operation, verdict=verdict, by=by)

        def job(unit: UnitOfWork) -> Work:
            snapshot = loading.ending(unit, unit.operations([operation]))
            decision = self._decide(snapshot, command, unit.now)
            return Work(decision.operations[0], decision.changes)

        return self._writer.submit(job)

    def started(self) -> "Future[frozenset[str]]":
        """Return the ids of the operations that are Started."""

        def job(unit: UnitOfWork) -> Work:
            live = unit.live_operations().values()
            return Work(frozenset(o.id for o in live if o.status is EventStatus.STARTED))

        return self._writer.submit(job)

    def release_claims(self) -> "Future[int]":
        """Void every claim: asked once at start-up, when whoever held one is gone.

        A store that only one process can open makes that certain.
        """

        def job(unit: UnitOfWork) -> Work:
            live = unit.live_operations()
            held = {i: o for i, o in live.items() if o.lease_until is not None}
            if not held:
                return Work(0)
            command = commands.ReleaseLeases(operations=tuple(held))
            decision = self._decide(Snapshot(operations=held), command, unit.now)
            return Work(len(held), decision.changes)

        return self._writer.submit(job)

    # What the service keeps for itself.

    def setting(self, name: str) -> "Future[str | None]":
        """Return what the service wrote down for itself, None if it never did."""
        return self._writer.submit(lambda unit: Work(unit.store.setting(name)))

    def put_setting(self, name: str, value: str) -> "Future[None]":
        """Write something down for the service itself."""

        def job(unit: UnitOfWork) -> Work:
            unit.store.put_setting(name, value)
            return Work(None)

        return self._writer.submit(job)

    def probe(self) -> "Future[None]":
        """Write and commit something small, to find out whether anything can be written."""

        def job(unit: UnitOfWork) -> Work:
            unit.store.put_setting(PROBE, unit.now.isoformat())
            return Work(None)

        return self._writer.submit(job)

    def _end(self, operation: str, command: Command) -> "Future[Any]":
        def job(unit: UnitOfWork) -> Work:
            return self._work(unit, loading.ending(unit, unit.operations([operation])), command)

        return self._writer.submit(job, Needs(operations=(operation,), ending=True))

    def _approve(
        self, unit: UnitOfWork, ids: tuple[str, ...], approval: Approval, scope: str | None
    ) -> Work:
        command = commands.ApproveEvents(event_ids=ids, approval=approval, scope=scope)
        return self._work(unit, loading.around(unit, unit.operations_of_events(ids)), command)

    def _work(self, unit: UnitOfWork, snapshot: Snapshot, command: Command) -> Work:
        """Decide; the answer is the operations that the command was about."""
        decision = self._decide(snapshot, command, unit.now)
        return Work(decision.operations, decision.changes)

    def _decide(self, snapshot: Snapshot, command: Command, now: datetime) -> Decision:
        """Decide, and check what the decision leads to before it is saved."""
        policy = self._policy if self._may_start() else self._halted
        decision = decide.decide(snapshot, command, now, self._mint, policy)
        changes = decision.changes
        if not changes:
            return decision
        after = Snapshot(
            scopes=snapshot.scopes | {scope.key: scope for scope in changes.scopes},
            machines=snapshot.machines,
            operations=snapshot.operations | {o.id: o for o in changes.operations},
        )
        invariants.check(after, changes.operations)
        invariants.check_succession(snapshot, after, changes)
        return decision


def _held_name(kind: HoldKind, name: str) -> str:
    return name if kind is HoldKind.HOST else key(name)
