"""The document of each scope as bytes: always as of the last change."""

import json
from typing import Any

import msgspec
import pytest

from forewarn.maintenance.model import Changes
from forewarn.protocol.versions import NEWEST_VERSION, VERSION_BY_NAME, Version
from forewarn.server.guest import documents
from forewarn.server.guest.documents import DocumentCache
from forewarn.vocabulary import EventStatus, ScopeKind
from guest import room

PREVIEW = VERSION_BY_NAME["2017-03-01"]
NEWEST = NEWEST_VERSION


def filled(*operations: Any, **facts: Any) -> DocumentCache:
    kept = DocumentCache()
    scope = room.scope("web", kind=ScopeKind.AVAILABILITY_SET, incarnation=2)
    scopes = (msgspec.structs.replace(scope, **facts), room.scope("bastion"))
    kept.learn(Changes(scopes=scopes, operations=operations))
    return kept


def read(kept: DocumentCache, version: Version = NEWEST, scope: str = "web") -> Any:
    page = kept.page(scope, version)
    incarnation, body = page.incarnation, page.body
    content = json.loads(body)
    assert content["DocumentIncarnation"] == incarnation
    return content["Events"]


def ids(kept: DocumentCache) -> list[str]:
    return [event["EventId"] for event in read(kept)]


def test_a_document_is_rendered_once_until_it_changes() -> None:
    kept = filled(room.operation(room.event()))
    before = kept.page("web", NEWEST)
    assert kept.page("web", NEWEST) is before
    moved = room.scope("web", kind=ScopeKind.AVAILABILITY_SET, incarnation=7)
    kept.learn(Changes(scopes=(moved,)))
    assert kept.page("web", NEWEST).incarnation == 7
    assert kept.page("web", NEWEST).body == before.body.replace(b'ation":2', b'ation":7')


def test_scopes_without_events_share_their_bytes_and_keep_none_of_their_own() -> None:
    kept = DocumentCache()
    kept.learn(Changes(scopes=(room.scope("a"), room.scope("b"))))
    assert kept.page("a", NEWEST) is kept.page("b", NEWEST)
    for incarnation in range(documents.MAX_EMPTY + 10):
        kept.learn(Changes(scopes=(room.scope("a", incarnation=incarnation),)))
        assert read(kept, scope="a") == []
    assert len(kept._empty) <= documents.MAX_EMPTY
    assert kept._live == {}


@pytest.mark.parametrize("version", VERSION_BY_NAME.values(), ids=lambda each: each.name)
def test_a_whole_document_reads_elsewhere_as_it_does_here(version: Version) -> None:
    kept = filled(
        room.operation(room.event("C", published=2), room.event("A", published=2)),
        room.operation(room.event("B", published=1), id="2.1", status=EventStatus.STARTED),
    )
    other = DocumentCache()
    for _ in range(2):  # taken twice it changes nothing
        other.replace([kept.whole("web"), kept.whole("bastion")])
        for scope in ("web", "bastion"):
            assert other.page(scope, version).body == kept.page(scope, version).body
    assert other.whole("web") == kept.whole("web")


def test_a_whole_document_takes_the_place_of_the_one_before() -> None:
    kept = filled(room.operation(room.event("A")))
    other = DocumentCache()
    other.replace([kept.whole("web")])
    kept.learn(Changes(operations=(room.operation(room.event("A"), status=EventStatus.CANCELED),)))
    kept.learn(Changes(operations=(room.operation(room.event("B"), id="2.1"),)))
    other.replace([kept.whole("web")])
    assert ids(other) == ["B"]
    kept.learn(Changes(operations=(room.operation(room.event("B"), status=EventStatus.CANCELED),)))
    other.replace([kept.whole("web")])
    assert read(other) == []
    other.replace([], ["web", "never-there"])
    with pytest.raises(KeyError):
        other.page("web", NEWEST)


def test_a_whole_document_is_the_same_in_whatever_order_its_events_came() -> None:
    events = [room.event(f"{n}" * 8, published=2 + n % 2) for n in range(4)]
    operations = [room.operation(each, id=f"1.{each.id}") for each in events]
    one, other = DocumentCache(), DocumentCache()
    for kept, learned in ((one, operations), (other, [*reversed(operations)])):
        kept.learn(Changes(scopes=tuple(room.SCOPES), operations=tuple(learned)))
    assert one.whole("web") == other.whole("web")
