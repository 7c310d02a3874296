"""Guests' approvals, a turn of the writer for all that wait."""

from collections.abc import Iterable
from datetime import datetime

import msgspec

from forewarn.control import loading
from forewarn.control.draft import Draft
from forewarn.control.turns import Turns
from forewarn.maintenance.commands import ApproveEvents
from forewarn.maintenance.model import Approval, Snapshot
from forewarn.store.port import Transaction
from forewarn.vocabulary import ApproverKind


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """A guest's word that events may start."""

    scope: str
    """The key of the scope that it belongs to."""
    event_ids: tuple[str, ...]
    """In upper case."""
    by: str
    address: str


class Approvals(Turns[Word]):
    """Decides guests' approvals; each is answered with the operations that it approved."""

    def _gather(self, transaction: Transaction, matters: Iterable[Word]) -> Snapshot:
        ids = {event_id for word in matters for event_id in word.event_ids}
        return loading.around(transaction, transaction.operations_of_events(ids))

    def _part(self, draft: Draft, matter: Word) -> Snapshot:
        return loading.around(draft, draft.operations_of_events(matter.event_ids))

    def _cause(self, matter: Word, now: datetime) -> ApproveEvents:
        approval = Approval(kind=ApproverKind.GUEST, by=matter.by, address=matter.address, at=now)
        return ApproveEvents(event_ids=matter.event_ids, approval=approval, scope=matter.scope)
