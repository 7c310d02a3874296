"""What is wrong with a body, in words: where, what was expected, and what was probably meant.

msgspec says what it met first, and its path. What stands there and what may stand there is found
again by that path in the body, of which only the way down is decoded: it may be a large fleet.
"""

import difflib
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import inspect

from forewarn.maintenance.model import Refused
from forewarn.vocabulary import ErrorCode

JSON_WORDS: Final = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
"""What JSON calls the types that msgspec names by other words."""

MOST_SHOWN: Final = 80
"""The most characters of what was given that a message repeats."""

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_OTHER_TYPE = re.compile(r"Expected `(.*)`, got `(.*)`")
_CHOICE = "Invalid enum value "
_NO_TIME = "Invalid RFC3339 encoded datetime"
_NO_ZONE = "Expected `datetime` with a timezone component"

_OF_KEY = "key` in `"
_OF_VALUE = "[...]"
"""How msgspec marks a path to a key or a value of an object whose keys are free."""


def no_json(error: msgspec.DecodeError) -> Refused:
    """Return the refusal of a body that is no JSON."""
    what = str(error).removeprefix("JSON is malformed: ")
    return Refused(ErrorCode.INVALID, f"the body is no JSON: {what[:1].lower()}{what[1:]}")


def refusal(error: msgspec.ValidationError, body: bytes, shape: type) -> Refused:
    """Return the refusal of a body that has not the shape that it should have.

    Args:
        error: What msgspec said.
        body: The whole body, which is JSON.
        shape: What it was to be.

    Returns:
        A refusal with the facts `where`, the place from the top (`machine[0].host`; `""` is the
        body itself), `key` where one is unknown or missing, and `expected` and `got` where the
        type is another.
    """
    what, path = _split(str(error))
    where = path.removeprefix(_OF_KEY).removesuffix(_OF_VALUE)
    kind, given = _find(body, inspect.type_info(shape), where)
    at = f"at {where}: " if where else "the body: "
    if path != where and isinstance(kind, inspect.DictType) and isinstance(given, dict):
        name, kind, given = _entry(kind, given, of_key=path.startswith(_OF_KEY))
        at += f"{_shown(name)}: "
    message, facts = _said(what, kind, given)
    return Refused(ErrorCode.INVALID, f"{at}{message}", where=where, **facts)


def of_parameter(what: str, given: Sequence[str], annotation: object) -> str:
    """Return what is said of a query's parameter: what was expected, and what was given.

    Args:
        what: What msgspec said.
        given: Its values.
        annotation: The type of what it was to be; a list for one that may be repeated.
    """
    kind = _plain(inspect.type_info(annotation))
    if isinstance(kind, inspect.ListType):
        kind = _plain(kind.item_type)
    choices = _choices_of(kind)
    met = next((text for text in given if text not in choices), "")
    if other := _OTHER_TYPE.fullmatch(what):
        expected = _word(other[1])
        wanted = "true or false" if expected == "boolean" else f"`{expected}`"
        return f"expected {wanted}, got {_shown(met)}"
    if isinstance(kind, inspect.IntType):
        return f"{_said(what, kind, None)[0]}, got {_shown(met)}"
    return _said(what, kind, met)[0]


def nearest(name: str, known: Sequence[str]) -> str:
    """Return what was probably meant, as `; did you mean 'address'?`; `""` if nothing is near."""
    by_case = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), by_case, n=1)
    return f"; did you mean {by_case[near[0]]!r}?" if near else ""


def _no_choice(given: object, choices: Sequence[object]) -> str:
    """Return what is said of a value that is none of those that are accepted."""
    accepted = ", ".join(map(_shown, choices))
    if len(choices) == 1:
        return f"expected {accepted}, got {_shown(given)}"
    near = nearest(str(given), [str(choice) for choice in choices])
    return f"{_shown(given)} is none of {accepted}{near}"


def _choices_of(kind: inspect.Type | None) -> list[object]:
    """Return the values that a type accepts; none if it is free."""
    if isinstance(kind, inspect.EnumType):
        return [member.value for member in kind.cls]
    if isinstance(kind, inspect.LiteralType):
        return list(kind.values)
    return []


