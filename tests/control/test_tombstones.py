"""What is removed and added again never meets a number again that it may have read before."""

from builders import FLEET, MINUTE
from control.conftest import House, done
from forewarn.connectors.port import Outcome
from forewarn.control import tombstones
from forewarn.maintenance import fleet_file
from forewarn.maintenance.model import Changes, Tombstone
from forewarn.vocabulary import EventType

REBOOT = EventType.REBOOT


def test_a_scope_that_is_removed_and_added_again_never_repeats_a_number(house: House) -> None:
    house.ask(REBOOT, "bastion", "web-0")
    done(house.plane.cancel(["1"], reason=""))
    assert house.incarnation("bastion") == 2
    done(house.plane.remove_machines(["bastion"]))
    done(house.plane.apply_fleet(FLEET, dry_run=True))
    done(house.plane.apply_fleet(FLEET))
    assert house.incarnation("bastion") == 3
    only = fleet_file.Fleet(machine=(fleet_file.StandaloneMachine(name="other"),))
    done(house.plane.apply_fleet(only, prune=True))
    done(house.plane.apply_fleet(FLEET))
    assert (house.incarnation("bastion"), house.incarnation("web")) == (4, 3)
    assert house.incarnation("batch") == 0
    done(house.plane.remove_machines(["bastion"]))
    done(house.plane.order(lambda unit, _: tombstones.lift(unit.world, 100)))
    done(house.plane.apply_fleet(FLEET))
    assert house.incarnation("bastion") == 105


def remove_after_an_event(house: House) -> None:
    """Remove web-1, which has met incarnation 2 of web by then."""
    house.ask(REBOOT, "web-0")
    done(house.plane.cancel(["1"], reason=""))
    done(house.plane.remove_machines(["web-1"]))


def test_a_machine_that_is_lost_and_added_elsewhere_never_meets_a_number_again(
    house: House,
) -> None:
    house.ask(REBOOT, "batch_1")
    done(house.plane.cancel(["1"], reason=""))
    house.ask(EventType.PREEMPT, "batch_0")
    house.clock.advance(MINUTE)
    done(house.plane.advance())
    (act,) = done(house.plane.claim("here", MINUTE, 10))
    done(house.plane.finish("2.1", act.attempt, Outcome(succeeded=True)))
    left = house.incarnation("batch")
    assert left == 5
    away = fleet_file.AvailabilitySet(
        name="away", machines=(fleet_file.NamedMachine(name="batch_0"),)
    )
    wanted = fleet_file.Fleet(availability_set=(away,))
    assert done(house.plane.apply_fleet(wanted, again=True)).added == ("batch_0",)
    assert house.incarnation("away") == left + 1


def test_removed_machines_are_raised_with_a_restored_store_and_the_oldest_forgotten(
    house: House,
) -> None:
    before = house.clock.now() - MINUTE
    old = [
        Tombstone(name=f"old-{n:05}", scope="web", incarnation=1, at=before)
        for n in range(tombstones.MAX_REMOVED - 1)
    ]
    house.put(Changes(tombstones=tuple(old)))
    done(house.plane.remove_machines(["bastion"]))  # which never had an event to read
    remove_after_an_event(house)
    done(house.plane.remove_machines(["web-2"]))
    done(house.plane.order(lambda unit, _: tombstones.lift(unit.world, 100)))
    with house.store.read() as reading:
        kept = reading.tombstones()
    assert set(kept) == {*(t.key for t in old[1:]), "web-1", "web-2"}
    assert (kept["web-2"].scope, kept["web-2"].incarnation) == ("web", 102)
    assert (kept["old-00001"].scope, kept["old-00001"].incarnation) == ("web", 101)
