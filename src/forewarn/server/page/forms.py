"""The forms of the page: their fields, how what was typed becomes a request, and how it is sent.

A form becomes the very body that the API takes, so that the page can ask for nothing that the API
cannot. What was typed is kept as it was: a form that is refused is shown with it again, and with
the reason beside the field.

A form of maintenance has a key, made when it was shown: sent twice, it asks once
(`idempotency_key`).
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode

from forewarn import times
from forewarn.maintenance import model
from forewarn.maintenance.model import Refused
from forewarn.server.operator import fields, maintenance_schemas, schemas, table
from forewarn.server.operator.fields import Control, Field, FieldGroup
from forewarn.settings import Mistake
from forewarn.store.port import StoreError
from forewarn.vocabulary import ErrorCode

MAX_FIELDS: Final = 1200
"""The most fields of a form: a box for each of 500 scopes and 500 hosts, and some thirty others."""

TICKED: Final = "ticked"
"""The field with the names of those whose values are whole names: a host's may have blanks."""

replace = dataclasses.replace


class FilledForm:
    """A form that a browser sent, or a query: names and values, as they were typed."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self.pairs = tuple(pairs)

    def text(self, name: str) -> str:
        """Return a field's text without blanks around it; `""` where there is none."""
        return self.whole(name).strip()

    def whole(self, name: str) -> str:
        """Return a field's text with its blanks: a host's name may begin or end with them."""
        return next((value for each, value in self.pairs if each == name), "")

    def all(self, name: str) -> tuple[str, ...]:
        """Return all values of a field that may be sent several times, without empty ones."""
        return tuple(value for each, value in self.pairs if each == name and value)

    def checked(self, name: str) -> bool:
        """Tell whether a box is checked."""
        return bool(self.all(name))

    def names(self, name: str) -> tuple[str, ...]:
        """Return names: ticked ones, or with blanks, commas or line ends between them."""
        given = self.all(name)
        if name in self.all(TICKED):
            return given
        return tuple(" ".join(given).replace(",", " ").split())

    def lines(self, name: str) -> tuple[str, ...]:
        """Return a field's lines, without empty ones."""
        lines = (line.strip() for line in self.text(name).splitlines())
        return tuple(line for line in lines if line)

    def filled(self, **texts: str) -> "FilledForm":
        """Return the form with other texts in some fields."""
        kept = (pair for pair in self.pairs if pair[0] not in texts)
        return FilledForm([*kept, *texts.items()])

    def query(self) -> str:
        """Return it as the query of a link."""
        return urlencode([pair for pair in self.pairs if pair[1]])


class Draft(NamedTuple):
    """A form as it is shown: with the reason and the status if it was refused."""

    form: FilledForm
    mistake: Mistake | None = None
    status: int = 200


def sent(body: bytes) -> FilledForm:
    """Read a form that a browser sent as `application/x-www-form-urlencoded`.

    Raises:
        Refused: It cannot be read, or has too many fields (INVALID).
    """
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"
        )
    except ValueError as error:
        message = f"the form cannot be read: expected at most {MAX_FIELDS} fields in UTF-8"
        raise Refused(ErrorCode.INVALID, message) from error
    return FilledForm(pairs)


def default(groups: Sequence[FieldGroup]) -> FilledForm:
    """Return a form with the defaults of its fields."""
    choices = (f for group in groups for f in group.fields if f.control is Control.CHOICE)
    return FilledForm((field.name, field.default) for field in choices if field.default)


def suggesting(
    groups: Sequence[FieldGroup], known: Mapping[str, Sequence[str]]
) -> tuple[FieldGroup, ...]:
    """Return groups in which fields suggest known values, by their names."""

    def of(field: Field) -> Field:
        choices = tuple((value, value) for value in known.get(field.name, ()))
        return replace(field, choices=choices) if field.name in known else field

    return tuple(replace(group, fields=tuple(map(of, group.fields))) for group in groups)


# From a form to a request.


