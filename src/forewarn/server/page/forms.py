"""The forms of the page: their fields, how what was typed becomes a request, and how it is sent.

A form becomes the very body that the API takes, so that the page can ask for nothing that the API
cannot. What was typed is kept as it was: a form that is refused is shown with it again, and with
the reason beside the field.

A second click sends a form twice, and so does a browser whose answer was lost and that is asked to
send it again. Each form has a key, made when it was shown. What was answered is remembered by this
process: a maintenance has its key in the database too.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlencode

import msgspec

from forewarn import times
from forewarn.control.accounts import OperatorRequest
from forewarn.maintenance import model
from forewarn.maintenance.model import Refused
from forewarn.maintenance.units import CONFIRM, TurnOrder, read_tags
from forewarn.server.operator import errors, maintenance_schemas, schemas
from forewarn.settings import Mistake
from forewarn.store.port import StoreError
from forewarn.vocabulary import ErrorCode, EventSource, EventType, TargetKind

MAX_FIELDS: Final = 200
"""The most fields of a form: the longest has some thirty."""

MAX_REMEMBERED: Final = 1000
"""The most forms whose answers are remembered: a second click follows within seconds."""

replace = msgspec.structs.replace

T = TypeVar("T")
Shape = TypeVar("Shape", bound=msgspec.Struct)


class Control(StrEnum):
    """How a field is filled in."""

    TEXT = "text"
    LINES = "lines"
    """Several names or texts: one a line, or with commas between names."""
    CHECK = "check"
    CHOICE = "choice"


class Field(msgspec.Struct, frozen=True):
    """One field of a form."""

    name: str
    label: str
    control: Control = Control.TEXT
    hint: str = ""
    """What may be typed, with an example."""
    choices: tuple[tuple[str, str], ...] = ()
    """Values, each with what it is called; of a text they are suggestions."""
    default: str = ""


class FieldGroup(msgspec.Struct, frozen=True):
    """Fields that belong together."""

    title: str
    fields: tuple[Field, ...]
    folded: bool = False
    """Whether it is closed until somebody opens it."""


class FilledForm:
    """What a browser sent: the values of each field, as they were typed."""

    def __init__(self, values: Mapping[str, tuple[str, ...]]) -> None:
        self._values = dict(values)

    def text(self, name: str) -> str:
        """Return a field's text without blanks around it; `""` where there is none."""
        return "".join(self._values.get(name, ())[:1]).strip()

    def all(self, name: str) -> tuple[str, ...]:
        """Return all values of a field that may be sent several times, without empty ones."""
        return tuple(value for value in self._values.get(name, ()) if value)

    def checked(self, name: str) -> bool:
        """Tell whether a box is checked."""
        return bool(self.all(name))

    def names(self, name: str) -> tuple[str, ...]:
        """Return names between which there are blanks, commas or line ends."""
        return tuple(self.text(name).replace(",", " ").split())

    def lines(self, name: str) -> tuple[str, ...]:
        """Return a field's lines, without empty ones."""
        lines = (line.strip() for line in self.text(name).splitlines())
        return tuple(line for line in lines if line)

    def filled(self, **texts: str) -> "FilledForm":
        """Return the form with other texts in some fields."""
        return FilledForm({**self._values, **{name: (text,) for name, text in texts.items()}})

    def pairs(self) -> list[tuple[str, str]]:
        """Return each field with each of its values, as hidden fields repeat them."""
        return [(name, value) for name, values in self._values.items() for value in values]

    def query(self) -> str:
        """Return it as the query of a link."""
        return urlencode([pair for pair in self.pairs() if pair[1]])


def sent(body: bytes) -> FilledForm:
    """Return what a browser sent as `application/x-www-form-urlencoded`.

    Raises:
        Refused: It cannot be read, or has too many fields (INVALID).
    """
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"
        )
    except ValueError as error:
        message = "the form cannot be read: expected at most 200 fields in UTF-8"
        raise Refused(ErrorCode.INVALID, message) from error
    return of_pairs(pairs)


def of_pairs(pairs: Sequence[tuple[str, str]]) -> FilledForm:
    """Return a form of names and values, as a query has them, too."""
    values: dict[str, tuple[str, ...]] = {}
    for name, value in pairs:
        values[name] = (*values.get(name, ()), value)
    return FilledForm(values)


def default(groups: Sequence[FieldGroup]) -> FilledForm:
    """Return a form with the defaults of its fields."""
    fields = (field for group in groups for field in group.fields)
    return FilledForm({field.name: (field.default,) for field in fields if field.default})


def suggesting(
    groups: Sequence[FieldGroup], name: str, values: Sequence[str]
) -> tuple[FieldGroup, ...]:
    """Return groups in which a field suggests values."""

    def of(field: Field) -> Field:
        choices = tuple((value, value) for value in values)
        return replace(field, choices=choices) if field.name == name else field

    return tuple(replace(group, fields=tuple(map(of, group.fields))) for group in groups)


