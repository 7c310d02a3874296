"""The agent's log and metrics: a line in the log and a count for each kind of event, in one table.

`FAMILIES` lists the metrics, which `status_port` writes.
"""

import logging
import math
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from forewarn import status_port
from forewarn.agent import rules, state, status
from forewarn.agent.approvals import ApprovalAnswered, AskPeers, PeersAnswered, name_of
from forewarn.agent.decider import BeginAction, Decider, Input, Output, Reloaded
from forewarn.agent.rules import ActionOutcome
from forewarn.agent.state import Phase
from forewarn.client.event import Event
from forewarn.status_port import Labels
from forewarn.vocabulary import EventType

LOGGER: Final = logging.getLogger("forewarn.agent")

PHASES: Final = {
    Phase.HELD: (logging.WARNING, "is held: it is not approved, so its notice runs out"),
    Phase.PREPARED: (logging.INFO, "is prepared"),
    Phase.APPROVED: (logging.INFO, "is approved"),
}


PREFIX: Final = "forewarn_agent_"
FAMILIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "events": "Events that are not over, by type and phase.",
        "events_taken_total": "Events that a rule took, by type.",
        "notice_left_seconds": "The shortest notice that an event of this machine has left.",
        "approvals_total": "Approvals that the endpoint accepted.",
        "approvals_failed_total": "Approvals that the endpoint did not accept, by reason.",
        "approval_delay_seconds": "Time from a rule's match to the approval, for the event "
        "approved last.",
        "actions_total": "Actions that ended, by kind, phase and outcome.",
        "action_seconds_total": "Time that these actions took, by kind and phase.",
        "ready": "1 if /readyz says that the balancer may send requests here, 0 while the machine "
        "is taken out.",
        "stuck": "Actions that could not be undone and need an operator.",
        "healthy": "1 if /healthz says that the agent works, 0 otherwise.",
        "endpoint_up": "1 if the endpoint answered the last question, 0 otherwise.",
        "name_known": "1 if the agent knows the name by which the endpoint calls this machine, 0 "
        "otherwise.",
        "last_look_timestamp_seconds": "When the endpoint last answered, in seconds since 1970.",
        "looks_total": "Answers of the endpoint.",
    }
)
"""The help of every metric, by its name without PREFIX; a counter's name ends in `_total`."""

TYPES: Final = frozenset(EventType)

REFUSED: Final = (("reason", "refused"),)
UNANSWERED: Final = (("reason", "unanswered"),)


