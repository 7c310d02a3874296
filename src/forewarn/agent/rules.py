"""Rules: which events they take, and the first that takes one.

Pure: an event, who this machine is and the notice that is left go in; a rule comes out. The first
rule that matches takes the event. The last one is built in, takes everything, writes a line and
approves nothing; so a Freeze drains nobody unless a rule says so.
"""

import fnmatch
from collections.abc import Iterable, Sequence
from typing import Annotated, Final, Literal

import msgspec

from forewarn.agent.steps import Log, Seconds, Step
from forewarn.client.event import UNKNOWN_DURATION, Event
from forewarn.vocabulary import EventSource, EventType

MAX_STEPS: Final = 100
"""The most actions of a rule; whoever has more has a program to call."""

NAME_LENGTH: Final = 100


class Match(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an event must be for a rule to take it; each condition that is given must hold."""

    types: tuple[EventType, ...] = ()
    """Its type is one of these. `[]`, the default of this and of the others, is any."""
    sources: tuple[EventSource, ...] = ()
    """Who wanted it is one of these."""
    status: tuple[Literal["Scheduled", "Started"], ...] = ()
    """Its status is one of these."""
    max_duration_seconds: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """The interruption lasts at most this long. -1, which is unknown, satisfies none. Left out:
    any."""
    description: str = ""
    """Its description fits this pattern: `*` is anything, `?` one character, `[ab]` one of these;
    case does not count. `""` is any."""
    machine: Literal["mine", "others", "any"] = "mine"
    """`mine`, the default: it names this machine. `others`: it does not, and names others of the
    scope. An event is nobody's as long as this machine's name is not known, and only `any` takes
    it then."""
    min_notice_seconds: Seconds | None = None
    """More than this much notice is left. Left out: any."""
    max_notice_seconds: Seconds | None = None
    """At most this much notice is left; the event is left to later rules until then. An event that
    has started has none left. Left out: any."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to do for the events that match."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LENGTH)]
    """What it is called, in the log and where a drop-in replaces it."""
    enabled: bool = True
    """With false it takes nothing: a drop-in's way to drop a rule."""
    prepare: Annotated[tuple[Step, ...], msgspec.Meta(max_length=MAX_STEPS)] = ()
    """What is done, one after the other; undone when the event is over, the last first."""
    approve: Literal["never", "at-once", "when-prepared", "when-all-ready"] = "never"
    """Whether the event may start before its notice is over. `never`, the default. `at-once`.
    `when-prepared`: when `prepare` is done, if this machine is the event's only one; with more as
    `when-all-ready`: the first of the event's machines approves when all of them are prepared."""
    when_cut: Literal["approve", "hold"] = "hold"
    """Whether an event is still approved when the notice was too short for all of `prepare`. By
    default not: what is left of the notice may be what the rest needed."""
    even_if_started: bool = False
    """Whether `prepare` is done for an event that has started already. By default not: the machine
    may stop at any moment."""
    match: Match = Match()
    """Which events it takes. By default every one that names this machine."""

    @property
    def acts(self) -> bool:
        """Whether it prepares or approves; one that only tells leaves the event to others."""
        return self.approve != "never" or not all(step.terms.tells for step in self.prepare)


BUILT_IN: Final = Rule(
    name="built-in: log, approve nothing",
    match=Match(machine="any"),
    prepare=(Step(log=Log()),),
)
"""The last rule of all."""


def choose(rules: Sequence[Rule], event: Event, notice_seconds: float | None) -> Rule:
    """Return the first rule that takes an event; the built-in one if none does.

    Args:
        rules: In their order.
        event: As it is now.
        notice_seconds: How much notice is left; None where nobody knows.
    """
    return next((rule for rule in rules if takes(rule, event, notice_seconds)), BUILT_IN)


def takes(rule: Rule, event: Event, notice_seconds: float | None) -> bool:
    """Tell whether a rule takes an event; the arguments are those of `choose`."""
    match = rule.match
    least, most = match.min_notice_seconds, match.max_notice_seconds
    return (
        rule.enabled
        and _concerns(match, event)
        and (not match.types or event.event_type in match.types)
        and (not match.sources or event.source in match.sources)
        and (not match.status or event.status in match.status)
        and _short(match.max_duration_seconds, event.duration_seconds)
        and _described(match.description, event.description)
        and (least is None or (notice_seconds is not None and notice_seconds > least))
        and (most is None or (notice_seconds is not None and notice_seconds <= most))
    )


def next_change_seconds(rules: Iterable[Rule], notice_seconds: float | None) -> float | None:
    """Return in how many seconds the choice may differ for no other reason than time.

    Args:
        rules: All of them.
        notice_seconds: How much notice is left; None where nobody knows.

    Returns:
        None if time changes nothing.
    """
    if notice_seconds is None:
        return None
    borders = [
        border
        for rule in rules
        for border in (rule.match.min_notice_seconds, rule.match.max_notice_seconds)
        if rule.enabled and border is not None and border < notice_seconds
    ]
    return notice_seconds - max(borders) if borders else None


def _concerns(match: Match, event: Event) -> bool:
    if match.machine == "any":
        return True
    if event.concerns_me is None:
        return False
    return event.concerns_me is (match.machine == "mine")


def _short(most: int | None, duration: int) -> bool:
    return most is None or (duration != UNKNOWN_DURATION and 0 <= duration <= most)


def _described(pattern: str, description: str) -> bool:
    return not pattern or fnmatch.fnmatchcase(description.casefold(), pattern.casefold())
