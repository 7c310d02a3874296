"""The agent's decider: inputs and the time in, outputs out; no I/O, no clock, no chance.

`Decider.handle` takes one input and the time, and returns outputs that the shell carries out in
their order, each record durable before the outputs after it. So a kill between any two of them
leaves a journal that says at most too much: that an action was begun. `Approvals` decides who
approves an event, and when.

Time is the machine's monotonic clock in seconds, as `Event.starts_by` has it: setting the wall
clock neither cuts nor prolongs anything.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from forewarn.agent import rules, state
from forewarn.agent.approvals import (
    ApprovalAnswered,
    Approvals,
    ApproveEvent,
    AskPeers,
    PeersAnswered,
)
from forewarn.agent.rules import ActionOutcome, Rule, RuleAction
from forewarn.agent.state import AnyRecord, Case, Phase
from forewarn.client.event import Event
from forewarn.vocabulary import EventStatus

# Inputs and outputs: values between the decider and the shell.


class AgentStarted(msgspec.Struct, frozen=True):
    """The first input; `boot` names the boot, `""` where it is not known: it counts as the same."""

    boot: str


class DocumentSeen(msgspec.Struct, frozen=True):
    """The endpoint's whole document, the first or a changed one; ends are confirmed."""

    events: tuple[Event, ...]
    machine: str | None
    """This machine's name; None while it is not known."""


class FactsFound(msgspec.Struct, frozen=True):
    """An action has noted the state of things, and waits to change them."""

    run: int
    facts: dict[str, Any]


class ActionFinished(msgspec.Struct, frozen=True):
    """An action has ended: DONE, FAILED or CUT; INTERRUPTED if it was never begun."""

    run: int
    outcome: ActionOutcome
    text: str = ""
    final: bool = False
    """True if a retry may do something twice that must be done once."""


class Reloaded(msgspec.Struct, frozen=True):
    """An operator has reloaded the agent: held and stuck work is tried again.

    A held event is prepared for by the rule that took it, as that is now, if it is still there.
    """

    rules: tuple[Rule, ...] | None
    """The rules for other events; None to keep the earlier ones."""


class ShutdownRequested(msgspec.Struct, frozen=True):
    """The agent is to end: actions have `stop_seconds` to finish, and nothing more begins."""


class TimePassed(msgspec.Struct, frozen=True):
    """Time has passed."""


Input: TypeAlias = (
    AgentStarted
    | DocumentSeen
    | FactsFound
    | ActionFinished
    | ApprovalAnswered
    | PeersAnswered
    | Reloaded
    | ShutdownRequested
    | TimePassed
)


class BeginAction(msgspec.Struct, frozen=True):
    """Begin an action, which is stopped at `until` by the monotonic clock."""

    run: int
    """The number of this run, in later inputs and outputs."""
    effect: str
    action: RuleAction
    undo: bool
    event: Event
    rule: str
    until: float
    attempt: int
    facts: dict[str, Any] | None
    """The facts that it noted before it was done; None for none."""


class ProceedAction(msgspec.Struct, frozen=True):
    """The action's note is in the journal: it may change things now."""

    run: int


class StopAction(msgspec.Struct, frozen=True):
    """Ask an action to end now."""

    run: int


Output: TypeAlias = AnyRecord | BeginAction | ProceedAction | StopAction | ApproveEvent | AskPeers
"""A task for the shell. A record must be durable before any output after it."""

NAME_SECONDS: Final = 10.0
"""The wait of the rules for this machine's name: a third of the shortest notice, 30 s."""

GRACE_SECONDS: Final = 15.0
"""The time for a stopped program to end: it has 10 s from SIGTERM to SIGKILL."""

LEFT_SECONDS: Final = 1.0
"""The time for any other stopped action: nothing runs that needs an orderly end. One that hangs in
the system, such as a read from a file server that is away, is left behind, and not waited for."""

