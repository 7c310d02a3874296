"""The guide `libvirt.md`: its settings and its commands, in their order, on the lab.

Its drain of both hosts is the proof that a drain moves every guest and harms none.
"""

import json
import shlex
import time

import pytest

from hosts.guest import Guest
from hosts.lab import ENDPOINT, Lab
from recipes import pages

PAGE = "libvirt"
PLACES = {"web-0": "h1", "web-1": "h1", "web-2": "h2"}


def settings(lab: Lab) -> str:
    """Return the page's settings with the lab's hosts in them."""
    listener, _, text = pages.block(PAGE, "toml").partition("[connector]")
    assert f'address = "{ENDPOINT}"\nport = 80' in listener
    places = {}
    for name, host in lab.hosts.items():
        assert f'"tcp://{host.address}"' in text
        places[f"qemu+ssh://root@{name}/system"] = host.uri
        reboot, boot_id = map(json.dumps, (host.reboot_command, host.boot_id_command))
        places[f'["ssh", "root@{name}", "systemctl", "reboot"]'] = f"{reboot}\nboot_id = {boot_id}"
    return "[connector]" + pages.placed(text, places)


def commands(words: str) -> list[list[str]]:
    """Return the commands of the one block that has some words in it."""
    lines = pages.block(PAGE, "console", words).splitlines()
    return [shlex.split(line)[2:] for line in lines if line.startswith("$ forewarn ")]


@pytest.fixture(scope="module")
def guests(lab: Lab) -> list[Guest]:
    lab.serve(settings(lab))
    return lab.start(PLACES, approve=True)


def follow(lab: Lab, words: str) -> str:
    """Run the commands of one block; return what they printed."""
    return "".join(lab.forewarn(*command) for command in commands(words))


def at_home(guests: list[Guest]) -> bool:
    return {guest.name: guest.host() for guest in guests} == PLACES


def test_the_hosts_answer_and_the_fleet_is_imported(lab: Lab, guests: list[Guest]) -> None:
    assert all(name in follow(lab, "host list") for name in lab.hosts)
    told = follow(lab, "fleet sync")
    for guest in guests:
        assert guest.address in told
        guest.wait_for_polls()


def test_one_guest_moves(lab: Lab, guests: list[Guest]) -> None:
    move, history = commands("--live-migration")
    lab.forewarn(*move)
    assert [each["status"] for each in lab.ended()] == ["Completed"]
    assert "web-0" in lab.forewarn(*history)
    assert guests[0].host() == "h2"
    guests[0].migrate("h1")


def test_all_hosts_are_patched_and_no_guest_notices(lab: Lab, guests: list[Guest]) -> None:
    assert "web-1" in follow(lab, "--dry-run")
    assert at_home(guests)
    start, asked = time.monotonic(), len(lab.operations())
    before = {name: (host.boot_id, host.reboots) for name, host in lab.hosts.items()}
    watched = follow(lab, "alerts")
    for name, host in lab.hosts.items():
        assert host.boot_id != before[name][0]
        assert host.reboots == before[name][1] + 1
        assert f"{name}  done" in watched
    assert at_home(guests)
    for guest in guests:
        guest.wait_for_polls()
        assert not guest.refused_polls(start)
        assert len(guest.boots) == 1
    operations = lab.operations()[asked:]
    assert {each["event_type"] for each in operations} == {"Freeze"}
    assert {each["status"] for each in operations} == {"Completed"}
    assert len(operations) == 6, "each leaves once and comes home once"
    assert '"level": "error"' not in lab.service.log.read_text()


def test_the_drain_of_several_hosts_is_the_pages_drain_of_one(lab: Lab) -> None:
    (one,) = commands("drain h1 --reboot --wait")
    (several, _) = commands("alerts")
    assert set(one) < set(several), "the test of several hosts is the one of one host too"
