"""Who approves an event, and when: the decider's part that speaks with peers and the endpoint.

An approval speaks for every machine of the event. So one that has others too is approved by its
first machine alone, and only when all the others say in one round that they are prepared for this
very event. A peer that does not answer is not prepared; then nobody approves, and the notice runs
out. Pure, as all of the decider.
"""

from typing import Final

import msgspec

from forewarn.agent.messages import ApprovalAnswered, ApproveEvent, AskPeers, Output, PeersAnswered
from forewarn.agent.state import Case, Phase
from forewarn.client.event import Event
from forewarn.vocabulary import EventStatus

PEERS_SECONDS: Final = 1.0
"""Between two times that peers are asked: as often as a client polls."""

PEERS_LIMIT_SECONDS: Final = 10.0
"""When a round of questions counts as lost, and another is begun."""

APPROVAL_SECONDS: Final = 5.0
"""Before an approval is sent again that nobody knows the fate of."""

REFUSED_SECONDS: Final = 60.0
"""Before an approval is sent again that the endpoint refused: what refuses may pass, as a machine's
registration does that is renewed, and one request a minute disturbs nobody where it does not."""


class _Pending(msgspec.Struct):
    """What goes on about one event's approval in this process."""

    others: frozenset[str]
    """The machines whose word is wanted."""
    round: int | None = None
    """The questions that peers have not answered yet."""
    ask_at: float = 0.0
    """When the next round may begin."""
    agreed: bool = False
    """All of the others were prepared in one round."""
    request: int | None = None
    """The approval that is under way."""
    approve_at: float = 0.0
    """When the next may be sent. Peers are not asked before: their word would be old by then."""


def name_of(machine: str) -> str:
    """Return a machine's name as names are compared: without case and the preview's `_`."""
    return machine.removeprefix("_").casefold()


def agrees(case: Case) -> bool:
    """Tell whether this machine has nothing against an event's start: what peers are told."""
    assert case.rule is not None
    return case.rule.approve != "never" and case.phase in {Phase.PREPARED, Phase.APPROVED}


class Approvals:
    """Decides about approvals; what it knows beside the cases is of this process alone."""

    def __init__(self) -> None:
        self._talks: dict[str, _Pending] = {}
        self._number = 0

    @property
    def busy(self) -> bool:
        """Whether an answer is waited for."""
        talks = self._talks.values()
        return any(talk.round is not None or talk.request is not None for talk in talks)

    def drop(self, event_id: str) -> None:
        """Forget an event that is over."""
        self._talks.pop(event_id, None)

    def heard(self, heard: PeersAnswered, now: float) -> None:
        """Take the peers' answers of one round; those of an older round say nothing."""
        for talk in self._talks.values():
            if talk.round == heard.round:
                talk.round, talk.ask_at = None, now + PEERS_SECONDS
                talk.agreed = talk.others <= heard.prepared

    def answered(self, answered: ApprovalAnswered, now: float) -> str | None:
        """Take the endpoint's answer; return the event that is approved by it, None for none."""
        for event_id, talk in self._talks.items():
            if talk.request != answered.request:
                continue
            talk.request = None
            if answered.taken:
                return event_id
            pause = APPROVAL_SECONDS if answered.taken is None else REFUSED_SECONDS
            talk.agreed, talk.approve_at = False, now + pause
        return None

    def decide(
        self, case: Case, event: Event, own: str | None, now: float
    ) -> tuple[Output | None, float | None]:
        """Return what is to be done about an event's approval now, and when to look again.

        Args:
            case: The event in hand.
            event: As the document shows it.
            own: This machine's name; None while it is not known.
            now: The monotonic clock's seconds.
        """
        rule = case.rule
        assert rule is not None
        if (
            case.phase is not Phase.PREPARED
            or rule.approve == "never"
            or event.status != EventStatus.SCHEDULED
        ):
            return None, None
        names = [name_of(name) for name in event.resources]
        me = None if own is None else name_of(own)
        others = frozenset(names) - {me}
        talk = self._talks.setdefault(case.event_id, _Pending(others=others))
        talk.others = others  # the own name may be known since
        if talk.request is not None:
            return None, None
        if talk.approve_at > now:
            return None, talk.approve_at
        if rule.approve != "at-once" and others and not talk.agreed:
            return self._ask(case.event_id, talk, now) if names[0] == me else (None, None)
        self._number += 1
        talk.request = self._number
        return ApproveEvent(request=self._number, event=event), None

    def _ask(self, event_id: str, talk: _Pending, now: float) -> tuple[Output | None, float]:
        if talk.ask_at > now:
            return None, talk.ask_at
        self._number += 1
        talk.round, talk.ask_at = self._number, now + PEERS_LIMIT_SECONDS
        ask = AskPeers(round=self._number, event_id=event_id, machines=tuple(sorted(talk.others)))
        return ask, talk.ask_at