AT_ONCE: Final = 50
"""The most actions that run at once for events with no more notice than the one that waits: a
process has a limit of files. Twice as many run in all, so no Preempt waits for fifty reboots."""

LOOK_EVERY_SECONDS: Final = 300.0
"""The age from which a drain is looked at again while its event has not started: a window or a hold
may keep it waiting for hours."""

LOOK_AGAIN_SECONDS: Final = 30.0
"""The age from which a drain is looked at again right before the approval: HAProxy may have been
reloaded, or the unit started by another tool, while later actions ran or peers were waited for."""

OTHERS_AT_ONCE: Final = 20
"""The most events of other machines, which are only logged, that begin at once: each costs durable
records, and this machine's own events must not wait for a thousand."""

ENDED_IN_IT: Final = "the agent ended while it ran"
NO_END: Final = "it went on after it was told to stop"
NEEDED_AGAIN: Final = "it was stopped, because another event needs the action done"
TOO_LONG: Final = "another event's run took longer than its own limit"
LATE: Final = "it was not begun, because the disk took too long"
IN_THE_WAY: Final = "it was stopped for a more urgent event, whose rule waits for something else"


class _Run(msgspec.Struct):
    """An action that runs in this process."""

    number: int
    effect: str
    undo: bool
    limit: float
    grace: float
    """The time for it to end once it was stopped."""
    deadline: float = math.inf
    """The end of the notice, if one limits it."""
    stopped: float | None = None
    """The time at which it was stopped; None if it was not."""
    cut: bool = False
    """True if it was stopped for another reason than its own limit."""
    left: bool = False
    yields: bool = False
    """True if it was stopped for a more urgent event."""
    joined: dict[str, float] = msgspec.field(default_factory=dict)
    """The times at which other events began to wait for it."""

    @property
    def until(self) -> float:
        return min(self.limit, self.deadline)


