"""What is wrong with a body is said with its place, what was expected, and what was meant."""

import json
from typing import Any

import pytest

from forewarn.maintenance import fleet
from forewarn.maintenance.model import Refused
from forewarn.server.operator import bodies, mistakes, schemas, steering, vitals
from forewarn.vocabulary import ErrorCode


def refusal(shape: type, body: Any) -> Refused:
    """What a body is refused with that was to be of this shape."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(Refused) as refused:
        decode(shape, data)
    assert refused.value.code is ErrorCode.INVALID
    return refused.value


def decode(shape: type, data: bytes) -> None:
    reader: Any = object.__new__(bodies.Strict)
    reader.model_type = shape
    bodies.Strict.decode_bytes(reader, data)


def a(**more: Any) -> dict[str, Any]:
    return {"machine": [{"name": "z"}, {"name": "a", **more}]}


@pytest.mark.parametrize(
    ("body", "message", "facts"),
    [
        (
            {"machin": []},
            (
                "the body: there is no key 'machin' here; did you mean 'machine'? Known are "
                "availability_set, scale_set, cloud_service, machine"
            ),
            {"where": "", "key": "machin"},
        ),
        (
            {"zoo": []},
            (
                "the body: there is no key 'zoo' here; known are availability_set, scale_set, "
                "cloud_service, machine"
            ),
            {"where": "", "key": "zoo"},
        ),
        (
            {"machine": {}},
            "at machine: expected `array`, got `object`",
            {"where": "machine", "expected": "array", "got": "object"},
        ),
        (
            {"machine": [{"host": "h1"}]},
            "at machine[0]: the key 'name' is missing",
            {"where": "machine[0]", "key": "name"},
        ),
        (
            {"machine": [None]},
            "at machine[0]: expected `object`, got `null`",
            {"where": "machine[0]", "expected": "object", "got": "null"},
        ),
        (
            a(update_domain=30),
            "at machine[1].update_domain: expected `integer` <= 19, got 30",
            {"where": "machine[1].update_domain"},
        ),
        (
            a(update_domain="3"),
            "at machine[1].update_domain: expected `integer`, got `string`",
            {"where": "machine[1].update_domain", "expected": "integer", "got": "string"},
        ),
        (
            a(host="h" * 300),
            "at machine[1].host: expected `string` of length <= 256, got 300",
            {"where": "machine[1].host"},
        ),
        (
            a(tags={"role": "x", "rack": 3}),
            "at machine[1].tags: 'rack': expected `string`, got `integer`",
            {"where": "machine[1].tags", "expected": "string", "got": "integer"},
        ),
        (
            a(tags={"role": "x", "rack": "r" * 257}),
            "at machine[1].tags: 'rack': expected `string` of length <= 256, got 257",
            {"where": "machine[1].tags"},
        ),
        (
            a(tags={"role": "x", "t" * 257: "y"}),
            f"at machine[1].tags: '{'t' * 79}...: expected `string` of length <= 256, got 257",
            {"where": "machine[1].tags"},
        ),
        (
            a(priority="Low"),
            "at machine[1].priority: 'Low' is none of 'regular', 'low'; did you mean 'low'?",
            {"where": "machine[1].priority"},
        ),
        (
            a(priority=3),
            (
                "at machine[1].priority: expected `string`, got `integer`; give one of "
                "'regular', 'low'"
            ),
            {"where": "machine[1].priority", "expected": "string", "got": "integer"},
        ),
        (
            a(automatically_approve=["Reboot", "Rebot"]),
            (
                "at machine[1].automatically_approve[1]: 'Rebot' is none of 'Freeze', 'Reboot', "
                "'Redeploy', 'Preempt', 'Terminate'; did you mean 'Reboot'?"
            ),
            {"where": "machine[1].automatically_approve[1]"},
        ),
        (
            [],
            "the body: expected `object`, got `array`",
            {"where": "", "expected": "object", "got": "array"},
        ),
        (b'{"machine": [], }', "the body is no JSON: trailing comma in object (byte 16)", {}),
        (b'{"machine": [{"name": "\xff"}]}', "the body is no UTF-8 text, which JSON must be", {}),
    ],
)
def test_a_fleet_that_is_none(body: Any, message: str, facts: dict[str, Any]) -> None:
    refused = refusal(fleet.Fleet, body)
    assert (refused.message, refused.facts) == (message, facts)


@pytest.mark.parametrize(
    ("shape", "body", "message"),
    [
        (schemas.Removal, {"names": []}, "at names: expected `array` of length >= 1, got 0"),
        (
            schemas.MaintenanceRequest,
            {"event_type": "Reboot", "not_before": "soon"},
            "at not_before: 'soon' is no time: give one such as 2026-03-01T12:00:00Z",
        ),
        (vitals.ClockRequest, {"trust": False}, "at trust: expected true, got false"),
        (
            vitals.ClockRequest,
            {"trust": "yes"},
            "at trust: expected `boolean`, got `string`; give true",
        ),
        (
            steering.ResolutionRequest,
            {"verdict": None},
            (
                "at verdict: expected `string`, got `null`; give one of 'succeeded', 'failed', "
                "'repeat'"
            ),
        ),
    ],
)
def test_a_request_that_is_none(shape: type, body: Any, message: str) -> None:
    assert refusal(shape, body).message == message


@pytest.mark.parametrize(
    "body",
    [
        a(**{"- at `$.machine[7].nothing": 1}),
        {"x - at `$.machine[7].name": 1},
        a(**{"k" * 10_000: 1}),
        b'{"machine": [{"name": 3}, ' + b"[" * 100_000,
        b'{"machine": [{"name": 3}, "\xff"]}',
        b'{"machine": [{"name": 3}',
    ],
    ids=["a path", "a path at the top", "long", "deep", "no text", "cut short"],
)
def test_whatever_stands_in_a_body_is_refused_in_one_short_line(body: Any) -> None:
    refused = refusal(fleet.Fleet, body)
    assert len(refused.message) < 500
    assert all(len(str(fact)) <= mistakes.MOST_SHOWN for fact in refused.facts.values())


def test_a_name_in_other_letters_is_the_nearest() -> None:
    assert mistakes.nearest("HOST", ["host", "post"]) == "; did you mean 'host'?"
    assert mistakes.nearest("zzz", ["host", "post"]) == ""
