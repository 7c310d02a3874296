"""The control plane: one method for each thing asked.

Each method is one transaction with one `now`: read a snapshot, decide, check the invariants, save,
publish. It returns a future, because requests that wait together share a commit; a refusal or a
store that is away is raised by the future.
"""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta

import msgspec

from forewarn.connectors.port import Outcome, Task
from forewarn.control import loading, tombstones
from forewarn.control.approvals import Approvals, Word
from forewarn.control.reports import Renewals, Reports
from forewarn.control.writer import Work, Writer
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
from forewarn.store.port import Transaction
from forewarn.vocabulary import ApproverKind, ErrorCode, EventStatus

ADVANCE_BATCH = 1000
"""The most operations that start in one transaction (ten thousand are ten of them)."""

PURGE_BATCH = 1000
"""The most operations that are forgotten in one transaction."""


class Plane:
    """The control plane.

    Args:
        writer: Runs its transactions.
        mint: Gives a new GUID at each call.
        policy: What the settings decide about the rules.
        may_start: Tells, in each transaction anew, whether anything may start now.
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
        self._approvals = Approvals(writer, self._decide)
        self._reports = Reports(writer, self._decide)
        self._renewals = Renewals(writer, self._decide)

    def apply_fleet(
        self,
        wanted: fleet.Fleet,
        *,
        prune: bool = False,
        again: bool = False,
        allow_empty: bool = False,
        dry_run: bool = False,
    ) -> "Future[fleet.Applied]":
        """Make the fleet be as wanted, all or nothing.

        Args:
            wanted: The fleet file.
            prune: Whether to remove machines that it does not name.
            again: Whether machines that were preempted or terminated are added again.
            allow_empty: Whether pruning may leave no machine at all.
            dry_run: Whether to tell only what would change.
        """

        def job(transaction: Transaction, _: datetime) -> Work:
            snapshot = Snapshot(
                scopes=transaction.scopes(),
                machines=transaction.machines(),
                operations=transaction.live_operations(),
                lost=transaction.lost(),
                retired=tombstones.read(transaction),
                parted=tombstones.partings(transaction),
                holds=transaction.holds(),
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
            tombstones.forget(transaction, applied.changes)
            return Work(applied, applied.changes)

        return self._writer.submit(job)

    def remove_machines(self, names: Collection[str]) -> "Future[fleet.Applied]":
        """Take machines out of the fleet, all or none, with scopes that they leave empty."""

        def job(transaction: Transaction, _: datetime) -> Work:
            machines = transaction.machines([key(name) for name in names])
            scopes = {machine.scope for machine in machines.values()}
            snapshot = Snapshot(
                scopes=transaction.scopes(scopes),
                machines=transaction.machines_of(scopes),
                operations=transaction.live_operations(scopes),
                holds=transaction.holds(),
            )
            applied = fleet.remove(snapshot, names)
            return Work(applied, applied.changes)

        return self._writer.submit(job)

    def request(self, request: planner.Request, *, dry_run: bool = False) -> "Future[planner.Plan]":
        """Ask for maintenance; the answer is what it became.

        Args:
            request: What is asked.
            dry_run: Whether to tell only what it would become; its maintenance is number 0 then.
        """

        def job(transaction: Transaction, now: datetime) -> Work:
            limited = self._policy.user_initiated_limit > 0
            snapshot = loading.for_request(transaction, request, limited=limited)
            number = 0 if dry_run else transaction.next_maintenance_number()
            cause = commands.RequestMaintenance(request=request, number=number)
            decision = self._decide(snapshot, cause, now)
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
            address: Where its word came from.
        """
        ids = tuple(event_id.upper() for event_id in event_ids)
        return self._approvals.submit(Word(scope=scope, event_ids=ids, by=by, address=address))

    def approve_for_guests(
        self, references: Sequence[str], *, by: str, address: str = ""
    ) -> "Future[tuple[Operation, ...]]":
        """Approve on the guests' behalf, recorded as the operator's own word.

        Args:
            references: Event ids, operations (`12.1`) or maintenances (`12`); all or none.
            by: The operator's name.
            address: Where the word came from, if known.
        """

        def job(transaction: Transaction, now: datetime) -> Work:
            ids: list[str] = []
            for reference in references:
                if loading.EVENT.fullmatch(reference):
                    ids.append(reference.upper())
                    continue
                for operation in loading.resolve(transaction, reference).values():
                    ids.extend(event.id for event in operation.events)
            approval = Approval(kind=ApproverKind.OPERATOR, by=by, address=address, at=now)
            return self._approve(transaction, tuple(ids), approval, None, now)

        return self._writer.submit(job)

    def cancel(self, reference: str, *, reason: str) -> "Future[tuple[Operation, ...]]":
        """Withdraw what has not started.

        Args:
            reference: An event's id or an operation (`12.1`): its operation, if still Scheduled;
                a maintenance (`12`): whatever of it is still Scheduled.
            reason: Kept in history.
        """

        def job(transaction: Transaction, now: datetime) -> Work:
            named = loading.resolve(transaction, reference)
            whole = loading.MAINTENANCE.fullmatch(reference) is not None
            cause = commands.CancelOperations(
                operations=tuple(named),
                reason=reason,
                maintenance=int(reference) if whole else None,
            )
            snapshot = loading.around(transaction, named, walking=True)
            decision = self._decide(snapshot, cause, now)
            return Work(decision.operations, decision.changes)

        return self._writer.submit(job)

    def resume(self, number: int, *, by: str) -> "Future[tuple[Operation, ...]]":
        """Let the stopped walks of a maintenance go on; the answer is what was announced."""

        def job(transaction: Transaction, now: datetime) -> Work:
            if not transaction.maintenances([number]):
                message = f"there is no maintenance {number}: see 'forewarn maintenance list'"
                raise Refused(ErrorCode.NOT_FOUND, message, reference=str(number))
            snapshot = loading.for_maintenance(transaction, number)
            decision = self._decide(snapshot, commands.ResumeRolling(number, by), now)
            return Work(decision.operations, decision.changes)

        return self._writer.submit(job)

    def hold(
        self, kind: HoldKind, name: str, *, reason: str, by: str
    ) -> "Future[tuple[Operation, ...]]":
        """Let nothing of this start until it is released; the answer is what that holds now.

        Args:
            kind: What is held.
            name: The scope's, host's or machine's name; `""` for everything.
            reason: Kept, and shown to whoever asks why nothing starts.
            by: The operator's name.
        """

        def job(transaction: Transaction, now: datetime) -> Work:
            hold = Hold(kind=kind, name=_held_name(kind, name), reason=reason, by=by, at=now)
            snapshot = loading.for_hold(transaction, hold)
            decision = self._decide(snapshot, commands.PlaceHold(hold), now)
            return Work(decision.operations, decision.changes)

        return self._writer.submit(job)

    def release(self, kind: HoldKind, name: str, *, by: str) -> "Future[tuple[Operation, ...]]":
        """Take a hold back; the answer is what it covered."""

        def job(transaction: Transaction, now: datetime) -> Work:
            hold = Hold(kind=kind, name=_held_name(kind, name), reason="", by=by, at=now)
            snapshot = loading.for_hold(transaction, hold)
            decision = self._decide(snapshot, commands.ReleaseHold(hold), now)
            return Work(decision.operations, decision.changes)

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

        def job(transaction: Transaction, now: datetime) -> Work:
            named = loading.resolve(transaction, reference)
            if loading.MAINTENANCE.fullmatch(reference):
                pending = {i: o for i, o in named.items() if o.status is EventStatus.SCHEDULED}
                named = pending or named
            cause = commands.PostponeOperations(
                operations=tuple(named), not_before=not_before, by=by
            )
            decision = self._decide(loading.around(transaction, named), cause, now)
            return Work(decision.operations, decision.changes)

        return self._writer.submit(job)

    def note(self, references: Sequence[str], by: str) -> "Future[tuple[Operation, ...]]":
        """Take note of failures, so that they no longer need attention; all or none."""

        def job(transaction: Transaction, now: datetime) -> Work:
            named: dict[str, Operation] = {}
            for reference in references:
                named |= loading.resolve(transaction, reference)
            cause = commands.AcknowledgeFailures(operations=tuple(named), by=by)
            decision = self._decide(loading.around(transaction, named), cause, now)
            return Work(decision.operations, decision.changes)

        return self._writer.submit(job)

    def asked(self, scopes: Collection[str]) -> "Future[None]":
        """Write down that machines of these scopes (keys) asked for their events."""

        def job(transaction: Transaction, now: datetime) -> Work:
            known = transaction.scopes(scopes)
            cause = commands.RecordRequests(tuple(known))
            return Work(None, self._decide(Snapshot(scopes=known), cause, now).changes)

        return self._writer.submit(job)

    def lapse(self, length: timedelta, *, kept: tuple[str, str] | None = None) -> "Future[int]":
        """Move every notice later by an outage; the answer is how many operations that concerned.

        Args:
            length: How long guests could not read, or the clock was set forward.
            kept: A setting's name and its value, written in the same transaction.
        """

        def job(transaction: Transaction, now: datetime) -> Work:
            snapshot = Snapshot(
                scopes=transaction.scopes(), operations=transaction.live_operations()
            )
            decision = self._decide(snapshot, commands.ExtendNotices(length), now)
            if kept is not None:
                transaction.put_setting(*kept)
            return Work(len(decision.operations), decision.changes)

        return self._writer.submit(job)

    def kept(self, name: str) -> "Future[str | None]":
        """Return what the service wrote down for itself, None if it never did."""
        return self._writer.submit(lambda transaction, _: Work(transaction.setting(name)))

    def keep(self, name: str, value: str) -> "Future[None]":
        """Write something down for the service itself."""

        def job(transaction: Transaction, _: datetime) -> Work:
            transaction.put_setting(name, value)
            return Work(None)

        return self._writer.submit(job)

    def advance(self) -> "Future[int]":
        """Start what is due; the answer is how many operations that concerned.

        ADVANCE_BATCH means that there may be more; 0 also that nothing may start.
        """

        def job(transaction: Transaction, now: datetime) -> Work:
            if not self._may_start():
                return Work(0)
            due = transaction.due(now, ADVANCE_BATCH)
            if not due:
                return Work(0)
            cause = commands.AdvanceTime(tuple(due))
            decision = self._decide(loading.around(transaction, due), cause, now)
            return Work(len(due), decision.changes)

        return self._writer.submit(job)

    def next_wakeup(self) -> "Future[datetime | None]":
        """Tell when `advance` has something to do next; None while nothing is scheduled."""
        return self._writer.submit(lambda transaction, _: Work(transaction.next_wakeup()))

    def claim(self, executor: str, lease: timedelta, limit: int) -> "Future[tuple[Task, ...]]":
        """Take Started operations on that nobody holds.

        Args:
            executor: The name of who takes them.
            lease: How long the claim holds unless it is renewed.
            limit: How many at most.
        """

        def job(transaction: Transaction, now: datetime) -> Work:
            free = transaction.claimable(now, limit)
            if not free:
                return Work(())
            cause = commands.ClaimTasks(operations=tuple(free), executor=executor, lease=lease)
            decision = self._decide(Snapshot(operations=free), cause, now)
            names = {key(name) for operation in free.values() for name in operation.machines}
            machines = transaction.machines(names)
            acts = tuple(loading.act(operation, machines) for operation in decision.operations)
            return Work(acts, decision.changes)

        return self._writer.submit(job)

    def renew(
        self, operation: str, attempt: int, lease: timedelta
    ) -> "Future[tuple[Operation, ...]]":
        """Lengthen a claim; a stale attempt is refused."""
        return self._renewals.submit(
            commands.RenewLease(operation=operation, attempt=attempt, lease=lease)
        )

    def finish(
        self, operation: str, attempt: int, outcome: Outcome
    ) -> "Future[tuple[Operation, ...]]":
        """Record how an operation ended; a stale attempt is refused."""
        report = commands.FinishTask(
            operation=operation,
            attempt=attempt,
            succeeded=outcome.succeeded,
            message=outcome.message,
            hosts=outcome.hosts,
        )
        return self._reports.submit(report)

    def doubt(self, operation: str, attempt: int, message: str) -> "Future[tuple[Operation, ...]]":
        """Record that nobody knows whether an operation was carried out; a stale one is refused.

        It stays Started, and nobody carries it out, until `resolve`.
        """
        return self._reports.submit(
            commands.ReportUnknownOutcome(operation=operation, attempt=attempt, message=message)
        )

    def resolve(self, operation: str, verdict: Verdict, by: str) -> "Future[Operation]":
        """End an operation in doubt as an operator says, or let it be carried out again.

        Args:
            operation: Its id, such as `12.1`; CONFLICT where there is no doubt about it.
            verdict: What became of it, or what is to.
            by: Who says so.
        """

        def job(transaction: Transaction, now: datetime) -> Work:
            held = transaction.operations([operation])
            cause = commands.ResolveOutcome(operation=operation, verdict=verdict, by=by)
            decision = self._decide(loading.ending(transaction, held), cause, now)
            return Work(decision.operations[0], decision.changes)

        return self._writer.submit(job)

    def started(self) -> "Future[frozenset[str]]":
        """Return the ids of the operations that are Started."""

        def job(transaction: Transaction, _: datetime) -> Work:
            live = transaction.live_operations().values()
            return Work(frozenset(o.id for o in live if o.status is EventStatus.STARTED))

        return self._writer.submit(job)

    def release_claims(self) -> "Future[int]":
        """Void every claim: asked once at start-up, when whoever held one is gone.

        A store that only one process can open makes that certain.
        """

        def job(transaction: Transaction, now: datetime) -> Work:
            live = transaction.live_operations()
            held = {i: o for i, o in live.items() if o.lease_until is not None}
            if not held:
                return Work(0)
            cause = commands.ReleaseLeases(operations=tuple(held))
            decision = self._decide(Snapshot(operations=held), cause, now)
            return Work(len(held), decision.changes)

        return self._writer.submit(job)

    def purge(self, keep: timedelta) -> "Future[int]":
        """Forget operations that ended longer ago than `keep`; PURGE_BATCH means maybe more."""
        return self._writer.submit(
            lambda transaction, now: Work(transaction.purge(now - keep, PURGE_BATCH))
        )

    def _approve(
        self,
        transaction: Transaction,
        ids: tuple[str, ...],
        approval: Approval,
        scope: str | None,
        now: datetime,
    ) -> Work:
        named = transaction.operations_of_events(ids)
        cause = commands.ApproveEvents(event_ids=ids, approval=approval, scope=scope)
        decision = self._decide(loading.around(transaction, named), cause, now)
        return Work(decision.operations, decision.changes)

    def _decide(self, snapshot: Snapshot, cause: Command, now: datetime) -> Decision:
        """Decide, and check what the decision leads to before it is saved."""
        policy = self._policy if self._may_start() else self._halted
        decision = decide.decide(snapshot, cause, now, self._mint, policy)
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
