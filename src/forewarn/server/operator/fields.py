"""The fields of requests for maintenance, and of orders about it: one row for each.

The command line has an option for each row, and the page an input. Both read what people type by
the row's reader and send it under the row's name; `maintenance_schemas` and `schemas` have the
bodies. A refusal of the service names a field, and finds the option or the input by that name.

It loads nothing heavy: every command line reads this table.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, TypeVar

from forewarn import times
from forewarn.vocabulary import EventSource, EventType

Number = TypeVar("Number", int, float)


class Control(StrEnum):
    """The input of a field on the page."""

    TEXT = "text"
    NAMES = "names"
    """Several names, with blanks, commas or line ends between them."""
    LINES = "lines"
    """Several texts, one a line."""
    CHECK = "check"
    CHOICE = "choice"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """A field of a request."""

    name: str
    """In the body, and on the page."""
    option: str = ""
    """On the command line, with the word for its value: `--notice SPAN`; `""` for none."""
    label: str = ""
    """On the page; `""`: the help without its full stop."""
    help: str
    read: Callable[[str], object] = str
    """Reads one text; its ValueError says what was expected."""
    gather: Callable[[Sequence[Any]], object] = list
    """Makes one value of several; its ValueError says what was expected."""
    control: Control = Control.TEXT
    choices: tuple[tuple[str, str], ...] = ()
    """Values, each with its label on the page; of a text, suggestions."""
    default: str = ""
    """The default as people type it; `""` if the help says it."""
    in_policy: bool = False
    """Part of the policy: for several units only."""
    for_one: bool = False
    """Only for named machines, one scope or one host, without a policy."""

    @property
    def several(self) -> bool:
        """Takes several values."""
        return self.control in {Control.NAMES, Control.LINES}

    @property
    def flag(self) -> str:
        """The option without the word for its value, such as `--notice`."""
        return self.option.partition(" ")[0]

    @property
    def title(self) -> str:
        """The label on the page."""
        return self.label or self.help.removesuffix(".")

    @property
    def hint(self) -> str:
        """The text below its input on the page."""
        if not self.label or self.control is Control.CHOICE:
            return ""  # a box, or a list, says it itself
        more = {
            Control.NAMES: "Several with blanks or commas between.",
            Control.LINES: "One a line.",
        }.get(self.control, f"Empty: {self.default}." if self.default else "")
        return f"{self.help} {more}".strip()


@dataclasses.dataclass(frozen=True)
class FieldGroup:
    """Fields that belong together on the page."""

    title: str
    fields: tuple[Field, ...]
    folded: bool = False
    """Closed until somebody opens it."""


def within(least: Number, most: float = math.inf) -> Callable[[str], Number]:
    """Return a reader of numbers between these, of the type of the least."""
    kind = type(least)
    what = {"int": "a whole number"}.get(kind.__name__, "a number")
    bounds = f"from {least:g}" if most == math.inf else f"between {least:g} and {most}"

    def number(text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            message = f"expected {what} {bounds}, not {text[:80]!r}"
            raise ValueError(message)
        return value

    return number


def seconds(text: str) -> int:
    """Read a span as seconds."""
    return int(times.span(text).total_seconds())


def _pause(text: str) -> int:
    return -1 if text == "confirm" else seconds(text)


def _blackout(text: str) -> dict[str, datetime]:
    opens, closes = times.interval(text.strip())
    return {"opens": opens, "closes": closes}


# The rules' own readers; their modules load what a command's help does without.


def _amount(text: str) -> str:
    from forewarn.maintenance import units

    return units.read_amount(text)


def _waves(text: str) -> list[str]:
    from forewarn.maintenance import units

    return list(units.read_waves(text.replace(",", " ").split()))


def _spread(text: str) -> str:
    from forewarn.maintenance import units

    return units.read_spread(text)


def _window(text: str) -> str:
    from forewarn.maintenance import time_windows

    time_windows.check([text], "UTC")
    return text


def _tags(texts: Sequence[str]) -> dict[str, str]:
    from forewarn.maintenance import units

    return units.read_tags(texts)


_TIME: Final = "RFC 3339 with a zone, or +20m from now."

WHAT: Final = FieldGroup(
    "What",
    (
        Field(
            name="event_type",
            label="What happens",
            help="The type of its events.",
            control=Control.CHOICE,
            choices=(
                (EventType.REBOOT, "Reboot: restart, memory is lost"),
                (EventType.REDEPLOY, "Redeploy: move to another host, ephemeral disks are lost"),
                (EventType.FREEZE, "Freeze: pause for seconds"),
                (EventType.PREEMPT, "Preempt: delete a low-priority machine"),
                (EventType.TERMINATE, "Terminate: delete a machine of a scale set"),
            ),
            default=EventType.REBOOT,
        ),
        Field(
            name="machines",
            option="--machine NAME",
            label="Machines",
            help="A machine.",
            control=Control.NAMES,
        ),
        Field(
            name="scopes",
            option="--scope NAME",
            label="Scopes",
            help="All machines of a scope.",
            control=Control.NAMES,
        ),
        Field(
            name="hosts",
            option="--host NAME",
            label="Hosts",
            help="All machines on a host, of any scope.",
            control=Control.NAMES,
        ),
        Field(
            name="tags",
            option="--tag KEY=VALUE",
            label="Tags",
            help="Machines with this tag, or with all of several.",
            control=Control.LINES,
            gather=_tags,
        ),
        Field(name="all_hosts", option="--all-hosts", help="Every host.", control=Control.CHECK),
        Field(
            name="drain",
            help="Drain the hosts: their machines move away, the host reboots, and they come home.",
            control=Control.CHECK,
        ),
    ),
)

TURNS: Final = FieldGroup(
    "One after another",
    folded=True,
    fields=(
        Field(
            name="at_once",
            option="--at-once N|N%",
            label="At once",
            help="The most units under way: a number, or a percentage of all.",
            read=_amount,
            default="1",
            in_policy=True,
        ),
        Field(
            name="waves",
            option="--waves LIST",
            label="Waves",
            help="The size of each wave, such as 1,10%,rest.",
            read=_waves,
            default="one wave",
            in_policy=True,
        ),
        Field(
            name="pause_seconds",
            option="--pause SPAN|confirm",
            label="Pause between waves",
            help="A pause between waves, such as 30m; confirm: until an operator resumes.",
            read=_pause,
            default="0",
            in_policy=True,
        ),
        Field(
            name="stop_after",
            option="--stop-after N",
            label="Halt after failures",
            help="Halt when this many units have failed, at most 5000.",
            read=within(1, 5000),
            default="1",
            in_policy=True,
        ),
        Field(
            name="spread",
            option="--spread BY",
            label="One at a time of each",
            help="host, fault-domain or tag:KEY: no two units at once that share it.",
            read=_spread,
            in_policy=True,
        ),
        Field(
            name="order",
            option="--order ORDER",
            label="Order",
            help="tightest: as many at once as possible; listed: as given.",
            control=Control.CHOICE,
            choices=(("tightest", "as many at once as possible"), ("listed", "as listed")),
            default="tightest",
            in_policy=True,
        ),
    ),
)

WINDOWS: Final = FieldGroup(
    "Windows",
    folded=True,
    fields=(
        Field(
            name="windows",
            option="--window WHEN",
            label="Windows",
            help="When units may start: 'Sat,Sun 22:00-04:00', or 'Sat 20:00-Mon 04:00'.",
            read=_window,
            control=Control.LINES,
            in_policy=True,
        ),
        Field(
            name="zone",
            option="--zone ZONE",
            label="Time zone of the windows",
            help="The time zone of the windows, such as Europe/Berlin.",
            default="UTC",
            in_policy=True,
        ),
        Field(
            name="blackouts",
            option="--blackout FROM/TO",
            label="Blackouts",
            help="Two RFC 3339 times between which nothing starts.",
            read=_blackout,
            control=Control.LINES,
            in_policy=True,
        ),
        Field(
            name="cutoff_seconds",
            option="--cutoff SPAN",
            label="Last start before a window closes",
            help="Begin no unit in the last part of a window, such as 30m.",
            read=seconds,
            default="0",
            in_policy=True,
        ),
        Field(
            name="approval_until",
            option="--approval-until TIME",
            label="Only with approval until",
            help="Until then, start nothing without its guests' approval.",
            read=times.moment,
            in_policy=True,
        ),
    ),
)

MORE: Final = FieldGroup(
    "More",
    folded=True,
    fields=(
        Field(
            name="not_before",
            option="--not-before TIME",
            label="Not before",
            help=f"When it starts even without approval: {_TIME}",
            read=times.moment,
            default="as soon as the least notice allows",
            for_one=True,
        ),
        Field(
            name="notice_seconds",
            option="--notice SPAN",
            label="Notice",
            help="A notice longer than the least of the type, such as 30m.",
            read=seconds,
        ),
        Field(
            name="opens_at",
            option="--opens TIME",
            label="Opens",
            help="Start nothing before this time, approved or not.",
            read=times.moment,
            for_one=True,
        ),
        Field(
            name="closes_at",
            option="--closes TIME",
            label="Closes",
            help="Cancel what has not started by this time.",
            read=times.moment,
            for_one=True,
        ),
        Field(
            name="duration_seconds",
            option="--duration SPAN",
            label="Expected interruption",
            help="The expected interruption: seconds, 30s or 5m; 0 for none.",
            read=times.duration_seconds,
            default="unknown",
        ),
        Field(
            name="description",
            option="--description TEXT",
            label="Text for the guests",
            help="The text for the guests, in one line.",
            default="the usual text of the type",
        ),
        Field(
            name="source",
            option="--source SOURCE",
            label="Caused by",
            help="Who causes it: platform or user.",
            control=Control.CHOICE,
            choices=((EventSource.PLATFORM, "the platform"), (EventSource.USER, "a user")),
            default=EventSource.PLATFORM,
        ),
        Field(
            name="check",
            option="--check NAME",
            label="Check",
            help="A check from the settings that must pass after each unit.",
            in_policy=True,
        ),
        Field(
            name="check_tries",
            option="--check-tries N",
            label="Tries of the check",
            help="How often the check may fail in a row, at most 100.",
            read=within(1, 100),
            default="3",
            in_policy=True,
        ),
        Field(
            name="check_within_seconds",
            option="--check-within SPAN",
            label="Time for the check",
            help="How long all tries of the check may take.",
            read=seconds,
            default="5m",
            in_policy=True,
        ),
        Field(
            name="no_notice",
            option="--already-failed",
            help="The machine has already failed: start at once, without notice.",
            control=Control.CHECK,
            for_one=True,
        ),
        Field(
            name="without_notice",
            option="--without-notice",
            help="Go on even if some guests get no notice, because they never asked for events.",
            control=Control.CHECK,
        ),
        Field(
            name="indivisible",
            option="--indivisible",
            help="All machines of the host go down at once. "
            "Refused if they are in two update domains of a scope.",
            control=Control.CHECK,
            for_one=True,
        ),
        Field(
            name="live_migration",
            option="--live-migration",
            help="The freeze is a live migration to another host.",
            control=Control.CHECK,
            for_one=True,
        ),
        Field(
            name="to_host",
            option="--to-host NAME",
            label="Move to host",
            help="The host that a redeploy or a live migration moves to.",
            default="the connector chooses",
            for_one=True,
        ),
    ),
)

GROUPS: Final = (WHAT, TURNS, WINDOWS, MORE)
"""The fields of a request for maintenance, as the page groups them."""

MAINTENANCE: Final[Mapping[str, Field]] = MappingProxyType(
    {field.name: field for group in GROUPS for field in group.fields}
)
"""The same by name."""

REASON: Final = Field(
    name="reason", option="--reason TEXT", label="Reason", help="Why; the history records it."
)

UNTIL: Final = Field(
    name="until",
    option="--until TIME",
    label="Until",
    help="When it ends by itself: 18:00 (the next), +2h, or RFC 3339 with a zone.",
    read=times.coming,
    default="until it is released",
)

EVEN_IF_DOWN: Final = Field(
    name="even_if_down",
    option="--even-if-down",
    help="Also if machines have not asked since they went down.",
    control=Control.CHECK,
)

HISTORY: Final = FieldGroup(
    "Filter",
    (
        Field(name="machine", option="--machine NAME", help="Only this machine."),
        Field(name="scope", option="--scope NAME", help="Only this scope."),
        Field(
            name="maintenance",
            option="--maintenance NUMBER",
            help="Only this maintenance.",
            read=within(1),
        ),
        Field(
            name="since",
            option="--since TIME",
            help="Announced at that time or later: RFC 3339, or -2h.",
            read=times.moment,
        ),
        Field(
            name="until",
            option="--until TIME",
            help="Announced before that time.",
            read=times.moment,
        ),
    ),
)
"""The filters of the history."""

FOR_ONE: Final = tuple(field.name for field in MAINTENANCE.values() if field.for_one)
"""The fields that are refused where there are several targets, or a policy."""


def body(given: Mapping[str, object], *, has_policy: bool = False) -> dict[str, object]:
    """Return the body of a request for maintenance: what is empty is left out.

    A policy is in it if it is asked for, or if a field of it is given.
    """
    found = {name: value for name, value in given.items() if not _is_empty(value)}
    policy = {name: found.pop(name) for name in list(found) if MAINTENANCE[name].in_policy}
    return {**found, "policy": policy} if policy or has_policy else found


def _is_empty(value: object) -> bool:
    return value is None or value is False or value in ("", (), [], {})


def of_place(where: str) -> str:
    """Return the name of the field of a refusal: `waves` of `policy.waves[0]`."""
    return re.sub(r"^policy\.|[.\[].*$", "", where)


def in_options(message: str, where: str) -> str:
    """Return the message of a refusal that names the option in the place of the body's field."""
    field = {**MAINTENANCE, UNTIL.name: UNTIL}.get(of_place(where))
    if field is None or not field.option:
        return message
    return f"{field.flag}: {message.removeprefix(f'at {where}: ')}"
