"""Settings files, whoever's: TOML trees judged against the structs that say what may be in them.

A key that does not exist, a wrong type or a number out of bounds is refused with the file, its path
and what was expected. The environment overrides single keys: with the prefix `FOREWARN_SET_`,
`FOREWARN_SET_GUEST__HEAD_SECONDS=3` is `head_seconds` of `[guest]`. The service and the agent have
settings of their own, read by these same functions, so that they refuse by the same words.

Nothing heavy is imported here: the command line finds the service's socket by these functions.
"""

import difflib
import enum
import ipaddress
import json
import os
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

MAX_FILE_BYTES: Final = 1024 * 1024
"""The largest settings file that is read: hundreds of listeners or rules are a tenth of it."""

SYSTEM_CONFIG: Final = Path("/etc/forewarn")
SYSTEM_STATE: Final = Path("/var/lib/forewarn")

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Shape = TypeVar("Shape", bound=msgspec.Struct)

TOML_WORDS: Final = {
    "object": "table",
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
}
"""What TOML calls the types that msgspec names by other words."""


class SettingsError(Exception):
    """The settings cannot be used; the message is one line that says where and why."""


class Log(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a process says on its standard error."""

    format: Literal["auto", "console", "json"] = "auto"
    """`auto` is `console` on a terminal and `json`, one object a line, otherwise."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is logged; `info` is a few lines for each maintenance."""


def read(path: Path) -> dict[str, Any]:
    """Return the tree of a TOML file.

    Raises:
        SettingsError: It cannot be read, is too large, or is no TOML.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        message = f"the settings file {path} cannot be read: {error.strerror}"
        raise SettingsError(message) from error
    if len(data) > MAX_FILE_BYTES:
        message = f"the settings file {path} is over {MAX_FILE_BYTES} bytes: it is no settings file"
        raise SettingsError(message)
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        message = f"{path} is no TOML: {error}"
        raise SettingsError(message) from error


def judge_keys(tree: Mapping[str, Any], shape: type[msgspec.Struct], where: str) -> None:
    """Refuse the first key that does not exist, and name those that do.

    Args:
        tree: What was read.
        shape: What may be in it.
        where: Whose it is, for the message: a file, a variable.

    Raises:
        SettingsError: There is such a key.
    """
    _judge_keys(tree, shape, where, at="", top=shape)


def _judge_keys(
    tree: Mapping[str, Any],
    shape: type[msgspec.Struct],
    where: str,
    *,
    at: str,
    top: type[msgspec.Struct],
) -> None:
    """Do what `judge_keys` says; `at` is the path down to `tree`, with a dot at its end."""
    hints = typing.get_type_hints(shape)
    names = {field.encode_name: hints[field.name] for field in msgspec.structs.fields(shape)}
    for name, value in tree.items():
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            message = (
                f"{where}: there is no setting {at}{name}; "
                + (f"did you mean {at}{near[0]}? " if near else "")
                + f"{f'[{at[:-1]}]' if at else 'The file'} knows {', '.join(names)}"
                + (_of_the_top(name, top) if at else "")
            )
            raise SettingsError(message)
        inner = _struct_of(names[name])
        if inner is None:
            continue
        many = value if isinstance(value, list) else [value]
        for number, one in enumerate(many):
            place = f"{at}{name}[{number}]." if isinstance(value, list) else f"{at}{name}."
            if isinstance(one, dict):
                _judge_keys(one, inner, where, at=place, top=top)


def convert(tree: Mapping[str, Any], shape: type[Shape], where: str) -> Shape:
    """Return a tree as the struct that says what may be in it.

    Args:
        tree: What was read; `judge_keys` has passed it.
        shape: The struct.
        where: Whose it is, for the message.

    Raises:
        SettingsError: A value is of the wrong type or out of bounds, or one is missing.
    """
    try:
        return msgspec.convert(tree, shape)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$.")
        at = place.removesuffix("`")
        what = _in_toml_words(what)
        expected = _expected(at, shape, tree) if place else ""
        message = f"{where}: at {at}: {what}{expected}" if place else f"{where}: {what}"
        raise SettingsError(message) from error


def override(
    tree: dict[str, Any], environment: Mapping[str, str], prefix: str, shape: type[msgspec.Struct]
) -> bool:
    """Put the variables that begin with `prefix` into the tree, as their settings' types want it.

    Args:
        tree: What the files say; changed in place.
        environment: The process's variables.
        prefix: What the names of such variables begin with.
        shape: What may be in the tree.

    Returns:
        Whether there was any.

    Raises:
        SettingsError: One names no setting, or its value is none for that setting.
    """
    overriding = sorted(name for name in environment if name.startswith(prefix))
    for variable in overriding:
        _put(tree, variable, environment[variable], prefix, shape)
    return bool(overriding)


def state_folder(environment: Mapping[str, str]) -> Path:
    """Return where a process keeps its state if nothing else is said.

    `STATE_DIRECTORY` (which systemd sets), else `/var/lib/forewarn` for root, else
    `$XDG_STATE_HOME/forewarn`, which is `~/.local/state/forewarn` unless set.
    """
    given = environment.get("STATE_DIRECTORY")
    if given:
        return Path(given.split(":")[0])
    effective_user = getattr(os, "geteuid", None)  # there is none on Windows
    if effective_user is not None and effective_user() == 0:
        return SYSTEM_STATE
    return Path(environment.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "forewarn"


def find(environment: Mapping[str, str], variable: str, name: str) -> Path | None:
    """Return the settings file that is used where no option names one, None if there is none.

    In this order: the one that a variable names, the user's own
    (`$XDG_CONFIG_HOME/forewarn/NAME`), the system's (`/etc/forewarn/NAME`).

    Args:
        environment: The process's variables.
        variable: The variable that may name it.
        name: The file's name.
    """
    named = environment.get(variable)
    if named:
        return Path(named)
    own = Path(environment.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "forewarn"
    for candidate in (own / name, SYSTEM_CONFIG / name):
        if candidate.is_file():
            return candidate
    return None


def split_address(text: str, where: str) -> tuple[str, int]:
    """Return the address and port of `127.0.0.1:PORT` or `[::1]:PORT`.

    Raises:
        SettingsError: It is neither.
    """
    host, colon, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        number = int(port) if port.isascii() and port.isdigit() else -1
    except ValueError:
        address, number = None, -1
    bracketed = host.startswith("[") and host.endswith("]")
    if (
        not colon
        or address is None
        or not 0 <= number <= 65535
        or bracketed != (address.version == 6)
    ):
        message = (
            f"at {where}: {text!r} is no address with a port: "
            "give one such as '127.0.0.1:PORT' or '[::1]:PORT'"
        )
        raise SettingsError(message)
    return str(address), number


def each_setting(shape: type[msgspec.Struct], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted path and the default of every setting of a struct."""
    hints = typing.get_type_hints(shape)
    for field in msgspec.structs.fields(shape):
        at = f"{path}{field.encode_name}"
        inner = _struct_of(hints[field.name])
        if inner is None:
            made = field.default_factory
            yield at, field.default if made is msgspec.NODEFAULT else made()
        else:
            many = typing.get_origin(hints[field.name]) is tuple
            yield from each_setting(inner, f"{at}[]." if many else f"{at}.")


def _put(
    tree: dict[str, Any], variable: str, text: str, prefix: str, shape: type[msgspec.Struct]
) -> None:
    """Put one variable's value into the tree, as its setting's type wants it."""
    path = variable.removeprefix(prefix).lower().split("__")
    skeleton: Any = None
    for name in reversed(path):
        skeleton = {name: skeleton}
    judge_keys(skeleton, shape, variable)
    table: Any = tree
    holder = shape
    for depth, name in enumerate(path[:-1], 1):
        hint = typing.get_type_hints(holder)[name]
        inner = _struct_of(hint)
        if inner is None or inner is not hint:
            what = "is one value, not a table" if inner is None else "is given whole, as a list"
            message = f"{variable}: {'.'.join(path[:depth])} {what}"
            raise SettingsError(message + ("" if inner is None else " of tables"))
        holder = inner
        table = table.setdefault(name, {})
    hint = typing.get_type_hints(holder)[path[-1]]
    table[path[-1]] = text if _wants_text(hint) else _value(text)
    convert({path[0]: tree[path[0]]}, shape, variable)


def _value(text: str) -> object:
    """Return a TOML value, or the text itself where it is none."""
    try:
        tree = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return tree["value"] if len(tree) == 1 else text


def _of_the_top(name: str, top: type[msgspec.Struct]) -> str:
    """Return what a message adds where a setting of the top level stands in a table."""
    hint = typing.get_type_hints(top).get(name)
    if hint is None or _struct_of(hint) is not None:
        return ""
    return f"; {name} is a setting of the top level and belongs above the first table"


def _in_toml_words(what: str) -> str:
    """Return what msgspec says with TOML's names of the types."""

    def renamed(quoted: re.Match[str]) -> str:
        return re.sub(r"\w+", lambda word: TOML_WORDS.get(word[0], word[0]), quoted[0])

    return re.sub(r"`[a-z |]+`", renamed, what)


def _expected(at: str, top: type[msgspec.Struct], tree: Mapping[str, Any]) -> str:
    """Return what a message adds about the setting at this path; `""` for a table."""
    hint: object = top
    default: object = msgspec.NODEFAULT
    value: Any = tree
    for part in at.split("."):
        shape = _struct_of(hint)
        assert shape is not None  # msgspec names a path within the structs
        name, *indexes = part.replace("]", "").split("[")
        hint = typing.get_type_hints(shape)[name]
        default = next(f.default for f in msgspec.structs.fields(shape) if f.name == name)
        value = value.get(name)
        for index in indexes:
            value = value[int(index)] if index.isdigit() else None
    many = typing.get_origin(hint) is tuple and not at.endswith("]")
    if _struct_of(hint) is not None:
        table = re.sub(r"\[\d+\]", "", at)
        return f"; write [[{table}]]" if many and isinstance(value, dict) else ""
    choices = _choices(hint)
    if many and isinstance(value, str):
        return _as_list(value, choices)
    if choices:
        return f"; give one of {', '.join(repr(choice) for choice in choices)}"
    return "" if default is msgspec.NODEFAULT else f"; the default is {default!r}"


def _as_list(value: str, choices: list[str]) -> str:
    """Return what a message adds where a string stands for a list of them."""
    entries = [value if value in choices else choices[0]] if choices else value.split()
    plain = entries and not any(letter in value for letter in "'\"\\")
    return "; give a list" + (f", such as {json.dumps(entries)}" if plain else "")


def _struct_of(hint: object) -> type[msgspec.Struct] | None:
    """Return the struct that a field holds, one or many of; None for a plain value."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in {tuple, types.UnionType} and arguments:
        return _struct_of(arguments[0])  # in a union with None the struct stands first
    return None


def _choices(hint: object) -> list[str]:
    """Return the words that a setting, or each entry of its list, may be; none if it is free."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple and arguments:
        return _choices(arguments[0])
    if typing.get_origin(hint) is Literal:
        return [str(choice) for choice in arguments]
    if isinstance(hint, type) and issubclass(hint, enum.StrEnum):
        return [choice.value for choice in hint]
    return []


def _wants_text(hint: object) -> bool:
    return hint is str or (typing.get_origin(hint) is Literal)
