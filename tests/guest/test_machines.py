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
    network_of,
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


def name_of(found: Machine | Reason) -> str:
    return found if isinstance(found, Reason) else found.name


def test_the_address_of_the_connection_tells_who_asks() -> None:
    callers = registry(WEB)
    assert name_of(callers.find(source_of(BRIDGE)("10.0.0.10"), None)) == "Web-0"
    assert callers.find(source_of(BRIDGE)("10.0.0.12"), None) is Reason.UNKNOWN_ADDRESS


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


def test_the_path_tells_who_asks_without_regard_to_case_and_it_alone() -> None:
    callers = registry(WEB, room.machine("bastion"))
    source = source_of(LOOPBACK)("127.0.0.1")
    assert name_of(callers.find(source, "WEB-0")) == "Web-0"
    assert callers.find(source, "web-9") is Reason.UNKNOWN_NAME


def test_the_default_machine_asks_where_nothing_else_tells() -> None:
    callers = registry(WEB, room.machine("bastion"), room.machine("other", "127.0.0.9"))
    source = source_of(LOOPBACK)
    assert name_of(callers.find(source("127.0.0.1"), None)) == "bastion"
    assert name_of(callers.find(source("127.0.0.9"), None)) == "other"
    assert source_of(BRIDGE)("127.0.0.1") == Source(address="127.0.0.1", network="127.0.0.1")


def test_a_machine_that_moves_to_another_address_leaves_its_old_one() -> None:
    callers = registry(WEB)
    callers.learn(Changes(machines=(room.machine("Web-0", "10.0.0.99", scope="web"),)))
    source = source_of(BRIDGE)
    assert callers.find(source("10.0.0.10"), None) is Reason.UNKNOWN_ADDRESS
    assert name_of(callers.find(source("10.0.0.99"), None)) == "Web-0"


def test_two_machines_may_change_addresses_at_once() -> None:
    callers = registry(room.machine("a", "10.0.0.1"), room.machine("b", "10.0.0.2"))
    callers.learn(Changes(machines=(room.machine("a", "10.0.0.2"), room.machine("b", "10.0.0.1"))))
    source = source_of(BRIDGE)
    assert name_of(callers.find(source("10.0.0.2"), None)) == "a"
    assert name_of(callers.find(source("10.0.0.1"), None)) == "b"


def test_a_removed_machine_is_forgotten_and_its_address_is_free_for_another() -> None:
    callers = registry(WEB)
    callers.saw(WEB, room.START, "2020-07-01")
    new = room.machine("web-1", "10.0.0.10", scope="web")
    callers.learn(Changes(removed_machines=("web-0",), machines=(new,)))
    source = source_of(LOOPBACK)("10.0.0.10")
    assert name_of(callers.find(source, None)) == "web-1"
    assert callers.find(source, "web-0") is Reason.UNKNOWN_NAME
    assert callers.seen("web-0") is None
    callers.learn(Changes(removed_machines=("web-0", "never-there")))


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


def test_two_listeners_may_hold_equal_addresses() -> None:
    blue = room.machine("blue-0", "10.0.0.10", listener="blue")
    green = room.machine("green-0", "10.0.0.10", listener="green")
    callers = registry(blue, green)
    at = {name: Listener(address="169.254.169.254", name=name) for name in ("blue", "green", "")}
    asked = {name: source_of(listener)("10.0.0.10") for name, listener in at.items()}
    assert callers.find(asked["blue"], None) is blue
    assert callers.find(asked["green"], None) is green
    assert callers.find(asked[""], None) is Reason.UNKNOWN_ADDRESS
    callers.learn(Changes(machines=(room.machine("blue-0", "10.0.0.10", listener="green"),)))
    assert callers.find(asked["blue"], None) is Reason.UNKNOWN_ADDRESS
    assert name_of(callers.find(asked["green"], None)) == "blue-0"
    callers.learn(Changes(removed_machines=("green-0",)))
    assert name_of(callers.find(asked["green"], None)) == "blue-0"


def test_a_machine_at_no_listener_is_no_machine_of_a_named_one() -> None:
    callers = registry(WEB)
    named = source_of(Listener(address="169.254.169.254", name="blue"))
    assert callers.find(named("10.0.0.10"), None) is Reason.UNKNOWN_ADDRESS


