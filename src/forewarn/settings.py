"""Settings files: TOML trees converted to structs, with errors that say where and what to do.

The settings themselves are in `server/settings.py` and `agent/settings.py`. The environment
overrides single ones: `FOREWARN_SET_GUEST__HEAD_SECONDS=3` is `head_seconds` of `[guest]`. A rule
that no type expresses is in the struct's `__post_init__`, which raises `FieldError`.
"""

import contextlib
import difflib
import enum
import errno
import functools
import ipaddress
import os
import re
import stat
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

MAX_FILE_BYTES: Final = 1024 * 1024
"""The largest settings file that is read: hundreds of listeners or rules are a tenth of it."""

SYSTEM_CONFIG: Final = Path("/etc/forewarn")
SYSTEM_STATE: Final = Path("/var/lib/forewarn")

OFF: Final = "off"
"""In place of an address or a path: there is none."""

NOT_TOML: Final = (ValueError, RecursionError)
"""The errors of tomllib: beside its own ValueError those of int, for thousands of digits, and of
the interpreter, for thousands of brackets."""

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
FileName = Annotated[str, msgspec.Meta(extra={"is_file": True})]
"""A file or a folder; `placed` makes it absolute."""
Tree: TypeAlias = Mapping[str, Any]
Source: TypeAlias = tuple[str, Tree]
"""The origin of settings, a file or a variable, and the tree that it gives."""
T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

_UNKNOWN_KEY: Final = "Object contains unknown field `"
_NAME: Final = re.compile(r"matching regex '\^\[A-Za-z0-9]\[A-Za-z0-9([^]]+)]\{0,(\d+)}")
_PATH: Final = " - at `"
"""msgspec ends an error with the path, as ``Expected `int` - at `$.guest.listener[0].port` ``."""


class SettingsError(Exception):
    """The settings cannot be used; the message says where and why."""


@functools.cache
def prepare_types() -> None:
    """Make msgspec inspect each struct now, before there are threads.

    It inspects one when it is first decoded. Of one with an enumeration, another thread may then
    use a half-made one, and the process ends by SIGSEGV (msgspec 0.22.0).
    """
    kinds: list[type[msgspec.Struct]] = [msgspec.Struct]
    for kind in kinds:
        kinds += kind.__subclasses__()
    for kind in kinds[1:]:
        with contextlib.suppress(TypeError, NameError):  # what is never decoded may have any field
            msgspec.json.Decoder(kind)


class FieldError(ValueError):
    """A field, or the whole struct for `""`, breaks a rule that no type expresses."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class Mistake(NamedTuple):
    """A mistake in a tree."""

    where: str
    """The path, such as `guest.listener[0].port`; `""` is the top."""
    what: str
    """The expected value, and the remedy."""

    def __str__(self) -> str:
        """Return both, as a message has them."""
        return f"{self.where}: {self.what}" if self.where else self.what


class Log(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The log of a process on its standard error."""

    format: Literal["auto", "console", "json"] = "auto"
    """`auto` is `console` on a terminal and `json`, one object a line, otherwise."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is logged; `info` is a few lines for each maintenance."""


def open_file(path: Path) -> BinaryIO:
    """Open a file that an operator wrote; OSError unless it is an ordinary one.

    A FIFO would block its reader for ever: it is opened without waiting, and refused.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)
    number = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is not an ordinary file")
    return os.fdopen(number, "rb")


def read(path: Path) -> dict[str, Any]:
    """Return the tree of a TOML file."""
    try:
        with open_file(path) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"{path}: cannot read the settings file: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise SettingsError(f"{path}: larger than {MAX_FILE_BYTES} bytes; is this a settings file?")
    text = _text(data, path)
    try:
        return tomllib.loads(text)
    except NOT_TOML as error:
        raise SettingsError(f"{path}: invalid TOML: {error}") from error


def _text(data: bytes, source: str | Path) -> str:
    try:
        text = data.decode("utf-8-sig")  # editors on Windows write the mark
    except UnicodeDecodeError as error:
        raise SettingsError(f"{source}: not UTF-8 text: save it as UTF-8") from error
    if r"\u0000" in text or r"\U00000000" in text:
        raise SettingsError(f"{source}: contains a NUL character: remove it")
    return text


def overrides(environment: Mapping[str, str], prefix: str, shape: type) -> list[Source]:
    """Return a source for each variable whose name begins with `prefix`, in the names' order.

    A setting of `shape` that is text takes the value as it is, any other as TOML if it is TOML.
    """
    sources = []
    for variable in sorted(name for name in environment if name.startswith(prefix)):
        path = variable.removeprefix(prefix).lower().split("__")
        tree: Any = _text(environment[variable].encode(errors="surrogatepass"), variable)
        hint = _type_at(shape, path)
        if hint is not str and typing.get_origin(hint) is not Literal:
            tree = _toml_value(tree)
        for name in reversed(path):
            tree = {name: tree}
        sources.append((variable, tree))
    return sources


def merged(earlier: Tree, later: Tree) -> dict[str, Any]:
    """Return both trees as one; the later one wins where both have a setting."""
    both = {**earlier, **later}
    for key in earlier.keys() & later.keys():
        if isinstance(earlier[key], dict) and isinstance(later[key], dict):
            both[key] = merged(earlier[key], later[key])
    return both


def gathered(
    path: Path | None, environment: Mapping[str, str], prefix: str, shape: type
) -> tuple[dict[str, Any], list[Source]]:
    """Return the tree of a file, if there is one, and of the environment, and their sources."""
    sources: list[Source] = [(str(path), read(path))] if path else []
    sources += overrides(environment, prefix, shape)
    tree: dict[str, Any] = {}
    for _, own in sources:
        tree = merged(tree, own)
    return tree, sources


_WORDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
}
"""The types of msgspec's errors as people call them in any format."""

