"""A fleet from libvirt's domains: the command line, a real service, and hosts that are told."""

import json
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from end_to_end.running import Running
from forewarn.cli.exits import ExitStatus
from forewarn.connectors.libvirt.program import NO_LIBVIRT

FLEET = """
[[availability_set]]
name = "web"
update_domains = 7
automatically_approve = ["Reboot"]
machines = [
  { name = "web-0", host = "h1", address = "10.0.0.10", vm_id = "%s", tags = { role = "x" } },
]
[[scale_set]]
name = "batch"
machines = [{ index = 0, vm_id = "%s" }]
"""
IDS = [f"00000000-0000-4000-8000-00000000000{n}" for n in range(10)]

TOLD = """#!{python}
import json, sys, time
told = json.load(open({file!r}))
with open({asked!r}, "w") as asked:
    json.dump([sys.argv[3:], sys.stdin.read()], asked)
time.sleep(told.pop("sleep", 0))
print(json.dumps(told))
sys.exit(told.get("status", 1 if "error" in told else 0))
"""


class Told:
    """A Python that reads what hosts have from a file, instead of running our program."""

    def __init__(self, folder: Path) -> None:
        self._file, self._asked = folder / "told.json", folder / "asked.json"
        self.python = folder / "python"
        names = {"file": str(self._file), "asked": str(self._asked)}
        self.python.write_text(TOLD.format(python=sys.executable, **names))
        self.python.chmod(0o755)

    def tells(self, **told: Any) -> None:
        self._file.write_text(json.dumps(told))

    def has(self, **hosts: list[dict[str, Any]]) -> None:
        self.tells(hosts=[{"hostname": name, "domains": found} for name, found in hosts.items()])

    @property
    def asked(self) -> tuple[list[str], str]:
        arguments, given = json.loads(self._asked.read_text())
        return arguments, given


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path)


@pytest.fixture(scope="module")
def service(shared_folder: Path) -> Generator[Running]:
    with Running(shared_folder) as running:
        yield running


def domain(n: int, **more: Any) -> dict[str, Any]:
    interface = {"mac": "", "ip": f"10.0.0.{10 + n}", "enforced": True, "reserved": ""}
    found = {"uuid": IDS[n], "name": f"web-{n}", "state": "running", "interfaces": [interface]}
    return found | more


def tag(scope: str, update_domain: str = "") -> dict[str, str]:
    return {"scope": scope, "update-domain": update_domain, "name": "", "address": ""}


def call(service: Running, told: Told, *arguments: str) -> subprocess.CompletedProcess[str]:
    return service.call("fleet", *arguments, "--python", str(told.python))


def test_a_sync_keeps_what_domains_do_not_say(service: Running, told: Told) -> None:
    assert service.call("fleet", "apply", "-", stdin=FLEET % (IDS[0], IDS[3])).returncode == 0
    moved = domain(0, interfaces=[], name="renamed")
    told.has(h2=[moved, domain(1, tag=tag("web")), domain(3)])
    tried = call(service, told, "sync", "--libvirt", "x:///", "--dry-run", "--json")
    change = json.loads(tried.stdout)
    assert (change["dry_run"], change["added"]["names"]) == (True, ["web-1"])
    assert change["changed"]["names"] == ["web-0"]
    assert change["missing"]["names"] == ["batch_0"]
    assert "batch_0" in tried.stderr
    assert service.document("fleet", "show", "web-0")["host"] == "h1"
    applied = call(service, told, "sync", "--libvirt", "x:///")
    assert applied.returncode == 0, applied.stderr
    found = service.document("fleet", "show", "web-0")
    assert (found["host"], found["address"], found["tags"]) == ("h2", "10.0.0.10", {"role": "x"})
    scope = service.document("fleet", "show", "web")
    assert (scope["update_domains"], scope["automatically_approve"]) == (7, ["Reboot"])
    again = call(service, told, "sync", "--libvirt", "x:///", "--json")
    assert json.loads(again.stdout)["changed"]["count"] == 0


@pytest.mark.parametrize(
    ("tells", "status"),
    [
        ({"error": "the reason"}, ExitStatus.UNREACHABLE),
        ({"error": "the reason", "code": "not-found"}, ExitStatus.NOT_FOUND),
        ({"error": "the reason", "code": "ambiguous"}, ExitStatus.REFUSED),
        ({"error": "the reason", "code": "busy"}, ExitStatus.REFUSED),
        ({"status": NO_LIBVIRT}, ExitStatus.MISSING_EXTRA),
        ({"hosts": [], "sleep": 60}, ExitStatus.UNREACHABLE),
    ],
)
def test_a_host_that_refuses_lacks_the_library_or_hangs_is_told(
    service: Running, told: Told, tells: dict[str, Any], status: ExitStatus
) -> None:
    told.tells(**tells)
    limit = ["--limit-seconds", "1"] if "sleep" in tells else []
    refused = call(service, told, "sync", "--libvirt", "x:///", *limit)
    assert refused.returncode == status
    said = {"error": "the reason", "status": str(told.python), "sleep": ""}
    assert said[next(key for key in said if key in tells)] in refused.stderr
    if "code" in tells:
        tag = call(service, told, "tag", "web-0", "--scope", "web", "--libvirt", "x:///")
        assert (tag.returncode, "the reason" in tag.stderr) == (status, True)


def test_a_tag_sends_what_was_given_and_nothing_else(service: Running, told: Told) -> None:
    written = tag("web", "1") | {"address": "::1"}
    hosts_of_it = [
        {"uri": "x:///", "hostname": "its-own-name"},
        {"uri": "y:///", "hostname": "h2"},
    ]
    told.tells(uuid=IDS[0], name="web-0", hosts=hosts_of_it, tag=written)
    hosts = ("--libvirt", "h1=x:///", "--libvirt", "y:///")
    given = ("--domain", "1", "--address", "0::1", "--name", "")
    done = call(service, told, "tag", "web-0", *given, *hosts)
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in ("web-0", "h1, h2", "scope=web", "address=::1"))
    arguments, asked = told.asked
    assert arguments == ["tag"]
    assert json.loads(asked) == {
        "uris": ["x:///", "y:///"],
        "domain": "web-0",
        "tag": {"scope": None, "update-domain": "1", "name": "", "address": "::1"},
    }
