"""The durable state, made of the journal's records and of nothing else.

`Ledger.apply` is the only way in which it changes. The decider writes a record by applying it, and
whoever comes back after a kill or a boot applies the same records again: the state cannot differ.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from forewarn.agent import phases
from forewarn.agent.phases import Phase, Trigger
from forewarn.agent.records import (
    Approved,
    Begun,
    Booted,
    Case,
    Effect,
    Ended,
    Fact,
    Gone,
    Kept,
    Noted,
    Outcome,
    Passed,
    Pressed,
    Retried,
    Taken,
)
from forewarn.client.event import Event

FORGOTTEN: Final = frozenset({"forget", "again"})
"""What `after_boot` says of an effect that a boot has undone."""


class Ledger:
    """What is in hand, and what stands.

    Args:
        records: Those of the journal, in their order.
    """

    def __init__(self, records: Iterable[Fact] = ()) -> None:
        self.boot = ""
        """The boot under which the last records were written; `""` before any."""
        self.cases: dict[str, Case] = {}
        """The events in hand, by id."""
        self.effects: dict[str, Effect] = {}
        """What stands, by its name."""
        self._order = 0
        for record in records:
            self.apply(record)

    @property
    def idle(self) -> bool:
        """Whether nothing is in hand and nothing stands."""
        return not self.cases and not self.effects

    def wanted(self, effect: Effect) -> bool:
        """Tell whether an event in hand wants what an action does, done or not."""
        if not effect.step.terms.effect:
            return effect.event_id in self.cases  # one event's own
        return any(
            case.effect(index) == effect.key
            for case in self.cases.values()
            for index in range(len(case.results))
        )

    def kept(self) -> Kept:
        """Return all of it as one record."""
        return Kept(
            boot=self.boot, cases=list(self.cases.values()), effects=list(self.effects.values())
        )

    def apply(self, record: Fact) -> None:  # noqa: C901, PLR0912 - one line for each kind of record
        """Make a record part of the state.

        Raises:
            Impossible: It contradicts the records before it; nothing was changed.
        """
        match record:
            case Taken():
                self._take(record)
            case Begun(undo=True):
                effect = self.effects[record.effect]
                effect.undoing, effect.undo_attempt = True, record.attempt
                effect.stuck = effect.outcome = None  # from now on it is done no more
                if record.attempt == 1:
                    effect.text = ""  # that of doing it
            case Begun():
                self._begin(record)
            case Noted():
                effect = self.effects[record.effect]
                if effect.facts is None:  # what was found first is how things were
                    effect.facts = record.facts
            case Ended(undo=True):
                self._undone(record)
            case Ended():
                self._done(record)
            case Passed():
                case_ = self.cases[record.event_id]
                case_.results[record.step] = record.outcome
                served = self.effects.get(case_.effect(record.step))
                if served is not None and self._is_of(served, case_) and served.text:
                    case_.reasons[record.step] = served.text
                if served is not None and case_.event_id not in served.served:
                    served.served.append(case_.event_id)
                _settle(case_)
            case Approved():
                self._move(self.cases[record.event_id], Trigger.APPROVE)
            case Gone():
                self._move(self.cases[record.event_id], Trigger.VANISH)
                del self.cases[record.event_id]
            case Booted():
                self._boot(record)
            case Pressed():
                for effect in self.effects.values():
                    if record.interrupted or effect.stuck is Outcome.FAILED:
                        effect.stuck, effect.undo_attempt = None, 0
                    effect.interrupted &= not record.interrupted
            case Retried():
                self._retry(self.cases[record.event_id])
            case Kept():
                self.boot = record.boot
                self.cases = {case.event_id: case for case in record.cases}
                self.effects = {effect.key: effect for effect in record.effects}
                self._order = max((e.order for e in record.effects), default=0)

    def _take(self, record: Taken) -> None:
        event_id = record.event.event_id.upper()
        case = self.cases.get(event_id)
        phase = case.phase if case else phases.step(event_id, None, Trigger.APPEAR)
        trigger = Trigger.TAKE if record.rule.acts else Trigger.NOTE
        case = Case(
            event=record.event,
            phase=phases.step(event_id, phase, trigger),
            rule=record.rule,
            results=[None] * len(record.rule.prepare),
        )
        self.cases[event_id] = case
        _settle(case)

    def _begin(self, record: Begun) -> None:
        case = self.cases[record.event_id]
        assert case.rule is not None
        before = self.effects.get(record.effect)
        self._order += 1
        self.effects[record.effect] = Effect(
            key=record.effect,
            event=case.event,
            rule=case.rule.name,
            step=case.rule.prepare[record.step],
            index=record.step,
            order=before.order if before else self._order,
            attempt=record.attempt,
            interrupted=before.interrupted if before else False,
            facts=before.facts if before else None,
            text=before.text if before and record.attempt > 1 else "",
            served=sorted({*(before.served if before else ()), case.event_id}),
        )

    def _done(self, record: Ended) -> None:
        effect = self.effects[record.effect]
        effect.doing, effect.outcome, effect.final = False, record.outcome, record.final
        effect.text = "" if record.outcome.good else record.text
        effect.interrupted |= record.final and record.outcome is Outcome.INTERRUPTED
        case = self.cases.get(effect.event_id)
        if record.final and case is not None and self._is_of(effect, case):
            if case.results[effect.index] is None:
                case.results[effect.index] = record.outcome
                if effect.text:
                    case.reasons[effect.index] = effect.text
            _settle(case)

    def _undone(self, record: Ended) -> None:
        effect = self.effects[record.effect]
        effect.undoing, effect.text = False, record.text
        if record.outcome is not Outcome.DONE and not record.final:
            return
        if record.outcome is Outcome.DONE or effect.step.terms.on_failure == "continue":
            del self.effects[record.effect]
        else:
            effect.stuck = record.outcome
            effect.interrupted |= record.outcome is Outcome.INTERRUPTED

    def _retry(self, case: Case) -> None:
        """Have everything done once more that did not end well."""
        self._move(case, Trigger.RETRY)
        for index, result in enumerate(case.results):
            if result is None or result.good:
                continue
            case.results[index] = None
            case.reasons.pop(index, None)
            effect = self.effects.get(case.effect(index))
            if effect is not None:
                effect.interrupted = False

    def _boot(self, record: Booted) -> None:
        self.boot = record.boot
        for effect in list(self.effects.values()):
            if effect.step.terms.after_boot not in FORGOTTEN:
                continue
            del self.effects[effect.key]
            for case in self.cases.values():
                for index in range(len(case.results)):
                    if case.effect(index) == effect.key:
                        self._boot_step(case, index, effect)

    def _boot_step(self, case: Case, index: int, effect: Effect) -> None:
        """Say of an action what a boot has made of it."""
        begun = case.results[index] is not None or (effect.doing and self._is_of(effect, case))
        if begun and effect.step.terms.after_boot == "again":
            case.results[index] = None
            case.reasons.pop(index, None)
            case.again = sorted({*case.again, index})
            if case.phase is not Phase.HELD:  # what is held stays so
                self._move(case, Trigger.BOOT)
        elif begun and case.results[index] is None:
            case.results[index] = Outcome.INTERRUPTED
            _settle(case)

    @staticmethod
    def _is_of(effect: Effect, case: Case) -> bool:
        """Tell whether the effect was begun for this case, by the rule that it has now."""
        return (
            effect.event_id == case.event_id
            and case.rule is not None
            and case.rule.name == effect.rule
            and effect.index < len(case.results)
        )

    @staticmethod
    def _move(case: Case, trigger: Trigger) -> None:
        case.phase = phases.step(case.event_id, case.phase, trigger)


def _settle(case: Case) -> None:
    """Move a case on when its results say so."""
    if case.phase is not Phase.PREPARING:
        return
    rule = case.rule
    assert rule is not None
    if rule.approve == "at-once":  # it waits for nothing
        case.phase = phases.step(case.event_id, case.phase, Trigger.FINISH)
    elif any(_holds(case, index) for index in range(len(case.results))):
        case.phase = phases.step(case.event_id, case.phase, Trigger.HOLD)
    elif None not in case.results:
        case.phase = phases.step(case.event_id, case.phase, Trigger.FINISH)


def _holds(case: Case, index: int) -> bool:
    """Tell whether the result of an action forbids to approve."""
    result = case.results[index]
    assert case.rule is not None
    if result is None or result.good:
        return False
    if result.cut:
        return case.rule.when_cut == "hold"
    return case.rule.prepare[index].terms.on_failure == "hold"


def without_times(event: Event) -> Event:
    """Return an event without what only this boot's monotonic clock understands."""
    return msgspec.structs.replace(event, starts_by=None)