_TOML: Final = {**_WORDS, "array": "a list", "object": "a table", "null": "nothing"}


def _in_words(what: str, called: Mapping[str, str]) -> str:
    def words(found: re.Match[str]) -> str:
        return " or ".join(called.get(kind, f"`{kind}`") for kind in found[1].split(" | "))

    return re.sub(r"`([a-z| ]+)`", words, what)


def convert(tree: Tree, shape: type[T], sources: Sequence[Source]) -> T:
    """Return the settings that the merged tree of some sources holds; later sources come last.

    A SettingsError has the first mistake, and the source that has it by itself, else all of them.
    """
    try:
        return msgspec.convert(tree, shape)
    except msgspec.ValidationError as error:
        mistake = explain(error, shape)
    blamed = " and ".join(name for name, _ in sources)
    for name, own in reversed(sources):
        try:
            msgspec.convert(own, shape)
        except msgspec.ValidationError as error:
            alone = explain(error, shape)
            if alone.what == mistake.what:
                blamed, mistake = name, alone
                break
    raise SettingsError(f"{blamed}: {_in_words(str(mistake), _TOML)}")


def placed(loaded: S, base: Path) -> S:
    """Return settings with every FileName made absolute: a relative one starts at `base`.

    `""` and OFF stay as they are.
    """
    changed = {}
    for field in msgspec.structs.fields(loaded):
        before = getattr(loaded, field.name)
        after = _placed(before, field.type, base)
        if after != before:
            changed[field.name] = after
    return msgspec.structs.replace(loaded, **changed) if changed else loaded


def _placed(value: Any, kind: Any, base: Path) -> Any:  # noqa: ANN401 - of any setting
    if isinstance(value, msgspec.Struct):
        return placed(value, base)
    if isinstance(value, tuple):
        element = next(iter(typing.get_args(kind)), None)
        return tuple(_placed(each, element, base) for each in value)
    if kind != FileName or value in {"", OFF}:
        return value
    try:
        return str(base / Path(value).expanduser())
    except RuntimeError as error:
        message = f"no home folder for {value!r}: give the full path"
        raise SettingsError(message) from error