def _split(text: str) -> tuple[str, str]:
    """Return what msgspec says and where; a place within a free object keeps its mark."""
    what, at, path = text.rpartition(" - at `")
    if not at:
        return text, ""
    mark = _OF_KEY if path.startswith(_OF_KEY) else ""
    return what, mark + path.removeprefix(mark).removesuffix("`").removeprefix("$").lstrip(".")


def _entry(kind: inspect.DictType, given: dict[str, Any], *, of_key: bool) -> tuple[str, Any, Any]:
    """Return the first entry of an object of free keys that is wrong, and what of it may be."""
    allowed = _plain(kind.key_type if of_key else kind.value_type)
    most = getattr(allowed, "max_length", None) or 0
    for name, value in given.items():
        one = name if of_key else value
        if not isinstance(one, str) or len(one) > most:
            return name, allowed, one
    return "", allowed, None


def _find(body: bytes, kind: inspect.Type, where: str) -> tuple[inspect.Type | None, Any]:
    """Return what may stand at a place of the body, and what does; None where that is not known."""
    allowed: inspect.Type | None = kind
    raw = msgspec.Raw(body)
    try:
        for name, index in _STEP.findall(where):
            allowed = _within(allowed, name)
            if name:
                raw = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])[name]
            else:
                raw = msgspec.json.decode(raw, type=list[msgspec.Raw])[int(index)]
        return _plain(allowed), msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, LookupError, RecursionError):
        return _plain(allowed), None


def _within(kind: inspect.Type | None, name: str) -> inspect.Type | None:
    """Return what may stand in a field, or in an entry of a list where there is no name."""
    kind = _plain(kind)
    if name and isinstance(kind, inspect.StructType):
        return next((f.type for f in kind.fields if f.encode_name == name), None)
    if not name and isinstance(kind, inspect.VarTupleType):
        return kind.item_type
    return None


def _plain(kind: inspect.Type | None) -> inspect.Type | None:
    """Return a type without what is said about it, and without that it may be null."""
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        kind = _plain(next(t for t in kind.types if not isinstance(t, inspect.NoneType)))
    return kind


def _said(what: str, allowed: inspect.Type | None, given: object) -> tuple[str, dict[str, str]]:
    """Return what is said of a place, and the facts of it."""
    if unknown := _UNKNOWN.fullmatch(what):
        name = unknown[1]
        fields = allowed.fields if isinstance(allowed, inspect.StructType) else ()
        known = [field.encode_name for field in fields]
        near = nearest(name, known)
        listed = f"{near} Known are" if near else "; known are"
        message = f"there is no key {_shown(name)} here{listed} {', '.join(known)}"
        return message, {"key": name[:MOST_SHOWN]}
    if missing := _MISSING.fullmatch(what):
        return f"the key {missing[1]!r} is missing", {"key": missing[1]}
    choices = _choices_of(allowed)
    if what.startswith(_CHOICE) and choices and given is not None:
        return _no_choice(given, choices), {}
    if what in {_NO_TIME, _NO_ZONE} and given is not None:
        no_zone = "names no time zone: add one, as Z"
        no_time = "is no time: give one such as 2026-03-01T12:00:00Z"
        return f"{_shown(given)} {no_zone if what == _NO_ZONE else no_time}", {}
    if other := _OTHER_TYPE.fullmatch(what):
        expected, met = map(_word, other.groups())
        give = "; give one of " if len(choices) > 1 else "; give "
        accepted = give + ", ".join(map(_shown, choices)) if choices else ""
        message = f"expected `{expected}`, got `{met}`{accepted}"
        return message, {"expected": expected, "got": met}
    said = re.sub(r"`(\w+)`", lambda word: f"`{_word(word[1])}`", what)
    return f"{said[:1].lower()}{said[1:]}{_measure(given)}", {}


def _word(named: str) -> str:
    """Return the name of a type as JSON has it; that it may also be null is left out."""
    plain = named.removesuffix(" | null")
    return JSON_WORDS.get(plain, plain)


def _measure(given: object) -> str:
    """Return how much was given where a number or a length is out of bounds."""
    if isinstance(given, str | list | dict):
        return f", got {len(given)}"
    return f", got {_shown(given)}" if isinstance(given, int | float) else ""


def _shown(given: object) -> str:
    """Return what was given, cut short: a text in quotes, anything else as JSON has it."""
    text = repr(given) if isinstance(given, str) else msgspec.json.encode(given).decode()
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
