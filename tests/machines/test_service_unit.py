"""packaging/forewarn.service under a real systemd: its start, its end, and a power cut; a relay."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from machines.machine import Machine
from machines.site import UNITS
from recipes import pages

pytestmark = pytest.mark.timeout(1800)

FLEET = """
[[availability_set]]
name = "web"
machines = [{ name = "web-0", address = "169.254.169.254", host = "h1" }, { name = "web-1" }]
"""

URL = "http://127.0.0.1:8170/vm/web-0/metadata/scheduledevents?api-version=2020-07-01"
OF_GUESTS = "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01"
ASK = 'busybox wget -qO- --header "Metadata: true"'
RELAY = """
[upstream]
urls = ["http://127.0.0.1:8173"]
token_file = "/run/credentials/forewarn-relay.service/relay.token"
"""
RELAYS = '[relay]\nlisten = "127.0.0.1:8173"\n'
SOON = "[Service]\nWatchdogSec=10\nTimeoutAbortSec=2\n"
"""A frozen relay is replaced after seconds."""


@pytest.fixture(scope="module")
def machine(folder: Path) -> Iterator[Machine]:
    files = {
        "/etc/systemd/system/forewarn.service": (UNITS / "forewarn.service").read_text(),
        "/etc/forewarn/fleet.toml": FLEET,
    }
    made = Machine(folder, files=files)
    try:
        made.run("systemctl", "enable", "--now", "forewarn")
        yield made
    finally:
        made.close()


def shown(machine: Machine, name: str, unit: str = "forewarn") -> str:
    return machine.run("systemctl", "show", "-P", name, unit).strip()


def ask(machine: Machine, url: str) -> Any:
    """Return the document that a guest reads."""
    return json.loads(machine.run("sh", "-c", f"{ASK} '{url}'"))


def asked_meanwhile(machine: Machine, unit: str, url: str) -> set[str]:
    """Ask again and again while a unit is restarted three times; return what came of it."""
    polls = f"""
        rm -f /run/over
        (for n in 1 2 3; do systemctl restart {unit} || echo no restart; done; touch /run/over) &
        while [ ! -e /run/over ]; do
            {ASK} '{url}' >/dev/null || echo refused
            echo asked
        done
    """
    return set(machine.run("sh", "-c", polls).split())


def known(machine: Machine) -> set[str]:
    """Return the ids of the operations that it knows."""
    told = json.loads(machine.run("forewarn", "events", "--json"))
    return {each["id"] for each in told["events"]}


def test_the_unit_serves_by_its_defaults_as_a_user_of_its_own(machine: Machine) -> None:
    assert shown(machine, "ActiveState") == "active"
    assert machine.run("ps", "-o", "user=", "-p", shown(machine, "MainPID")).strip() == "forewarn"
    machine.run("forewarn", "fleet", "apply", "/etc/forewarn/fleet.toml")
    assert ask(machine, URL) == {"DocumentIncarnation": 0, "Events": []}


def test_with_its_socket_unit_no_guest_is_refused_while_it_restarts(machine: Machine) -> None:
    machine.write("/etc/systemd/system/forewarn.socket", (UNITS / "forewarn.socket").read_text())
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "stop", "forewarn")
    machine.run("systemctl", "enable", "--now", "forewarn.socket")
    machine.run("forewarn", "events")  # which starts the service
    assert machine.run("stat", "-c", "%a", "/var/lib/forewarn/operator.sock").strip() == "600"
    assert asked_meanwhile(machine, "forewarn", URL) == {"asked"}
    assert "systemd handed sockets over" in machine.journal("--unit", "forewarn")


def test_it_is_back_after_a_kill_and_knows_what_it_knew(machine: Machine) -> None:
    machine.run("forewarn", "schedule", "reboot", "web-1")
    before = known(machine)
    assert len(before) == 1
    machine.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "forewarn")
    machine.until("test $(systemctl show -P NRestarts forewarn) = 1")
    machine.until("systemctl is-active forewarn")
    assert known(machine) == before


def test_what_was_answered_is_still_so_after_a_power_cut_in_the_next_instant(
    machine: Machine,
) -> None:
    before = known(machine)
    answer = machine.run("forewarn", "schedule", "redeploy", "web-0", "--json")
    machine.cut()
    machine.until("systemctl is-active forewarn")
    (operation,) = json.loads(answer)["operations"]
    assert known(machine) == before | {operation["events"][0]["id"]}
    assert "cannot" not in machine.journal("--unit", "forewarn")


def test_a_relay_that_restarts_refuses_nobody_and_one_that_freezes_is_replaced(
    machine: Machine,
) -> None:
    machine.run("busybox", "ip", "address", "add", "169.254.169.254/32", "dev", "lo")
    machine.write("/etc/forewarn/forewarn.toml", RELAYS)
    machine.run("systemctl", "restart", "forewarn")
    machine.run("forewarn", "fleet", "apply", "/etc/forewarn/fleet.toml")
    machine.run("forewarn", "relay", "token", "h1", "--output", "/etc/forewarn/relay.token")
    machine.write("/etc/forewarn/relay.toml", RELAY)
    units = ("forewarn-relay.socket", "forewarn-relay.service")
    for unit in units:
        machine.write(f"/etc/systemd/system/{unit}", (UNITS / unit).read_text())
    machine.write(f"/etc/systemd/system/{units[1]}.d/soon.conf", SOON)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", *units)
    machine.until("systemctl show -P StatusText forewarn-relay | grep '1 machine of h1'")
    assert ask(machine, OF_GUESTS) == ask(machine, URL)
    user = machine.run("ps", "-o", "user:20=", "-p", shown(machine, "MainPID", "forewarn-relay"))
    assert user == "forewarn-relay\n"
    state = machine.run("stat", "-L", "-c", "%a", "/var/lib/forewarn-relay/relay")
    assert state == "700\n"
    assert asked_meanwhile(machine, "forewarn-relay", OF_GUESTS) == {"asked"}
    for signal in ("KILL", "STOP"):
        before = shown(machine, "MainPID", "forewarn-relay")
        machine.run("kill", f"-{signal}", before)
        other = f"grep -vx -e 0 -e {before}"
        machine.until(f"systemctl show -P MainPID forewarn-relay | {other}")
        assert "Events" in ask(machine, OF_GUESTS)
    assert shown(machine, "NRestarts", "forewarn-relay") == "2"
    machine.run("systemctl", "stop", "forewarn")
    machine.run("systemctl", "restart", "forewarn-relay")
    assert "Events" in ask(machine, OF_GUESTS), "from what was saved"
    machine.run("systemctl", "stop", *units)


def test_it_has_the_one_privilege_that_port_80_needs(machine: Machine) -> None:
    machine.write(
        "/etc/forewarn/forewarn.toml",
        pages.block("production", "toml", 'address = "169.254.169.254"'),
    )
    machine.run("systemctl", "disable", "--now", "forewarn.socket")  # its address is another
    machine.run("systemctl", "restart", "forewarn")
    assert ask(machine, OF_GUESTS)["Events"]
