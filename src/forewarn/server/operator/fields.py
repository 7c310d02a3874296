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
    required: bool = False
    """Must be filled in on the page."""
    in_policy: bool = False
    """Part of the policy: for several units only."""
    for_one: bool = False
    """Only for named machines, one scope or one host, without a policy."""

    @property
    def several(self) -> bool:
        """Takes several values."""
        return self.control in {Control.NAMES, Control.LINES}

    @property
    def is_time(self) -> bool:
        """Takes a time, which may be a span from now."""
        return self.read in {times.moment, times.past, times.coming}

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


def filled(text: str) -> str:
    """Refuse an empty text: no option is left out by an unset variable of a script."""
    if not text:
        raise ValueError("expected a value, not ''")
    return text


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

    return list(units.read_waves(text.replace(",", " ").split() or [text]))


def _spread(text: str) -> str:
    from forewarn.maintenance import units

    return units.read_spread(filled(text))


def _window(text: str) -> str:
    from forewarn.maintenance import time_windows

    time_windows.check([text], "UTC")
    return text


def _tags(texts: Sequence[str]) -> dict[str, str]:
    from forewarn.maintenance import units

    return units.read_tags(texts)


READERS: Final[Mapping[str, Callable[[str], object]]] = MappingProxyType(
    {"SPAN": seconds, "TIME": times.moment}
)
"""The readers of values with these names; any other is text."""


def row(
    spec: str,
    help: str,  # noqa: A002 - what it is
    label: str = "",
    *,
    read: Callable[[str], object] | None = None,
    control: Control | None = None,
    **more: Any,  # noqa: ANN401 - the fields of `Field`
) -> Field:
    """Return a field: `--notice SPAN notice_seconds`, `--all-hosts`, or its name alone.

    The name is that of the option unless one stands behind it. Without a value, which has capitals,
    it is a box; a value that ends in `...` may be given several times. The label on the page is the
    name in words unless another is given.
    """
    option, *rest = spec.split()
    value = "".join(rest[:1]) if rest and not rest[0].islower() else ""
    name = rest[-1] if rest and rest[-1].islower() else option.removeprefix("--").replace("-", "_")
    natural = Control.CHOICE if "choices" in more else Control.TEXT
    if value.endswith("..."):
        natural = Control.NAMES if value == "NAME..." else Control.LINES
    elif option != name and not value:
        natural = Control.CHECK
    value = value.removesuffix("...")
    if not label and natural is not Control.CHECK and control is not Control.CHECK:
        label = re.sub("_(seconds|at)$", "", name).replace("_", " ").capitalize()
    return Field(
        name=name,
        option=f"{option} {value}".rstrip() if option.startswith("--") else "",
        label=label,
        help=help,
        read=read or READERS.get(value, str),
        control=control or natural,
        **more,
    )


def _of_policy(*fields: Field) -> tuple[Field, ...]:
    return tuple(dataclasses.replace(field, in_policy=True) for field in fields)


WHAT: Final = FieldGroup(
    "What",
    (
        row(
            "event_type",
            "The type of its events.",
            "What happens",
            choices=(
                (EventType.REBOOT, "Reboot: restart, memory is lost"),
                (EventType.REDEPLOY, "Redeploy: move to another host, ephemeral disks are lost"),
                (EventType.FREEZE, "Freeze: pause for seconds"),
                (EventType.PREEMPT, "Preempt: delete a low-priority machine"),
                (EventType.TERMINATE, "Terminate: delete a machine of a scale set"),
            ),
            default=EventType.REBOOT,
        ),
        row("machines", "Names of machines, or of scopes.", control=Control.NAMES),
        row("--scope NAME... scopes", "All machines of a scope."),
        row("--host NAME... hosts", "All machines on a host, of any scope."),
        row("--all-hosts", "Every host."),
        row(
            "drain",
            "Drain the hosts: their machines move away, the host reboots, and they come home.",
            control=Control.CHECK,
        ),
        row(
            "--tag KEY=VALUE... tags",
            "Machines with this tag, or with all of several.",
            gather=_tags,
        ),
    ),
)

TURNS: Final = FieldGroup(
    "One after another",
    _of_policy(
        row(
            "--at-once N|N%",
            "The most units under way: a number, or a percentage of all.",
            read=_amount,
            default="1",
        ),
        row(
            "--waves LIST",
            "The size of each wave, such as 1,10%,rest.",
            read=_waves,
            default="one wave",
        ),
        row(
            "--pause SPAN|confirm pause_seconds",
            "A pause between waves, such as 30m; confirm: until an operator resumes.",
            "Pause between waves",
            read=_pause,
            default="0",
        ),
        row(
            "--stop-after N",
            "Halt when this many units have failed, at most 5000.",
            "Halt after failures",
            read=within(1, 5000),
            default="1",
        ),
        row(
            "--spread BY",
            "host, fault-domain or tag:KEY: no two units at once that share it.",
            "One at a time of each",
            read=_spread,
        ),
        row(
            "--order ORDER",
            "tightest: as many at once as possible; listed: as given.",
            choices=(("tightest", "as many at once as possible"), ("listed", "as listed")),
            default="tightest",
        ),
    ),
    folded=True,
)