def maintenance(form: FilledForm, now: datetime) -> maintenance_schemas.MaintenanceRequest:
    """Return the request for maintenance in a form.

    Raises:
        Refused: A field cannot be read (INVALID); its fact `where` names the field.
    """
    given = {name: value(field, form, now) for name, field in fields.MAINTENANCE.items()}
    if not any(given[name] for name in fields.TARGETS):
        message = "expected names of machines, scopes or hosts, or tags"
        raise Refused(ErrorCode.INVALID, message, where=fields.TARGETS[0])
    key = form.text("key")
    body = {**fields.body(given), "idempotency_key": key}
    return table.converted(body, maintenance_schemas.MaintenanceRequest)


def value(field: Field, form: FilledForm, now: datetime) -> Any:  # noqa: ANN401 - the reader's
    """Read what was typed into a field; None for nothing, and for a choice that is the default.

    Raises:
        Refused: It cannot be read (INVALID); the fact `where` names the field.
    """
    text = form.text(field.name)
    try:
        match field.control:
            case Control.CHECK:
                return form.checked(field.name)
            case Control.NAMES:
                return field.gather(form.names(field.name))
            case Control.LINES:
                return field.gather([field.read(line) for line in form.lines(field.name)])
            case Control.CHOICE:
                is_default = text == field.default and field.name != "event_type"
                return None if is_default else text
        if text and field.is_time:
            return moment(text, now, field.read)
        return field.read(text) if text or field.required else None
    except ValueError as error:
        raise Refused(ErrorCode.INVALID, str(error), where=field.name) from error


def span(form: FilledForm, now: datetime) -> dict[str, datetime | None]:
    """Read the times `since` and `until` of a filter, as `value` does."""
    return {field.name: value(field, form, now) for field in fields.HISTORY.fields if field.is_time}


def settled(form: FilledForm, now: datetime) -> FilledForm:
    """Return a form with times in place of spans: what was planned at +20m does not move."""
    moments = (field for field in fields.MAINTENANCE.values() if field.is_time)
    given = {field.name: moment(form.text(field.name), now) for field in moments}
    return form.filled(**{name: times.precise(at) for name, at in given.items() if at is not None})


def moment(
    text: str, now: datetime, reader: Callable[[str], object] = times.moment
) -> datetime | None:
    """Read a time, a time of day or a span from now; in UTC without a zone. None for no text."""
    if not text:
        return None
    if len(text) in ZONELESS and text[0].isdecimal():
        text += "Z"
    read = reader(text)
    if isinstance(read, time):
        return times.next_time_of_day(read, now, UTC)
    if isinstance(read, timedelta):
        return now + read
    assert isinstance(read, datetime)
    return read


ZONELESS: Final = frozenset({len("2026-11-22T22:00"), len("2026-11-22T22:00:00")})
"""The lengths of times without a zone, as a browser's own field writes them, too."""


def number(text: str) -> int:
    """Return a number; NOT_FOUND for what is none, as nothing is called so."""
    if text.isdecimal() and len(text) <= len(str(schemas.MAX_NUMBER)):
        return int(text)
    raise Refused(ErrorCode.NOT_FOUND, f"number {text[:80]!r} not found")


# From a refusal to a field.

FIELD_OF_CODE: Final = {ErrorCode.NOTICE_TOO_SHORT: ("not_before", "closes_at")}
"""The fields, the first that is filled in, that a code is about."""

FIELD_OF_FACT: Final = {
    "machine": "machines",
    "scope": "scopes",
    "host": "hosts",
}
"""The field that a fact's name is about, or what a refusal does not know, where it is another."""


def field_of(refused: Refused, form: FilledForm, groups: Sequence[FieldGroup]) -> str:
    """Return the name of the field beside which a refusal is shown; `""` for the whole form."""
    facts = refused.facts
    candidates = [fields.of_place(str(facts.get("where", "")))]
    candidates += [name for name in FIELD_OF_CODE.get(refused.code, ()) if form.text(name)]
    candidates += [str(facts.get("what", "")), *facts]
    known = {field.name for group in groups for field in group.fields}
    found = (FIELD_OF_FACT.get(candidate, candidate) for candidate in candidates)
    return next((name for name in found if name in known), "")


REFUSED: Final = (model.Refused, StoreError)
"""The errors after which a form is shown again."""
