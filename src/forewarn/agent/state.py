"""The agent's memory: records of events, and the durable state that they make. Pure.

`AgentState.apply` is the only way in which the state changes: the decider writes a record by
applying it, and an agent that comes back after a kill or a boot applies the same records again. So
the two states cannot differ. `TRANSITIONS` is the life of an event; a test compares it with the
diagram in `docs/internals/agent.md`.
"""

import functools
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import msgspec

from forewarn.agent.rules import ActionOutcome, Rule, RuleAction
from forewarn.client.event import Event


class Phase(StrEnum):
    """The progress of an event."""

    SEEN = "Seen"
    """It is in the document, and no rule that prepares or approves has taken it."""
    PREPARING = "Preparing"
    """A rule's actions are done, one after the other."""
    PREPARED = "Prepared"
    """All of its rule's actions are done."""
    HELD = "Held"
    """A required action failed or was cut: the event is not approved."""
    APPROVED = "Approved"
    """The endpoint has taken the approval."""
    OVER = "Over"
    """It has left the document: its actions are undone."""


class PhaseTrigger(StrEnum):
    """The causes of a change of phase; `docs/internals/agent.md` describes each."""

    APPEAR = "appear"
    NOTE = "note"
    TAKE = "take"
    FINISH = "finish"
    HOLD = "hold"
    RETRY = "retry"
    APPROVE = "approve"
    DOUBT = "doubt"
    BOOT = "boot"
    VANISH = "vanish"


TRANSITIONS: Final[Mapping[tuple[Phase | None, PhaseTrigger], Phase]] = MappingProxyType(
    {
        (None, PhaseTrigger.APPEAR): Phase.SEEN,
        (Phase.SEEN, PhaseTrigger.NOTE): Phase.SEEN,
        (Phase.SEEN, PhaseTrigger.TAKE): Phase.PREPARING,
        (Phase.SEEN, PhaseTrigger.BOOT): Phase.SEEN,
        (Phase.SEEN, PhaseTrigger.VANISH): Phase.OVER,
        (Phase.PREPARING, PhaseTrigger.FINISH): Phase.PREPARED,
        (Phase.PREPARING, PhaseTrigger.HOLD): Phase.HELD,
        (Phase.PREPARING, PhaseTrigger.BOOT): Phase.PREPARING,
        (Phase.PREPARING, PhaseTrigger.VANISH): Phase.OVER,
        (Phase.PREPARED, PhaseTrigger.APPROVE): Phase.APPROVED,
        (Phase.PREPARED, PhaseTrigger.DOUBT): Phase.PREPARING,
        (Phase.PREPARED, PhaseTrigger.BOOT): Phase.PREPARING,
        (Phase.PREPARED, PhaseTrigger.VANISH): Phase.OVER,
        (Phase.HELD, PhaseTrigger.RETRY): Phase.PREPARING,
        (Phase.HELD, PhaseTrigger.VANISH): Phase.OVER,
        (Phase.APPROVED, PhaseTrigger.DOUBT): Phase.PREPARING,
        (Phase.APPROVED, PhaseTrigger.BOOT): Phase.PREPARING,
        (Phase.APPROVED, PhaseTrigger.VANISH): Phase.OVER,
    }
)
"""From a phase, by a trigger, to a phase; None is an event that was never seen."""


class ImpossibleStep(Exception):  # noqa: N818 - it names what was asked
    """The table has no such step; nothing was changed."""


def next_phase(event_id: str, phase: Phase | None, trigger: PhaseTrigger) -> Phase:
    """Return the phase that follows; `phase` is None before the event is seen."""
    following = TRANSITIONS.get((phase, trigger))
    if following is None:
        raise ImpossibleStep(f"event {event_id} is {phase or 'new'} and cannot {trigger.value}")
    return following


TEXT_LENGTH: Final = 500
"""The most characters that are kept of an action's message."""

HEAD_LENGTH: Final = 120
"""The part of that for the beginning, which names the fault; the end has the cause."""


