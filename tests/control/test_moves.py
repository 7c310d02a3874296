"""Machines that move: holds and the maintenance of hosts go by where they are now."""

from collections.abc import Callable

import msgspec
import pytest

from builders import FLEET, MINUTE, NOW, mint
from control.conftest import House, done
from forewarn.connectors.port import Outcome
from forewarn.control.plane import Plane
from forewarn.control.writer import InlineWriter
from forewarn.maintenance import fleet_file
from forewarn.maintenance.model import Changes, HoldKind, Policy, Queueing
from forewarn.maintenance.planner import Request
from forewarn.server.guest.documents import DocumentCache
from forewarn.vocabulary import EventStatus, EventType

REBOOT = EventType.REBOOT


def moved_by_hand(house: House) -> None:
    done(house.plane.record_hosts({"web-0": "h9"}))


def moved_by_the_fleet_file(house: House) -> None:
    done(house.plane.apply_fleet(fleet_of("web-0", host="h9")))


def fleet_of(name: str, **changed: object) -> fleet_file.Fleet:
    """The fleet file with one machine of `web` changed."""
    (web,) = FLEET.availability_set
    machines = tuple(
        msgspec.structs.replace(one, **changed) if one.name == name else one for one in web.machines
    )
    return msgspec.structs.replace(
        FLEET, availability_set=(msgspec.structs.replace(web, machines=machines),)
    )


@pytest.mark.parametrize("move", [moved_by_hand, moved_by_the_fleet_file])
def test_a_machine_that_comes_to_a_held_host_is_held_at_once(
    house: House, move: Callable[[House], None]
) -> None:
    done(house.plane.record_hosts({"bastion": "h9"}))
    done(house.plane.hold(HoldKind.HOST, "h9", reason="its relay is away", by="ann"))
    house.ask(REBOOT, "web-0", "web-3")
    house.clock.advance(10 * MINUTE)
    move(house)
    operation = house.operation("1.1")
    assert (operation.held_at, operation.notice_left_seconds) == (NOW + 10 * MINUTE, 300)
    assert operation.hosts == ("h0", "h9")
    house.clock.advance(10 * MINUTE)
    done(house.plane.advance())
    assert house.operation("1.1").status is EventStatus.SCHEDULED
    released = done(house.plane.release(HoldKind.HOST, "h9"))
    assert [o.not_before for o in released] == [NOW + 35 * MINUTE]  # it moved on meanwhile


def test_a_machine_that_leaves_a_held_host_is_free(house: House) -> None:
    house.ask(REBOOT, "web-0")
    done(house.plane.hold(HoldKind.HOST, "h0", reason="its relay is away", by="ann"))
    house.clock.advance(10 * MINUTE)
    done(house.plane.record_hosts({"web-0": "h1"}))
    operation = house.operation("1.1")
    assert (operation.held_at, operation.not_before) == (None, NOW + 25 * MINUTE)
    house.clock.advance(15 * MINUTE)
    done(house.plane.advance())
    assert house.operation("1.1").status is EventStatus.STARTED


def test_a_queued_machine_that_comes_to_a_held_host_is_announced_held(house: House) -> None:
    queueing = Policy(queue=Queueing.ANNOUNCEMENT)
    house.plane = Plane(InlineWriter(house.store, house.clock, house.feed), mint("c"), queueing)
    house.ask(REBOOT, "web-0")
    house.ask(REBOOT, "web-1")
    done(house.plane.hold(HoldKind.HOST, "h2", reason="its relay is away", by="ann"))
    done(house.plane.record_hosts({"web-1": "h2"}))
    done(house.plane.cancel(["1"], reason="not now"))
    assert house.operation("2.1").held_at == NOW


def test_the_task_of_a_hosts_maintenance_names_the_host_that_was_ordered(house: House) -> None:
    house.ask(REBOOT, host="h0")
    done(house.plane.record_hosts({"web-3": "h9"}))
    done(house.plane.approve_for_guests(["1"], by="ann"))
    done(house.plane.record_hosts({"web-0": "h8"}))  # too late: it has started
    (task,) = done(house.plane.claim("here", MINUTE, 10))
    assert (task.machines, task.hosts) == (("web-0",), ("h0",))


