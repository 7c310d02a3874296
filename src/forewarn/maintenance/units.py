"""The units of a maintenance, the policy by which they take their turns, and their progress."""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Final

import msgspec

from forewarn.maintenance.time_windows import Span
from forewarn.vocabulary import TargetKind

CONFIRM: Final = -1
"""The pause before a wave that an operator has to confirm."""

MAX_OPEN: Final = 1000
"""Maintenances with units that may be open at once."""

MAX_UNITS: Final = 5000
"""Units of one maintenance: all of them are one value, written when one of them changes."""

MAX_BLACKOUTS: Final = 100
"""Blackouts of one policy: each look for the next window goes through all of them."""

NO_MACHINES: Final = "it has no machines"
"""The reason for skipping a unit that no operator skipped."""

AMOUNT: Final = re.compile("[1-9][0-9]{0,4}|(100|[1-9][0-9]?)%")
"""A number of units, or a part of all of them (`10%`)."""

SPREAD: Final = re.compile("host|fault-domain|tag:.{1,200}")
"""A place that at most one unit under way may be in."""

Seconds = Annotated[int, msgspec.Meta(ge=0, le=366 * 24 * 3600)]


class TurnOrder(StrEnum):
    """The order in which units of a wave take their turns."""

    TIGHTEST = "tightest"
    """As many as possible go at once: units that take the same update domains together."""
    LISTED = "listed"
    """As they were given."""


class TurnPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of a maintenance: concurrency, windows, waves, and when it halts."""

    at_once: str = "1"
    """The most units under way: a number, or a part of all (`10%`)."""
    spread: str = ""
    """`host`, `fault-domain` or `tag:KEY`: of each, or of each value, one unit at a time."""
    waves: Annotated[tuple[str, ...], msgspec.Meta(max_length=100)] = ()
    """The sizes of waves, the last may be `rest`; what is left is one more. Empty: all in one."""
    pause_seconds: Annotated[int, msgspec.Meta(ge=CONFIRM, le=366 * 24 * 3600)] = 0
    """The pause between two waves; CONFIRM (-1) until an operator resumes."""
    windows: tuple[str, ...] = ()
    """When units may start, as `time_windows` reads them; empty for always."""
    zone: str = "UTC"
    blackouts: Annotated[tuple[Span, ...], msgspec.Meta(max_length=MAX_BLACKOUTS)] = ()
    """When no unit may start, whatever the windows say."""
    cutoff_seconds: Seconds = 0
    """The time before the end of a window in which no further unit is asked for."""
    notice_seconds: Seconds = 0
    """The time for guests to approve, where that is more than the least notice."""
    stop_after: Annotated[int, msgspec.Meta(ge=1, le=MAX_UNITS)] = 1
    """The number of failed units that halts the maintenance."""
    order: TurnOrder = TurnOrder.TIGHTEST
    approval_until: datetime | None = None
    """Until then units start only if their guests approve, or the operator for them; None: until
    the notice is over."""
    check: Annotated[str, msgspec.Meta(max_length=100)] = ""
    """The check of the service's settings that has to pass before further units go; `""`: none."""
    check_tries: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    """The number of failures in a row after which the maintenance halts."""
    check_within_seconds: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 300
    """The time for all of its tries: each has an equal share of it."""


class UnitKind(StrEnum):
    """The kinds of things that take a turn as one."""

    MACHINES = "machines"
    UPDATE_DOMAIN = "update-domain"
    """The machines of one update domain of a scope, as they are when they have their turn."""
    HOST = "host"
    """The machines on a host; where they are in several update domains of a scope, one domain goes
    after another."""


class UnitState(StrEnum):
    """The progress of a unit."""

    WAITING = "waiting"
    RUNNING = "running"
    """Its operation was asked for, or the drain of its host."""
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    """An operator left it out, or it has no machines."""

    @property
    def over(self) -> bool:
        """True if nothing follows for it without an operator."""
        return self in _OVER_UNITS