# The fields.

TYPES: Final = (
    (EventType.REBOOT.value, "Reboot: restart, memory is lost"),
    (EventType.REDEPLOY.value, "Redeploy: move to another host, ephemeral disks are lost"),
    (EventType.FREEZE.value, "Freeze: pause for seconds"),
    (EventType.PREEMPT.value, "Preempt: delete a low-priority machine"),
    (EventType.TERMINATE.value, "Terminate: delete a machine of a scale set"),
)

KINDS: Final = (
    (TargetKind.MACHINES.value, "machines"),
    (TargetKind.SCOPE.value, "all machines of scopes"),
    (TargetKind.HOST.value, "all machines on hosts"),
)

SOURCES: Final = ((EventSource.PLATFORM.value, "the platform"), (EventSource.USER.value, "a user"))

_WHEN: Final = "2026-11-22T22:00Z, or +20m from now. Without a zone it is UTC."

_WHAT: Final = FieldGroup(
    "What",
    (
        Field(
            "event_type",
            "What happens",
            control=Control.CHOICE,
            choices=TYPES,
            default=EventType.REBOOT.value,
        ),
        Field(
            "kind",
            "Of",
            control=Control.CHOICE,
            choices=KINDS,
            default=TargetKind.MACHINES.value,
        ),
        Field(
            "targets",
            "Names",
            control=Control.LINES,
            hint="With blanks or commas between. Several scopes or hosts go one after another.",
        ),
        Field(
            "tags",
            "Machines with tags",
            control=Control.LINES,
            hint="KEY=VALUE, one a line; several: machines with all of them.",
        ),
        Field("all_hosts", "Every host", control=Control.CHECK),
        Field(
            "drain",
            "Drain the hosts: their machines move away, the host reboots, and they come home",
            control=Control.CHECK,
        ),
    ),
)

_TIMES: Final = FieldGroup(
    "When",
    (
        Field(
            "not_before", "Not before", hint=f"{_WHEN} Empty: as soon as the least notice allows."
        ),
        Field("opens_at", "Window opens", hint="Nothing starts before it, approved or not."),
        Field("closes_at", "Window closes", hint="What has not started by then is cancelled."),
        Field(
            "notice",
            "Time for guests to approve",
            hint="A span such as 1h, if longer than the least notice.",
        ),
        Field(
            "duration",
            "Expected interruption",
            hint="Such as 30s or 5m; 0 for none. Empty: unknown.",
        ),
    ),
)

_TURNS: Final = FieldGroup(
    "One after another",
    folded=True,
    fields=(
        Field(
            "at_once",
            "At once",
            hint="Hosts, update domains or machines under way: a number, or a part such as 10%. "
            "Empty: 1.",
        ),
        Field("waves", "Waves", hint="The size of each, such as 1, 10%, rest. Empty: all in one."),
        Field("pause", "Pause between waves", hint="Such as 30m; or confirm, until you resume it."),
        Field("stop_after", "Halt after failures", hint="So many failed ones halt it. Empty: 1."),
        Field(
            "spread",
            "One at a time of each",
            hint="host, fault-domain or tag:KEY. Empty: no such limit.",
        ),
        Field(
            "order",
            "Order",
            control=Control.CHOICE,
            choices=(
                (TurnOrder.TIGHTEST.value, "as many at once as possible"),
                (TurnOrder.LISTED.value, "as listed"),
            ),
            default=TurnOrder.TIGHTEST.value,
        ),
        Field(
            "check",
            "Check",
            hint="The name of a check of the settings. It has to pass before others go.",
        ),
        Field("check_tries", "Tries of the check", hint="How often it may fail. Empty: 3."),
        Field(
            "check_within",
            "Time for the check",
            hint="How long all of its tries may take. Empty: 5m.",
        ),
    ),
)

_WINDOWS: Final = FieldGroup(
    "Windows",
    folded=True,
    fields=(
        Field(
            "windows",
            "Windows",
            control=Control.LINES,
            hint="One a line, such as Sat,Sun 22:00-04:00 or Sat 20:00-Mon 04:00. Empty: always.",
        ),
        Field("zone", "Time zone of the windows", hint="Such as Europe/Berlin. Empty: UTC."),
        Field(
            "blackouts",
            "Blackouts",
            control=Control.LINES,
            hint="Nothing starts then. One a line: 2026-12-20T00:00Z/2027-01-07T00:00Z.",
        ),
        Field("cutoff", "Last start before a window closes", hint="A span such as 30m."),
        Field(
            "approval_until",
            "Only with approval until",
            hint="Until then nothing starts unless its guests approve, or you for them.",
        ),
    ),
)