def shortened(text: str) -> str:
    """Return an action's message as text for the journal, without its middle if it is long."""
    text = text.encode("utf-8", "replace").decode()  # names of files may be no text
    if len(text) <= TEXT_LENGTH:
        return text
    return f"{text[:HEAD_LENGTH]}…{text[HEAD_LENGTH + 1 - TEXT_LENGTH :]}"


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag=str.lower):
    """One fact."""


class RuleMatched(Record, frozen=True, kw_only=True):
    """A rule has taken an event."""

    event: Event
    """The event at that time, without `starts_by`, which only this boot's clock understands."""
    rule: Rule
    """Whole: an action is undone as the rule said when it began, whatever the files say later."""


class ActionBegun(Record, frozen=True, kw_only=True):
    """An action begins in the next moment."""

    effect: str
    undo: bool
    event_id: str
    index: int
    attempt: int
    """From 1."""


class FactsNoted(Record, frozen=True, kw_only=True):
    """An action has noted the state of things before it changes them."""

    effect: str
    facts: dict[str, Any]
    """The action's own; it gets them back when it is undone."""


class ActionEnded(Record, frozen=True, kw_only=True):
    """An action has ended."""

    effect: str
    undo: bool
    outcome: ActionOutcome
    final: bool
    text: str = ""
    """Its message for people, shortened."""
    in_doubt: bool = False
    """True if it may have been done nevertheless, and must not be done twice."""


class ActionSkipped(Record, frozen=True, kw_only=True):
    """An action is not begun, for the reason in `outcome`."""

    event_id: str
    index: int
    outcome: ActionOutcome
    text: str = ""
    """The message for people, where `outcome` does not say it."""


class ActionsDoubted(Record, frozen=True, kw_only=True):
    """Actions are done again before the approval: another tool may have undone them."""

    event_id: str
    indexes: list[int]


class EventApproved(Record, frozen=True, kw_only=True):
    """The endpoint has taken the approval."""

    event_id: str


class EventGone(Record, frozen=True, kw_only=True):
    """The event has left the document."""

    event_id: str


class MachineBooted(Record, frozen=True, kw_only=True):
    """The machine has booted since the last record."""

    boot: str


class RetryRequested(Record, frozen=True, kw_only=True):
    """Undoing stuck effects is tried again."""

    interrupted: bool
    """True to retry also effects that the agent's own end interrupted: by an operator's order."""


class EventRetried(Record, frozen=True, kw_only=True):
    """The agent prepares again for a held event: an operator says so, or its notice is longer."""

    event_id: str
    not_before: datetime | None = None
    """The event's current NotBefore."""
    rule: Rule | None = None
    """The rule to prepare by from now on; None for the one that the event has."""


class Checkpoint(Record, frozen=True, kw_only=True):
    """The whole state: the first record of a journal that was shortened."""

    boot: str
    cases: list["Case"]
    effects: list["Effect"]


class Case(msgspec.Struct, kw_only=True, dict=True):
    """One event in hand; another rule makes another case."""

    event: Event
    """The event when a rule took it; its NotBefore is that of the last try."""
    phase: Phase
    rule: Rule
    """The rule that took it last."""
    results: list[ActionOutcome | None] = []
    """The outcome of each action of the rule; None before its end."""
    again: list[int] = []
    """The actions that a boot has undone and that are done again, by index."""
    reasons: dict[int, str] = {}
    """The last message of each action that did not end well, by index."""

    @property
    def event_id(self) -> str:
        """Its id, in one case of letters."""
        return self.event.event_id.upper()

    @functools.cached_property  # to encode an action for each look takes microseconds
    def effects(self) -> tuple[str, ...]:
        """The keys of its actions' effects."""
        own = f"{self.event_id}/{self.rule.name}"
        return tuple(
            # A rule that has changed may have had a message in this place.
            action.settings.effect or f"{own}/{'told/' * action.settings.tells}{index}"
            for index, action in enumerate(self.rule.prepare)
        )

    def effect(self, index: int) -> str:
        """Return the key of the effect of one of its actions."""
        return self.effects[index]

    def has_more_notice(self, not_before: datetime | None) -> bool:
        """Return True if only its notice was too short, and it is longer now.

        A try is written with its NotBefore, so each NotBefore is tried once.
        """
        tried = self.event.not_before
        if tried is None or not_before is None or not_before <= tried:
            return False
        return all(
            result is None
            or result.good
            or result is ActionOutcome.NO_TIME
            or (result is ActionOutcome.CUT and self.rule.prepare[index].settings.repeatable)
            for index, result in enumerate(self.results)
        )


