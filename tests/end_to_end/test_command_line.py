"""Every command against a real service."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from end_to_end.running import Running
from forewarn.cli.exits import ExitStatus

FLEET = """
[[availability_set]]
name = "web"
update_domains = 2
machines = [
  { name = "web-0", host = "h1", address = "10.0.0.10" },
  { name = "web-1", host = "h2", tags = { role = "leader" } },
]
[[machine]]
name = "bastion"
"""


@pytest.fixture(scope="module")
def service(shared_folder: Path) -> Generator[Running]:
    with Running(shared_folder) as running:
        applied = running.call("fleet", "apply", "-", stdin=FLEET)
        assert applied.returncode == 0, applied.stderr
        assert applied.stdout == "3 added: web-0, web-1, bastion\n"
        yield running


def columns(text: str) -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]


def test_machines_and_scopes_are_listed_in_aligned_columns(service: Running) -> None:
    machines = columns(service.call("fleet", "list").stdout)
    assert machines[0][:6] == ["MACHINE", "SCOPE", "KIND", "DOMAIN", "HOST", "ADDRESS"]
    assert [row[:6] for row in machines[1:]] == [
        ["bastion", "bastion", "machine", "0", "-", "-"],
        ["web-0", "web", "availability_set", "0", "h1", "10.0.0.10"],
        ["web-1", "web", "availability_set", "1", "h2", "-"],
    ]
    scopes = columns(service.call("fleet", "list", "--scopes").stdout)
    assert [row[:4] for row in scopes[1:]] == [
        ["bastion", "machine", "1", "1"],
        ["web", "availability_set", "2", "2"],
    ]
    assert "web-1" not in service.call("fleet", "list", "--host", "h1").stdout
    assert "bastion" not in service.call("fleet", "list", "--scope", "web").stdout


def test_a_list_says_how_to_go_on_and_may_be_read_to_its_end(service: Running) -> None:
    first = service.call("fleet", "list", "--limit", "2")
    assert len(first.stdout.splitlines()) == 3
    cursor = re.search(r"--cursor (\S+),", first.stderr)
    assert cursor is not None
    rest = service.call("fleet", "list", "--cursor", cursor[1])
    assert [row[0] for row in columns(rest.stdout)] == ["MACHINE", "web-1"]
    assert rest.stderr == ""
    whole = service.document("fleet", "list", "--limit", "1", "--all")
    assert [machine["name"] for machine in whole["machines"]] == ["bastion", "web-0", "web-1"]
    assert whole["next"] == ""


def test_a_machine_and_a_scope_are_shown_whole(service: Running) -> None:
    machine = service.call("fleet", "show", "WEB-1")
    assert machine.returncode == 0
    assert re.search(r"(?m)^tags: +role=leader$", machine.stdout)
    assert re.search(r"(?m)^last seen: +never$", machine.stdout)
    scope = service.call("fleet", "show", "web").stdout
    assert re.search(r"(?m)^update domain 1: +web-1$", scope)
    assert service.document("fleet", "show", "web")["kind"] == "availability_set"
    unknown = service.call("fleet", "show", "nobody/else")
    assert unknown.returncode == ExitStatus.NOT_FOUND
    assert "'nobody/else'" in unknown.stderr
    assert "'bastion'" in service.call("fleet", "show", "bastoin").stderr


def test_a_fleet_is_tried_then_applied_then_pruned(service: Running, folder: Path) -> None:
    more = folder / "more.json"
    more.write_text(json.dumps({"machine": [{"name": "spare"}]}))
    tried = service.call("fleet", "apply", str(more), "--dry-run")
    assert tried.stdout.splitlines()[0] == "1 would be added: spare"
    assert "3 not in the file, kept ('fleet apply --prune' removes them)" in tried.stdout
    assert service.call("fleet", "show", "spare").returncode == ExitStatus.NOT_FOUND
    assert service.call("fleet", "apply", str(more)).stdout.startswith("1 added: spare")
    again = service.call("fleet", "apply", str(more)).stdout
    assert "1 unchanged" in again
    assert "nothing changed" in again
    whole = folder / "whole.toml"
    whole.write_text(FLEET)
    pruned = service.call("fleet", "apply", str(whole), "--prune").stdout
    assert "1 removed: spare" in pruned


def test_what_may_not_be_meant_is_warned_of_on_stderr(service: Running) -> None:
    zz = '[[machine]]\nname = "zz"\nlistener = "blue"\n'
    for options in (["--dry-run"], ["--dry-run", "--json"], []):
        warned = service.call("fleet", "apply", "-", *options, stdin=zz)
        assert warned.returncode == 0
        assert re.match(r"warning: .*'blue'.*\n$", warned.stderr)
    service.call("hold", "machine", "zz")
    removed = service.call("fleet", "remove", "zz")
    assert removed.stdout == "1 removed: zz\n"
    assert re.match(r"warning: .*zz.*\n$", removed.stderr)
    assert service.call("release", "machine", "zz").returncode == 0


def test_a_fleet_that_is_wrong_is_refused_with_its_place(service: Running) -> None:
    for file, said in (
        ('[[machine]]\nname = "_x"\n', ["stdin: machine[0].name", "'_x'"]),
        (
            '[[machine]]\nname = "x"\nadress = "h"\n',
            ["stdin: machine[0] 'x'", "'adress'", "'address'"],
        ),
        (
            '{"machine": [{"name": "x", "host": {}}]}',
            ["stdin: machine[0].host of 'x'"],
        ),
    ):
        refused = service.call("fleet", "apply", "-", stdin=file)
        assert (refused.returncode, refused.stdout) == (ExitStatus.USAGE, "")
        assert refused.stderr.startswith(f"forewarn: {said[0]}")
        assert all(part in refused.stderr for part in said), refused.stderr
        assert len(refused.stderr.splitlines()) == 1


def test_alerts_name_the_command_that_ends_them_and_have_a_status(service: Running) -> None:
    service.call("hold", "scope", "web", "--reason", "release day")
    (listed,) = columns(service.call("hold", "list").stdout)[1:]
    assert (listed[0], listed[3]) == ("scope web", "release day")
    alerts = service.call("alerts")
    assert alerts.returncode == ExitStatus.ALERTS
    assert "release day" in alerts.stdout
    assert "forewarn release scope web" in alerts.stderr
    told = service.call("alerts", "--json")
    assert told.returncode == ExitStatus.ALERTS
    assert "held" in {item["kind"] for item in json.loads(told.stdout)["items"]}
    service.call("release", "scope", "web")
    assert "scope web: release day" in service.call("audit").stdout
    well = service.call("alerts")
    assert (well.returncode, well.stdout) == (0, "")


AS_NOBODY = (
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", "--"),
)
"""As an ordinary user, who can read this test's Python wherever it is, and write nowhere."""