_MORE: Final = FieldGroup(
    "More",
    folded=True,
    fields=(
        Field(
            "description",
            "Text for the guests",
            hint="One line. Empty: the usual text of the type.",
        ),
        Field(
            "source",
            "Caused by",
            control=Control.CHOICE,
            choices=SOURCES,
            default=EventSource.PLATFORM.value,
        ),
        Field(
            "to_host",
            "Move to host",
            hint="For a Redeploy or a live migration. Empty: the connector chooses.",
        ),
        Field(
            "live_migration",
            "The Freeze is a live migration to another host",
            control=Control.CHECK,
        ),
        Field("indivisible", "All machines of the host go down at once", control=Control.CHECK),
        Field(
            "no_notice",
            "It has already failed: start at once, without notice",
            control=Control.CHECK,
        ),
        Field(
            "without_notice",
            "Go on even if some guests get no notice, because they never asked for events",
            control=Control.CHECK,
        ),
    ),
)

MAINTENANCE: Final = (_WHAT, _TIMES, _TURNS, _WINDOWS, _MORE)
"""The fields of a request for maintenance."""


# From a form to a request.


def maintenance(form: FilledForm, now: datetime) -> maintenance_schemas.MaintenanceRequest:
    """Return what a form asks for.

    Raises:
        Refused: A field cannot be read (INVALID); its fact `where` names the field.
    """
    kind, targets = form.text("kind"), form.names("targets")
    tags = _read(form, "tags", lambda _: read_tags(form.lines("tags")))
    if not targets and not tags and not form.checked("all_hosts"):
        raise _mistake("targets", "expected at least one name")
    asked: dict[str, Any] = {
        "event_type": form.text("event_type"),
        "source": form.text("source") or EventSource.PLATFORM.value,
        "machines": targets if kind == TargetKind.MACHINES else (),
        "scopes": targets if kind == TargetKind.SCOPE else (),
        "hosts": targets if kind == TargetKind.HOST else (),
        "tags": tags,
        "policy": _policy(form, now) if _has_policy(form) else None,
        "notice_seconds": _seconds(form, "notice"),
        "duration_seconds": _duration(form),
        "description": form.text("description") or None,
        "to_host": form.text("to_host"),
        "idempotency_key": form.text("key"),
        **{name: moment(form, name, now) for name in MOMENTS},
        **{name: form.checked(name) for name in BOXES},
    }
    return converted(asked, maintenance_schemas.MaintenanceRequest)


def _has_policy(form: FilledForm) -> bool:
    """Tell whether anything of a policy is filled in."""
    fields = (*_TURNS.fields, *_WINDOWS.fields)
    return any(form.text(field.name) not in {"", field.default} for field in fields)


def _policy(form: FilledForm, now: datetime) -> dict[str, Any]:
    pause = form.text("pause")
    return {
        "at_once": form.text("at_once") or "1",
        "waves": form.names("waves"),
        "pause_seconds": CONFIRM if pause == "confirm" else _seconds(form, "pause"),
        "spread": form.text("spread"),
        "windows": form.lines("windows"),
        "zone": form.text("zone") or "UTC",
        "blackouts": [
            {"opens": opens, "closes": closes} for opens, closes in _read(form, "blackouts", _spans)
        ],
        "cutoff_seconds": _seconds(form, "cutoff"),
        "stop_after": _number(form, "stop_after", 1),
        "check": form.text("check"),
        "check_tries": _number(form, "check_tries", 3),
        "check_within_seconds": _seconds(form, "check_within", "5m"),
        "approval_until": moment(form, "approval_until", now),
        "order": form.text("order") or TurnOrder.TIGHTEST.value,
    }


BOXES: Final = (
    "all_hosts",
    "drain",
    "live_migration",
    "indivisible",
    "no_notice",
    "without_notice",
)
"""The fields of a request for maintenance that are boxes to check."""

MOMENTS: Final = ("not_before", "opens_at", "closes_at")
"""The fields of a request for maintenance that are times."""


def settled(form: FilledForm, now: datetime) -> FilledForm:
    """Return a form with times in place of spans: what was planned at +20m does not move."""
    given = {name: moment(form, name, now) for name in (*MOMENTS, "approval_until")}
    return form.filled(**{name: times.precise(at) for name, at in given.items() if at is not None})


def moment(form: FilledForm, name: str, now: datetime) -> datetime | None:
    """Return the time in a field, or from now; without a zone it is UTC. None for an empty one."""
    text = form.text(name)
    if not text:
        return None
    if len(text) in ZONELESS and text[0].isdecimal():
        text += "Z"
    read: datetime | timedelta = _read(form, name, lambda _: times.moment(text))
    return read if isinstance(read, datetime) else now + read


