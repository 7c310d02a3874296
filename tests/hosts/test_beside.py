"""Guests without a relay: the service is on their network, the first way of `libvirt.md`.

It is about the service alone; the guests of the other files ask the relay of their host.
"""

import time
from collections.abc import Iterator

import pytest

from hosts import lab as labs
from hosts.guest import Guest
from hosts.host import ROUTER
from hosts.lab import ENDPOINT, NETWORK, Lab
from recipes import pages

PAGE = "libvirt"


@pytest.fixture(scope="module")
def lab(_nothing_is_missing: None) -> Iterator[Lab]:
    with labs.made("h1", "h2", has_relays=False) as made:
        yield made


@pytest.fixture(scope="module")
def guest(lab: Lab) -> Guest:
    lab.serve(lab.libvirt())
    (made,) = lab.start({"web-0": "h1"}, approve=True, route=f"{ENDPOINT}/32")
    lab.fleet([made])
    return made


def test_the_network_is_the_guides(guest: Guest) -> None:
    address, route = (line.strip() for line in pages.blocks(PAGE, "sh"))
    assert address in NETWORK
    assert route == f"ip route add {ENDPOINT}/32 via {ROUTER}"
    assert f"fw.route={ENDPOINT}/32" in guest.xml


def test_a_guest_that_moves_finds_the_same_service(lab: Lab, guest: Guest) -> None:
    start = time.monotonic()
    operation = lab.maintain("freeze", guest.name, "--live-migration")
    assert operation["status"] == "Completed", operation
    assert guest.host() == "h2"
    guest.wait_for_polls(2)
    assert not guest.refused_polls(start)
    assert "LOST" not in guest.said()
    assert len(guest.boots) == 1