def can_be_nobody() -> bool:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return False
    return subprocess.run([*AS_NOBODY, "true"], check=False, capture_output=True).returncode == 0


def on_a_terminal(*command: str) -> tuple[int, bytes]:
    """Run the command line on a terminal; return its exit status and what is drawn."""
    ours, theirs = pty.openpty()
    variables = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=variables) as drawn:
        os.close(theirs)
        text = b""
        try:
            while part := os.read(ours, 65536):
                text += part
        except OSError:
            pass  # Linux tells so that the other end is closed
        os.close(ours)
    return drawn.returncode, text


def test_on_a_terminal_a_table_is_drawn(service: Running) -> None:
    forewarn = (sys.executable, "-m", "forewarn")
    status, text = on_a_terminal(*forewarn, "fleet", "list", "--operator", str(service.socket))
    assert status == 0
    assert b"\x1b[1m" in text  # the heading is bold
    assert "─".encode() in text
    assert b"bastion" in text


@pytest.mark.skipif(not can_be_nobody(), reason="needs root and setpriv, to be another user")
def test_an_ordinary_user_on_a_terminal_is_told_to_use_sudo(service: Running) -> None:
    forewarn = (*AS_NOBODY, sys.executable, "-m", "forewarn")
    status, text = on_a_terminal(*forewarn, "alerts", "--operator", str(service.socket))
    assert status == ExitStatus.UNREACHABLE
    assert b"permission denied" in text
    assert b"sudo" in text


def test_an_exported_fleet_changes_nothing_when_it_is_applied(service: Running) -> None:
    exported = service.call("fleet", "export")
    assert exported.returncode == 0, exported.stderr
    assert exported.stdout.startswith("[[availability_set]]")
    for text in (exported.stdout, service.call("fleet", "export", "--json").stdout):
        again = service.call("fleet", "apply", "-", "--prune", stdin=text)
        assert again.stdout == "3 unchanged\nnothing changed\n"