def arrives_by_hand(house: House) -> None:
    done(house.plane.record_hosts({"bastion": "h0"}))


def arrives_by_the_fleet_file(house: House) -> None:
    (bastion,) = FLEET.machine
    there = (msgspec.structs.replace(bastion, host="h0"),)
    done(house.plane.apply_fleet(msgspec.structs.replace(FLEET, machine=there)))


def arrives_by_a_redeploy(house: House) -> None:
    house.ask(EventType.REDEPLOY, "bastion", no_notice=True)
    (task,) = done(house.plane.claim("here", MINUTE, 10))
    outcome = Outcome(succeeded=True, hosts={"bastion": "h0"})
    done(house.plane.finish(task.operation, task.attempt, outcome))


def leaves_by_hand(house: House) -> None:
    done(house.plane.record_hosts({"bastion": "h9"}))


def leaves_the_fleet(house: House) -> None:
    done(house.plane.remove_machines(["bastion"]))


def leaves_by_the_fleet_file(house: House) -> None:
    done(house.plane.apply_fleet(msgspec.structs.replace(FLEET, machine=()), prune=True))


@pytest.mark.parametrize(
    "arrive", [arrives_by_hand, arrives_by_the_fleet_file, arrives_by_a_redeploy]
)
@pytest.mark.parametrize("leave", [leaves_by_hand, leaves_the_fleet, leaves_by_the_fleet_file])
def test_a_host_is_maintained_without_whoever_had_no_notice_of_it(
    house: House, arrive: Callable[[House], None], leave: Callable[[House], None]
) -> None:
    house.ask(REBOOT, host="h0")
    arrive(house)
    assert house.operation("1.1").arrived == ("bastion",)
    house.clock.advance(15 * MINUTE)
    done(house.plane.advance())
    assert house.operation("1.1").status is EventStatus.SCHEDULED
    leave(house)
    assert house.operation("1.1").status is EventStatus.STARTED


def test_a_guest_whose_machine_has_left_the_host_reads_nothing_of_it_any_more(
    house: House,
) -> None:
    documents = DocumentCache()
    house.feed.subscribe(documents.learn)
    with house.store.read() as reading:
        documents.learn(Changes(scopes=tuple(reading.scopes().values())))
    done(house.plane.record_hosts({"bastion": "h0"}))
    (planned,) = house.ask(REBOOT, host="h0").operations
    ids = {event.scope: event.id for event in planned.events}
    assert len(documents.whole("bastion").events) == 1
    done(house.plane.record_hosts({"bastion": "h9", "web-3": "h9"}))
    assert documents.whole("bastion").events == ()
    assert documents.whole("bastion").scope.incarnation == 2
    (left,) = documents.whole("web").events
    assert left.event.resources == ("web-0",)
    late = house.plane.approve("bastion", [ids["bastion"]], by="bastion", address="")
    assert [o.id for o in done(late)] == ["1.1"]  # as one that is over


def test_a_host_goes_on_with_who_arrives_only_when_the_turn_before_is_over(house: House) -> None:
    queueing = Policy(queue=Queueing.ANNOUNCEMENT)
    plane = Plane(InlineWriter(house.store, house.clock, house.feed), mint("c"), queueing)
    done(plane.record_hosts({"web-1": "h0"}))
    done(plane.request(Request(event_type=REBOOT, host="h0")))
    done(plane.approve_for_guests(["1"], by="ann"))
    assert house.operation("1.1").status is EventStatus.STARTED
    done(plane.record_hosts({"web-0": "h9", "web-1": "h9", "web-3": "h9", "bastion": "h0"}))
    done(plane.request(Request(event_type=REBOOT, machines=("firm_0",), no_notice=True)))
    (first, other) = done(plane.claim("here", MINUTE, 10))
    done(plane.finish(other.operation, other.attempt, Outcome(succeeded=True)))
    with house.store.read() as reading:
        assert [*reading.operations_of_maintenance(1)] == ["1.1"]
    done(plane.finish(first.operation, first.attempt, Outcome(succeeded=True)))
    assert house.operation("1.2").machines == ("bastion",)
