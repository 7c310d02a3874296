"""What the agent would do for an event, in the best case: for `forewarn agent explain`. Pure.

The decider itself decides it. Nobody knows how long most actions take, so each ends at once, except
for a wait that the rule itself names: what does not fit in the best case never fits.
"""

import math

import msgspec

from forewarn.agent import messages
from forewarn.agent.action_settings import RuleAction
from forewarn.agent.decider import Decider
from forewarn.agent.rules import ActionOutcome, Rule
from forewarn.client.event import Event


class ActionForecast(msgspec.Struct, frozen=True):
    """What becomes of one action."""

    action: RuleAction
    outcome: ActionOutcome | None
    """None: it is not begun, as the event is held by then."""
    left_seconds: float
    """What is left at best when its turn comes; `inf` where no notice limits it."""

    @property
    def limit_seconds(self) -> float:
        """How long it may take at most, if its turn comes at once."""
        limit = self.action.settings.time_limit_seconds
        return limit if self.action.settings.tells else min(limit, self.left_seconds)

    @property
    def undone(self) -> bool:
        """Whether it is begun, and there is something to undo when the event is over."""
        begun = self.outcome in {ActionOutcome.DONE, ActionOutcome.CUT}
        return begun and self.action.settings.undoes


def forecast(rule: Rule, event: Event, margin_seconds: float) -> list[ActionForecast]:
    """Return what becomes of each action of the rule that takes an event at second 0."""
    decider = Decider((rule,), margin_seconds)
    decider.handle(messages.AgentStarted(""), 0.0)
    told: messages.Input = messages.DocumentSeen((event,), "")
    end = math.inf if event.starts_by is None else event.starts_by - margin_seconds
    left: list[float] = []
    now = 0.0
    while True:
        outputs = decider.handle(told, now)
        run = next((each for each in outputs if isinstance(each, messages.BeginAction)), None)
        turn = decider.state.effects[run.effect].index + 1 if run else len(rule.prepare)
        left += [max(0.0, end - now)] * (turn - len(left))
        if run is None:
            break
        now += run.action.ready.wait_seconds if run.action.ready is not None else 0.0
        outcome = ActionOutcome.DONE
        if now >= run.until:
            now, outcome = run.until, ActionOutcome.CUT
            decider.handle(messages.TimePassed(), now)
        told = messages.ActionFinished(run.run, outcome)
    (case,) = decider.state.cases.values()
    return list(map(ActionForecast, rule.prepare, case.results, left))
