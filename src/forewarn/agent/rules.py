"""Rules: which rule takes an event. Pure.

The first rule that matches takes the event. The last one is built in: it takes everything, logs a
line and approves nothing; so a Freeze drains no machine unless a rule says so.
"""

import fnmatch
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec

from forewarn.agent.action_settings import LogSettings, RuleAction, Seconds
from forewarn.client.event import Event
from forewarn.settings import FieldError
from forewarn.vocabulary import EventSource, EventType

MAX_STEPS: Final = 100
"""The most actions of a rule; more than that belong in a program."""

NAME_LENGTH: Final = 100


class Match(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an event must be for a rule to take it; each condition that is given must hold."""

    types: tuple[EventType, ...] = ()
    """Its type is one of these. `[]`, the default here and in the other lists, matches any."""
    sources: tuple[EventSource, ...] = ()
    """Its source, which tells who asked for it, is one of these."""
    status: tuple[Literal["Scheduled", "Started"], ...] = ()
    """Its status is one of these."""
    max_duration_seconds: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """The interruption lasts at most this long. An unknown duration, -1, never matches. Left out:
    any."""
    description: str = ""
    """Its description matches this pattern: `*` is any text, `?` one character, `[ab]` one of
    these; case does not count. `""` matches any."""
    machine: Literal["mine", "others", "any"] = "mine"
    """`mine`, the default: it names this machine. `others`: it names other machines only. While
    this machine's name is unknown, only `any` matches."""
    min_notice_seconds: Seconds | None = None
    """More than this much notice is left. Left out: any."""
    max_notice_seconds: Seconds | None = None
    """At most this much notice is left; before that, later rules may take the event. An event that
    has started has none left. Left out: any."""

    def __post_init__(self) -> None:
        """Refuse bounds between which no notice is."""
        least, most = self.min_notice_seconds, self.max_notice_seconds
        if least is not None and most is not None and least >= most:
            raise FieldError("max_notice_seconds", "must be more than min_notice_seconds")


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to do for the events that match."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LENGTH)]
    """Its name, for the log and for a drop-in that replaces it."""
    enabled: bool = True
    """`false` turns the rule off, for example in a drop-in."""
    prepare: Annotated[tuple[RuleAction, ...], msgspec.Meta(max_length=MAX_STEPS)] = ()
    """What is done, one after the other; undone when the event is over, the last first."""
    approve: Literal["never", "at-once", "when-prepared", "when-all-ready"] = "never"
    """When to approve the event before its notice is over. `at-once`: when the rule takes it.
    `when-prepared`: when `prepare` is done, if the event names only this machine; otherwise like
    `when-all-ready`: when all of the event's machines are prepared, and by the first of them."""
    when_cut: Literal["approve", "hold"] = "hold"
    """Whether to approve the event although the notice was too short for all of `prepare`. By
    default no: the actions that were cut may need the rest of the notice."""
    even_if_started: bool = False
    """Whether to prepare for an event that has already started. By default no: the machine may stop
    at any moment."""
    match: Match = Match()
    """Which events it takes. By default every one that names this machine."""

    @property
    def acts(self) -> bool:
        """Whether it prepares or approves; one that only tells leaves the event to others."""
        return self.approve != "never" or not all(action.settings.tells for action in self.prepare)

    def __post_init__(self) -> None:
        """Refuse an approval that does not go with the rest."""
        for number, action in enumerate(self.prepare):
            if self.approve == "at-once" and not action.settings.tells:
                allowed = "only log and notify go with approve = 'at-once', which waits for nothing"
                raise FieldError(f"prepare[{number}]", f"{allowed}; 'when-prepared' waits")
        whose = self.match.machine
        if whose != "mine" and self.approve in {"when-prepared", "when-all-ready"}:
            use = f"for events of {whose} machines use 'never' or 'at-once'"
            raise FieldError("approve", f"{self.approve!r} needs match.machine = 'mine'; {use}")


BUILT_IN: Final = Rule(
    name="built-in: log, approve nothing",
    match=Match(machine="any"),
    prepare=(RuleAction(log=LogSettings()),),
)
"""The last rule of all."""


def choose(rules: Sequence[Rule], event: Event, notice_seconds: float | None) -> Rule:
    """Return the first rule that takes an event; the notice is None where nobody knows it."""
    return next((rule for rule in rules if matches(rule, event, notice_seconds)), BUILT_IN)


def matches(rule: Rule, event: Event, notice_seconds: float | None) -> bool:
    """Tell whether a rule takes an event."""
    match = rule.match
    least, most = match.min_notice_seconds, match.max_notice_seconds
    longest = match.max_duration_seconds
    return (
        rule.enabled
        and (match.machine == "any" or event.concerns_me is (match.machine == "mine"))
        and (not match.types or event.event_type in match.types)
        and (not match.sources or event.source in match.sources)
        and (not match.status or event.status in match.status)
        and (longest is None or 0 <= event.duration_seconds <= longest)  # -1 is unknown
        and fnmatch.fnmatchcase(event.description.casefold(), match.description.casefold() or "*")
        and (least is None or (notice_seconds is not None and notice_seconds > least))
        and (most is None or (notice_seconds is not None and notice_seconds <= most))
    )


def next_change_seconds(rules: Iterable[Rule], notice_seconds: float | None) -> float | None:
    """Return in how many seconds time alone may change the choice; None if it does not."""
    if notice_seconds is None:
        return None
    borders = [
        border
        for rule in rules
        for border in (rule.match.min_notice_seconds, rule.match.max_notice_seconds)
        if rule.enabled and border is not None and border < notice_seconds
    ]
    return notice_seconds - max(borders) if borders else None


class ActionOutcome(StrEnum):
    """How one action ended, or why it was never begun."""

    DONE = "done"
    FAILED = "failed"
    """It said so, or took longer than its own limit."""
    CUT = "cut"
    """The notice, or the event, was over before it had ended."""
    INTERRUPTED = "interrupted"
    """The agent itself ended in the middle of it, and it may not be begun again."""
    NO_TIME = "no-time"
    """It was not begun: too little notice was left."""
    STARTED = "started"
    """It was not begun: the event had started."""
    SHARED = "shared"
    """It was not begun: what it does had been done for another event."""

    @property
    def good(self) -> bool:
        """Whether its effect is there."""
        return self in {ActionOutcome.DONE, ActionOutcome.SHARED}

    @property
    def cut(self) -> bool:
        """Whether the notice was too short for it."""
        return self in {ActionOutcome.CUT, ActionOutcome.NO_TIME, ActionOutcome.STARTED}
