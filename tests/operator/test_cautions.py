"""What an operator who changes the fleet is warned of."""

from typing import Any

import msgspec
import pytest

from builders import mint
from forewarn.maintenance import fleet
from forewarn.maintenance.model import Snapshot
from forewarn.server.operator import cautions


def warnings(machine: dict[str, Any], *listeners: str) -> tuple[str, ...]:
    wanted = msgspec.convert({"machine": [{"name": "zz", **machine}]}, fleet.Fleet)
    applied = fleet.apply(Snapshot(), wanted, prune=False, mint=mint("d"))
    return cautions.of_change(applied, listeners)


@pytest.mark.parametrize(
    ("machine", "listeners"),
    [
        ({"address": "10.0.0.1"}, ["", "green"]),
        ({"address": "10.0.0.1", "listener": "green"}, ["green"]),
        ({}, ["green"]),
    ],
    ids=["without a name", "by its name", "without an address"],
)
def test_a_machine_that_is_heard_is_not_warned_of(
    machine: dict[str, Any], listeners: list[str]
) -> None:
    assert warnings(machine, *listeners) == ()


def test_a_listener_that_there_is_not_is_told_with_those_that_there_are() -> None:
    assert warnings({"listener": "blue"}, "red", "green", "") == (
        (
            "the service has no listener 'blue' (it has 'green', 'red'): what asks from the "
            "address of zz is answered 403"
        ),
    )


@pytest.mark.parametrize("machine", [{"address": "10.0.0.1"}, {"listener": "blue"}])
def test_a_service_without_any_listener_is_told_of(machine: dict[str, Any]) -> None:
    said = "the service has no listener for guests: what asks from the address of zz gets no answer"
    assert warnings(machine) == (said,)


def test_a_machine_without_a_listener_is_told_where_all_have_names() -> None:
    assert warnings({"address": "10.0.0.1"}, "red", "green") == (
        (
            "each of the service's listeners has a name ('green', 'red'), and some machines name "
            "none: what asks from the address of zz is answered 403"
        ),
    )