def explain(error: msgspec.ValidationError, shape: type) -> Mistake:
    """Return msgspec's first error, with its path and with the remedy.

    Settings files and request bodies are both explained here; `shape` is what was expected.
    """
    what, marked, path = str(error).rpartition(_PATH)
    if not marked:
        what, path = path, ""
    where = path.rpartition("$")[2].removesuffix("`").removeprefix(".")
    if isinstance(error.__cause__, FieldError):
        return Mistake(".".join(filter(None, (where, error.__cause__.field))), what)
    hint = _type_at(shape, re.findall(r"\[[^]]*\]|[^.[]+", where))
    if what.startswith(_UNKNOWN_KEY):
        name = what.removeprefix(_UNKNOWN_KEY).removesuffix("`")
        what = f"unknown key {name!r}{suggestion(name, _fields(hint))}"
    elif choices := _choices(hint):
        what = f"{what}; expected one of {', '.join(map(repr, choices))}"
    elif named := _NAME.search(what):
        signs = " ".join(named[1])
        what = f"expected at most {int(named[2]) + 1} letters, digits and {signs}, no sign first"
    elif _element(hint) is not None and "got `object`" in what:
        table = re.sub(r"\[\d+\]", "", where)
        what = f"{what}; in TOML write [[{table}]]"
    what = _in_words(what, _WORDS)
    return Mistake(where, what[:1].lower() + what[1:])


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)`, or the list of known names if none is similar."""
    names = tuple(known)
    if near := nearest(name, names):
        return f" (did you mean {str(near)!r}?)"
    return f"; known: {', '.join(names) or 'none'}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most similar, whatever its case; `""` if none is."""
    by_case = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_case, n=1)
    return by_case[near[0]] if near else ""


def state_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of a process's state if no setting names one.

    `STATE_DIRECTORY` (which systemd sets), else `/var/lib/forewarn` for root, else `forewarn` in
    `$XDG_STATE_HOME` or `~/.local/state`.
    """
    given = environment.get("STATE_DIRECTORY")
    if given:
        return Path(given.split(":")[0])
    if getattr(os, "geteuid", lambda: 1)() == 0:  # Windows has none
        return SYSTEM_STATE
    try:
        own = Path(environment.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    except RuntimeError as error:  # a user without a home folder
        message = "no folder for the state: this user has no home folder; set STATE_DIRECTORY"
        raise SettingsError(message) from error
    return own / "forewarn"


def own_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the folder of the user's own settings; None for a user without a home folder."""
    with contextlib.suppress(RuntimeError):  # as a unit's user may be
        own = Path(environment.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
        return own / "forewarn"
    return None


def find(environment: Mapping[str, str], variable: str, name: str) -> Path | None:
    """Return the settings file that is used if no option names one; None if there is no file.

    The first of: the file that the variable names, `$XDG_CONFIG_HOME/forewarn/NAME`,
    `/etc/forewarn/NAME`. A file that cannot be read counts as found, such as a symlink to nowhere
    or one in a folder that is closed to this user: its reader says so, and no other file is taken.
    """
    if named := environment.get(variable):
        return Path(named)
    own = own_folder(environment)
    candidates = [*([] if own is None else [own / name]), SYSTEM_CONFIG / name]
    return next(filter(_is_there, candidates), None)


def _is_there(file: Path) -> bool:
    try:
        file.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def check_address(field: str, address: str) -> None:
    """Refuse the value of a field that is not an IP address and a port."""
    try:
        split_address(address)
    except ValueError as error:
        raise FieldError(field, str(error)) from None


def split_address(text: str) -> tuple[str, int]:
    """Return the address and port of `127.0.0.1:PORT` or `[::1]:PORT`; ValueError if invalid."""
    host, _, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        number = int(port) if port.isascii() and port.isdigit() else -1
    except ValueError:
        address, number = None, -1
    bracketed = host.startswith("[") and host.endswith("]")
    if address is None or not 0 <= number <= 65535 or bracketed != (address.version == 6):
        raise ValueError(
            f"invalid address {text!r}: expected an IP address and a port, such as "
            "'127.0.0.1:8172' or '[::1]:8172'"
        )
    return str(address), number


def _toml_value(text: str) -> object:
    try:
        tree = tomllib.loads(f"value = {text}")
    except NOT_TOML:
        return text
    return tree["value"] if len(tree) == 1 else text


@functools.cache
def _fields(hint: object) -> dict[str, Any]:
    for one in _alternatives(hint):
        if isinstance(one, type) and issubclass(one, msgspec.Struct):
            hints = typing.get_type_hints(one)
            return {field.encode_name: hints[field.name] for field in msgspec.structs.fields(one)}
    return {}


def _type_at(hint: object, path: Iterable[str]) -> object:
    for step in path:
        hint = _element(hint) if step.startswith("[") else _fields(hint).get(step)
    return hint


def _alternatives(hint: object) -> Sequence[object]:
    union = typing.get_origin(hint) in {types.UnionType, typing.Union}
    return typing.get_args(hint) if union else (hint,)


def _element(hint: object) -> object:
    for one in _alternatives(hint):
        if typing.get_origin(one) in {tuple, list}:
            return typing.get_args(one)[0]
    return None


def _choices(hint: object) -> list[str]:
    for one in _alternatives(hint):
        if typing.get_origin(one) is Literal:
            return [str(choice) for choice in typing.get_args(one)]
        if isinstance(one, type) and issubclass(one, enum.StrEnum):
            return [choice.value for choice in one]
    return []
