"""packaging/forewarn.service under a real systemd: its start, its end, and a power cut."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from end_to_end import production
from machines.machine import Machine
from machines.site import UNITS

pytestmark = pytest.mark.timeout(1800)

FLEET = """
[[availability_set]]
name = "web"
machines = [{ name = "web-0", address = "169.254.169.254" }, { name = "web-1" }]
"""


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


def shown(machine: Machine, name: str) -> str:
    return machine.run("systemctl", "show", "-P", name, "forewarn").strip()


def known(machine: Machine) -> set[str]:
    """Return the ids of the operations that it knows."""
    told = json.loads(machine.run("forewarn", "events", "--json"))
    return {each["id"] for each in told["events"]}


def test_the_unit_serves_by_its_defaults_as_a_user_of_its_own(machine: Machine) -> None:
    assert shown(machine, "ActiveState") == "active"
    assert machine.run("ps", "-o", "user=", "-p", shown(machine, "MainPID")).strip() == "forewarn"
    machine.run("forewarn", "fleet", "apply", "/etc/forewarn/fleet.toml")
    url = "http://127.0.0.1:8170/vm/web-0/metadata/scheduledevents?api-version=2020-07-01"
    told = machine.run("busybox", "wget", "-qO-", "--header", "Metadata: true", url)
    assert json.loads(told) == {"DocumentIncarnation": 0, "Events": []}


def test_with_its_socket_unit_no_guest_is_refused_while_it_restarts(machine: Machine) -> None:
    machine.write("/etc/systemd/system/forewarn.socket", (UNITS / "forewarn.socket").read_text())
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "stop", "forewarn")
    machine.run("systemctl", "enable", "--now", "forewarn.socket")
    machine.run("forewarn", "events")  # which starts the service
    assert machine.run("stat", "-c", "%a", "/var/lib/forewarn/operator.sock").strip() == "600"
    url = "http://127.0.0.1:8170/vm/web-0/metadata/scheduledevents?api-version=2020-07-01"
    polls = f"""
        (for n in 1 2 3; do systemctl restart forewarn || echo no restart; done; touch /run/over) &
        while [ ! -e /run/over ]; do
            busybox wget -qO /dev/null --header "Metadata: true" "{url}" || echo refused
            echo asked
        done
    """
    told = machine.run("sh", "-c", polls).split()
    assert set(told) == {"asked"}
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


def test_it_has_the_one_privilege_that_port_80_needs(machine: Machine) -> None:
    machine.run("busybox", "ip", "address", "add", "169.254.169.254/32", "dev", "lo")
    machine.write(
        "/etc/forewarn/forewarn.toml", production.example("toml", 'address = "169.254.169.254"')
    )
    machine.run("systemctl", "disable", "--now", "forewarn.socket")  # its address is another
    machine.run("systemctl", "restart", "forewarn")
    url = "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01"
    told = machine.run("busybox", "wget", "-qO-", "--header", "Metadata: true", url)
    assert json.loads(told)["Events"]
