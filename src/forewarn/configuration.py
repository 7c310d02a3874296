"""Settings files, whoever's: TOML trees judged against the structs that say what may be in them.

A key that does not exist, a wrong type or a number out of bounds is refused with the file, its path
and what was expected: all of them at once, in the file's order. The environment overrides single
keys: with the prefix `FOREWARN_SET_`,
`FOREWARN_SET_GUEST__HEAD_SECONDS=3` is `head_seconds` of `[guest]`. The service and the agent have
settings of their own, read by these same functions, so that they refuse by the same words.

Nothing heavy is imported here: the command line finds the service's socket by these functions.
"""

import difflib
import enum
import functools
import ipaddress
import json
import os
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import msgspec

MAX_FILE_BYTES: Final = 1024 * 1024
"""The largest settings file that is read: hundreds of listeners or rules are a tenth of it."""

MAX_MISTAKES: Final = 20
"""How many mistakes are told at once: a screen of them. More have one cause, or wait their turn."""

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
    """The settings cannot be used; each line of the message says where and why.

    Args:
        mistakes: One line each, in their order. Of more than MAX_MISTAKES the last line of the
            message says only how many there are.
    """

    def __init__(self, *mistakes: str) -> None:
        self.mistakes = mistakes
        """All of them."""
        more = len(mistakes) - MAX_MISTAKES
        last = (f"there are {more} more mistakes",) if more > 0 else ()
        super().__init__("\n".join((*mistakes[:MAX_MISTAKES], *last)))


class Mistake(msgspec.Struct, frozen=True):
    """One thing that is wrong in a tree."""

    text: str
    """Where and why."""
    position: tuple[int, ...]
    """Where, as the tree orders its keys and entries."""
    judged: bool
    """Whether the types are right, and a rule of the settings' own forbids it."""


Verdicts: TypeAlias = Mapping[type[msgspec.Struct], Callable[[Any, str], Iterable[str]]]
"""By the struct: takes one, and its path, and yields what no type tells is wrong with it, such as
`at guest.listener[0].address: ...`."""


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


def mistakes(
    tree: Mapping[str, Any],
    shape: type[msgspec.Struct],
    verdicts: Verdicts = types.MappingProxyType({}),
    across: Callable[[Mapping[str, Any]], Iterable[str]] = lambda _: (),
) -> list[Mistake]:
    """Return everything that is wrong with a tree, in its order; nothing if it can be converted.

    Args:
        tree: What was read.
        shape: What may be in it.
        verdicts: What no type tells; asked for each table that has the right types.
        across: Yields what no single table tells. It is given the tree as it is.
    """
    judging = _Judging(tree, shape, verdicts)
    judging.table(tree, shape, "")
    for text in across(tree):
        judging.add(text.removeprefix("at ").partition(": ")[0], text, judged=True)
    if not judging.found:
        judging.value(tree, shape, "")  # whole, as it is going to be
    return sorted(judging.found, key=lambda mistake: mistake.position)


class _Judging:
    """Goes through a tree, and keeps what is wrong.

    Args:
        tree: All of it.
        top: What may be in it.
        verdicts: As `mistakes` takes them.
    """

    def __init__(
        self, tree: Mapping[str, Any], top: type[msgspec.Struct], verdicts: Verdicts
    ) -> None:
        self.found: list[Mistake] = []
        self._tree = tree
        self._top = top
        self._verdicts = verdicts

    def add(self, at: str, text: str, *, judged: bool = False) -> None:
        """Keep a mistake, with the path of what is wrong."""
        self.found.append(Mistake(text, _position(self._tree, at), judged))

    def table(self, tree: Mapping[str, Any], shape: type[msgspec.Struct], at: str) -> None:
        """Judge a table; `at` is the path down to it, with a dot at its end."""
        before = len(self.found)
        fields = _fields(shape)
        for name, value in tree.items():
            if name in fields:
                self._setting(value, fields[name], f"{at}{name}")
            else:
                self.add(f"{at}{name}", _unknown(name, shape, at, self._top))
        for field in msgspec.structs.fields(shape):
            if field.required and field.encode_name not in tree:
                place = at.removesuffix(".")
                self.add(place, f"at {place}: Object missing required field `{field.encode_name}`")
        if shape in self._verdicts and len(self.found) == before:
            place = at.removesuffix(".")
            for text in self._verdicts[shape](msgspec.convert(tree, shape), place):
                self.add(text.removeprefix("at ").partition(": ")[0], text, judged=True)

    def _setting(self, value: object, hint: object, at: str) -> None:
        """Judge what is given for one setting."""
        inner = _struct_of(hint)
        many = typing.get_origin(_plain(hint)) is tuple
        before = len(self.found)
        if inner is not None and many and isinstance(value, list):
            for number, one in enumerate(value):
                place = f"{at}[{number}]"
                if isinstance(one, dict):
                    self.table(one, inner, f"{place}.")
                else:
                    self.value(one, inner, place)
            if len(self.found) == before:
                self.value(value, hint, at)  # how many there may be
            return
        if inner is None or many or not isinstance(value, dict):
            self.value(value, hint, at)
        if inner is not None and isinstance(value, dict):
            self.table(value, inner, f"{at}.")

    def value(self, value: object, hint: object, at: str) -> None:
        """Judge a value by its type alone."""
        try:
            msgspec.convert(value, hint)
        except msgspec.ValidationError as error:
            what, _, within = str(error).partition(" - at `$")
            place = (at + within.removesuffix("`")).removeprefix(".")
            expected = _expected(place, self._top, self._tree) if place else ""
            text = f"{_in_toml_words(what)}{expected}"
            self.add(place, f"at {place}: {text}" if place else text)


