"""The drain of a host, on real guests: nothing but moves, one reboot, and everybody comes home."""

import json
import time

import pytest

from end_to_end.agents import until
from hosts.guest import Guest
from hosts.lab import Lab

DRAINED_SECONDS = 240
"""Of two hosts in turn: 30 s on a quiet machine."""

FOLDER = "<filesystem type='mount'><source dir='{path}'/><target dir='share'/></filesystem>"
"""A device that keeps a guest where it is."""


def state(lab: Lab, host: str) -> str:
    return str(json.loads(lab.forewarn("host", "show", host, "--json"))["host"]["state"])


def wait_until(lab: Lab, host: str, wanted: str) -> None:
    until(lambda: state(lab, host) == wanted, lab.report, seconds=DRAINED_SECONDS)


def assert_unharmed(guests: list[Guest], since: float) -> None:
    """Judge by what the guests wrote: each polled on, and none was ever started again."""
    for guest in guests:
        assert guest.failed_polls(since) == []
        assert len(guest.boots) == 1


@pytest.fixture
def guests(lab: Lab) -> list[Guest]:
    lab.serve(lab.libvirt())
    made = lab.start({"web-0": "h1", "web-1": "h1", "web-2": "h2"}, approve=True)
    lab.fleet(made)
    for guest in made:
        guest.wait_for_polls(2)
    return made


def test_two_hosts_are_drained_rebooted_and_filled_again_and_no_guest_notices(
    lab: Lab, guests: list[Guest]
) -> None:
    since = time.monotonic()
    before = {name: (host.boot_id, host.reboots) for name, host in lab.hosts.items()}
    planned = lab.forewarn("host", "drain", "h1", "h2", "--reboot", "--dry-run")
    assert {guest.name for guest in guests} <= set(planned.split())

    watched = lab.forewarn("host", "drain", "h1", "h2", "--reboot", "--watch")
    for guest in guests:
        guest.wait_for_polls(1)

    assert_unharmed(guests, since)
    assert [guest.host() for guest in guests] == ["h1", "h1", "h2"]
    for name, host in lab.hosts.items():
        assert host.boot_id != before[name][0]
        assert host.reboots == before[name][1] + 1
        assert f"{name}  up" in watched
    operations = lab.operations()
    assert {each["event_type"] for each in operations} == {"Freeze"}
    assert {each["status"] for each in operations} == {"Completed"}
    assert len(operations) == 6, "each leaves once and comes home once"
    lab.clear()


def test_a_guest_that_cannot_be_moved_is_off_while_its_host_reboots_and_no_longer(
    lab: Lab,
) -> None:
    lab.serve(lab.libvirt())
    share = lab.folder / "share"
    share.mkdir(exist_ok=True)
    tied = lab.guest("db", approve=True, devices=FOLDER.format(path=share))
    free = lab.guest("web-0", approve=True)
    for guest in (tied, free):
        guest.start("h1")
    for guest in (tied, free):
        guest.wait_until_up()
    lab.fleet([tied, free])
    refused = lab.service and lab.service.call("host", "drain", "h1", "--reboot")
    assert refused is not None
    assert refused.returncode == 3, refused.stderr
    since = time.monotonic()
    reboots = lab.hosts["h1"].reboots

    lab.forewarn("host", "drain", "h1", "--reboot", "--stay", "stop")
    wait_until(lab, "h1", "up")
    tied.wait_for_boots(2)
    free.wait_for_polls(1)

    assert_unharmed([free], since)
    assert len(tied.boots) == 2
    assert lab.hosts["h1"].reboots == reboots + 1
    assert [guest.host() for guest in (tied, free)] == ["h1", "h1"]
    kinds = {each["event_type"]: each["status"] for each in lab.operations()}
    assert kinds == {"Freeze": "Completed", "Reboot": "Completed"}
    lab.clear()


def test_a_guest_that_the_fleet_does_not_know_keeps_its_host_from_the_reboot(lab: Lab) -> None:
    lab.serve(lab.libvirt())
    known, stranger = lab.start({"web-0": "h1", "test-vm": "h1"}, approve=True)
    lab.fleet([known])
    reboots = lab.hosts["h1"].reboots

    lab.forewarn("host", "drain", "h1", "--reboot")
    wait_until(lab, "h1", "stuck")
    assert stranger.host() == "h1"
    assert stranger.state() == "running"
    assert lab.hosts["h1"].reboots == reboots
    stranger.destroy()
    lab.forewarn("host", "retry", "h1")
    wait_until(lab, "h1", "up")
    assert known.host() == "h1"
    assert len(known.boots) == 1
    assert lab.hosts["h1"].reboots == reboots + 1
