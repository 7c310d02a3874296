"""What executors report of the operations that they hold, a turn of the writer for all that wait.

Each report is fenced by itself: it names the attempt under which its operation was claimed, and one
of an older attempt is refused, whatever waits beside it.
"""

from collections.abc import Iterable
from datetime import datetime

from forewarn.control import loading
from forewarn.control.draft import Draft
from forewarn.control.turns import Turns
from forewarn.maintenance.commands import FinishTask, RenewLease, ReportUnknownOutcome
from forewarn.maintenance.model import Snapshot
from forewarn.store.port import Transaction

Report = FinishTask | ReportUnknownOutcome


class Reports(Turns[Report]):
    """Records how operations ended, or that nobody knows; each is answered with its operation."""

    def _gather(self, transaction: Transaction, matters: Iterable[Report]) -> Snapshot:
        ids = {report.operation for report in matters}
        return loading.endings(transaction, transaction.operations(ids))

    def _part(self, draft: Draft, matter: Report) -> Snapshot:
        return loading.ending(draft, draft.operations([matter.operation]))

    def _cause(self, matter: Report, now: datetime) -> Report:
        del now  # the report says all of it
        return matter


class Renewals(Turns[RenewLease]):
    """Lengthens claims; what else is live does not concern them."""

    def _gather(self, transaction: Transaction, matters: Iterable[RenewLease]) -> Snapshot:
        return Snapshot(operations=transaction.operations({one.operation for one in matters}))

    def _part(self, draft: Draft, matter: RenewLease) -> Snapshot:
        return Snapshot(operations=draft.operations([matter.operation]))

    def _cause(self, matter: RenewLease, now: datetime) -> RenewLease:
        del now  # the claim says all of it
        return matter