class Unit(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A thing that takes its turn as one."""

    name: str
    """A host as it is written, `SCOPE/DOMAIN`, or the name of a machine."""
    kind: UnitKind
    scope: str = ""
    """The key of an update domain's scope."""
    update_domain: int = 0
    machines: tuple[str, ...] = ()
    """The keys of the machines that were named."""
    tags: tuple[tuple[str, str], ...] = ()
    """The tags that they were chosen by: one that has lost a tag by its turn is not maintained."""
    wave: int = 0
    """From 0."""
    state: UnitState = UnitState.WAITING
    reason: str = ""
    """Why it waits, failed or was skipped."""
    drain: bool = False
    operation: int = 0
    """The ordinal of its latest operation in its maintenance, from 1; 0 for none."""
    done: tuple[str, ...] = ()
    """The keys of machines that its operations have completed."""
    recalled: bool = False
    """True if its maintenance cancelled the part of it that had not started."""
    accepted: bool = False
    """True if an operator resumed the maintenance in spite of its failure."""
    changed_at: datetime | None = None
    """When its state changed last; None if it never did."""
    retry_at: datetime | None = None
    """When to ask again after a refusal; None where it was not refused."""
    refused_at: datetime | None = None
    """Since when the rules have refused it, or the drain of its host; None where they do not."""

    @property
    def key(self) -> str:
        """Its key in the maintenance: a host as it is written, another name in lower case."""
        return self.name if self.kind is UnitKind.HOST else self.name.lower()

    def fits(self, tags: Container[tuple[str, str]]) -> bool:
        """Tell whether a machine with these tags is still chosen."""
        return all(tag in tags for tag in self.tags)

    @property
    def target(self) -> TargetKind:
        """The kind of target of its operations."""
        return _TARGETS[self.kind]

    @property
    def host(self) -> str:
        """The name of its host; `""` for a unit that is not a host."""
        return self.name if self.kind is UnitKind.HOST else ""


_TARGETS: Final = {
    UnitKind.HOST: TargetKind.HOST,
    UnitKind.UPDATE_DOMAIN: TargetKind.SCOPE,
    UnitKind.MACHINES: TargetKind.MACHINES,
}


class MaintenanceState(StrEnum):
    """The progress of a maintenance."""

    ANNOUNCED = "announced"
    """All of it was announced when it was asked for: it has no units."""
    RUNNING = "running"
    PAUSED = "paused"
    """An operator paused it: nothing further is announced."""
    HALTED = "halted"
    """Too many units failed, or the check did: what had not started is cancelled, and an operator
    decides."""
    STOPPED = "stopped"
    DONE = "done"

    @property
    def over(self) -> bool:
        """True if nothing further is announced, whatever an operator does."""
        return self in _OVER


_OVER_UNITS: Final = frozenset((UnitState.DONE, UnitState.FAILED, UnitState.SKIPPED))
_OVER: Final = frozenset(
    (MaintenanceState.ANNOUNCED, MaintenanceState.STOPPED, MaintenanceState.DONE)
)


class MaintenanceTrigger(StrEnum):
    """The causes of a change of state of a maintenance with units."""

    PAUSE = "pause"
    RESUME = "resume"
    HALT = "halt"
    """Too many units failed, or the check did."""
    STOP = "stop"
    CLOSE = "close"
    """Its window is over, and left units out."""
    END = "end"
    """Every unit is over."""


TRANSITIONS: Final[Mapping[tuple[MaintenanceState, MaintenanceTrigger], MaintenanceState]] = (
    MappingProxyType(
        {
            (MaintenanceState(before), trigger): following
            for befores, trigger, following in (
                ("running", MaintenanceTrigger.PAUSE, MaintenanceState.PAUSED),
                ("running", MaintenanceTrigger.HALT, MaintenanceState.HALTED),
                ("paused halted", MaintenanceTrigger.RESUME, MaintenanceState.RUNNING),
                ("running paused halted", MaintenanceTrigger.STOP, MaintenanceState.STOPPED),
                ("running", MaintenanceTrigger.CLOSE, MaintenanceState.STOPPED),
                ("running", MaintenanceTrigger.END, MaintenanceState.DONE),
            )
            for before in befores.split()
        }
    )
)
"""From where, by what, to where. What is not in the table is refused."""


class CheckProgress(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The progress of a maintenance's check."""

    due: bool = False
    """True if it has to pass before a further unit goes."""
    run: int = 0
    """The number of its latest run; an earlier one's result is stale."""
    failed: int = 0
    reason: str = ""
    replica: str = ""
    began_at: datetime | None = None
    """When its latest run began; None for none."""
    lease_until: datetime | None = None
    """The end of the wait for a run that is under way; None without such a run."""
    passed_at: datetime | None = None
    """When the run began that passed last."""


def amount(text: str, units: int) -> int:
    """Return how many units a number or a part of all units is, 1 at the least."""
    if text == "rest":
        return max(1, units)
    if text.endswith("%"):
        return max(1, units * int(text[:-1]) // 100)
    return int(text)


def read_amount(text: str) -> str:
    """Check a number of units or a part of all; ValueError says what was expected."""
    if not AMOUNT.fullmatch(text):
        message = f"expected a number from 1, or 1% to 100%, not {text[:80]!r}"
        raise ValueError(message)
    return text


def read_waves(texts: Sequence[str]) -> Sequence[str]:
    """Check the sizes of waves: amounts, the last one may be `rest`."""
    if "rest" in texts[:-1]:
        raise ValueError("expected rest as the last wave: nothing is left after it")
    for text in texts[:-1] if list(texts[-1:]) == ["rest"] else texts:
        read_amount(text)
    return texts


def read_spread(text: str) -> str:
    """Check what units under way may not share; empty for nothing."""
    if text and not SPREAD.fullmatch(text):
        raise ValueError(f"expected host, fault-domain or tag:KEY, not {text[:80]!r}")
    return text


def read_tags(texts: Iterable[str]) -> dict[str, str]:
    """Read tags that people wrote as KEY=VALUE; ValueError where one is not, or comes twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not name or not sign or name in found:
            raise ValueError(f"invalid tag {text!r}: expected KEY=VALUE, and each KEY once")
        found[name] = value
    return found