class Activity:
    """Logs everything that happens, with the event's id and its rule, and counts it.

    In a dry run no end of an action is logged. The deciding thread owns it; `live_page` touches
    nothing of it.
    """

    def __init__(self, *, dry: bool = False) -> None:
        self._dry = dry
        self._values: dict[str, dict[Labels, float]] = {
            "events_taken_total": {},
            "approvals_total": {(): 0},
            "approvals_failed_total": {REFUSED: 0, UNANSWERED: 0},
            "approval_delay_seconds": {(): 0.0},
            "actions_total": {},
            "action_seconds_total": {},
        }
        self._begun: dict[str, tuple[BeginAction, float]] = {}
        self._taken_at: dict[str, float] = {}
        self._phases: dict[str, Phase] = {}
        self._started: set[str] = set()
        self._asked: dict[str, AskPeers] = {}
        self._missing: dict[str, tuple[str, ...]] = {}
        self._retried: set[str] | None = None
        """The events that are prepared for again since an operator asked for it; None if nobody
        did."""

    def settled(self, decider: Decider) -> None:
        """Log the results of an input, after all its outputs."""
        started = {key for key, event in decider.events.items() if event.started}
        for key in sorted(started - self._started):
            _log(key, f"{key} has started")
        self._started = started
        # Why an event stays held although an operator reloaded the agent.
        if self._retried is None or not decider.looked:
            return  # before its first document the decider has not acted on the request
        for key, case in decider.state.cases.items():
            if case.phase is not Phase.HELD or key in self._retried:
                continue
            why = decider.stays_held(case, math.inf)  # it was decided before
            _log(key, f"{key} stays held: {why}", rule=case.rule.name, level=logging.WARNING)
        self._retried = None

    def _peers_answered(self, answered: PeersAnswered) -> None:
        asked = next((each for each in self._asked.values() if each.round == answered.round), None)
        if asked is None:
            return  # a late answer, of an older round or for an event that is over
        prepared = {name_of(name) for name in answered.prepared}
        missing = tuple(name for name in asked.machines if name_of(name) not in prepared)
        if missing and self._missing.get(asked.event_id) != missing:
            waits = f"is prepared here; its approval waits for {', '.join(missing)}"
            _log(asked.event_id, f"{asked.event_id} {waits}", level=logging.WARNING)
        self._missing[asked.event_id] = missing

    def heard(self, what: Input | Output, decider: Decider, now: float) -> None:
        """Take an input before it is handled, or an output when it is carried out."""
        match what:
            case ApprovalAnswered(taken=taken) if not taken:
                self._add("approvals_failed_total", UNANSWERED if taken is None else REFUSED)
            case PeersAnswered():
                self._peers_answered(what)
            case Reloaded():
                self._retried = set()
            case AskPeers():
                self._asked[what.event_id] = what
            case BeginAction():
                self._begun[what.effect] = what, now
            case state.RuleMatched(event=event, rule=rule):
                text = f"{event.event_type} {event.event_id}: rule {rule.name!r}"
                _log(event.event_id, text, rule=rule.name)
                self._add("events_taken_total", (_type(event),))
                self._taken_at[event.event_id.upper()] = now
            case state.ActionEnded():
                self._ended(what, decider, now)
            case state.ActionSkipped(event_id=event_id, outcome=outcome) if not outcome.good:
                text = f"action {what.index + 1} for {event_id} is not done: {outcome}"
                _log(event_id, text, level=logging.WARNING)
            case state.EventRetried(event_id=event_id):
                why = "its notice is longer now"
                if self._retried is not None:
                    self._retried.add(event_id)
                    why = "an operator asked for it"
                _log(event_id, f"retrying {event_id}: {why}")
            case state.EventApproved(event_id=event_id):
                self._add("approvals_total", ())
                delay = now - self._taken_at.get(event_id, now)
                self._values["approval_delay_seconds"] = {(): delay}
            case state.EventGone(event_id=event_id):
                left = event_id in decider.events
                _log(
                    event_id, f"{event_id} {'no longer names this machine' if left else 'is over'}"
                )
                self._taken_at.pop(event_id, None)
                self._phases.pop(event_id.upper(), None)
                self._asked.pop(event_id, None)
                self._missing.pop(event_id, None)
            case state.Record():
                LOGGER.debug("%s", what)
        self._log_phases(decider)

    def _add(self, family: str, labels: Labels, amount: float = 1) -> None:
        values = self._values[family]
        values[labels] = values.get(labels, 0) + amount

    def _ended(self, record: state.ActionEnded, decider: Decider, now: float) -> None:
        begun, at = self._begun.pop(record.effect, (None, now))
        if begun is not None:
            phase = "undo" if record.undo else "prepare"
            labels = ("kind", begun.action.kind), ("phase", phase)
            self._add("action_seconds_total", labels, now - at)
            self._add("actions_total", (*labels, ("outcome", record.outcome.value)))
        if self._dry:
            return
        known = begun or decider.state.effects.get(record.effect)
        name = record.effect if known is None else rules.action_name(known.action)
        words = f"{'undoing' if record.undo else 'doing'} {name}: {record.outcome}"
        if record.text:
            words += f": {record.text}"
        if record.outcome is ActionOutcome.DONE:
            level = logging.INFO
        elif record.final:
            level = logging.WARNING
        else:
            # Waiting by failing, as for room in a pool, is not worth a line for each try.
            level = logging.INFO if begun is None or begun.attempt == 1 else logging.DEBUG
            words += "; the agent tries again"
        if begun is None:
            LOGGER.log(level, "%s", words)
        else:
            _log(begun.event.event_id, words, rule=begun.rule, level=level)

    def _log_phases(self, decider: Decider) -> None:
        for key, case in decider.state.cases.items():
            before, self._phases[key] = self._phases.get(key), case.phase
            if case.phase is before or case.phase not in PHASES or not case.rule.acts:
                continue
            level, words = PHASES[case.phase]
            _log(case.event_id, f"{case.event_id} {words}", rule=case.rule.name, level=level)

    def page(self, decider: Decider, now: float) -> bytes:
        """Return all metrics but those of `live_page`."""
        cases = decider.state.cases.values()
        events: Counter[Labels] = Counter(
            (_type(case.event), ("phase", case.phase.value)) for case in cases
        )
        left = [
            event.starts_by - now
            for event in decider.events.values()
            if event.starts_by is not None and event.concerns_me
        ]
        stuck = sum(effect.stuck is not None for effect in decider.state.effects.values())
        return _page(
            events=events,
            notice_left_seconds={(): max(0.0, min(left))} if left else {},
            ready={(): int(self._dry or status.is_ready(decider))},
            stuck={(): stuck},
            **self._values,
        )


def _type(event: Event) -> tuple[str, str]:
    known = event.event_type in TYPES
    return "type", str(event.event_type) if known else "other"  # an endpoint may have any


def _log(event_id: str, text: str, *, rule: str | None = None, level: int = logging.INFO) -> None:
    facts = {"event_id": event_id} | ({} if rule is None else {"rule": rule})
    LOGGER.log(level, "%s", text, extra={"facts": facts})


def live_page(
    *, healthy: bool, endpoint_up: bool, name_known: bool, last_look: float | None, looks: int
) -> bytes:
    """Return the metrics that change without any input. Any thread may call it."""
    return _page(
        healthy={(): int(healthy)},
        endpoint_up={(): int(endpoint_up)},
        name_known={(): int(name_known)},
        last_look_timestamp_seconds={} if last_look is None else {(): last_look},
        looks_total={(): looks},
    )


def _page(**families: Mapping[Labels, float]) -> bytes:
    return status_port.metrics_page(PREFIX, FAMILIES, families)
