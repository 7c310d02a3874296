"""What relays and the service say to each other, across neighbouring releases."""

from typing import Any

import msgspec
import pytest

from forewarn.maintenance.model import Changes
from forewarn.protocol import refusals
from forewarn.server import relay_feed
from forewarn.server.relay_feed import AgedSighting, GuestRules, HostDocument, Unreadable
from forewarn.vocabulary import AgentStatus
from guest import room


def host() -> HostDocument:
    """Return a host with a machine, and its scope with an event."""
    kept = room.DocumentCache()
    kept.learn(Changes(scopes=(room.SCOPES[0],), operations=(room.operation(room.event()),)))
    tagged = room.machine("web-0", "10.0.0.10", scope="web", host="h1", tags=(("role", "leader"),))
    rules = GuestRules(rate_per_second=2.0)
    scopes = (kept.whole("web"),)
    return HostDocument(
        host="h1", machines=(tagged,), scopes=scopes, rules=rules, awaited=("web-0",)
    )


HOST = host()


def with_unknown(value: Any) -> Any:
    """A value of a later release: each object in it has a field that nobody knows yet."""
    if isinstance(value, dict):
        return {**{k: with_unknown(v) for k, v in value.items()}, "later": {"deep": [1]}}
    if isinstance(value, list):
        return [with_unknown(each) for each in value]
    return value


def test_what_is_said_comes_out_as_it_went_in() -> None:
    assert relay_feed.MAX_EVENT_IDS >= refusals.MAX_START_REQUESTS  # of a guest's one approval
    assert HOST.scopes[0].events
    assert relay_feed.decode_host(relay_feed.encode(HOST)) == HOST
    fields = msgspec.structs.asdict(HOST)
    fields["scopes"] = tuple(msgspec.Raw(relay_feed.encode(scope)) for scope in HOST.scopes)
    written = relay_feed.encode(relay_feed.EncodedHost(**fields))
    assert relay_feed.decode_host(written) == HOST
    empty = relay_feed.encode(relay_feed.EncodedHost(host="h1"))
    assert empty == b'{"host":"h1"}'
    assert relay_feed.decode_host(empty) == HostDocument(host="h1")
    later = with_unknown(msgspec.json.decode(relay_feed.encode(HOST)))
    assert relay_feed.decode_host(msgspec.json.encode(later)) == HOST
    seen = AgedSighting(
        machine="web-0", age_seconds=1.5, version="2020-07-01", agent=AgentStatus.HELD, reason="why"
    )
    assert relay_feed.decode_sightings(relay_feed.encode([seen])) == (seen,)


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


def test_neighbouring_releases_understand_each_other_but_for_what_a_later_relay_says() -> None:
    """An earlier one may leave out all but the least, and a later service may tell more."""
    for decode, least in SENT + TOLD:
        assert decode(msgspec.json.encode(least)) is not None, least
    for decode, least in TOLD:
        assert decode(msgspec.json.encode(with_unknown(least))) == decode(
            msgspec.json.encode(least)
        )
    for decode, least in SENT:
        with pytest.raises(Unreadable, match="later"):
            decode(msgspec.json.encode(with_unknown(least)))


def test_rules_that_a_release_does_not_know_have_the_defaults_of_the_settings() -> None:
    from forewarn.server.settings import Settings  # noqa: PLC0415 - the relay has none of it

    settings, written = Settings(), msgspec.json.decode(b"{}", type=GuestRules)
    assert written.post_without_header == settings.guest.post_without_header
    for name in ("rate_per_second", "rate_burst", "enablement", "disable_after_seconds"):
        assert getattr(written, name) == getattr(settings.rules, name)
    assert written.first_response_delay_seconds == settings.rules.first_response_delay_seconds
