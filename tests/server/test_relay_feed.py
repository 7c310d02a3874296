"""What relays and the service say to each other, across neighbouring releases."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from forewarn.maintenance.model import Machine, Scope
from forewarn.protocol import versions
from forewarn.server import relay_feed
from forewarn.server.relay_feed import (
    AgedSighting,
    GuestRules,
    HostDocument,
    PublishedEvent,
    ScopeDocument,
    Unreadable,
)
from forewarn.vocabulary import AgentStatus, EventSource, EventStatus, EventType, ScopeKind

MACHINE = Machine(
    name="web-0",
    scope="web",
    update_domain=0,
    fault_domain=0,
    vm_id="11111111-2222-3333-4444-555555555555",
    host="h1",
    address="10.0.0.10",
    tags=(("role", "leader"),),
)
SCOPE = ScopeDocument(
    scope=Scope(name="web", kind=ScopeKind.AVAILABILITY_SET, update_domains=5, incarnation=3),
    events=(
        PublishedEvent(
            published=3,
            event=versions.ScheduledEvent(
                event_id="C7061BAC-AFDC-4513-B24B-AA5F13A16123",
                status=EventStatus.SCHEDULED,
                event_type=EventType.REBOOT,
                resources=("web-0",),
                not_before=datetime(2026, 11, 22, 17, tzinfo=UTC),
                source=EventSource.PLATFORM,
            ),
        ),
    ),
)
HOST = HostDocument(
    host="h1",
    machines=(MACHINE,),
    scopes=(SCOPE,),
    rules=GuestRules(rate_per_second=2.0),
    awaited=("web-0",),
)


def with_unknown(value: Any) -> Any:
    """A value of a later release: each object in it has a field that nobody knows yet."""
    if isinstance(value, dict):
        return {**{k: with_unknown(v) for k, v in value.items()}, "later": {"deep": [1]}}
    if isinstance(value, list):
        return [with_unknown(each) for each in value]
    return value


def test_a_host_comes_out_as_it_went_in() -> None:
    assert relay_feed.decode_host(relay_feed.encode(HOST)) == HOST


def test_a_host_of_encoded_scopes_is_one_of_these_scopes() -> None:
    fields = msgspec.structs.asdict(HOST)
    fields["scopes"] = (msgspec.Raw(relay_feed.encode(SCOPE)),)
    written = relay_feed.encode(relay_feed.EncodedHost(**fields))
    assert relay_feed.decode_host(written) == HOST


def test_an_empty_host_is_short() -> None:
    written = relay_feed.encode(relay_feed.EncodedHost(host="h1"))
    assert written == b'{"host":"h1"}'
    assert relay_feed.decode_host(written) == HostDocument(host="h1")


def test_fields_of_a_later_service_are_ignored() -> None:
    later = with_unknown(msgspec.json.decode(relay_feed.encode(HOST)))
    assert relay_feed.decode_host(msgspec.json.encode(later)) == HOST


SENT: list[tuple[Any, Any]] = [
    (relay_feed.decode_state, {}),
    (relay_feed.decode_approval, {"machine": "m", "address": "a", "event_ids": []}),
    (relay_feed.decode_requests, {"scopes": []}),
    (relay_feed.decode_unknown, {"listener": "", "address": "10.0.0.1"}),
    (relay_feed.decode_sightings, [{"machine": "m", "version": "2020-07-01"}]),
]
TOLD: list[tuple[Any, Any]] = [
    (relay_feed.decode_host, {"host": "h1"}),
    (relay_feed.decode_refusal, {"code": "unavailable"}),
]


@pytest.mark.parametrize(("decode", "least"), SENT + TOLD)
def test_an_earlier_release_may_leave_out_all_but_this(decode: Any, least: Any) -> None:
    assert decode(msgspec.json.encode(least)) is not None


@pytest.mark.parametrize(("decode", "least"), TOLD)
def test_a_later_service_may_tell_more(decode: Any, least: Any) -> None:
    assert decode(msgspec.json.encode(with_unknown(least))) == decode(msgspec.json.encode(least))


@pytest.mark.parametrize(("decode", "least"), SENT)
def test_a_relay_may_not_say_what_the_service_does_not_know(decode: Any, least: Any) -> None:
    with pytest.raises(Unreadable, match="later"):
        decode(msgspec.json.encode(with_unknown(least)))


def test_rules_that_a_release_does_not_know_have_the_defaults_of_the_settings() -> None:
    from forewarn.server.settings import Settings  # noqa: PLC0415 - the relay has none of it

    settings, written = Settings(), msgspec.json.decode(b"{}", type=GuestRules)
    assert written.post_without_header == settings.guest.post_without_header
    for name in ("rate_per_second", "rate_burst", "enablement", "disable_after_seconds"):
        assert getattr(written, name) == getattr(settings.rules, name)
    assert written.first_response_delay_seconds == settings.rules.first_response_delay_seconds


def test_what_machines_told_comes_out_as_it_went_in() -> None:
    seen = AgedSighting(
        machine="web-0",
        age_seconds=1.5,
        version="2020-07-01",
        agent=AgentStatus.HELD,
        reason="the drain failed",
    )
    assert relay_feed.decode_sightings(relay_feed.encode([seen])) == (seen,)