def override(
    environment: Mapping[str, str],
    prefix: str,
    shape: type[msgspec.Struct],
    verdicts: Verdicts = types.MappingProxyType({}),
    across: Callable[[Mapping[str, Any]], Iterable[str]] = lambda _: (),
) -> tuple[dict[str, Any], list[str]]:
    """Return what the variables that begin with `prefix` say, and what is wrong with them.

    Args:
        environment: The process's variables.
        prefix: What the names of such variables begin with.
        shape: What they may set.
        verdicts: As `mistakes` takes them; each variable is judged by itself.
        across: As `mistakes` takes it.

    Returns:
        A tree, with each value as its setting's type wants it, without those that are none; and a
        line for each mistake.
    """
    tree: dict[str, Any] = {}
    wrong: list[str] = []
    for variable in sorted(name for name in environment if name.startswith(prefix)):
        path = variable.removeprefix(prefix).lower().split("__")
        try:
            own = _tree_of(path, environment[variable], shape)
        except SettingsError as error:
            found = list(error.mistakes)
        else:
            found = [mistake.text for mistake in mistakes(own, shape, verdicts, across)]
            tree = tree if found else merged(tree, own)
        wrong += [f"{variable}: {text}" for text in found]
    return tree, wrong


def merged(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Return both trees, and the later one's word where they speak of the same."""
    both = dict(earlier)
    for key, value in later.items():
        before = both.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            both[key] = merged(before, value)
        else:
            both[key] = value
    return both


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


def _tree_of(path: list[str], text: str, top: type[msgspec.Struct]) -> dict[str, Any]:
    """Return one variable's value as a tree of its own, as its setting's type wants it.

    Raises:
        SettingsError: The path leads to no setting.
    """
    hint: Any = top
    for depth, name in enumerate(path):
        at = ".".join(path[:depth])
        shape = _struct_of(hint)
        if shape is None:
            message = f"{at} is one value, not a table"
            raise SettingsError(message)
        if shape is not hint:
            message = f"{at} is given whole, as a list of tables"
            raise SettingsError(message)
        if name not in _fields(shape):
            raise SettingsError(_unknown(name, shape, f"{at}." if at else "", top))
        hint = _fields(shape)[name]
    tree: Any = text if _wants_text(hint) else _value(text)
    for name in reversed(path):
        tree = {name: tree}
    assert isinstance(tree, dict)
    return tree


@functools.cache
def _fields(shape: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the type of each setting of a table, by its name."""
    hints = typing.get_type_hints(shape, include_extras=True)
    return {field.encode_name: hints[field.name] for field in msgspec.structs.fields(shape)}


def _plain(hint: object) -> object:
    """Return a type without its bounds."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def _position(tree: object, at: str) -> tuple[int, ...]:
    """Return where in a tree a path leads, as far as there is something."""
    position: list[int] = []
    for part in re.findall(r"[^.\[\]]+", at):
        if isinstance(tree, dict) and part in tree:
            position.append(list(tree).index(part))
            tree = tree[part]
        elif isinstance(tree, list) and part.isdigit() and int(part) < len(tree):
            position.append(int(part))
            tree = tree[int(part)]
        else:
            break
    return tuple(position)


def _unknown(name: str, shape: type[msgspec.Struct], at: str, top: type[msgspec.Struct]) -> str:
    """Return what is said of a key that does not exist in a table at a path."""
    names = _fields(shape)
    near = difflib.get_close_matches(name, names, n=1)
    return (
        f"there is no setting {at}{name}; "
        + (f"did you mean {at}{near[0]}? " if near else "")
        + f"{f'[{at[:-1]}]' if at else 'The file'} knows {', '.join(names)}"
        + (_of_the_top(name, top) if at else "")
    )


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
    for part in at.replace("[...]", "[*]").split("."):
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
    hint = _plain(hint)
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
