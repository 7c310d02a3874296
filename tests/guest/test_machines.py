"""Sources and proxies by their addresses, beside the stories."""

import ipaddress

import pytest

from forewarn.maintenance.model import Changes
from forewarn.protocol import exchange
from forewarn.protocol.exchange import Claim
from forewarn.server.guest.limits import Reason
from forewarn.server.guest.listener import Listener
from forewarn.server.guest.machines import (
    Proxies,
    Registry,
    Source,
    normalised,
)
from guest import room
from guest.room import source_of

PROXIES = Proxies([ipaddress.ip_network("192.0.2.0/24"), ipaddress.ip_network("fd00:7::/64")])
BEHIND = room.Behind(Listener(address="169.254.169.254", name="blue"), PROXIES)


@pytest.mark.parametrize(
    ("host", "known_as"),
    [
        ("10.0.0.10", "10.0.0.10"),
        ("::ffff:10.0.0.10", "10.0.0.10"),
        ("::FFFF:a00:a", "10.0.0.10"),
        ("FD00:0::10", "fd00::10"),
        ("FE80::1%br0", "fe80::1%br0"),
        ("", ""),
        ("/run/socket", "/run/socket"),
    ],
)
def test_an_address_has_one_spelling(host: str, known_as: str) -> None:
    assert normalised(host) == known_as


def test_a_claim_counts_for_nothing_where_no_proxy_is_trusted() -> None:
    callers = Registry(proxied=True)
    callers.learn(Changes(machines=(room.machine("web-0", "10.0.0.10"),)))
    claim = Claim(b"web-0", exchange.sign(b"web-0", b"the secret of the proxies"))
    guest = source_of(room.BRIDGE)("10.0.0.10")
    assert callers.find(guest, claim) is Reason.WRONG_SIGNATURE


@pytest.mark.parametrize("host", ["192.0.2.7", "::ffff:192.0.2.7", "fd00:7::9"])
def test_a_proxy_is_known_by_its_network_and_by_nothing_else_than_its_word(host: str) -> None:
    loopback = room.Behind(Listener(address="127.0.0.1", default_vm="web-0"), PROXIES)
    source = source_of(loopback)(host)
    assert source.trusted_proxy
    assert (source.vm_paths, source.default_vm) == (False, "")
    assert source.is_shared


@pytest.mark.parametrize("host", ["192.0.3.7", "fd00:8::9", "fe80::1%br0", "", "/run/socket"])
def test_whoever_is_elsewhere_is_no_proxy(host: str) -> None:
    assert source_of(BEHIND)(host) == Source(address=host, listener="blue")
