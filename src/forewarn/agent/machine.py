"""The agent's decider: what is seen, how actions end, what peers say and time in; what to do out.

Pure: no I/O, no clock, no chance. `Machine.handle` takes one cause and the time, and returns
commands that the shell carries out in their order, each record synced before what follows it. So a
kill between any two of them leaves a journal that says at most too much: that an action was begun.

Time is the machine's monotonic clock in seconds, as `Event.starts_by` has it: a wall clock that is
set neither cuts nor prolongs anything.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from forewarn.agent import rules
from forewarn.agent.consent import Consent
from forewarn.agent.ledger import Ledger, without_times
from forewarn.agent.messages import (
    Answered,
    Begin,
    Cause,
    Closing,
    Command,
    Finished,
    Found,
    Heard,
    Looked,
    Proceed,
    Reloaded,
    Resumed,
    Retry,
    Stop,
    Write,
)
from forewarn.agent.newcomers import Newcomers
from forewarn.agent.phases import Phase
from forewarn.agent.records import (
    Approved,
    Begun,
    Booted,
    Case,
    Effect,
    Ended,
    Fact,
    Gone,
    Noted,
    Outcome,
    Passed,
    Pressed,
    Retried,
    Taken,
    shortened,
)
from forewarn.agent.rules import Rule
from forewarn.client.event import Event
from forewarn.vocabulary import EventStatus

GRACE_SECONDS: Final = 15.0
"""How long an action that was told to stop may take to end: a program has 10 s between SIGTERM and
SIGKILL. After that its end is waited for no more."""

LONGEST_PAUSE_SECONDS: Final = 60.0
"""Between two tries to undo something, however many there were."""

OTHERS_AT_ONCE: Final = 20
"""How many events that are only written down for others are taken up at once: each costs synced
records, and this machine's own have no time to wait for a thousand of them."""

ENDED_IN_IT: Final = "the agent ended in the middle of it"
NO_END: Final = "it did not end when it was told to stop"


class _Run(msgspec.Struct):
    """An action that is under way in this process."""

    number: int
    effect: str
    undo: bool
    limit: float
    """When its own time is over."""
    deadline: float | None = None
    """When the notice is over; None if that is no matter of it."""
    stopped: float | None = None
    """When it was told to stop; None if it was not."""
    cut: bool = False
    """Whether it was stopped for another reason than its own limit."""