ZONELESS: Final = frozenset({len("2026-11-22T22:00"), len("2026-11-22T22:00:00")})
"""The lengths of times without a zone, as a browser's own field writes them, too."""


def number(text: str) -> int:
    """Return a number; NOT_FOUND for what is none, as nothing is called so."""
    if text.isdecimal() and len(text) <= len(str(schemas.MAX_NUMBER)):
        return int(text)
    raise Refused(ErrorCode.NOT_FOUND, f"no maintenance or operation has the number {text[:80]!r}")


def _duration(form: FilledForm) -> int:
    return _read(form, "duration", lambda text: times.duration_seconds(text or "unknown"))


def _seconds(form: FilledForm, name: str, empty: str = "0") -> int:
    return _read(form, name, lambda text: int(times.span(text or empty).total_seconds()))


def _number(form: FilledForm, name: str, empty: int) -> int:
    if not (text := form.text(name)):
        return empty
    if not text.isdecimal() or len(text) > len(str(schemas.MAX_NUMBER)):
        raise _mistake(name, "expected a number")
    return int(text)


def _read(form: FilledForm, name: str, read: Callable[[str], T]) -> T:
    try:
        return read(form.text(name))
    except ValueError as error:
        raise _mistake(name, str(error)) from error


def _spans(text: str) -> list[tuple[datetime, datetime]]:
    return [times.interval(line.strip()) for line in text.splitlines() if line.strip()]


def _mistake(name: str, message: str) -> Refused:
    return Refused(ErrorCode.INVALID, message, where=name)


def converted(asked: Mapping[str, object], shape: type[Shape]) -> Shape:
    """Return the body of a request; Refused (INVALID), with the place, where a value is wrong."""
    try:
        return msgspec.convert(asked, shape)
    except msgspec.ValidationError as error:
        raise errors.invalid_body(error, shape) from error


# From a refusal to a field.

FIELD_OF_CODE: Final = {ErrorCode.NOTICE_TOO_SHORT: ("not_before", "closes_at")}
"""The fields, the first that is filled in, that a code is about."""

FIELD_OF_FACT: Final = {"closes": "closes_at", "opens": "opens_at", "length": "description"}
"""The field that a fact's name is about, where it is another."""

FIELD_OF_TARGET: Final = {"check": "check"}
"""The field with the name of what a refusal does not know, where it is no target."""


def field_of(refused: Refused, form: FilledForm, groups: Sequence[FieldGroup]) -> str:
    """Return the name of the field beside which a refusal is shown; `""` for the whole form."""
    known = {field.name for group in groups for field in group.fields}
    facts = refused.facts
    candidates = [str(facts.get("where", "")).removeprefix("policy.").partition("[")[0]]
    candidates += [name for name in FIELD_OF_CODE.get(refused.code, ()) if form.text(name)]
    candidates += [FIELD_OF_FACT.get(name, name) for name in facts]
    candidates.append(FIELD_OF_TARGET.get(str(facts.get("what", "")), ""))
    for candidate in candidates:
        for name in (candidate, candidate.removesuffix("_seconds")):
            if name in known:
                return name
    is_target = facts.keys() & {"what", "machine", "host", "scope"} or candidates[0] in {
        "machines",
        "scopes",
        "hosts",
    }
    return "targets" if is_target and "targets" in known else ""


REFUSED: Final = (model.Refused, StoreError)
"""What a form is shown again after."""


def mistake_of(
    error: Refused | StoreError, form: FilledForm, groups: Sequence[FieldGroup]
) -> Mistake:
    """Return why a form was refused: by the rules, or because the store is away."""
    where = field_of(error, form, groups) if isinstance(error, Refused) else ""
    return Mistake(where, str(error))


# Once, however often it is sent.


class SentForms:
    """Answers a form that is sent again as it was answered first; used on the event loop."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str, int], asyncio.Future[str]] = {}

    async def once(
        self,
        caller: OperatorRequest,
        key: str,
        act: Callable[[], Awaitable[str]],
        said: Iterable[tuple[str, str]] = (),
    ) -> str:
        """Act, unless this caller's form with this key was sent before; return where that led.

        With other values, of which `said` are all, it is another form: a browser's way back shows
        one that was sent. What was refused may be sent again with the same key.
        """
        if not key:
            return await act()
        place = (caller.by, key, hash(tuple(said)))
        known = self._answers.get(place)
        if known is None:
            known = self._answers[place] = asyncio.ensure_future(act())
            while len(self._answers) > MAX_REMEMBERED:
                del self._answers[next(iter(self._answers))]
        else:
            caller.recorded = True  # the first one is in the audit log
        try:
            return await asyncio.shield(known)
        except Exception:
            if self._answers.get(place) is known:
                del self._answers[place]
            raise