def test_a_link_local_address_is_known_by_its_interface_first() -> None:
    callers = registry(
        room.machine("a", "fe80::10%br0"),
        room.machine("b", "fe80::10"),
        room.machine("c", "fe80::11"),
    )
    source = source_of(Listener(address="::"))
    assert name_of(callers.find(source("fe80::10%br0"), None)) == "a"
    assert name_of(callers.find(source("fe80::10%br1"), None)) == "b"
    assert name_of(callers.find(source("fe80::11%br1"), None)) == "c"
    assert callers.find(source("fe80::12%br1"), None) is Reason.UNKNOWN_ADDRESS


SECRET, OLD = b"the new secret of the proxies", b"the old secret of the proxies"
PROXIES = Proxies([ipaddress.ip_network("192.0.2.0/24"), ipaddress.ip_network("fd00:7::/64")])
PROXIES.secrets = (SECRET, OLD)
BEHIND = room.Behind(Listener(address="169.254.169.254", name="blue"), PROXIES)


def claim(id_: str, secret: bytes = SECRET) -> Claim:
    return Claim(id_.encode(), exchange.sign(id_.encode(), secret))


def test_a_proxy_names_a_machine_by_its_vm_id_or_its_name() -> None:
    web = room.machine("Web-0", "192.0.2.7", vm_id="11111111-74ef-476e-8182-f6d2ba4166a6")
    other = room.machine("web-1", vm_id="22222222-74ef-476e-8182-f6d2ba4166a6")
    callers = registry(web, other)
    source = source_of(BEHIND)("192.0.2.7")
    for id_ in ("Web-0", "WEB-0", web.vm_id, web.vm_id.upper()):
        assert callers.find(source, claim(id_)) is web
    assert callers.find(source, claim(other.vm_id, OLD)) is other
    assert callers.find(source, claim("web-9")) is Reason.UNKNOWN_INSTANCE
    assert callers.find(source, claim("")) is Reason.UNKNOWN_INSTANCE
    assert callers.find(source, claim("web-1", b"x" * 16)) is Reason.WRONG_SIGNATURE
    renamed = room.machine("web-1", vm_id="33333333-74ef-476e-8182-f6d2ba4166a6")
    callers.learn(Changes(machines=(renamed,)))
    assert callers.find(source, claim(other.vm_id)) is Reason.UNKNOWN_INSTANCE
    assert callers.find(source, claim(renamed.vm_id)) is renamed
    callers.learn(Changes(removed_machines=("web-1",)))
    assert callers.find(source, claim(renamed.vm_id)) is Reason.UNKNOWN_INSTANCE


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
    assert source_of(BEHIND)(host) == Source(
        address=host, network=network_of(host), listener="blue"
    )


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


def test_what_does_not_apply_is_empty_and_the_host_name_is_the_machine_s_own() -> None:
    told = described(room.machine("bastion"), room.scope("bastion"))
    assert (told.placement_group_id, told.vm_scale_set_name) == ("", "")
    assert (told.resource_id, told.private_ip_address) == ("", "")
    assert (told.subnet_address, told.subnet_prefix) == ("", "")
    assert told.ipv6_addresses == ()
    assert told.computer_name == "bastion"
    assert told.priority == ""


@pytest.mark.parametrize(
    ("priority", "read"), [(None, ""), (Priority.REGULAR, "Regular"), (Priority.LOW, "Spot")]
)
def test_a_priority_is_read_where_the_fleet_file_gives_one(
    priority: Priority | None, read: str
) -> None:
    scope = room.scope("bastion", priority=priority)
    assert described(room.machine("bastion"), scope).priority == read


def test_a_resource_id_needs_a_subscription() -> None:
    machine = room.machine("bastion", profile=Profile(resource_group="shop"))
    assert described(machine, room.scope("bastion")).resource_id == ""
    machine = room.machine("bastion", profile=Profile(subscription_id="42"))
    assert described(machine, room.scope("bastion")).resource_id == (
        "/subscriptions/42/resourceGroups/forewarn/providers/Microsoft.Compute"
        "/virtualMachines/bastion"
    )


def test_what_clients_cannot_do_without_is_never_empty() -> None:
    read = described(room.machine("bastion"), room.scope("bastion"))
    assert (read.location, read.resource_group_name) == ("forewarn", "forewarn")
    assert read.vm_size == "forewarn"
    assert re.fullmatch("02[0-9A-F]{10}", read.mac_address)


def test_an_ipv6_address_stands_where_those_stand_and_once() -> None:
    machine = room.machine("six", "fd00::6", profile=Profile(ipv6_address="fd00::6"))
    told = described(machine, room.scope("six"))
    assert told.private_ip_address == ""
    assert told.ipv6_addresses == ("fd00::6",)
