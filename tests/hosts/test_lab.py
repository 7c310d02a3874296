"""The lab itself: what the other tests of this folder take for granted."""

import os
import signal
import time

import pytest

from end_to_end.agents import until
from hosts.guest import Guest
from hosts.lab import Lab


@pytest.fixture(scope="module")
def guests(lab: Lab) -> list[Guest]:
    lab.serve()
    made = lab.start({"web-0": "h1", "web-1": "h2"}, approve=True)
    lab.fleet(made)
    return made


def test_guests_on_two_hosts_poll_the_service_once_a_second(guests: list[Guest]) -> None:
    for guest in guests:
        guest.wait_for_polls(3)
        documents = [each.document for each in guest.polls if each.document]
        assert documents[-1] == {"DocumentIncarnation": 0, "Events": []}
        assert len(guest.boots) == 1


def test_a_guest_moves_live_and_fails_no_poll(guests: list[Guest]) -> None:
    guest = guests[0]
    start = time.monotonic()
    guest.wait_for_polls()
    guest.migrate("h2")
    guest.wait_for_polls(2)
    assert guest.host() == "h2"
    assert not guest.failed_polls(start)
    assert len(guest.boots) == 1
    guest.migrate("h1")
    assert guest.host() == "h1"


def test_a_guest_approves_what_it_is_announced(lab: Lab, guests: list[Guest]) -> None:
    lab.forewarn("schedule", "freeze", guests[1].name)
    (operation,) = lab.ended()
    assert operation["status"] == "Completed"
    assert operation["start_cause"] == "approved"
    assert any(poll.events for poll in guests[0].polls), "one scope, one document"


def test_a_press_of_its_button_turns_a_guest_off(lab: Lab, guests: list[Guest]) -> None:
    guest = guests[1]
    lab.hosts["h2"].virsh("shutdown", guest.name)
    until(lambda: guest.state() == "off", guest.said)
    lab.hosts["h2"].virsh("start", guest.name)
    guest.wait_for_boots(2)
    assert len(guest.boots) == 2


def test_a_host_that_reboots_has_another_boot_id_and_runs_nothing(
    lab: Lab, guests: list[Guest]
) -> None:
    host, before = lab.hosts["h2"], lab.hosts["h2"].boot_id
    assert host.running() == {"web-1"}
    host.reboot()
    assert host.boot_id != before
    assert host.running() == set()
    assert host.defined() == {"web-1"}
    assert guests[0].host() == "h1"


def test_a_libvirtd_that_is_killed_leaves_its_guests_running(lab: Lab, guests: list[Guest]) -> None:
    host, guest = lab.hosts["h1"], guests[0]
    os.kill(host.daemon(), signal.SIGKILL)
    guest.wait_for_polls(2)
    host.start_daemon()
    assert host.running() == {guest.name}
    os.kill(host.qemu(guest.name), signal.SIGKILL)
    until(lambda: guest.state() == "off", guest.said)
