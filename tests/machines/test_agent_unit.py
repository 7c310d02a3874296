"""packaging/forewarn-agent.service under a real systemd, with a real journald."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from machines.machine import Machine
from machines.site import STATUS, Site
from recipes import pages

pytestmark = pytest.mark.timeout(1800)

RULES = """
[[rule]]
name    = "a web server stops for what stops us"
match   = { types = ["Reboot"] }
prepare = [
  { log     = { level = "warning" } },
  { ready   = { wait_seconds = 0 } },
  { service = { stop = "web.service" } },
]
approve = "when-prepared"
"""
MORE = """
[[rule]]
name    = "freezes are nothing"
match   = { types = ["Freeze"] }
approve = "at-once"
"""
UNIT = "forewarn-agent"


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[Site]:
    made = Site(folder, RULES)
    try:
        made.machine.run("systemctl", "start", "web", UNIT)
        yield made
    finally:
        made.close()


def shown(machine: Machine, *properties: str) -> dict[str, str]:
    told = machine.run("systemctl", "show", f"--property={','.join(properties)}", UNIT)
    return dict(line.split("=", 1) for line in told.splitlines())


def entries(machine: Machine) -> list[tuple[str, dict[str, Any]]]:
    """Return what journald has of the agent's lines: the priority of each, and what it says."""
    fields = ("--output=json", "--output-fields=MESSAGE,PRIORITY")
    said = machine.run("journalctl", "--unit", UNIT, "--no-pager", *fields)
    told = [json.loads(line) for line in said.splitlines()]
    lines = [(each["PRIORITY"], each["MESSAGE"]) for each in told]
    return [(priority, json.loads(line)) for priority, line in lines if line.startswith("{")]


def test_the_unit_is_active_when_the_agent_says_that_it_is_ready(site: Site) -> None:
    told = shown(site.machine, "ActiveState", "Type", "NRestarts", "WatchdogUSec", "User")
    assert told == {
        "ActiveState": "active",
        "Type": "notify",
        "NRestarts": "0",
        "WatchdogUSec": "1min",
        "User": "",
    }
    assert site.machine.run("sh", "-c", f"{STATUS}/healthz") == "ok\n"
    assert site.machine.run("stat", "-c", "%a %U", "/var/lib/forewarn-agent") == "700 root\n"
    assert "web-0: ready" in site.machine.run("forewarn", "agent", "status")


def test_a_service_stops_and_starts_again_under_the_units_hardening(site: Site) -> None:
    machine = site.machine
    site.announce("Reboot", how="nothing")
    site.status_is("Started")
    assert site.operation()["start_cause"] == "approved"
    assert machine.inside.run("systemctl", "is-active", "web").stdout == "inactive\n"
    site.end()
    assert machine.run("systemctl", "is-active", "web") == "active\n"


def test_journald_has_each_line_with_its_priority_and_the_guides_line_finds_the_events(
    site: Site,
) -> None:
    told = entries(site.machine)
    assert [priority for priority, line in told if line["message"] == "the agent is up"] == ["6"]
    events = [each for each in told if each[1]["logger"] == "forewarn.agent.event"]
    assert [(priority, line["phase"]) for priority, line in events] == [
        ("4", "prepare"),
        ("4", "undo"),
    ]
    found = site.machine.run("sh", "-c", pages.block("event-log", "sh", "jq"))
    assert [json.loads(line) for line in found.splitlines()] == [line for _, line in events]


def test_a_reload_reads_the_rules_again(site: Site) -> None:
    machine = site.machine
    machine.write("/etc/forewarn/agent.toml", RULES + MORE)
    machine.run("systemctl", "reload", UNIT)
    site.announce("Freeze", how="nothing")
    site.status_is("Started")
    assert site.operation()["start_cause"] == "approved"
    site.end()
    assert shown(machine, "NRestarts", "ActiveState") == {"NRestarts": "0", "ActiveState": "active"}


def test_a_stop_ends_it_well_and_a_start_brings_it_back(site: Site) -> None:
    machine = site.machine
    machine.run("systemctl", "stop", UNIT)
    told = shown(machine, "ActiveState", "Result", "ExecMainStatus")
    assert told == {"ActiveState": "inactive", "Result": "success", "ExecMainStatus": "0"}
    machine.run("systemctl", "start", UNIT)
    machine.until(f"{STATUS}/healthz | grep -q ok")


def test_settings_that_cannot_be_used_are_tried_again_until_they_can(site: Site) -> None:
    machine = site.machine
    machine.write("/etc/forewarn/agent.toml", "[[rule]]\nnonsense = 1\n")
    assert machine.inside.run("systemctl", "restart", UNIT).returncode != 0
    machine.until(f"test $(systemctl show -P NRestarts {UNIT}) -ge 2")
    assert "nonsense" in machine.journal("--unit", UNIT)
    machine.write("/etc/forewarn/agent.toml", RULES)
    machine.until(f"{STATUS}/healthz | grep -q ok")


def test_the_watchdog_restarts_an_agent_that_does_nothing_any_more(site: Site) -> None:
    machine = site.machine
    told = shown(machine, "MainPID", "NRestarts")
    before = told["MainPID"]
    machine.run("kill", "-STOP", before)
    machine.until(f"test $(systemctl show -P NRestarts {UNIT}) -gt {told['NRestarts']}")
    machine.until(f"{STATUS}/healthz | grep -q ok")
    told = shown(machine, "ActiveState", "MainPID")
    assert told["ActiveState"] == "active"
    assert told["MainPID"] != before
    assert "Watchdog timeout" in machine.journal()