WINDOWS: Final = FieldGroup(
    "Windows",
    _of_policy(
        row(
            "--window WHEN... windows",
            "When units may start: 'Sat,Sun 22:00-04:00', or 'Sat 20:00-Mon 04:00'.",
            read=_window,
        ),
        row(
            "--zone ZONE",
            "The time zone of the windows, such as Europe/Berlin.",
            "Time zone of the windows",
            default="UTC",
        ),
        row(
            "--blackout FROM/TO... blackouts",
            "Two RFC 3339 times between which nothing starts.",
            read=_blackout,
        ),
        row(
            "--cutoff SPAN cutoff_seconds",
            "Begin no unit in the last part of a window, such as 30m.",
            "Last start before a window closes",
            default="0",
        ),
        row(
            "--approval-until TIME",
            "Until then, start nothing without its guests' approval.",
            "Only with approval until",
        ),
    ),
    folded=True,
)

MORE: Final = FieldGroup(
    "More",
    (
        row(
            "--not-before TIME",
            "When it starts even without approval: RFC 3339 with a zone, or +20m from now.",
            default="as soon as the least notice allows",
            for_one=True,
        ),
        row(
            "--notice SPAN notice_seconds",
            "A notice longer than the least of the type, such as 30m.",
        ),
        row(
            "--opens TIME opens_at",
            "Start nothing before this time, approved or not.",
            for_one=True,
        ),
        row("--closes TIME closes_at", "Cancel what has not started by this time.", for_one=True),
        row(
            "--duration SPAN duration_seconds",
            "The expected interruption: seconds, 30s or 5m; 0 for none.",
            "Expected interruption",
            read=times.duration_seconds,
            default="unknown",
        ),
        row(
            "--description TEXT",
            "The text for the guests, in one line.",
            "Text for the guests",
            default="the usual text of the type",
        ),
        row(
            "--source SOURCE",
            "Who causes it: platform or user.",
            "Caused by",
            choices=((EventSource.PLATFORM, "the platform"), (EventSource.USER, "a user")),
            default=EventSource.PLATFORM,
        ),
        row(
            "--check NAME",
            "A check from the settings that must pass after each unit.",
            in_policy=True,
        ),
        row(
            "--check-tries N",
            "How often the check may fail in a row, at most 100.",
            "Tries of the check",
            read=within(1, 100),
            default="3",
            in_policy=True,
        ),
        row(
            "--check-within SPAN check_within_seconds",
            "How long all tries of the check may take.",
            "Time for the check",
            default="5m",
            in_policy=True,
        ),
        row(
            "--already-failed no_notice",
            "The machine has already failed: start at once, without notice.",
            for_one=True,
        ),
        row(
            "--without-notice",
            "Go on even if some guests get no notice, because they never asked for events.",
        ),
        row(
            "--indivisible",
            "All machines of the host go down at once. "
            "Refused if they are in two update domains of a scope.",
            for_one=True,
        ),
        row("--live-migration", "The freeze is a live migration to another host.", for_one=True),
        row(
            "--to-host NAME",
            "The host that a redeploy or a live migration moves to.",
            "Move to host",
            default="the connector chooses",
            for_one=True,
        ),
    ),
    folded=True,
)

GROUPS: Final = (WHAT, TURNS, WINDOWS, MORE)
"""The fields of a request for maintenance, as the page groups them."""

MAINTENANCE: Final[Mapping[str, Field]] = MappingProxyType(
    {field.name: field for group in GROUPS for field in group.fields}
)
"""The same by name."""

REASON: Final = row("--reason TEXT", "Why; the history records it.")

UNTIL: Final = row(
    "--until TIME",
    "When it ends by itself: 18:00 (the next), +2h, or RFC 3339 with a zone.",
    read=times.coming,
    default="until it is released",
)

EVEN_IF_DOWN: Final = row("--even-if-down", "Also if machines have not asked since they went down.")

HISTORY: Final = FieldGroup(
    "Filter",
    (
        row("--machine NAME", "Only this machine."),
        row("--scope NAME", "Only this scope."),
        row("--maintenance NUMBER", "Only this maintenance.", read=within(1)),
        row("--since TIME", "Announced at that time or later: RFC 3339, or -2h.", read=times.past),
        row("--until TIME", "Announced before that time.", read=times.past),
    ),
)
"""The filters of the history."""

TARGETS: Final = ("machines", "scopes", "hosts", "tags", "all_hosts")
"""The fields that name targets; a request has at least one."""

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
