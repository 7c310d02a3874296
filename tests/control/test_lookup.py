"""What a decision gets to see: all the scopes of whatever may start by it."""

import msgspec
import pytest

from builders import MINUTE, NOW
from control.conftest import House, done
from forewarn.connectors.port import Outcome
from forewarn.control import lookup
from forewarn.control.unit_of_work import UnitOfWork
from forewarn.maintenance import fleet_file
from forewarn.vocabulary import EventStatus, EventType

TWO_SCOPES = msgspec.convert(
    {
        "availability_set": [
            {
                "name": name,
                "update_domains": 2,
                "machines": [
                    {"name": f"{name}-0", "host": "shared", "update_domain": 0},
                    {"name": f"{name}-1", "host": "other", "update_domain": 1},
                ],
            }
            for name in ("red", "blue")
        ]
    },
    fleet_file.Fleet,
)


@pytest.fixture
def waiting(house: House) -> House:
    """Operation 3.1 spans red and blue and waits for 1.1, in red; 2.1 is down in blue."""
    done(house.plane.apply_fleet(TWO_SCOPES))
    house.ask(EventType.REBOOT, "red-1", no_notice=True)
    house.ask(EventType.REBOOT, "blue-1", no_notice=True)
    done(house.plane.claim("here", 60 * MINUTE, 10))
    house.ask(EventType.REBOOT, host="shared")
    done(house.plane.approve_for_guests(["3.1"], by="ann"))
    assert house.operation("3.1").waits_for == "1.1"
    assert [event.scope for event in house.operation("3.1").events] == ["blue", "red"]
    return house


@pytest.mark.parametrize("look", [lookup.around, lookup.ending])
def test_the_scopes_of_what_waits_here_are_loaded_when_a_decision_asks(
    waiting: House, look: object
) -> None:
    assert callable(look)
    with waiting.store.write() as transaction:
        unit = UnitOfWork(transaction, NOW)
        seen = look(unit, unit.operations(["1.1"]))
        more = lookup.wider(unit, seen)
    assert (seen.loaded, seen.scopes.keys()) == ({"red"}, {"red"})
    assert seen.operations.keys() == {"1.1", "3.1"}
    assert (more.loaded, more.scopes.keys()) == ({"red", "blue"}, {"red", "blue"})
    assert more.operations.keys() == {"1.1", "2.1", "3.1"}


def test_what_waited_in_one_scope_waits_on_for_what_is_down_in_another(waiting: House) -> None:
    done(waiting.plane.finish("1.1", 1, Outcome(succeeded=True)))
    still = waiting.operation("3.1")
    assert (still.status, still.waits_for) == (EventStatus.SCHEDULED, "2.1")
    done(waiting.plane.finish("2.1", 1, Outcome(succeeded=True)))
    assert waiting.operation("3.1").status is EventStatus.STARTED
