"""Who is asking: by path, by address, by default; when it last did; what it reads of itself."""

import ipaddress
import re
from datetime import timedelta

import pytest

from forewarn.maintenance.model import Changes, Machine, Profile, Sighting
from forewarn.protocol import exchange, instance
from forewarn.protocol.codec import AgentReport
from forewarn.protocol.exchange import Claim
from forewarn.server.guest.limits import Reason
from forewarn.server.guest.listener import Listener
from forewarn.server.guest.machines import (
    Proxies,
    Registry,
    Source,
    described,
    normalised,
)
from forewarn.vocabulary import AgentStatus, Priority, ScopeKind
from guest import room
from guest.room import source_of

WEB = room.machine("Web-0", "10.0.0.10", scope="web")
LOOPBACK = Listener(address="127.0.0.1", default_vm="Bastion")
BRIDGE = Listener(address="169.254.169.254")


def registry(*machines: Machine) -> Registry:
    filled = Registry(proxied=True)
    filled.learn(Changes(machines=machines))
    return filled


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


def test_it_tells_when_a_machine_last_asked_and_by_which_version() -> None:
    callers = registry(WEB)
    assert callers.seen("web-0") is None
    callers.saw(WEB, room.START, "2017-03-01")
    later = room.START + timedelta(seconds=1)
    callers.saw(WEB, later, "2020-07-01")
    assert callers.seen("web-0") == Sighting(asked_at=later, version="2020-07-01")
    callers.caller(room.machine("web-1", scope="web"))
    assert callers.seen_count == 1
    callers.learn(Changes(removed_machines=("web-0", "web-1", "never-there")))
    assert callers.seen_count == 0


def test_the_last_word_of_an_agent_stays_when_another_client_of_its_machine_asks() -> None:
    callers = registry(WEB)
    held = AgentReport(AgentStatus.HELD, "the drain failed")
    callers.saw(WEB, room.START, "2020-07-01", held)
    callers.saw(WEB, room.START, "2017-03-01")
    assert callers.seen("web-0") == Sighting(
        asked_at=room.START, version="2017-03-01", agent=held.status, reason=held.reason
    )
    callers.saw(WEB, room.START, "2020-07-01", AgentReport(AgentStatus.BACK))
    seen = callers.seen("web-0")
    assert seen is not None
    assert (seen.agent, seen.reason) == (AgentStatus.BACK, "")


SECRET, OLD = b"the new secret of the proxies", b"the old secret of the proxies"
PROXIES = Proxies([ipaddress.ip_network("192.0.2.0/24"), ipaddress.ip_network("fd00:7::/64")])
PROXIES.secrets = (SECRET, OLD)
BEHIND = room.Behind(Listener(address="169.254.169.254", name="blue"), PROXIES)


def claim(id_: str, secret: bytes = SECRET) -> Claim:
    return Claim(id_.encode(), exchange.sign(id_.encode(), secret))


def test_a_claim_counts_for_nothing_where_no_proxy_is_trusted() -> None:
    callers = registry(WEB)
    guest = source_of(BRIDGE)("10.0.0.10")
    assert callers.find(guest, claim("web-0")) is Reason.WRONG_SIGNATURE


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


def test_a_machine_of_a_scale_set_reads_its_place_and_its_profile() -> None:
    machine = room.machine(
        "batch_0",
        "10.0.1.10",
        scope="batch",
        update_domain=1,
        fault_domain=2,
        tags=(("role", "leader"), ("tier", "1")),
        profile=Profile(
            location="west",
            os_type="Windows",
            vm_size="Standard_A3",
            zone="3",
            resource_group="shop",
            subscription_id="42",
            computer_name="leader.example",
            mac_address="00:0d:3a:00:fa:89",
            public_address="203.0.113.7",
            subnet="10.0.1.0/24",
            ipv6_address="fd00::10",
        ),
    )
    scope = room.scope("batch", kind=ScopeKind.SCALE_SET, priority=Priority.LOW)
    assert described(machine, scope) == instance.Instance(
        name="batch_0",
        vm_id="02aab8a4-74ef-476e-8182-f6d2ba4166a6",
        az_environment="AzurePublicCloud",
        location="west",
        os_type="Windows",
        placement_group_id="batch",
        platform_fault_domain="2",
        platform_update_domain="1",
        priority="Spot",
        resource_group_name="shop",
        resource_id="/subscriptions/42/resourceGroups/shop/providers/Microsoft.Compute"
        "/virtualMachineScaleSets/batch/virtualMachines/0",
        subscription_id="42",
        tags=(("role", "leader"), ("tier", "1")),
        vm_scale_set_name="batch",
        vm_size="Standard_A3",
        zone="3",
        computer_name="leader.example",
        private_ip_address="10.0.1.10",
        public_ip_address="203.0.113.7",
        subnet_address="10.0.1.0",
        subnet_prefix="24",
        ipv6_addresses=("fd00::10",),
        mac_address="000D3A00FA89",
    )
    tree = instance.tree(described(machine, scope), "2021-03-01")
    assert instance.find(tree, ("compute", "virtualMachineScaleSet", "id")) == (
        "/subscriptions/42/resourceGroups/shop/providers/Microsoft.Compute"
        "/virtualMachineScaleSets/batch"
    )


def test_what_does_not_apply_is_empty_and_what_clients_cannot_do_without_never() -> None:
    told = described(room.machine("bastion"), room.scope("bastion"))
    assert (told.placement_group_id, told.vm_scale_set_name) == ("", "")
    assert (told.resource_id, told.private_ip_address) == ("", "")
    assert (told.subnet_address, told.subnet_prefix) == ("", "")
    assert (told.ipv6_addresses, told.priority) == ((), "")
    assert told.computer_name == "bastion"
    assert (told.location, told.resource_group_name, told.vm_size) == ("forewarn",) * 3
    assert re.fullmatch("02[0-9A-F]{10}", told.mac_address)


def test_a_priority_a_resource_id_and_an_ipv6_address_stand_where_the_fleet_gives_them() -> None:
    for priority, read in ((Priority.REGULAR, "Regular"), (Priority.LOW, "Spot")):
        scope = room.scope("bastion", priority=priority)
        assert described(room.machine("bastion"), scope).priority == read
    scope = room.scope("bastion")
    machine = room.machine("bastion", profile=Profile(resource_group="shop"))
    assert described(machine, scope).resource_id == ""
    machine = room.machine("bastion", profile=Profile(subscription_id="42"))
    assert described(machine, scope).resource_id == (
        "/subscriptions/42/resourceGroups/forewarn/providers/Microsoft.Compute"
        "/virtualMachines/bastion"
    )
    machine = room.machine("bastion", "fd00::6", profile=Profile(ipv6_address="fd00::6"))
    told = described(machine, scope)
    assert (told.private_ip_address, told.ipv6_addresses) == ("", ("fd00::6",))
    machine = room.machine("bastion", "fe80::6%br0", profile=Profile(ipv6_address="fe80::6"))
    told = described(machine, scope)
    assert (told.private_ip_address, told.ipv6_addresses) == ("", ("fe80::6",))
