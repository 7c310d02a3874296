"""The page of the agent's settings says of each what its field says, and of events what is told."""

import enum
import re
import typing
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

import msgspec
import pytest

from agent import bench
from forewarn import settings
from forewarn.agent import rules
from forewarn.agent.actions.action import ActionRun
from forewarn.agent.rules import ActionSettings, Match, Rule, RuleAction
from forewarn.agent.settings import AgentSettings, ClientSettings, StateSettings, StatusSettings
from house import tree
from house.documented import each_setting, written

PAGE: Final = (tree.ROOT / "docs" / "reference" / "agent-settings.md").read_text(encoding="utf-8")
STEPS_AT: Final = "rule[].prepare[]."
HOLDERS: Final[dict[str, type[msgspec.Struct]]] = {
    "": AgentSettings,
    "client": ClientSettings,
    "status": StatusSettings,
    "state": StateSettings,
    "log": settings.Log,
    "rule[]": Rule,
    "rule[].match": Match,
    "prepare[].(kind)": ActionSettings,
    **{f"prepare[].{kind}": getattr(rules, f"{kind.capitalize()}Settings") for kind in rules.KINDS},
}
"""The struct of each table, by the path that the page gives it."""


class Told(NamedTuple):
    """What the page says of one setting."""

    path: str
    default: str
    values: str
    """The values of a closed list, as the page writes them; `""` where it is none."""
    text: str

    @property
    def field(self) -> tuple[type[msgspec.Struct], str]:
        """The struct and the name of the field that it is."""
        table, _, name = self.path.rpartition(".")
        return HOLDERS[table], name


TOLD: Final = [
    Told(path, default, values, " ".join(re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text).split()))
    for path, default, values, text in re.findall(
        r"^### `([^`]+)`\n\nDefault: `(.*?)`(?:; (?:each )?one of (.*))?\n\n((?:.+\n)+)",
        PAGE,
        re.MULTILINE,
    )
]
"""A link counts as its text, which the field has too."""


def test_each_setting_is_documented_with_its_default() -> None:
    assert [(told.path, told.default) for told in TOLD] == [
        (path, written(value)) for path, value in documented()
    ]


@pytest.mark.parametrize("told", TOLD, ids=[told.path for told in TOLD])
def test_each_setting_of_a_closed_list_names_its_values(told: Told) -> None:
    holder, name = told.field
    values = choices(typing.get_type_hints(holder)[name])
    assert told.values == ", ".join(f'`"{value}"`' for value in values)


def test_the_table_names_what_an_action_is_told_and_nothing_else() -> None:
    step = msgspec.convert({"command": {"run": ["x"]}}, RuleAction)
    work = ActionRun(bench.begin(step, bench.event()), "web-0", 0.0, print)
    rows = re.findall(r"^\| (?:`\$(\w+)` )?\| `(FOREWARN_\w+)` \| `(\w+)` \|", PAGE, re.MULTILINE)
    templates, variables, keys = zip(*rows, strict=True)
    assert list(filter(None, templates)) == list(rules.VARIABLES) == list(work.variables())
    assert list(variables) == list(work.environment())
    assert list(keys) == list(msgspec.json.decode(work.document()))


def documented() -> Iterator[tuple[str, Any]]:
    """Every setting; an action's terms once, and with a kind where its default differs."""
    terms = {field.name: field.default for field in msgspec.structs.fields(ActionSettings)}
    known = list(each_setting(AgentSettings))
    yield from ((path, default) for path, default in known if not path.startswith(STEPS_AT))
    yield from ((f"prepare[].(kind).{name}", default) for name, default in terms.items())
    for path, default in known:
        kind, _, name = path.removeprefix(STEPS_AT).partition(".")
        if path.startswith(STEPS_AT) and (name not in terms or terms[name] != default):
            yield f"prepare[].{kind}.{name}", default


def choices(hint: Any) -> list[str]:
    """Return the values of a closed list, of a setting or of each entry of its list; else none."""
    if typing.get_origin(hint) is tuple:
        return choices(typing.get_args(hint)[0])
    if typing.get_origin(hint) is Literal:
        return list(typing.get_args(hint))
    if isinstance(hint, type) and issubclass(hint, enum.StrEnum):
        return [each.value for each in hint]
    return []
