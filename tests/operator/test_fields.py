"""The table of fields has a row for each field of the requests, with the defaults of the bodies."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from forewarn.cli.maintenance import ROLLOUT, SCHEDULE
from forewarn.maintenance.units import TurnPolicy
from forewarn.server.operator import fields
from forewarn.server.operator.maintenance_schemas import MaintenanceRequest, PolicyBody
from forewarn.vocabulary import EventSource, EventType

BODY_ALONE = {"policy", "host_boot_id", "idempotency_key"}
"""What nobody types."""


def of_body(name: str) -> structs.FieldInfo:
    shape = PolicyBody if fields.MAINTENANCE[name].in_policy else MaintenanceRequest
    return next(info for info in structs.fields(shape) if info.name == name)


def test_each_field_of_the_bodies_has_a_row_and_each_row_a_field() -> None:
    policy = {name for name, field in fields.MAINTENANCE.items() if field.in_policy}
    assert policy | {"notice_seconds"} == set(TurnPolicy.__struct_fields__)
    rest = fields.MAINTENANCE.keys() - policy
    assert rest | BODY_ALONE == set(MaintenanceRequest.__struct_fields__)


def test_each_row_is_an_option_of_schedule_or_rollout_but_the_type_and_no_drain() -> None:
    options = {option.name for option in (*SCHEDULE, *ROLLOUT)}
    assert fields.MAINTENANCE.keys() - options == {"event_type", "drain"}


IN_WORDS = {"waves", "not_before", "description", "to_host"}
"""Fields whose default is told in words."""


DEFAULTS = {name for name, field in fields.MAINTENANCE.items() if field.default}


@pytest.mark.parametrize("name", sorted(DEFAULTS - IN_WORDS - {"event_type"}))
def test_a_default_is_what_the_body_has(name: str) -> None:
    field = fields.MAINTENANCE[name]
    assert field.read(field.default) == of_body(name).default


@pytest.mark.parametrize("name", ["at_once", "waves", "spread", "windows", "blackouts"])
def test_what_cannot_be_read_is_refused_by_the_row(name: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        fields.MAINTENANCE[name].read("0%?")


@pytest.mark.parametrize("text", ["1", "10%", "100%"])
def test_units_at_once_are_a_number_or_a_part(text: str) -> None:
    assert fields.MAINTENANCE["at_once"].read(text) == text


@pytest.mark.parametrize("text", ["0", "0%", "101%", "-1", "", "01"])
def test_nothing_else_is_units_at_once(text: str) -> None:
    with pytest.raises(ValueError, match="1%"):
        fields.MAINTENANCE["at_once"].read(text)


def test_choices_are_all_words_of_their_kinds() -> None:
    assert {value for value, _ in fields.MAINTENANCE["event_type"].choices} == set(EventType)
    assert {value for value, _ in fields.MAINTENANCE["source"].choices} == set(EventSource)


@pytest.mark.parametrize(
    ("given", "body"),
    [
        ({"machines": ["a"], "scopes": (), "tags": {}}, {"machines": ["a"]}),
        ({"duration_seconds": 0, "no_notice": False}, {"duration_seconds": 0}),
        ({"hosts": ["h"], "at_once": "2"}, {"hosts": ["h"], "policy": {"at_once": "2"}}),
    ],
)
def test_a_body_has_what_is_given(given: dict[str, Any], body: dict[str, Any]) -> None:
    assert fields.body(given) == body
    policy = {"policy": {}} | body
    assert fields.body(given, has_policy=True) == policy


def test_a_refusal_names_the_option_as_it_is_typed() -> None:
    assert fields.in_options("at policy.waves[1]: bad", "policy.waves[1]") == "--waves: bad"
    assert fields.in_options("too short", "policy.notice_seconds") == "--notice: too short"
    assert fields.in_options("no machine named 'x'", "") == "no machine named 'x'"


def test_times_are_spans_from_now_too() -> None:
    assert fields.MAINTENANCE["not_before"].read("+20m") == timedelta(minutes=20)
