"""Reads and writes fleet files, and adds the names of file and entry to the service's errors.

The service checks the fleet, so that only one release decides. Its error has the place in the file.
"""

import json
import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from forewarn.cli.exits import ExitStatus, Failed, read_text

if TYPE_CHECKING:
    from forewarn.maintenance.fleet import Fleet

MAX_FILE: Final = 256 * 1024 * 1024
"""The most bytes of a fleet file: more than the largest fleet needs."""

MAX_NAME: Final = 80
"""The most characters of a name that a message repeats; no valid name is longer."""

THE_BODY: Final = "the body"
"""How the errors of the service begin that concern the whole file."""

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


@dataclass(frozen=True)
class FleetFile:
    """A fleet file: its name in messages, and the fleet as JSON and as values."""

    shown: str
    body: bytes
    tree: object
    toml: bool

    def blamed(self, failed: Failed) -> Failed:
        """Return the error of the service with the names of file and entry."""
        where, message = failed.facts.get("where"), failed.message
        if message.startswith(THE_BODY):
            message = self.shown + message.removeprefix(THE_BODY)
        elif where and message.startswith(f"at {where}") and self._begins(str(where)):
            place, _, what = message.removeprefix("at ").partition(": ")
            message = f"{self.shown}: {place}{self._of(place)}: {what}"
        if self.toml and where:
            message = message.replace("`object`", "`table`")
        return Failed(failed.status, message, failed.facts)

    def _begins(self, where: str) -> bool:
        first = _STEP.match(where)
        return first is not None and isinstance(self.tree, dict) and first[1] in self.tree

    def _of(self, place: str) -> str:
        """Return the innermost entry at a place that has a name."""
        value: Any = self.tree
        name, at_its_end = "", False
        for key, index in _STEP.findall(place):
            try:
                value = value[key or int(index)]
            except (LookupError, TypeError):
                break
            at_its_end = isinstance(value, dict) and isinstance(value.get("name"), str)
            name = value["name"] if at_its_end else name
        if not name or place.endswith(".name"):
            return ""
        return f" {name[:MAX_NAME]!r}" if at_its_end else f" of {name[:MAX_NAME]!r}"


def read(file: str) -> FleetFile:
    """Read a fleet file at a path, or stdin for `-`. The service checks its content."""
    shown = "stdin" if file == "-" else file
    text = read_text(file, MAX_FILE)

    def refuse(value: object) -> NoReturn:
        message = f"{shown} has {value} without quotes: expected a string in quotes"
        raise Failed(ExitStatus.USAGE, message)

    try:
        if text.lstrip()[:1] == "{":
            return FleetFile(shown, text.encode(), json.loads(text), toml=False)
        tree = tomllib.loads(text)
        body = json.dumps(tree, default=refuse, allow_nan=False).encode()
        return FleetFile(shown, body, tree, toml=True)
    except json.JSONDecodeError as error:
        raise Failed(ExitStatus.USAGE, f"{shown} is not valid JSON: {error}") from error
    except tomllib.TOMLDecodeError as error:
        what = "not valid TOML" if file.endswith(".toml") else "neither JSON nor TOML"
        raise Failed(ExitStatus.USAGE, f"{shown} is {what}: {error}") from error
    except RecursionError as error:
        message = f"{shown} has lists or tables that are nested too deeply"
        raise Failed(ExitStatus.USAGE, message) from error
    except ValueError as error:
        message = f"{shown} has nan or inf: expected a number"
        raise Failed(ExitStatus.USAGE, message) from error


def written(fleet: "Fleet") -> str:
    """Return a fleet as TOML, with one machine a line and nothing that is the default."""
    lines = []
    for table in fleet.__struct_fields__:
        for entry in getattr(fleet, table):
            given = _given(entry)
            machines = given.pop("machines", ())
            lines += ["", f"[[{table}]]", *(f"{name} = {_toml(v)}" for name, v in given.items())]
            if machines:
                lines += ["machines = [", *(f"  {_toml(_given(one))}," for one in machines), "]"]
    return "\n".join(lines).lstrip("\n") + "\n"


def _given(entry: Any) -> dict[str, Any]:  # noqa: ANN401 - an entry of any table
    import msgspec

    found = {}
    for field in msgspec.structs.fields(entry):
        value = getattr(entry, field.name)
        factory = field.default_factory
        default = field.default if factory is msgspec.NODEFAULT else factory()
        if value != default:
            found[field.name] = value
    return {name: found[name] for name in sorted(found, key=lambda name: name != "name")}


def _toml(value: object) -> str:
    """Return a value as TOML has it; its strings are JSON's."""
    if hasattr(value, "__struct_fields__"):
        value = _given(value)
    if isinstance(value, dict):
        pairs = (f"{_key(name)} = {_toml(each)}" for name, each in value.items())
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)