class Decider:
    """Decides everything that the agent does, from the rules and the journal's records."""

    def __init__(
        self,
        own: Sequence[Rule],
        margin_seconds: float,
        records: Iterable[AnyRecord] = (),
        stop_seconds: float = math.inf,
    ) -> None:
        self.state = state.AgentState(records)
        """The events in hand and the effects that stand."""
        self.events: dict[str, Event] = {}
        """The last document's events, by id."""
        self.name: str | None = None
        """This machine's; None while it is not known."""
        self.wake_at: float | None = None
        """When to send `TimePassed`, if no other input comes before; None for never."""
        self._rules = tuple(own)
        self._margin = margin_seconds
        self.looked = False
        self._closing = self._retry = False
        self._stop_seconds, self._stop_at = stop_seconds, math.inf
        self._number = 0
        self._runs: dict[str, _Run] = {}
        self._failed: dict[tuple[str, bool], float] = {}
        """When an action, or its undo, failed that is to be tried again, by its effect's key."""
        self._done_at: dict[str, float] = {}
        """When this process did each effect; an earlier one did it too long ago."""
        self._deadlines: dict[str, float] = {}
        self._unidentified: dict[str, float] = {}
        self._waits: dict[str, float] = {}
        self._approvals = Approvals()
        self._out: list[Output] = []
        self._wakes: list[float] = []

    @property
    def busy(self) -> bool:
        """True if an action, a retry or a question to others is under way or due."""
        retried = any(not undo or key not in self.state.stuck for key, undo in self._failed)
        waits = (retried or bool(self._waits)) and not self._closing
        return bool(self._runs) or waits or self._approvals.busy

    def handle(self, told: Input, now: float) -> list[Output]:
        """Return the outputs of one input; an input that is late or unknown changes nothing."""
        self._out, self._wakes = [], []
        match told:
            case AgentStarted():
                self._resume(told.boot)
            case DocumentSeen():
                self.looked, self.name = True, told.machine
                self.events = {event.event_id.upper(): event for event in told.events}
            case FactsFound():
                if (run := self._run(told.run)) is not None:
                    self._write(state.FactsNoted(effect=run.effect, facts=told.facts))
                    self._out.append(ProceedAction(run.number))
            case ActionFinished():
                if (run := self._run(told.run)) is not None:
                    self._conclude(run, told, now)
            case ApprovalAnswered():
                approved = self._approvals.answered(told, now)
                if approved and self.state.cases[approved].phase is Phase.PREPARED:
                    self._write(state.EventApproved(event_id=approved))
            case PeersAnswered():
                self._approvals.heard(told, now)
            case Reloaded():
                self._rules = self._rules if told.rules is None else told.rules
                self._retry_undoing(interrupted=True)
                self._retry = True  # as soon as it is known what is over
            case ShutdownRequested():
                self._closing = True
                self._stop_at = min(self._stop_at, now + self._stop_seconds)
        if self.looked:  # before that it is unknown which events are over
            self._go_on(now)
        self.wake_at = min((at for at in self._wakes if at < math.inf), default=None)
        return self._out

    # Inputs

    def _resume(self, boot: str) -> None:
        if boot not in {"", self.state.boot}:
            self._write(state.MachineBooted(boot=boot))
        for effect in list(self.state.effects.values()):
            if effect.busy:
                final = not effect.action.settings.repeatable
                self._end(effect, ActionOutcome.INTERRUPTED, ENDED_IN_IT, final=final)
        self._retry_undoing(interrupted=False)

    def _retry_undoing(self, *, interrupted: bool) -> None:
        if any(effect.stuck or effect.interrupted for effect in self.state.effects.values()):
            self._write(state.RetryRequested(interrupted=interrupted))
        self._failed.clear()

    def delay(self, number: int, seconds: float) -> float:
        """Give a run the time that its record took to the disk; return when it ends now."""
        if (run := self._run(number)) is None:
            return math.inf
        run.limit += seconds
        return run.until

    def _run(self, number: int) -> _Run | None:
        return next((run for run in self._runs.values() if run.number == number), None)

    # What follows from them

    def _go_on(self, now: float) -> None:
        """Do all work that is due, and find out when there will be more."""
        for case in list(self.state.cases.values()):
            if self._is_over(case):
                self._write(state.EventGone(event_id=case.event_id))
                self._approvals.drop(case.event_id)
                self._deadlines.pop(case.event_id, None)
        self._wait_for_name(now)
        self._choose_all(now)
        self._try_held(now)
        self._failed = {k: at for k, at in self._failed.items() if self._tries_again(*k)}
        for run in list(self._runs.values()):
            run.deadline = self._latest(run)
            if run.stopped is not None and now >= run.stopped + run.grace:
                self._conclude(run, ActionFinished(run.number, ActionOutcome.CUT, NO_END), now)
        if not self._closing:
            for case in sorted(self.state.cases.values(), key=self._urgency):
                self._advance(case, now)
        for run in self._runs.values():
            self._oversee(run, now)
        if self._closing:
            return
        for case in self.state.cases.values():
            if self._looks_again(case, now, LOOK_EVERY_SECONDS):
                continue
            command, again = self._approvals.decide(
                case, self.events[case.event_id], self.name, now
            )
            if isinstance(command, ApproveEvent) and self._looks_again(
                case, now, LOOK_AGAIN_SECONDS
            ):
                self._approvals.withdraw(case.event_id)
                continue
            self._out += [] if command is None else [command]
            self._wakes += [] if again is None else [again]
        if not self._waits:  # one of them may need an effect that stands
            self._undo(now)

    def _looks_again(self, case: Case, now: float, seconds: float) -> bool:
        """Do a prepared event's drains again that were done so long ago; return True if any was."""
        prepared = case.phase in {Phase.PREPARED, Phase.APPROVED}
        waits = self.events[case.event_id].status == EventStatus.SCHEDULED
        if not (prepared and waits) or now >= self._deadline(case):
            return False
        due = {
            index: self._done_at.get(effect.key, -math.inf) + seconds
            for index, result in enumerate(case.results)
            if result is not None
            and result.good
            and (effect := self.state.effects.get(case.effect(index)))  # else a boot has undone it
            and effect.action.settings.looks_again
            and effect.action.settings.repeatable
            and self._deadline(case) - now >= case.rule.prepare[index].settings.needs_seconds
        }
        old = [index for index, at in due.items() if at <= now]
        if old:
            self._write(state.ActionsDoubted(event_id=case.event_id, indexes=old))
            self._advance(case, now)
        elif due and seconds == LOOK_EVERY_SECONDS:
            self._wakes.append(min(due.values()))
        return bool(old)

    def _is_over(self, case: Case) -> bool:
        """Return True if an event has left the document, or this machine has left the event.

        A machine that moves away before its host's maintenance starts drops out of the event, which
        goes on without it (protocol.md section 4): from then on it is one of others.
        """
        event = self.events.get(case.event_id)
        return event is None or bool(case.event.concerns_me and event.concerns_me is False)

    def _wait_for_name(self, now: float) -> None:
        """Find the events that may or may not be this machine's, while its name is unknown.

        The client asks for the name again when such an event is listed. Until then the rules leave
        it alone: a rule for any machine could keep what another rule says of this machine's own.
        """
        self._unidentified = {
            event_id: self._unidentified.get(event_id, now + NAME_SECONDS)
            for event_id, event in self.events.items()
            if event.concerns_me is None and event_id not in self.state.cases
        }
        self._waits = {each: until for each, until in self._unidentified.items() if until > now}
        self._wakes += self._waits.values()

    def _choose_all(self, now: float) -> None:
        """Choose rules for all events: this machine's at once, those of others a few at a time."""
        effects = self.state.effects
        telling = sum(effects[key].action.settings.tells for key in self._runs)
        left = OTHERS_AT_ONCE - telling
        for event_id, event in self.events.items():
            if event_id in self._waits:
                continue
            new = event_id not in self.state.cases
            if new and not event.concerns_me and not self._rule(event, now)[0].acts:
                left -= 1
                if left < 0:
                    self._wakes += [] if telling else [now]  # otherwise when one of those has ended
                    continue
            self._choose(event_id, event, now)

    def _try_held(self, now: float) -> None:
        asked, self._retry = self._retry, False
        for case in self.state.cases.values():
            if case.phase is not Phase.HELD or self._too_late(case, now):
                continue
            event = self.events[case.event_id]
            rule = self._rule_of(case) if asked else None
            if rule is not None or case.has_more_notice(event.not_before):
                again = state.EventRetried(
                    event_id=case.event_id,
                    not_before=event.not_before,
                    rule=None if rule == case.rule or self._has_own(case) else rule,
                )
                self._write(again)

    def _rule_of(self, case: Case) -> Rule | None:
        """Return the rule of a held event as the file has it now; None if it takes it no more."""
        for rule in self._rules:
            known = rule.name == case.rule.name and rule.acts
            if known and rules.concerns(rule, self.events[case.event_id]):
                return rule
        return None

    def _has_own(self, case: Case) -> bool:
        """Return True if something stands that was done for this event alone.

        No other rule knows of it.
        """
        steps = zip(case.effects, case.rule.prepare, strict=True)
        own = [key for key, step in steps if not (step.settings.effect or step.settings.tells)]
        return any(key in self.state.effects for key in own)

    def stays_held(self, case: Case, now: float) -> str:
        """Return the reason why a reload does not retry a held event; `""` if it does."""
        if self._rule_of(case) is None:
            return "its rule is gone, or takes it no more"
        return self._too_late(case, now)

    def _too_late(self, case: Case, now: float) -> str:
        event = self.events[case.event_id]
        if event.status != EventStatus.SCHEDULED and not case.rule.even_if_started:
            return f"it is {event.status}, and its rule lacks even_if_started"
        return "" if now < self._deadline(case) else "too little notice is left"

    def _rule(self, event: Event, now: float) -> tuple[Rule, float | None]:
        notice = 0.0 if event.started else None
        if event.starts_by is not None:
            notice = max(0.0, event.starts_by - now)
        return rules.choose(self._rules, event, notice), notice

    def _choose(self, event_id: str, event: Event, now: float) -> None:
        """Choose a rule for an event that no acting rule has taken."""
        case = self.state.cases.get(event_id)
        if case is not None and case.phase is not Phase.SEEN:
            return
        rule, notice = self._rule(event, now)
        if case is None or case.rule != rule:
            self._write(
                state.RuleMatched(event=msgspec.structs.replace(event, starts_by=None), rule=rule)
            )
        seconds = rules.next_change_seconds(self._rules, notice)
        if not rule.acts and seconds is not None:
            self._wakes.append(now + seconds)

    def _deadline(self, case: Case) -> float:
        """Return the deadline of all preparations; a started event keeps the one that it had."""
        event, rule = self.events[case.event_id], case.rule
        if event.starts_by is not None:
            self._deadlines[case.event_id] = event.starts_by - self._margin
        elif rule.even_if_started:
            return math.inf
        return self._deadlines.get(case.event_id, math.inf)

    def _urgency(self, case: Case) -> tuple[bool, float]:
        """Return a sort key: this machine's events first, then those with less notice."""
        return not self.events[case.event_id].concerns_me, self._deadline(case)

    def _missing(self, case: Case) -> list[int]:
        # Of a held case nothing more is begun, but what a boot has undone.
        held = case.phase is Phase.HELD
        return [
            index
            for index, result in enumerate(case.results)
            if result is None and (not held or index in case.again)
        ]

    def _oversee(self, run: _Run, now: float) -> None:
        """Stop a run that is out of time or not needed, and an undo that is in an event's way."""
        effect = self.state.effects[run.effect]
        unneeded = self._is_in_the_way(effect) if run.undo else not self._awaited(effect)
        until = min(run.until, self._stop_at)
        if run.stopped is None and (unneeded or now >= until):
            run.stopped, run.cut = now, unneeded or run.until < run.limit
            run.left = not unneeded and now < run.until
            self._out.append(StopAction(run.number))
        self._wakes.append(until if run.stopped is None else run.stopped + run.grace)

    def _is_in_the_way(self, effect: state.Effect) -> bool:
        """Return True if an undo keeps an event waiting, which may have only 30 s."""
        return (
            effect.action.settings.repeatable
            and not self._closing
            and any(
                case.effect(index) == effect.key
                for case in self.state.users(effect.key)
                for index in self._missing(case)[:1]
            )
        )

    def _awaited(self, effect: state.Effect) -> bool:
        if effect.action.settings.tells:
            return effect.event_id in self.state.cases
        return bool(self._waiting(effect.key))

    def _waiting(self, key: str) -> list[Case]:
        return [
            case
            for case in self.state.users(key)
            if any(case.effect(index) == key for index in self._missing(case))
        ]

    def _tries_again(self, key: str, undo: bool) -> bool:  # noqa: FBT001 - a retry's own name
        effect = self.state.effects.get(key)
        if effect is None or not undo:
            return bool(self._waiting(key))
        return effect.is_undone_by_itself and not self.state.needed(effect)

    def _latest(self, run: _Run) -> float:
        """Return the time at which the last event that waits for an action no longer needs it."""
        if run.undo or self.state.effects[run.effect].action.settings.tells:
            return math.inf
        return max(map(self._deadline, self._waiting(run.effect)), default=run.deadline)

    def _advance(self, case: Case, now: float) -> None:
        """Begin a case's next action or skip it, until there is one to wait for."""
        for index in self._missing(case):
            key = case.effect(index)
            effect = self.state.effects.get(key)
            own = effect is not None and effect.event_id == case.event_id and not effect.final
            reason = self._reason_against(case, index, effect, now)
            if reason is not None:
                text = TOO_LONG if reason is ActionOutcome.FAILED else ""
                if own and effect is not None and effect.outcome is not None:
                    reason = effect.outcome  # it was begun, and is not tried again
                self._write(
                    state.ActionSkipped(
                        event_id=case.event_id, index=index, outcome=reason, text=text
                    )
                )
                if case.phase is Phase.HELD:
                    return
                continue
            deadline = self._deadline(case)
            self._wakes += [deadline] if deadline > now else []
            if effect is not None and case.event_id in effect.served:  # it is no first try
                pause = case.rule.prepare[index].settings.retry_seconds
                if (again := self._failed.get((key, False), -math.inf) + pause) > now:
                    self._wakes.append(again)
                    return
            if effect is not None and effect.busy:
                self._hurry(case, index, effect, now)
                return
            if not self._has_room(deadline):
                return
            attempt = effect.attempt + 1 if effect is not None and own else 1
            begun = state.ActionBegun(
                effect=key, undo=False, event_id=case.event_id, index=index, attempt=attempt
            )
            self._begin(begun, now)
            return

    def _hurry(self, case: Case, index: int, effect: state.Effect, now: float) -> None:
        """Stop another's run that waits for something else than this more urgent event's rule asks.

        This event then does the action in its own way, and the other begins again after it.
        """
        run, doing = self._runs[effect.key], effect.action.settings
        asked = case.rule.prepare[index].settings
        is_same = asked.serves(doing) and doing.serves(asked)
        if run.undo or run.stopped is not None or is_same or not doing.repeatable:
            return
        owners = [e for e in self._waiting(effect.key) if e.event_id == effect.event_id]
        if all(self._urgency(case) < self._urgency(owner) for owner in owners):
            run.stopped, run.cut, run.yields = now, True, True
            self._out.append(StopAction(run.number))

    def _has_room(self, deadline: float) -> bool:
        if len(self._runs) >= 2 * AT_ONCE:
            return False
        return sum(run.deadline <= deadline for run in self._runs.values()) < AT_ONCE

    def _reason_against(
        self, case: Case, index: int, effect: state.Effect | None, now: float
    ) -> ActionOutcome | None:
        """Return the reason not to begin an action; None if it may begin."""
        rule = case.rule
        terms = rule.prepare[index].settings
        if terms.tells:
            return None
        if effect is not None and effect.outcome is ActionOutcome.DONE:
            if effect.action.settings.serves(terms):
                return ActionOutcome.SHARED
        elif effect is not None and effect.interrupted and not effect.busy:
            return ActionOutcome.INTERRUPTED  # nor may it be begun again for another event
        run = self._runs.get(case.effect(index))
        running = run is not None and not run.undo
        own = running and effect is not None and effect.event_id == case.event_id
        if running and not own and run is not None:
            until = run.joined.setdefault(case.event_id, now) + terms.time_limit_seconds
            if now >= until:
                return ActionOutcome.FAILED
            self._wakes.append(until)
        started = self.events[case.event_id].status != EventStatus.SCHEDULED
        if started and not rule.even_if_started and index not in case.again and not own:
            return ActionOutcome.STARTED
        deadline = self._deadline(case)
        if now < deadline and deadline - now >= terms.needs_seconds:
            return None
        if run is None or run.undo:
            return ActionOutcome.NO_TIME
        if now < deadline or run.deadline <= now:
            return None  # it runs, or will have ended in a moment
        return ActionOutcome.CUT if own else ActionOutcome.NO_TIME

    def _begin(self, record: state.ActionBegun, now: float) -> None:
        """Record that an action begins, and begin it."""
        self._write(record)
        effect = self.state.effects[record.effect]
        self._number += 1
        terms = effect.action.settings
        run = _Run(
            number=self._number,
            effect=effect.key,
            undo=record.undo,
            limit=now + terms.time_limit_seconds,
            grace=GRACE_SECONDS if terms.runs_programs else LEFT_SECONDS,
        )
        self._runs[effect.key] = run
        self._failed.pop((effect.key, run.undo), None)
        run.deadline = self._latest(run)
        self._out.append(
            BeginAction(
                run=run.number,
                effect=effect.key,
                action=effect.undo_by if record.undo else effect.action,
                undo=record.undo,
                event=self.events.get(effect.event_id, effect.event),
                rule=effect.rule,
                until=run.until,
                attempt=record.attempt,
                facts=effect.facts,
            )
        )

    def _conclude(self, run: _Run, told: ActionFinished, now: float) -> None:
        """Record the end of a run, and schedule its retry if there is one."""
        outcome, text = told.outcome, told.text
        del self._runs[run.effect]
        effect = self.state.effects[run.effect]
        terms = effect.action.settings
        is_done = outcome is ActionOutcome.DONE
        if outcome is ActionOutcome.INTERRUPTED or (run.yields and not is_done):
            self._end(effect, ActionOutcome.CUT, IN_THE_WAY if run.yields else LATE, final=False)
            return
        if run.left and not is_done:
            final = not terms.repeatable
            self._end(effect, ActionOutcome.INTERRUPTED, ENDED_IN_IT, final=final)
            return
        if not is_done:
            cut = run.cut or (outcome is ActionOutcome.CUT and run.stopped is None)
            outcome = ActionOutcome.CUT if cut and not run.undo else ActionOutcome.FAILED
            if run.undo and run.cut:
                text = NEEDED_AGAIN
            elif run.stopped is not None and not run.cut:
                text = f"it took longer than {terms.time_limit_seconds:g} s; {text}"
        if run.undo:
            final = effect.undo_attempt > terms.undo_retries and not run.cut
        else:
            too_late = now + terms.retry_seconds >= run.deadline
            over = outcome is ActionOutcome.CUT or too_late or not self.state.needed(effect)
            final = told.final or over or effect.attempt > terms.retries
        if terms.looks_again and is_done and not run.undo:
            self._done_at[run.effect] = now
        else:  # nobody knows how it is now
            self._done_at.pop(run.effect, None)
        if not is_done and (run.undo or not final):
            self._failed[effect.key, run.undo] = now
        once = told.final or (run.stopped is not None and not terms.repeatable)
        in_doubt = once and final and not is_done and not run.undo
        self._end(effect, outcome, text, final=final or is_done, in_doubt=in_doubt)

    def _end(self, effect: state.Effect, outcome: ActionOutcome, text: str, **facts: bool) -> None:
        key, undo, text = effect.key, effect.undoing, state.shortened(text)
        ended = state.ActionEnded(effect=key, undo=undo, outcome=outcome, text=text, **facts)
        self._write(ended)

    def _undo(self, now: float) -> None:
        """Begin to undo effects that no event needs, the last action first.

        An effect that served several events waits for the later actions of each, except those that
        only tell: a chat that is down keeps no machine out of the pool.
        """
        waits: set[str] = set()
        standing = sorted(self.state.effects.values(), key=lambda e: e.order, reverse=True)
        for effect in standing:
            if self.state.needed(effect):
                continue
            later = not waits.isdisjoint(effect.served)
            if not effect.action.settings.tells:
                waits.update(effect.served)
            if later or effect.busy or not effect.is_undone_by_itself:
                continue
            failed = self._failed.get((effect.key, True), -math.inf)
            if (again := failed + effect.undo_pause_seconds) > now:
                self._wakes.append(again)
                continue
            if not self._has_room(math.inf):
                return
            key, index, attempt = effect.key, effect.index, effect.undo_attempt + 1
            begun = state.ActionBegun(
                effect=key, undo=True, event_id=effect.event_id, index=index, attempt=attempt
            )
            self._begin(begun, now)
            self._wakes.append(self._runs[effect.key].limit)

    def _write(self, record: AnyRecord) -> None:
        self.state.apply(record)
        self._out.append(record)