class Machine:
    """Decides everything that the agent does.

    Args:
        own: The rules, in their order.
        margin_seconds: How long before NotBefore everything must be prepared.
        records: The journal's, in their order.
    """

    def __init__(
        self, own: Sequence[Rule], margin_seconds: float, records: Iterable[Fact] = ()
    ) -> None:
        self.ledger = Ledger(records)
        """What is in hand and what stands."""
        self.events: dict[str, Event] = {}
        """What the document showed last, by id."""
        self.name: str | None = None
        """This machine's; None while it is not known."""
        self.wake_at: float | None = None
        """When `Woken` is to be told, if nothing else is before; None for never."""
        self._rules = tuple(own)
        self._margin = margin_seconds
        self.looked = False
        """Whether the document was seen in this process."""
        self._closing = self._retry = False
        self._number = 0
        self._runs: dict[str, _Run] = {}
        self._retries: dict[tuple[str, bool], float] = {}
        self._deadlines: dict[str, float] = {}
        self._newcomers = Newcomers()
        self._consent = Consent()
        self._out: list[Command] = []
        self._wakes: list[float] = []

    @property
    def busy(self) -> bool:
        """Whether anything is under way or about to be: an action, a retry, a word with others.

        An agent that is to end tries nothing again.
        """
        waits = bool(self._retries) or self._newcomers.waiting
        return bool(self._runs) or (waits and not self._closing) or self._consent.busy

    def handle(self, cause: Cause, now: float) -> list[Command]:
        """Return what follows from one cause.

        Args:
            cause: What happened; what is late, or of nobody, changes nothing.
            now: The monotonic clock's seconds; never less than before.
        """
        self._out, self._wakes = [], []
        match cause:
            case Resumed():
                self._resume(cause.boot)
            case Looked():
                self._look(cause)
            case Found():
                self._found(cause)
            case Finished():
                self._finished(cause, now)
            case Answered():
                event_id = self._consent.answered(cause, now)
                if event_id is not None and self.ledger.cases[event_id].phase is Phase.PREPARED:
                    self._write(Approved(event_id=event_id))
            case Heard():
                self._consent.heard(cause, now)
            case Reloaded():
                self._rules = cause.rules
                self._press(interrupted=True)
            case Retry():
                self._retry = True  # as soon as it is known what is over
            case Closing():
                self._closing = True
            case _:
                pass  # time has passed
        if self.looked:  # before that nobody knows what is over
            self._go_on(now)
        self.wake_at = min(self._wakes, default=None)
        return self._out

    # What happened

    def _resume(self, boot: str) -> None:
        """Take up what the journal says was under way."""
        if boot != self.ledger.boot:
            self._write(Booted(boot=boot))
        for effect in list(self.ledger.effects.values()):
            if effect.busy:
                final = not effect.step.terms.repeatable
                self._end(effect, Outcome.INTERRUPTED, final=final, text=ENDED_IN_IT)
        self._press(interrupted=False)

    def _press(self, *, interrupted: bool) -> None:
        if any(effect.stuck or effect.interrupted for effect in self.ledger.effects.values()):
            self._write(Pressed(interrupted=interrupted))
        self._retries.clear()

    def _look(self, seen: Looked) -> None:
        self.looked, self.name = True, seen.machine
        self.events = {event.event_id.upper(): event for event in seen.events}

    def _found(self, found: Found) -> None:
        run = next((run for run in self._runs.values() if run.number == found.run), None)
        if run is not None:
            self._write(Noted(effect=run.effect, facts=found.facts))
            self._out.append(Proceed(run.number))

    def _finished(self, finished: Finished, now: float) -> None:
        run = next((run for run in self._runs.values() if run.number == finished.run), None)
        if run is not None:
            self._conclude(run, finished.outcome, finished.text, now)

    # What follows

    def _go_on(self, now: float) -> None:
        """Do all that is to be done now, and find out when there will be more."""
        waits = self._newcomers.wait(self.events, self.ledger.cases, now)
        self._wakes += waits.values()
        self._choose_all({k: event for k, event in self.events.items() if k not in waits}, now)
        for event_id in list(self.ledger.cases):
            if event_id not in self.events:  # after the new ones, which may want what stands
                self._write(Gone(event_id=event_id))
                self._consent.drop(event_id)
                self._deadlines.pop(event_id, None)
        if self._retry:
            self._try_held(now)
        self._retries = {k: at for k, at in self._retries.items() if self._tries_again(*k)}
        for run in list(self._runs.values()):
            run.deadline = self._latest(run)
            if run.stopped is not None and now >= run.stopped + GRACE_SECONDS:
                self._conclude(run, Outcome.CUT, NO_END, now)
        if not self._closing:
            for case in sorted(self.ledger.cases.values(), key=self._urgency):
                self._advance(case, now)
        for run in self._runs.values():
            self._oversee(run, now)
        if self._closing:
            return
        for case in self.ledger.cases.values():
            command, again = self._consent.decide(case, self.events[case.event_id], self.name, now)
            self._out += [] if command is None else [command]
            self._wakes += [] if again is None else [again]
        if not waits:  # one of them may want what stands
            self._undo(now)

    def _choose_all(self, events: Mapping[str, Event], now: float) -> None:
        """Let rules take events: this machine's at once, others' a few at a time."""
        effects = self.ledger.effects
        telling = sum(effects[key].step.terms.tells for key in self._runs)
        left = OTHERS_AT_ONCE - telling
        for event_id, event in events.items():
            new = event_id not in self.ledger.cases
            if new and not event.concerns_me and not self._rule(event, now)[0].acts:
                left -= 1
                if left < 0:
                    self._wakes += [] if telling else [now]  # else when one of those has ended
                    continue
            self._choose(event_id, event, now)

    def _try_held(self, now: float) -> None:
        """Prepare once more for what is held, where there is still time for it."""
        self._retry = False
        for case in self.ledger.cases.values():
            assert case.rule is not None
            event, deadline = self.events[case.event_id], self._deadline(case)
            too_late = deadline is not None and now >= deadline
            may_begin = event.status == EventStatus.SCHEDULED or case.rule.even_if_started
            if case.phase is Phase.HELD and may_begin and not too_late:
                self._write(Retried(event_id=case.event_id))

    def _rule(self, event: Event, now: float) -> tuple[Rule, float | None]:
        """Return the rule that takes an event now, and how much notice is left."""
        notice = 0.0 if event.started else None
        if event.starts_by is not None:
            notice = max(0.0, event.starts_by - now)
        return rules.choose(self._rules, event, notice), notice

    def _choose(self, event_id: str, event: Event, now: float) -> None:
        """Let a rule take an event that none has taken which acts."""
        case = self.ledger.cases.get(event_id)
        if case is not None and case.phase is not Phase.SEEN:
            return
        rule, notice = self._rule(event, now)
        if case is None or case.rule != rule:
            self._write(Taken(event=without_times(event), rule=rule))
        seconds = rules.next_change_seconds(self._rules, notice)
        if not rule.acts and seconds is not None:
            self._wakes.append(now + seconds)

    def _urgency(self, case: Case) -> tuple[bool, bool, float]:
        deadline = self._deadline(case)
        return not self.events[case.event_id].concerns_me, deadline is None, deadline or 0.0

    def _deadline(self, case: Case) -> float | None:
        """Return when everything must be prepared for an event; None if nothing says when.

        An event that has started keeps the time that it had, unless its rule prepares then too.
        """
        event, rule = self.events[case.event_id], case.rule
        assert rule is not None
        if event.starts_by is not None:
            self._deadlines[case.event_id] = event.starts_by - self._margin
        elif rule.even_if_started:
            return None
        return self._deadlines.get(case.event_id)

    def _missing(self, case: Case) -> list[int]:
        """Return which of a case's actions are still to be begun, or to end."""
        held = case.phase is Phase.HELD  # then nothing more is begun, but what a boot has undone
        return [
            index
            for index, result in enumerate(case.results)
            if result is None and (not held or index in case.again)
        ]

    def _oversee(self, run: _Run, now: float) -> None:
        """Stop an action whose time is over, or that nobody wants any more."""
        unwanted = not run.undo and not self._awaited(self.ledger.effects[run.effect])
        until = run.limit if run.deadline is None else min(run.limit, run.deadline)
        if run.stopped is None and (unwanted or now >= until):
            run.stopped, run.cut = now, unwanted or until < run.limit
            self._out.append(Stop(run.number))
        self._wakes.append(until if run.stopped is None else run.stopped + GRACE_SECONDS)

    def _awaited(self, effect: Effect) -> bool:
        """Tell whether an event waits for the end of what is being done."""
        if effect.step.terms.tells:
            return effect.event_id in self.ledger.cases
        return bool(self._waiting(effect.key))

    def _waiting(self, key: str) -> list[Case]:
        return [
            case
            for case in self.ledger.cases.values()
            if any(case.effect(index) == key for index in self._missing(case))
        ]

    def _tries_again(self, key: str, undo: bool) -> bool:  # noqa: FBT001 - a retry's own name
        """Tell whether anybody still waits for what is to be tried again."""
        effect = self.ledger.effects.get(key)
        if effect is None or not undo:
            return bool(self._waiting(key))
        return effect.stuck is None and not self.ledger.wanted(effect)

    def _latest(self, run: _Run) -> float | None:
        """Return when the last event that waits for an action has no more use of it."""
        if run.undo or self.ledger.effects[run.effect].step.terms.tells:
            return None
        deadlines = [self._deadline(case) for case in self._waiting(run.effect)]
        known = [deadline for deadline in deadlines if deadline is not None]
        if not deadlines:
            return run.deadline
        return max(known) if len(known) == len(deadlines) else None

    def _advance(self, case: Case, now: float) -> None:
        """Begin a case's next action, or pass it over, and so on until there is one to wait for."""
        assert case.rule is not None
        for index in self._missing(case):
            key = case.effect(index)
            effect = self.ledger.effects.get(key)
            own = effect is not None and effect.event_id == case.event_id and not effect.final
            reason = self._reason_against(case, index, effect, now)
            if reason is not None:
                if own and effect is not None and effect.outcome is not None:
                    reason = effect.outcome  # it was begun, and is not tried again
                self._write(Passed(event_id=case.event_id, step=index, outcome=reason))
                if case.phase is Phase.HELD:
                    return
                continue
            if effect is not None and effect.busy:
                deadline = self._deadline(case)
                if deadline is not None and deadline > now:
                    self._wakes.append(deadline)
                return
            pause = self._retries.get((key, False), now)
            if pause > now:
                self._wakes.append(pause)
                return
            attempt = effect.attempt + 1 if effect is not None and own else 1
            self._write(
                Begun(effect=key, undo=False, event_id=case.event_id, step=index, attempt=attempt)
            )
            self._begin(self.ledger.effects[key], now)
            return

    def _reason_against(
        self, case: Case, index: int, effect: Effect | None, now: float
    ) -> Outcome | None:
        """Return why an action is not to be begun; None if it is."""
        rule = case.rule
        assert rule is not None
        terms = rule.prepare[index].terms
        if terms.tells:
            return None
        if effect is not None and effect.outcome is Outcome.DONE:
            return Outcome.SHARED
        if effect is not None and effect.interrupted and not effect.busy:
            return Outcome.INTERRUPTED  # it may not be begun again, not for another event either
        run = self._runs.get(case.effect(index))
        under_way = run is not None and not run.undo
        own = under_way and effect is not None and effect.event_id == case.event_id
        started = self.events[case.event_id].status != EventStatus.SCHEDULED
        if started and not rule.even_if_started and index not in case.again and not own:
            return Outcome.STARTED
        deadline = self._deadline(case)
        if deadline is None or (now < deadline and deadline - now >= terms.needs_seconds):
            return None
        if run is None or run.undo:
            return Outcome.NO_TIME
        if now < deadline or (run.deadline is not None and run.deadline <= now):
            return None  # it is under way, or will have ended in a moment
        return Outcome.CUT if own else Outcome.NO_TIME

    def _begin(self, effect: Effect, now: float) -> None:
        """Begin what has just been recorded as begun."""
        self._number += 1
        run = _Run(
            number=self._number,
            effect=effect.key,
            undo=effect.undoing,
            limit=now + effect.step.terms.time_limit_seconds,
        )
        self._runs[effect.key] = run
        run.deadline = self._latest(run)
        until = run.limit if run.deadline is None else min(run.limit, run.deadline)
        self._out.append(
            Begin(
                run=run.number,
                effect=effect.key,
                step=effect.step,
                undo=effect.undoing,
                event=self.events.get(effect.event_id, effect.event),
                rule=effect.rule,
                until=until,
                attempt=effect.undo_attempt if effect.undoing else effect.attempt,
                facts=effect.facts,
            )
        )

    def _conclude(self, run: _Run, outcome: Outcome, text: str, now: float) -> None:
        """Write down how a run ended, and whether and when it is tried again."""
        del self._runs[run.effect]
        effect = self.ledger.effects[run.effect]
        terms = effect.step.terms
        if outcome is not Outcome.DONE:
            cut = run.cut or (outcome is Outcome.CUT and run.stopped is None)
            outcome = Outcome.CUT if cut and not run.undo else Outcome.FAILED
            if run.stopped is not None and not run.cut:
                text = f"it took longer than {terms.time_limit_seconds:g} s; {text}"
        if run.undo:
            pause = min(LONGEST_PAUSE_SECONDS, terms.retry_seconds * 2 ** (effect.undo_attempt - 1))
            final = effect.undo_attempt > terms.undo_retries
        else:
            pause = terms.retry_seconds
            too_late = run.deadline is not None and now + pause >= run.deadline
            over = outcome is Outcome.CUT or too_late or not self.ledger.wanted(effect)
            final = over or effect.attempt > terms.retries
        final = final or outcome is Outcome.DONE
        if not final:
            self._retries[effect.key, run.undo] = now + pause
        else:
            self._retries.pop((effect.key, run.undo), None)
        self._end(effect, outcome, final=final, text=text, undo=run.undo)

    def _end(
        self, effect: Effect, outcome: Outcome, *, final: bool, text: str, undo: bool | None = None
    ) -> None:
        self._write(
            Ended(
                effect=effect.key,
                undo=effect.undoing if undo is None else undo,
                outcome=outcome,
                final=final,
                text=shortened(text),
            )
        )

    def _undo(self, now: float) -> None:
        """Begin to undo what nobody wants, for each event the last thing first.

        What served several events waits for what each of them has done after it.
        """
        waits: set[str] = set()
        standing = sorted(self.ledger.effects.values(), key=lambda e: e.order, reverse=True)
        for effect in standing:
            if self.ledger.wanted(effect):
                continue
            later = not waits.isdisjoint(effect.served)
            waits.update(effect.served)
            if later or effect.busy or effect.stuck:
                continue
            pause = self._retries.get((effect.key, True), now)
            if pause > now:
                self._wakes.append(pause)
                continue
            self._write(
                Begun(
                    effect=effect.key,
                    undo=True,
                    event_id=effect.event_id,
                    step=effect.index,
                    attempt=effect.undo_attempt + 1,
                )
            )
            self._begin(effect, now)
            self._wakes.append(self._runs[effect.key].limit)

    def _write(self, record: Fact) -> None:
        self.ledger.apply(record)
        self._out.append(Write(record))