LONGEST_PAUSE_SECONDS: Final = 60.0
"""The longest pause between two tries to undo something."""

STUCK_PAUSE_SECONDS: Final = 300.0
"""The pause once it is stuck: a cluster, a balancer or a node may be away for hours, and come back
when nobody looks."""


class Effect(msgspec.Struct, kw_only=True):
    """The effect of an action on the machine, complete or under way, that was not undone."""

    key: str
    event: Event
    """The event for which it was begun last."""
    rule: str
    action: RuleAction
    undo_by: RuleAction
    """The action by which it is undone: `action`, or an earlier one if that has no undo."""
    index: int
    order: int
    """Effects are undone from the highest order to the lowest."""
    attempt: int
    doing: bool = True
    outcome: ActionOutcome | None = None
    """The outcome of the last attempt to do it."""
    final: bool = False
    """True if doing it is not retried for that event."""
    undoing: bool = False
    undo_attempt: int = 0
    stuck: ActionOutcome | None = None
    """The outcome of the last attempt to undo it, once that has failed too often."""
    interrupted: bool = False
    """True if it did not end by itself, or may have been done, and is not repeatable: no event
    begins it again."""
    facts: dict[str, Any] | None = None
    """The facts that the action noted before it changed anything; None for none."""
    text: str = ""
    """The message of the last try to do or undo it, if that did not end well; else `""`."""
    served: list[str] = []
    """The ids of the events for which it was begun, or which found it done."""

    @property
    def event_id(self) -> str:
        """The event's id, in one case of letters."""
        return self.event.event_id.upper()

    @property
    def busy(self) -> bool:
        """True if it is being done or undone."""
        return self.doing or self.undoing

    @property
    def is_undone_by_itself(self) -> bool:
        """True if undoing it is tried again without an operator."""
        return self.stuck in {None, ActionOutcome.FAILED}

    @property
    def undo_pause_seconds(self) -> float:
        """The pause before the next try to undo it, after one that failed."""
        if self.stuck:
            return STUCK_PAUSE_SECONDS
        pause = self.action.settings.retry_seconds * 2.0 ** (self.undo_attempt - 1)
        return min(LONGEST_PAUSE_SECONDS, pause)


AnyRecord = (
    RuleMatched
    | ActionBegun
    | FactsNoted
    | ActionEnded
    | ActionSkipped
    | ActionsDoubted
    | EventApproved
    | EventGone
    | MachineBooted
    | RetryRequested
    | EventRetried
    | Checkpoint
)

FORGOTTEN: Final = frozenset({"forget", "again"})
"""The values of `after_boot` for an effect that a boot has undone."""


