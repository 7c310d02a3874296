"""With root: guests behind their hosts' NAT, each host with a relay, as guided.

The networks are libvirt's own, and so are the addresses; the relays are started here, by hand.
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts import nat
from hosts.guest import FILTER, Guest
from hosts.lab import RELAY, RELAYS, Lab
from hosts.system_host import SystemHost
from relays import process
from relays.process import Relay

PLANE = f"{nat.SERVICE}:8173"


@pytest.fixture(scope="module")
def lab(as_root: None) -> Iterator[Lab]:
    with tempfile.TemporaryDirectory(prefix="fw-", ignore_cleanup_errors=True) as folder:
        made = Lab(Path(folder), SystemHost, has_relays=False)
        try:
            nat.run(f"ip address add {nat.SERVICE}/24 dev switch")
            process.certify(made.folder, nat.SERVICE)
            for name in nat.HOSTS:
                made.host(name)
            own = RELAYS.format(plane=PLANE, folder=made.folder)
            made.serve(own + made.libvirt())
            for name in nat.HOSTS:
                nat.prepare(made, name)
            yield made
        finally:
            made.close()


@pytest.fixture(scope="module")
def relays(lab: Lab) -> Iterator[dict[str, Relay]]:
    """A relay on each host, by its name."""
    made = {name: relay(lab, name) for name in nat.HOSTS}
    for each in made.values():
        each.wait_until_ready()
    yield made
    for each in made.values():
        each.end()


def relay(lab: Lab, name: str) -> Relay:
    """Start the relay of a host."""
    folder = lab.folder / f"relay-{name}"
    folder.mkdir(mode=0o700)
    token = folder / "token"
    lab.forewarn("relay", "token", name, "--output", str(token))
    text = RELAY.format(plane=PLANE, token=token, folder=lab.folder, state=folder)
    made = Relay(folder, name, text, ["ip", "netns", "exec", name])
    made.start()
    return made


@pytest.fixture(scope="module")
def guests(lab: Lab, relays: dict[str, Relay]) -> list[Guest]:
    """Guests of h1, whose relay knows them by their addresses, to which a filter holds them."""
    assert set(relays) == set(nat.HOSTS)
    homes = dict.fromkeys(("web-0", "web-1"), "h1")
    made = lab.start(homes, wire=nat.BRIDGE + FILTER, network=nat.NETWORK, approve=True)
    lab.fleet(made)
    return made


def test_a_guest_that_moves_live_is_answered_by_the_relay_of_its_new_host(
    lab: Lab, guests: list[Guest]
) -> None:
    mover = guests[0]
    asked, start = len(mover.polls), time.monotonic()
    operation = lab.maintain("freeze", mover.name, "--live-migration")
    assert operation["status"] == "Completed", lab.report()
    assert mover.host() == "h2"
    mover.wait_for_polls(3)
    assert not mover.refused_polls(start)
    assert any(poll.events for poll in mover.polls[asked:]), "it read of the move before"
    assert "APPROVED" in mover.said()


def test_guests_read_on_while_the_service_is_away(
    lab: Lab, guests: list[Guest], relays: dict[str, Relay]
) -> None:
    assert lab.service is not None
    start = time.monotonic()
    lab.service.stop()
    for guest in guests:
        guest.wait_for_polls(3)
    lab.service.start()
    for guest in guests:
        guest.wait_for_polls(2)
        assert not guest.refused_polls(start), relays
    assert len(guests[1].boots) == 1
