"""With root: what holds a guest to its address, and what holds the service's port, as guided."""

import subprocess
from collections.abc import Iterator

import pytest

from hosts import lab as labs
from hosts.guest import BRIDGED, FILTERED, Guest
from hosts.host import ROUTER
from hosts.lab import ENDPOINT, Lab
from hosts.system_host import SystemHost
from recipes import pages

TIMED_OUT = 28
"""curl's exit status."""

VICTIM = "10.99.0.11"
"""The address of the lab's first guest."""


@pytest.fixture(scope="module")
def lab(as_root: None) -> Iterator[Lab]:
    """One host, whose libvirtd is root's, and the guide's rules before the service alone."""
    with labs.made("h1", kind=SystemHost, has_relays=False) as made:
        rules = pages.block("production", "nft", "table ip forewarn")
        rules = pages.placed(rules, {'"virbr0"': '"switch"'})
        subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)
        made.serve()
        yield made


@pytest.fixture(scope="module")
def guests(lab: Lab) -> list[Guest]:
    """The victim, a thief whom nothing holds, and one behind the filter; of two scopes."""
    made = [
        lab.guest("web-0", wire=FILTERED),
        lab.guest("free", wire=BRIDGED, takes=VICTIM),
        lab.guest("held", wire=FILTERED, takes=VICTIM),
    ]
    assert made[0].address == VICTIM
    made[0].start("h1")
    made[0].wait_until_up()
    lab.fleet(made[:1])
    return made


def test_a_filtered_guest_reads_its_document_through_the_guides_rules(guests: list[Guest]) -> None:
    guests[0].wait_for_polls(2)
    assert guests[0].polls[-1].document == {"DocumentIncarnation": 0, "Events": []}


def test_a_guest_that_takes_a_neighbours_address_reads_nothing_behind_the_filter(
    lab: Lab, guests: list[Guest]
) -> None:
    victim, free, held = guests
    victim.hosts["h1"].virsh("destroy", victim.name)
    held.start("h1")
    held.wait_until_up()
    free.start("h1")
    free.wait_for_polls(3)
    assert free.polls[-1].document == {"DocumentIncarnation": 0, "Events": []}, "the theft works"
    assert held.polls
    assert all(poll.error for poll in held.polls)


def test_the_guides_rules_drop_what_asks_for_another_port(guests: list[Guest]) -> None:
    inside = ("ip", "netns", "exec", "h1")
    subprocess.run([*inside, "ip", "route", "add", ENDPOINT, "via", ROUTER], check=True)
    for port, status in ((80, 0), (81, TIMED_OUT)):  # without the rules it is refused at once
        command = [*inside, "curl", "--silent", "--max-time", "2", f"http://{ENDPOINT}:{port}"]
        assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == status
