"""The page of the agent's settings tells what an action is told."""

import re

import msgspec
import reference

from agent import bench
from forewarn.agent import rules
from forewarn.agent.actions.action import ActionRun
from forewarn.agent.rules import RuleAction

PAGE = reference.page("agent-settings.md")


def test_the_table_names_what_an_action_is_told_and_nothing_else() -> None:
    step = msgspec.convert({"command": {"run": ["x"]}}, RuleAction)
    work = ActionRun(bench.begin(step, bench.event()), "web-0", 0.0, print)
    rows = re.findall(r"^\| (?:`\$(\w+)` )?\| `(FOREWARN_\w+)` \| `(\w+)` \|", PAGE, re.MULTILINE)
    templates, variables, keys = zip(*rows, strict=True)
    assert list(filter(None, templates)) == list(rules.VARIABLES) == list(work.variables())
    assert list(variables) == list(work.environment())
    assert list(keys) == list(msgspec.json.decode(work.document()))
