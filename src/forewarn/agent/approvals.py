"""Decides who approves an event, and when. Pure, like the decider."""

from typing import Final

import msgspec

from forewarn.agent.state import Case, Phase
from forewarn.client.event import Event
from forewarn.vocabulary import EventStatus


class ApprovalAnswered(msgspec.Struct, frozen=True):
    """The answer to an approval."""

    request: int
    taken: bool | None
    """True after a 200; False if the endpoint refused it; None if its answer was lost."""


class PeersAnswered(msgspec.Struct, frozen=True):
    """The peers' answers in one round."""

    round: int
    prepared: frozenset[str]
    """The names of those that are prepared for this very event, as `name_of` gives them."""


class ApproveEvent(msgspec.Struct, frozen=True):
    """Approve an event."""

    request: int
    event: Event


class AskPeers(msgspec.Struct, frozen=True):
    """Ask the peers if they are prepared for an event."""

    round: int
    event_id: str
    machines: tuple[str, ...]


PEERS_SECONDS: Final = 1.0
"""The pause between two rounds of questions to peers: as long as a client's between polls."""

PEERS_LIMIT_SECONDS: Final = 10.0
"""The time after which a round of questions counts as lost, and another begins."""

APPROVAL_SECONDS: Final = 5.0
"""The pause before an approval is sent again whose answer was lost."""

REFUSED_SECONDS: Final = 60.0
"""The pause before an approval that the endpoint refused is sent again: the cause, such as a
missing registration, may be mended by then."""


REPEAT_SECONDS: Final = 300.0
"""The pause before an approval that was taken is sent again while its event has not started. It
counts once; but a database that lost its last changes, or that was restored, lacks it."""


class _Pending(msgspec.Struct):
    """The approval of one event, in this process."""

    others: frozenset[str] = frozenset()
    """The machines that have to be prepared too."""
    round: int | None = None
    """The round that peers have not answered yet."""
    ask_at: float = 0.0
    agreed: bool = False
    """True if all of the others were prepared in one round."""
    request: int | None = None
    """The approval whose answer is awaited."""
    approve_at: float = 0.0
    """The earliest time of the next approval. Peers are asked then, and not before."""


def name_of(machine: str) -> str:
    """Return a machine's name as names are compared: without case and the preview's `_`."""
    return machine.removeprefix("_").casefold()


def agrees(case: Case) -> bool:
    """Return True if this machine agrees to an event's start; peers read this."""
    return case.rule.approve != "never" and case.phase in {Phase.PREPARED, Phase.APPROVED}


class Approvals:
    """Decides who approves an event, and when; its knowledge beside the cases is this process's.

    An approval counts for every machine of the event. So only the first machine of an event
    approves, and only when all the others say in one round that they are prepared for this very
    event. A peer that does not answer is not prepared; then nobody approves, and the notice ends.
    """

    def __init__(self) -> None:
        self._pending: dict[str, _Pending] = {}
        self._number = 0

    @property
    def busy(self) -> bool:
        """True if it waits for an answer."""
        pending = self._pending.values()
        return any(each.round is not None or each.request is not None for each in pending)

    def drop(self, event_id: str) -> None:
        """Forget an event that is over."""
        self._pending.pop(event_id, None)

    def withdraw(self, event_id: str) -> None:
        """Count an approval as not sent: the machine prepares again before."""
        pending = self._pending[event_id]
        pending.request, pending.agreed = None, False

    def heard(self, heard: PeersAnswered, now: float) -> None:
        """Take the peers' answers of one round; those of an older round are ignored."""
        for each in self._pending.values():
            if each.round == heard.round:
                each.round, each.ask_at = None, now + PEERS_SECONDS
                each.agreed = each.others <= heard.prepared

    def answered(self, answered: ApprovalAnswered, now: float) -> str | None:
        """Take the endpoint's answer; return the event that it approves, None for none."""
        for event_id, each in self._pending.items():
            if each.request != answered.request:
                continue
            each.request = None
            if answered.taken:
                each.approve_at = now + REPEAT_SECONDS
                return event_id
            pause = APPROVAL_SECONDS if answered.taken is None else REFUSED_SECONDS
            each.agreed, each.approve_at = False, now + pause
        return None

    def decide(
        self, case: Case, event: Event, own: str | None, now: float
    ) -> tuple[ApproveEvent | AskPeers | None, float | None]:
        """Return the next step of an event's approval, and the time to look again."""
        rule = case.rule
        if case.phase not in {Phase.PREPARED, Phase.APPROVED}:
            if (asked := self._pending.get(case.event_id)) is not None:
                asked.round, asked.agreed = None, False  # by the next time they may not be prepared
            return None, None
        if rule.approve == "never" or event.status != EventStatus.SCHEDULED:
            return None, None
        names = [name_of(name) for name in event.resources]
        me = None if own is None else name_of(own)
        others = frozenset(names) - {me}
        pending = self._pending.setdefault(case.event_id, _Pending())
        pending.others = others  # the own name may be known since
        if case.phase is Phase.APPROVED and not pending.approve_at:  # by an earlier process
            pending.approve_at = now + REPEAT_SECONDS
        if pending.request is not None:
            return None, None
        if pending.approve_at > now:
            return None, pending.approve_at
        if rule.approve != "at-once" and others and not pending.agreed:
            return self._ask(case.event_id, pending, now) if names[0] == me else (None, None)
        self._number += 1
        pending.request = self._number
        return ApproveEvent(request=self._number, event=event), None

    def _ask(self, event_id: str, pending: _Pending, now: float) -> tuple[AskPeers | None, float]:
        if pending.ask_at > now:
            return None, pending.ask_at
        self._number += 1
        pending.round, pending.ask_at = self._number, now + PEERS_LIMIT_SECONDS
        ask = AskPeers(
            round=self._number, event_id=event_id, machines=tuple(sorted(pending.others))
        )
        return ask, pending.ask_at