class AgentState:
    """The events in hand, and the effects that stand, as the journal's records make them."""

    def __init__(self, records: Iterable[AnyRecord] = ()) -> None:
        self.boot = ""
        """The boot under which the last records were written; `""` before any."""
        self.cases: dict[str, Case] = {}
        """The events in hand, by id."""
        self.effects: dict[str, Effect] = {}
        """The effects that stand, by key."""
        self._users: dict[str, dict[str, None]] = {}
        """The events in hand whose rules have an action, by the key of its effect, oldest first: of
        a thousand events most have nothing to do with an action's end."""
        self._order = 0
        for record in records:
            self.apply(record)

    @property
    def idle(self) -> bool:
        """True if no event is in hand and no effect stands."""
        return not self.cases and not self.effects

    def needed(self, effect: Effect) -> bool:
        """Return True if an event in hand needs an effect, done or not."""
        if effect.action.settings.tells:
            return effect.event_id in self.cases  # whichever rule has the event by now
        return effect.key in self._users

    def users(self, key: str) -> list[Case]:
        """Return the events in hand whose rules have the action with this effect, done or not."""
        return [self.cases[event_id] for event_id in self._users.get(key, ())]

    @property
    def stuck(self) -> set[str]:
        """The keys of the effects that could not be undone."""
        return {key for key, effect in self.effects.items() if effect.stuck}

    def checkpoint(self) -> Checkpoint:
        """Return the whole state as one record."""
        return Checkpoint(
            boot=self.boot, cases=list(self.cases.values()), effects=list(self.effects.values())
        )

    def apply(self, record: AnyRecord) -> None:  # noqa: C901, PLR0912 - a case for each kind
        """Make a record part of the state; ImpossibleStep if it contradicts those before it."""
        match record:
            case RuleMatched():
                self._take(record)
            case ActionBegun(undo=True):
                effect = self.effects[record.effect]
                effect.undoing, effect.undo_attempt = True, record.attempt
                effect.outcome = None  # from now on it is not done
                if record.attempt == 1:
                    effect.stuck, effect.text = None, ""  # that of doing it
            case ActionBegun():
                self._begin(record)
            case FactsNoted():
                effect = self.effects[record.effect]
                if effect.facts is None:  # the first note says how things were
                    effect.facts = record.facts
            case ActionEnded(undo=True):
                self._undone(record)
            case ActionEnded():
                self._done(record)
            case ActionSkipped():
                self._skip(record)
            case ActionsDoubted():
                self._doubt(record)
            case EventApproved():
                _move(self.cases[record.event_id], PhaseTrigger.APPROVE)
            case EventGone():
                _move(self.cases[record.event_id], PhaseTrigger.VANISH)
                self._unuse(self.cases.pop(record.event_id))
            case MachineBooted():
                self._boot(record)
            case RetryRequested():
                for effect in self.effects.values():
                    if record.interrupted or effect.stuck is ActionOutcome.FAILED:
                        effect.stuck, effect.undo_attempt = None, 0
                    effect.interrupted &= not record.interrupted
            case EventRetried():
                self._retry(record)
            case Checkpoint():
                self.boot = record.boot
                self.cases, self._users = {}, {}
                for case_ in record.cases:
                    self._keep(case_)
                self.effects = {effect.key: effect for effect in record.effects}
                self._order = max((e.order for e in record.effects), default=0)

    def _take(self, record: RuleMatched) -> None:
        event_id = record.event.event_id.upper()
        known = self.cases.get(event_id)
        phase = known.phase if known else next_phase(event_id, None, PhaseTrigger.APPEAR)
        trigger = PhaseTrigger.TAKE if record.rule.acts else PhaseTrigger.NOTE
        case = Case(
            event=record.event,
            phase=next_phase(event_id, phase, trigger),
            rule=record.rule,
            results=[None] * len(record.rule.prepare),
        )
        if known is not None:
            self._unuse(known)
        self._keep(case)
        _settle(case)

    def _keep(self, case: Case) -> None:
        self.cases[case.event_id] = case
        for key in case.effects:
            self._users.setdefault(key, {})[case.event_id] = None

    def _unuse(self, case: Case) -> None:
        for key in set(case.effects):
            del self._users[key][case.event_id]
            if not self._users[key]:
                del self._users[key]

    def _begin(self, record: ActionBegun) -> None:
        case = self.cases[record.event_id]
        before = self.effects.get(record.effect)
        action = case.rule.prepare[record.index]
        self._order += 1
        self.effects[record.effect] = Effect(
            key=record.effect,
            event=case.event,
            rule=case.rule.name,
            action=action,
            undo_by=before.undo_by if before and not action.settings.undoes else action,
            index=record.index,
            order=before.order if before else self._order,
            attempt=record.attempt,
            facts=before.facts if before else None,
            text=before.text if before and record.attempt > 1 else "",
            served=sorted({*(before.served if before else ()), case.event_id}),
        )

    def _done(self, record: ActionEnded) -> None:
        effect = self.effects[record.effect]
        effect.doing, effect.outcome, effect.final = False, record.outcome, record.final
        effect.text = "" if record.outcome.good else record.text
        is_interrupted = record.final and record.outcome is ActionOutcome.INTERRUPTED
        effect.interrupted = is_interrupted or record.in_doubt
        case = self.cases.get(effect.event_id)
        if record.final and case is not None and _is_of(effect, case):
            if case.results[effect.index] is None:
                case.results[effect.index] = record.outcome
                if effect.text:
                    case.reasons[effect.index] = effect.text
            _settle(case)

    def _undone(self, record: ActionEnded) -> None:
        effect = self.effects[record.effect]
        effect.undoing, effect.text = False, record.text
        if record.outcome is not ActionOutcome.DONE and not record.final:
            return
        if record.outcome is ActionOutcome.DONE or effect.action.settings.on_failure == "continue":
            del self.effects[record.effect]
        else:
            effect.stuck = record.outcome
            effect.interrupted |= record.outcome is ActionOutcome.INTERRUPTED

    def _skip(self, record: ActionSkipped) -> None:
        case = self.cases[record.event_id]
        case.results[record.index] = record.outcome
        served = self.effects.get(case.effect(record.index))
        told = record.text or (served.text if served and _is_of(served, case) else "")
        if told:
            case.reasons[record.index] = told
        if served is not None and case.event_id not in served.served:
            served.served.append(case.event_id)
        _settle(case)

    def _doubt(self, record: ActionsDoubted) -> None:
        case = self.cases[record.event_id]
        _move(case, PhaseTrigger.DOUBT)
        for index in record.indexes:
            case.results[index] = self.effects[case.effect(index)].outcome = None

    def _retry(self, record: EventRetried) -> None:
        """Repeat every action that did not end well, or begin again by another rule."""
        case = self.cases[record.event_id]
        _move(case, PhaseTrigger.RETRY)
        case.event = msgspec.structs.replace(case.event, not_before=record.not_before)
        if record.rule is not None:
            self._unuse(case)
            results: list[ActionOutcome | None] = [None] * len(record.rule.prepare)
            case = Case(event=case.event, phase=case.phase, rule=record.rule, results=results)
            self._keep(case)  # what stands of the old rule, and the new one lacks, is not needed
            _settle(case)
        for index, result in enumerate(case.results):
            if result is None or result.good:
                continue
            case.results[index] = None
            case.reasons.pop(index, None)

    def _boot(self, record: MachineBooted) -> None:
        self.boot = record.boot
        for effect in list(self.effects.values()):
            if effect.action.settings.after_boot not in FORGOTTEN:
                continue
            del self.effects[effect.key]
            for case in self.cases.values():
                for index in range(len(case.results)):
                    if case.effect(index) == effect.key:
                        self._boot_step(case, index, effect)

    def _boot_step(self, case: Case, index: int, effect: Effect) -> None:
        """Record how a boot affects an action."""
        begun = case.results[index] is not None or (effect.doing and _is_of(effect, case))
        if begun and effect.action.settings.after_boot == "again":
            case.results[index] = None
            case.reasons.pop(index, None)
            case.again = sorted({*case.again, index})
            if case.phase is not Phase.HELD:  # what is held stays so
                _move(case, PhaseTrigger.BOOT)
        elif begun and case.results[index] is None:
            case.results[index] = ActionOutcome.INTERRUPTED
            _settle(case)


def _is_of(effect: Effect, case: Case) -> bool:
    """Return True if an event's rule, as the event has it now, began this effect."""
    return (
        effect.event_id == case.event_id
        and case.rule.name == effect.rule
        and case.rule.prepare[effect.index : effect.index + 1] == (effect.action,)
    )


def _move(case: Case, trigger: PhaseTrigger) -> None:
    case.phase = next_phase(case.event_id, case.phase, trigger)


def _settle(case: Case) -> None:
    if case.phase is not Phase.PREPARING:
        return
    at_once = case.rule.approve == "at-once"  # it waits for nothing
    if not at_once and any(_holds(case, index) for index in range(len(case.results))):
        _move(case, PhaseTrigger.HOLD)
    elif at_once or None not in case.results:
        _move(case, PhaseTrigger.FINISH)


def _holds(case: Case, index: int) -> bool:
    result = case.results[index]
    if result is None or result.good:
        return False
    if result.cut:
        return case.rule.when_cut == "hold"
    return case.rule.prepare[index].settings.on_failure == "hold"
