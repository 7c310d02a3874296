"""The drain of a host with a guest that stays; test_guide has the one in which all guests move."""

import time

import pytest

from hosts.guest import Guest
from hosts.host import until
from hosts.lab import Lab

FOLDER = "<filesystem type='mount'><source dir='{path}'/><target dir='share'/></filesystem>"
"""A device that keeps a guest where it is."""


def wait_until(lab: Lab, host: str, wanted: str) -> None:
    operator = lab.service.operator
    until(lambda: operator.get(f"/v1/hosts/{host}")["host"]["status"] == wanted, lab.report)


@pytest.fixture(scope="module")
def guests(lab: Lab) -> list[Guest]:
    """One guest that is tied to its host by a device, and one that is not."""
    lab.serve(lab.libvirt())
    share = lab.folder / "share"
    share.mkdir()
    made = [
        lab.guest("db", approve=True, devices=FOLDER.format(path=share)),
        lab.guest("web-0", approve=True),
    ]
    for guest in made:
        guest.start("h1")
    lab.fleet(made)
    return made


def test_a_guest_that_cannot_be_moved_is_off_while_its_host_reboots_and_no_longer(
    lab: Lab, guests: list[Guest]
) -> None:
    tied, free = guests
    refused, _, why = lab.call("host", "drain", "h1", "--reboot")
    assert refused == 3, why
    since = time.monotonic()
    reboots = lab.hosts["h1"].reboots

    lab.forewarn("host", "drain", "h1", "--reboot", "--stay", "stop")
    wait_until(lab, "h1", "up")
    tied.wait_for_boots(2)
    free.wait_for_polls(1)

    assert free.refused_polls(since) == []
    assert (len(tied.boots), len(free.boots)) == (2, 1)
    assert lab.hosts["h1"].reboots == reboots + 1
    assert [guest.host() for guest in guests] == ["h1", "h1"]
    kinds = {each["event_type"]: each["status"] for each in lab.operations()}
    assert kinds == {"Freeze": "Completed", "Reboot": "Completed"}


def test_a_guest_that_the_fleet_does_not_know_keeps_its_host_from_the_reboot(
    lab: Lab, guests: list[Guest]
) -> None:
    stranger, known = guests
    lab.forewarn("fleet", "remove", stranger.name)
    reboots, boots = lab.hosts["h1"].reboots, len(stranger.boots)

    lab.forewarn("host", "drain", "h1", "--reboot")
    wait_until(lab, "h1", "stuck")
    assert (stranger.host(), stranger.state(), len(stranger.boots)) == ("h1", "running", boots)
    assert lab.hosts["h1"].reboots == reboots
    stranger.destroy()
    lab.forewarn("host", "retry", "h1")
    wait_until(lab, "h1", "up")
    assert (known.host(), len(known.boots)) == ("h1", 1)
    assert lab.hosts["h1"].reboots == reboots + 1
