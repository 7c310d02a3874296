"""What an operator who changes the fleet is warned of."""

from typing import Any

import msgspec
import pytest

from builders import mint
from forewarn.maintenance import fleet_file
from forewarn.maintenance.world import World
from forewarn.server.operator import views


def warnings(machine: dict[str, Any], *listeners: str) -> tuple[str, ...]:
    wanted = msgspec.convert({"machine": [{"name": "zz", **machine}]}, fleet_file.Fleet)
    applied = fleet_file.apply(World(), wanted, prune=False, mint=mint("d"))
    return views.fleet_change(applied, dry_run=True, listeners=listeners).warnings


@pytest.mark.parametrize(
    ("machine", "listeners"),
    [
        ({"address": "10.0.0.1"}, ["", "green"]),
        ({"address": "10.0.0.1", "listener": "green"}, ["green"]),
        ({}, ["green"]),
    ],
    ids=["without a name", "by its name", "without an address"],
)
def test_nobody_is_warned_of_a_machine_that_a_listener_answers(
    machine: dict[str, Any], listeners: list[str]
) -> None:
    assert warnings(machine, *listeners) == ()


@pytest.mark.parametrize(
    ("machine", "listeners", "words"),
    [
        ({"listener": "blue"}, ["red", "green", ""], ["'blue'", "'green', 'red'", "zz", "403"]),
        ({"address": "10.0.0.1"}, [], ["no listener", "zz", "no answer"]),
        ({"listener": "blue"}, [], ["no listener", "zz", "no answer"]),
        ({"address": "10.0.0.1"}, ["red", "green"], ["'green', 'red'", "zz", "403"]),
    ],
    ids=["another", "none", "none by name", "only named ones"],
)
def test_a_listener_that_does_not_exist_is_warned_of(
    machine: dict[str, Any], listeners: list[str], words: list[str]
) -> None:
    (warning,) = warnings(machine, *listeners)
    assert [word for word in words if word not in warning] == []
