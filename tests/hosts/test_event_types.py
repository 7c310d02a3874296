"""Each event type on real guests, by the libvirt connector; their own polls are the judges."""

import json
import time
from typing import Any

import pytest

from hosts.guest import Guest
from hosts.lab import Lab


@pytest.fixture(scope="module")
def guests(lab: Lab) -> list[Guest]:
    lab.serve(lab.libvirt("freeze_seconds = 3"))
    made = lab.start({"web-0": "h1", "web-1": "h2"}, approve=True)
    lab.fleet(made)
    for guest in made:
        guest.wait_for_polls()
    return made


def maintain(lab: Lab, *arguments: str) -> dict[str, Any]:
    """Schedule maintenance, wait for its end, and return its operation."""
    lab.forewarn("schedule", *arguments)
    return lab.ended()[-1]


def test_a_freeze_pauses_a_guest_and_lets_it_go_on(lab: Lab, guests: list[Guest]) -> None:
    guest, start = guests[0], time.monotonic()
    operation = maintain(lab, "freeze", "web-0")
    assert operation["status"] == "Completed", operation
    guest.wait_for_polls(2)
    assert (guest.state(), guest.host(), len(guest.boots)) == ("running", "h1", 1)
    assert 3 <= guest.longest_gap(start) < 12
    assert guests[1].longest_gap(start) < 3


def test_a_live_migration_keeps_a_guests_memory_and_fails_no_poll(
    lab: Lab, guests: list[Guest]
) -> None:
    guest, start = guests[0], time.monotonic()
    operation = maintain(lab, "freeze", "web-0", "--live-migration")
    assert operation["status"] == "Completed", operation
    guest.wait_for_polls(2)
    assert (guest.state(), guest.host(), len(guest.boots)) == ("running", "h2", 1)
    assert not guest.failed_polls(start)
    assert guest.name not in lab.hosts["h1"].defined()
    assert "h2" in lab.forewarn("fleet", "list")


def test_a_redeploy_to_the_only_other_host_goes_there(lab: Lab, guests: list[Guest]) -> None:
    guest, start = guests[0], time.monotonic()
    operation = maintain(lab, "redeploy", "web-0")
    assert operation["status"] == "Completed", operation
    guest.wait_for_polls(2)
    assert (guest.state(), guest.host(), len(guest.boots)) == ("running", "h1", 1)
    assert not guest.failed_polls(start)


def test_a_reboot_is_over_when_the_guest_polls_again(lab: Lab, guests: list[Guest]) -> None:
    guest = guests[0]
    operation = maintain(lab, "reboot", "web-0")
    assert operation["status"] == "Completed", operation
    assert (guest.state(), guest.host(), len(guest.boots)) == ("running", "h1", 2)
    assert guest.polls[-1].boot == guest.boots[-1]


def test_a_preemption_leaves_nothing_of_a_guest(lab: Lab, guests: list[Guest]) -> None:
    (doomed,) = lab.start({"batch_0": "h2"}, approve=True)
    machine = {"index": 0, "host": "h2", "address": doomed.address, "vm_id": doomed.vm_id}
    scale_set = {"name": "batch", "priority": "low", "machines": [machine]}
    fleet = lab.folder / "scale-set.json"
    fleet.write_text(json.dumps({"scale_set": [scale_set]}))
    lab.forewarn("fleet", "apply", str(fleet))
    doomed.wait_for_polls()
    operation = maintain(lab, "preempt", "batch_0")
    assert operation["status"] == "Completed", operation
    assert doomed.active_on() == []
    assert not any(doomed.name in host.defined() for host in lab.hosts.values())
    assert [guest.state() for guest in guests] == ["running", "running"]
