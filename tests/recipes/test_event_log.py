"""docs/guides/event-log.md as it stands: a real agent's lines, and the API's fields."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from end_to_end.agents import Agent, Endpoint, event
from forewarn.server.operator import schemas
from recipes import pages

RULES = pages.block("event-log", "toml")
QUICK = {"wait_seconds = 20": "wait_seconds = 0.1"}
LINE = json.loads(pages.block("event-log", "json"))
PAGE = (pages.GUIDES / "event-log.md").read_text(encoding="utf-8")
API = (pages.GUIDES.parent / "reference" / "api.md").read_text(encoding="utf-8")


def table(section: str) -> set[str]:
    """Return the names in the first column of a section's first table of fields."""
    rows = section.split("| field | meaning |")[1].split("\n\n", maxsplit=1)[0]
    firsts = re.findall(r"(?m)^\| (`.*?) \|", rows)
    return {name for first in firsts for name in re.findall(r"`(\w+)`", first)}


@pytest.fixture
def agent(tmp_path: Path, cloud: Endpoint) -> Iterator[Agent]:
    made = Agent(tmp_path / "agent", cloud.url, pages.placed(RULES, QUICK))
    yield made.start()
    made.kill()


def lines(agent: Agent) -> list[dict[str, Any]]:
    """Return what the action has written so far; every line that the agent says is an object."""
    text = agent.log.read_text().rpartition("\n")[0]
    said = [json.loads(line) for line in text.splitlines()]
    return [line for line in said if line["logger"] == "forewarn.agent.event"]


def test_the_page_shows_the_fields_that_a_line_has_and_its_filter_keeps_the_events_alone(
    cloud: Endpoint, agent: Agent
) -> None:
    cloud.show(event(Description="Host server is undergoing maintenance."))
    agent.until(lambda: len(lines(agent)) == 1)
    (line,) = lines(agent)
    assert list(line) == list(LINE)
    assert set(line) == table(PAGE)
    assert {type(value) for value in line.values()} == {str}
    same = set(line) - {"timestamp", "event", "event_id", "event_source", "not_before"}
    assert {name: line[name] for name in same} == {name: LINE[name] for name in same}
    for name in ("timestamp", "not_before"):
        shape = re.sub(r"\d", "0", str(LINE[name]))
        assert re.sub(r"\d", "0", str(line[name])) == shape
    cloud.show()
    agent.until(lambda: len(lines(agent)) == 2)
    over = lines(agent)[1]
    assert list(over) == list(LINE)
    assert (over["phase"], over["event"]) == ("undo", "Reboot of web-0 is over")
    assert over["event_id"] == line["event_id"]
    assert len(agent.log.read_text().splitlines()) > 2
    if shutil.which("jq"):
        command = pages.placed(
            pages.block("event-log", "sh", "jq"),
            {"journalctl -u forewarn-agent -o cat": f"(echo Starting; cat {agent.log})"},
        )
        kept = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
        assert [json.loads(line) for line in kept.stdout.splitlines()] == lines(agent)


def test_the_api_explains_each_field_of_an_operation_of_the_history() -> None:
    fields = {field.encode_name for field in msgspec.structs.fields(schemas.OperationView)}
    assert fields == table(API.split("An operation has:")[1])
