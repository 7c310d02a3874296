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


def test_machines_and_scopes_are_listed_in_pages_and_shown_whole(service: Running) -> None:
    first = service.call("fleet", "list", "--limit", "2")
    machines = columns(first.stdout)
    assert [row[:6] for row in machines] == [
        ["MACHINE", "SCOPE", "KIND", "DOMAIN", "HOST", "ADDRESS"],
        ["bastion", "bastion", "machine", "0", "-", "-"],
        ["web-0", "web", "availability_set", "0", "h1", "10.0.0.10"],
    ]
    cursor = re.search(r"--cursor (\S+),", first.stderr)
    assert cursor is not None
    rest = service.call("fleet", "list", "--cursor", cursor[1])
    assert [row[0] for row in columns(rest.stdout)] == ["MACHINE", "web-1"]
    assert rest.stderr == ""
    whole = service.document("fleet", "list", "--limit", "1", "--all")
    assert [machine["name"] for machine in whole["machines"]] == ["bastion", "web-0", "web-1"]
    assert whole["next"] == ""
    scopes = columns(service.call("fleet", "list", "--scopes").stdout)
    assert [row[0] for row in scopes] == ["SCOPE", "bastion", "web"]
    assert "web-1" not in service.call("fleet", "list", "--host", "h1").stdout
    machine = service.call("fleet", "show", "WEB-1").stdout
    assert re.search(r"(?m)^tags: +role=leader$", machine)
    assert re.search(r"(?m)^last seen: +never$", machine)
    assert re.search(r"(?m)^update domain 1: +web-1$", service.call("fleet", "show", "web").stdout)
    unknown = service.call("fleet", "show", "bastoin")
    assert unknown.returncode == ExitStatus.NOT_FOUND
    assert "'bastion'" in unknown.stderr


def test_a_fleet_is_tried_applied_exported_and_pruned(service: Running, folder: Path) -> None:
    more = folder / "more.json"
    more.write_text(json.dumps({"machine": [{"name": "zz", "listener": "blue"}]}))
    tried = service.call("fleet", "apply", str(more), "--dry-run")
    assert tried.stdout.splitlines()[0] == "1 would be added: zz"
    assert "3 not in the file, kept ('fleet apply --prune' removes them)" in tried.stdout
    assert re.match(r"warning: .*'blue'.*\n$", tried.stderr), "what may not be meant"
    assert service.call("fleet", "show", "zz").returncode == ExitStatus.NOT_FOUND
    assert service.call("fleet", "apply", str(more)).stdout.startswith("1 added: zz")
    again = service.call("fleet", "apply", str(more)).stdout
    assert ("1 unchanged" in again, "nothing changed" in again) == (True, True)
    service.call("hold", "machine", "zz")
    removed = service.call("fleet", "remove", "zz")
    assert removed.stdout == "1 removed: zz\n"
    assert re.match(r"warning: .*zz.*\n$", removed.stderr)
    assert service.call("release", "machine", "zz").returncode == 0
    service.call("fleet", "apply", str(more))
    pruned = service.call("fleet", "apply", "-", "--prune", stdin=FLEET).stdout
    assert "1 removed: zz" in pruned
    for options in ([], ["--json"]):
        exported = service.call("fleet", "export", *options)
        again = service.call("fleet", "apply", "-", "--prune", stdin=exported.stdout).stdout
        assert again == "3 unchanged\nnothing changed\n"


def test_a_fleet_that_is_wrong_is_refused_with_its_place(service: Running) -> None:
    for file, said in (
        ('[[machine]]\nname = "_x"\n', ["stdin: machine[0].name", "'_x'"]),
        ('[[machine]]\nname = "x"\nadress = "h"\n', ["stdin: machine[0] 'x'", "'address'"]),
        ('{"machine": [{"name": "x", "host": {}}]}', ["stdin: machine[0].host of 'x'"]),
    ):
        refused = service.call("fleet", "apply", "-", stdin=file)
        assert (refused.returncode, refused.stdout) == (ExitStatus.USAGE, "")
        assert refused.stderr.startswith(f"forewarn: {said[0]}")
        assert said[-1] in refused.stderr
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
