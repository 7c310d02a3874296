"""Who is asking: by path, by address, by default; and when it last did."""

from datetime import timedelta

import pytest

from forewarn.maintenance.model import Changes, Machine, Profile
from forewarn.server.guest.callers import Registry, Source, normalised
from forewarn.server.guest.listener import Listener, source_of
from forewarn.server.guest.tally import Reason, Tally
from guest import room

WEB = room.machine("Web-0", "10.0.0.10", scope="web")
LOOPBACK = Listener(host="127.0.0.1", loopback=True, default_vm="Bastion")
BRIDGE = Listener(host="169.254.169.254")


def registry(*machines: Machine) -> tuple[Registry, Tally]:
    tally = Tally()
    filled = Registry(tally)
    filled.fill(room.SCOPES, machines)
    return filled, tally


def name_of(found: Machine | None) -> str | None:
    return None if found is None else found.name


def test_the_address_of_the_connection_tells_who_asks() -> None:
    callers, tally = registry(WEB)
    assert name_of(callers.caller(source_of(BRIDGE)("10.0.0.10"), None)) == "Web-0"
    assert callers.caller(source_of(BRIDGE)("10.0.0.12"), None) is None
    assert tally == {Reason.UNKNOWN_ADDRESS: 1}


@pytest.mark.parametrize(
    ("host", "known_as"),
    [
        ("10.0.0.10", "10.0.0.10"),
        ("::ffff:10.0.0.10", "10.0.0.10"),
        ("::FFFF:a00:a", "10.0.0.10"),
        ("FD00:0::10", "fd00::10"),
        ("fe80::1%br0", "fe80::1"),
        ("", ""),
        ("/run/socket", "/run/socket"),
    ],
)
def test_an_address_has_one_spelling(host: str, known_as: str) -> None:
    assert normalised(host) == known_as


def test_the_path_tells_who_asks_without_regard_to_case_and_it_alone() -> None:
    callers, tally = registry(WEB, room.machine("bastion"))
    source = source_of(LOOPBACK)("127.0.0.1")
    assert name_of(callers.caller(source, "WEB-0")) == "Web-0"
    assert callers.caller(source, "web-9") is None
    assert tally == {Reason.UNKNOWN_NAME: 1}


def test_the_default_machine_asks_where_nothing_else_tells() -> None:
    callers, _ = registry(WEB, room.machine("bastion"), room.machine("other", "127.0.0.9"))
    source = source_of(LOOPBACK)
    assert name_of(callers.caller(source("127.0.0.1"), None)) == "bastion"
    assert name_of(callers.caller(source("127.0.0.9"), None)) == "other"
    assert source_of(BRIDGE)("127.0.0.1") == Source(address="127.0.0.1")


def test_a_machine_that_moves_to_another_address_leaves_its_old_one() -> None:
    callers, _ = registry(WEB)
    callers.learn(Changes(machines=(room.machine("Web-0", "10.0.0.99", scope="web"),)))
    source = source_of(BRIDGE)
    assert callers.caller(source("10.0.0.10"), None) is None
    assert name_of(callers.caller(source("10.0.0.99"), None)) == "Web-0"


def test_two_machines_may_change_addresses_at_once() -> None:
    callers, _ = registry(room.machine("a", "10.0.0.1"), room.machine("b", "10.0.0.2"))
    callers.learn(Changes(machines=(room.machine("a", "10.0.0.2"), room.machine("b", "10.0.0.1"))))
    source = source_of(BRIDGE)
    assert name_of(callers.caller(source("10.0.0.2"), None)) == "a"
    assert name_of(callers.caller(source("10.0.0.1"), None)) == "b"


def test_a_removed_machine_is_forgotten_and_its_address_is_free_for_another() -> None:
    callers, _ = registry(WEB)
    callers.saw(WEB, room.START, "2020-07-01")
    new = room.machine("web-1", "10.0.0.10", scope="web")
    callers.learn(Changes(removed_machines=("web-0",), machines=(new,)))
    source = source_of(LOOPBACK)("10.0.0.10")
    assert name_of(callers.caller(source, None)) == "web-1"
    assert callers.caller(source, "web-0") is None
    assert callers.seen("web-0") is None
    callers.learn(Changes(removed_machines=("web-0", "never-there")))


def test_it_tells_when_a_machine_last_asked_and_by_which_version() -> None:
    callers, _ = registry(WEB)
    assert callers.seen("web-0") is None
    callers.saw(WEB, room.START, "2017-03-01")
    later = room.START + timedelta(seconds=1)
    callers.saw(WEB, later, "2020-07-01")
    assert callers.seen("web-0") == (later, "2020-07-01")


def test_what_many_machines_have_in_common_is_kept_once() -> None:
    machines = [
        room.machine(
            f"m-{number}",
            f"10.0.0.{number}",
            scope="".join(["w", "eb"]),
            host="".join(["h", "1"]),
            profile=Profile(location="".join(["we", "st"])),
        )
        for number in range(3)
    ]
    callers, _ = registry(*machines)
    source = source_of(BRIDGE)
    found = [callers.caller(source(machine.address), None) for machine in machines]
    assert found == machines
    for each in ("scope", "host", "profile"):
        assert len({id(getattr(machine, each)) for machine in found}) == 1
    for machine in machines:
        callers.saw(machine, room.START + timedelta(0), "2020-07-01")
    assert len({id(callers.seen(machine.key)) for machine in machines}) == 1
