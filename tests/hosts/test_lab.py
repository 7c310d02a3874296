"""The lab itself: what the other tests of this folder take for granted."""

import os
import signal
import time

import pytest

from hosts.guest import Guest
from hosts.lab import Lab


@pytest.fixture(scope="module")
def guest(lab: Lab) -> Guest:
    lab.serve(lab.libvirt("freeze_seconds = 1") + "\n[fleet.libvirt]\nsync = true")
    (made,) = lab.start({"web-0": "h1"}, approve=True)
    lab.fleet([made])
    return made


def test_a_guest_polls_the_relay_of_its_host_once_a_second(lab: Lab, guest: Guest) -> None:
    guest.wait_for_polls(3)
    documents = [each.document for each in guest.polls if each.document]
    assert documents[-1] == {"DocumentIncarnation": 0, "Events": []}
    assert len(guest.boots) == 1
    metrics = lab.service.operator.ask("GET", "/metrics").body.decode()
    assert "forewarn_guest_connections_accepted_total 0.0" in metrics


def test_a_guest_moves_live_and_no_poll_is_refused(guest: Guest) -> None:
    start = time.monotonic()
    guest.migrate("h2")
    guest.wait_for_polls(2)
    assert guest.host() == "h2"
    assert not guest.refused_polls(start)
    assert len(guest.boots) == 1


def test_a_guest_approves_what_it_is_announced(lab: Lab, guest: Guest) -> None:
    lab.forewarn("schedule", "freeze", guest.name)
    (operation,) = lab.ended()
    assert operation["status"] == "Completed"
    assert operation["start_cause"] == "approved"
    assert any(poll.events for poll in guest.polls)


def test_a_libvirtd_that_is_killed_leaves_its_guests_running(lab: Lab, guest: Guest) -> None:
    host = lab.hosts["h2"]
    os.kill(host.daemon(), signal.SIGKILL)
    guest.wait_for_polls(2)
    host.start_daemon()
    assert host.running() == {guest.name}


def test_a_host_that_reboots_has_another_boot_id_and_runs_nothing(lab: Lab, guest: Guest) -> None:
    host, before = lab.hosts["h2"], lab.hosts["h2"].boot_id
    host.reboot()
    assert host.boot_id != before
    assert host.running() == set()
    assert host.defined() == {guest.name}
