"""The fleet comes from the hosts: imported, kept in step, and told of what crashes."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hosts.guest import Guest
from hosts.host import until
from hosts.lab import Lab

SLOW = ("--live", "--persistent", "--unsafe", "--bandwidth", "1")
"""1 MiB/s: a migration that lasts until it is cancelled."""


@pytest.fixture(scope="module")
def guests(lab: Lab) -> list[Guest]:
    """Two guests and one that is off, imported from their tags, and a service that watches."""
    lab.serve(lab.libvirt() + "\n[fleet.libvirt]\nsync = true")
    made = lab.start({"web-0": "h1", "web-1": "h2"}, approve=True)
    made.append(lab.guest("web-2"))
    made[2].define("h2")
    for number, guest in enumerate(made):
        tag = ("--scope", "web", "--domain", str(number), "--address", guest.address)
        lab.forewarn("fleet", "tag", guest.name, *tag)
    lab.forewarn("fleet", "sync")
    for guest in made[:2]:
        guest.wait_for_polls(2)
    return made


def machine(lab: Lab, guest: Guest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lab.forewarn("fleet", "show", guest.name, "--json"))
    return found


def alerts(lab: Lab) -> list[tuple[str, str]]:
    found = lab.service.operator.get("/v1/alerts")["items"]
    return [(alert["kind"], alert["about"]) for alert in found]


def log(lab: Lab) -> str:
    return lab.service.log.read_text()


def recorded(lab: Lab, guest: Guest, host: str) -> None:
    """Wait until the fleet has a guest on a host."""
    until(lambda: machine(lab, guest)["host"] == host, lambda: (machine(lab, guest), log(lab)))


@contextlib.contextmanager
def migrating(guest: Guest, to: str) -> Iterator[subprocess.Popen[bytes]]:
    """Begin a live migration that does not end by itself."""
    source, target = guest.hosts[guest.host()], guest.hosts[to]
    argv = ["virsh", "--quiet", "--connect", source.uri, "migrate", *SLOW, guest.name, target.uri]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until(lambda: guest.name in target.running(), guest.said)
        until(lambda: "Data processed" in source.virsh("domjobinfo", guest.name), guest.said)
        yield process
        assert process.wait(180) != 0


def test_an_imported_fleet_is_what_the_tags_say(lab: Lab, guests: list[Guest]) -> None:
    for number, (guest, host) in enumerate(zip(guests, ("h1", "h2", "h2"), strict=True)):
        found = machine(lab, guest)
        assert (found["scope"], found["update_domain"]) == ("web", number)
        assert (found["vm_id"], found["address"]) == (guest.vm_id, guest.address)
        assert found["host"] == host
    again = json.loads(lab.forewarn("fleet", "sync", "--dry-run", "--json"))
    assert (again["unchanged"], again["changed"]["count"]) == (3, 0)


def test_a_machine_that_somebody_moves_has_its_new_host_and_keeps_its_tag(
    lab: Lab, guests: list[Guest]
) -> None:
    guest, start = guests[0], time.monotonic()
    guest.migrate("h2")
    recorded(lab, guest, "h2")
    again = json.loads(lab.forewarn("fleet", "sync", "--dry-run", "--json"))
    assert (again["unchanged"], again["changed"]["count"]) == (3, 0)
    guest.migrate("h1")
    recorded(lab, guest, "h1")
    assert not guest.refused_polls(start)
    assert lab.operations() == []


def test_a_migration_that_is_cancelled_is_no_crash(lab: Lab, guests: list[Guest]) -> None:
    guest = guests[0]
    with migrating(guest, "h2"):
        guest.hosts["h1"].virsh("domjobabort", guest.name)
    guest.wait_for_polls(4)
    with migrating(guest, "h2"):
        os.kill(guest.hosts["h2"].qemu(guest.name), signal.SIGKILL)
    guest.wait_for_polls(4)
    assert guest.host() == "h1"
    assert lab.operations() == []
    assert machine(lab, guest)["host"] == "h1"
    assert len(guest.boots) == 1


def test_a_guest_that_is_shut_down_and_started_is_no_crash(lab: Lab, guests: list[Guest]) -> None:
    guest, host = guests[1], guests[1].hosts["h2"]
    host.virsh("shutdown", guest.name)
    until(lambda: guest.state() == "off", guest.said)
    host.virsh("start", guest.name)
    guest.wait_for_boots(2)
    assert lab.operations() == []
    assert alerts(lab) == []


def test_a_guest_whose_qemu_is_killed_is_an_event_for_its_peers_and_comes_back(
    lab: Lab, guests: list[Guest]
) -> None:
    peer, guest = guests[0], guests[1]
    boots, killed = len(guest.boots), time.monotonic()
    os.kill(guest.hosts["h2"].qemu(guest.name), signal.SIGKILL)
    until(
        lambda: any(poll.events for poll in peer.polls if poll.at >= killed),
        lambda: (log(lab), lab.forewarn("alerts")),
    )
    seen = next(poll for poll in peer.polls if poll.at >= killed and poll.events)
    (event,) = seen.events
    assert (event["EventType"], event["EventStatus"]) == ("Reboot", "Started")
    assert event["Resources"] == [guest.name]
    print(f"visible to a peer {seen.at - killed:.1f} s after the kill")  # noqa: T201 - a figure
    guest.wait_for_boots(boots + 1)
    print(f"it polls {time.monotonic() - killed:.1f} s after the kill")  # noqa: T201 - a figure
    (operation,) = lab.ended()
    assert (operation["status"], operation["start_cause"]) == ("Completed", "no-notice")
    assert len(guest.boots) == boots + 1
    assert guest.host() == "h2"
    assert alerts(lab) == []


def test_a_crash_while_libvirtd_is_down_is_found_when_it_is_back(
    lab: Lab, guests: list[Guest]
) -> None:
    guest, host = guests[1], guests[1].hosts["h2"]
    boots, before = len(guest.boots), len(lab.operations())
    os.kill(host.daemon(), signal.SIGKILL)
    os.kill(host.qemu(guest.name), signal.SIGKILL)
    until(lambda: ("host-lost", "host h2") in alerts(lab), lambda: log(lab))
    assert len(lab.operations()) == before
    host.start_daemon()
    guest.wait_for_boots(boots + 1)
    lab.ended()
    assert len(lab.operations()) == before + 1
    until(lambda: alerts(lab) == [], lambda: (alerts(lab), log(lab)))


def test_a_guest_of_a_host_that_loses_its_power_comes_back_with_it(
    lab: Lab, guests: list[Guest]
) -> None:
    peer, guest, off = guests
    boots, before = [len(each.boots) for each in guests], len(lab.operations())
    lab.hosts["h2"].reboot()
    guest.wait_for_boots(boots[1] + 1)
    (raised,) = lab.ended()[before:]
    assert raised["start_cause"] == "no-notice"
    assert raised["events"][0]["machines"] == [guest.name]
    assert [len(each.boots) for each in (peer, off)] == [boots[0], 0]


def test_a_machine_whose_domain_goes_stays_in_the_fleet_and_is_an_alert(
    lab: Lab, guests: list[Guest]
) -> None:
    guest = guests[2]
    guest.destroy()
    until(lambda: ("fleet", guest.name) in alerts(lab), lambda: (alerts(lab), log(lab)))
    assert machine(lab, guest)["host"] == "h2"
    lab.forewarn("fleet", "remove", guest.name)
    # The relay of the host that lost its power may have been away for a moment.
    until(lambda: alerts(lab) == [], lambda: (alerts(lab), log(lab)))
