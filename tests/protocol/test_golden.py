"""The exact bytes, against files that were typed by hand."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from forewarn.protocol import codec, exchange, instance, refusals
from forewarn.protocol.message import HttpRequest, Reply
from forewarn.protocol.versions import NEWEST_VERSION, VERSIONS, Version
from forewarn.vocabulary import ScopeKind
from protocol import cases, world
from protocol.world import EVENTS, HEADER, LOOPBACK, STRANGER, World, ask, get, post

INSTANCE = b"/metadata/instance?api-version=2021-02-01"
LEAF = b"/metadata/instance/compute/name?api-version=2021-02-01"
TOKEN = b"/metadata/identity/oauth2/token?api-version=2018-02-01&resource=x"
BALANCER = b"/metadata/loadbalancer?api-version=2021-02-01"


def entries(body: bytes) -> bytes:
    return b'{"StartRequests":[{"EventId":"A"},' + body + b"]}"


ERRORS: dict[str, Callable[[], Reply]] = {
    "no_header": lambda: ask(HttpRequest(b"GET", EVENTS)),
    "version": lambda: get(b"/metadata/scheduledevents"),
    "version_of_instance": lambda: get(b"/metadata/instance"),
    "forwarded": lambda: get(EVENTS, (b"X-Forwarded-For", b"10.0.0.1")),
    "no_trusted_proxy": lambda: get(EVENTS, *world.signed(b"web-0")),
    "web_page": lambda: get(EVENTS, (b"Host", b"example.org"), world=World(peer=LOOPBACK)),
    "unsigned": lambda: get(EVENTS, world=World(peer=world.PROXY)),
    "doubled_parameter": lambda: get(EVENTS + b"&api-version=2020-07-01"),
    "format": lambda: get(INSTANCE + b"&format=xml"),
    "leaf_without_text": lambda: get(LEAF),
    "not_found": lambda: get(b"/metadata/nothing"),
    "root": lambda: get(b"/"),
    "no_identity": lambda: get(TOKEN),
    "no_identity_header": lambda: ask(HttpRequest(b"GET", TOKEN)),
    "no_load_balancer": lambda: get(BALANCER),
    "no_load_balancer_path": lambda: get(b"/metadata/loadbalancer/nothing"),
    "load_balancer_method": lambda: ask(HttpRequest(b"POST", BALANCER, HEADER)),
    "method": lambda: ask(HttpRequest(b"HEAD", EVENTS, HEADER)),
    "method_of_neighbour": lambda: ask(HttpRequest(b"POST", INSTANCE, HEADER)),
    "unknown_caller": lambda: get(EVENTS, world=World(peer=STRANGER)),
    "unknown_name": lambda: get(b"/vm/web-9" + EVENTS, world=World(peer=LOOPBACK)),
    "unknown_instance": lambda: get(EVENTS, *world.signed(b"web-9"), world=World(peer=world.PROXY)),
    "too_many_requests": lambda: get(EVENTS, world=World(over_the_rate_for_seconds=1)),
    "unknown_event": lambda: post(
        world.approval(world.EVENT_ID), world=World(document_shown=cases.EMPTY)
    ),
    "unavailable": lambda: post(world.approval(world.EVENT_ID), world=World(store_is_away=True)),
    "body_too_large": lambda: exchange.refuse(
        refusals.BODY_TOO_LARGE, limit=refusals.MAX_BODY_BYTES
    ),
    "head_too_large": lambda: exchange.refuse(
        refusals.HEAD_TOO_LARGE, limit=refusals.MAX_HEAD_BYTES
    ),
    "malformed": lambda: exchange.refuse(refusals.MALFORMED, what="invalid method"),
    "too_slow": lambda: exchange.refuse(refusals.TOO_SLOW),
    "internal": lambda: exchange.refuse(refusals.INTERNAL),
    "body_empty": lambda: post(b""),
    "body_not_json": lambda: post(b"{'StartRequests':[]}"),
    "body_key_twice": lambda: post(b'{"StartRequests":[],"StartRequests":[]}'),
    "body_too_deep": lambda: post(b"[" * 60_000 + b"]" * 5_000),
    "body_not_object": lambda: post(b"[]"),
    "body_without_start_requests": lambda: post(b"{}"),
    "body_start_requests_not_list": lambda: post(b'{"StartRequests":null}'),
    "body_too_many": lambda: post(world.approval(*["A"] * 1001)),
    "body_entry_not_object": lambda: post(entries(b'"B"')),
    "body_entry_without_event_id": lambda: post(entries(b'{"Event":"B"}')),
    "body_event_id_not_string": lambda: post(entries(b'{"EventId":7}')),
}
ANSWERS: dict[str, Callable[[], Reply]] = {
    "document": get,
    "not_modified": lambda: get(EVENTS, (b"If-None-Match", b"2")),
    "approved": lambda: post(world.approval(world.EVENT_ID)),
    "leaf": lambda: get(LEAF + b"&format=text"),
}


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
@pytest.mark.parametrize("kind", cases.DOCUMENTS, ids=lambda kind: kind.value)
def test_each_version_writes_each_kind_of_scope_byte_for_byte(
    version: Version, kind: ScopeKind
) -> None:
    typed = cases.golden(f"{version.name}/{kind.value}.json")
    assert codec.encode_document(cases.DOCUMENTS[kind], version) == typed


def test_the_example_of_section_4_is_written_byte_for_byte() -> None:
    typed = cases.golden("section_4.json")
    assert codec.encode_document(cases.SECTION_4, NEWEST_VERSION) == typed


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_a_scope_without_events_reads_the_same_in_every_version(version: Version) -> None:
    assert codec.encode_document(cases.EMPTY, version) == cases.golden("empty.json")


@pytest.mark.parametrize("name", ERRORS)
def test_each_error_is_answered_byte_for_byte(name: str) -> None:
    assert world.as_golden(ERRORS[name]()) == cases.golden(f"errors/{name}.http")


@pytest.mark.parametrize("name", ANSWERS)
def test_each_answer_is_given_byte_for_byte(name: str) -> None:
    assert world.as_golden(ANSWERS[name]()) == cases.golden(f"answers/{name}.http")


TREES = {
    "whole": (cases.WHOLE_INSTANCE, "2025-04-07"),
    "bare": (cases.BARE_INSTANCE, "2025-04-07"),
    "2017-04-02": (cases.WHOLE_INSTANCE, "2017-04-02"),
    "2019-08-15": (cases.WHOLE_INSTANCE, "2019-08-15"),
}
"""The names of the last two are those of captures, at every depth and in their order."""


@pytest.mark.parametrize("name", TREES)
def test_the_instance_tree_is_written_byte_for_byte(name: str) -> None:
    written = codec.encode_tree(instance.tree(*TREES[name]))
    assert written == cases.golden(f"instance/{name}.json")


def test_the_list_of_versions_is_written_byte_for_byte() -> None:
    reply = get(b"/metadata/versions")
    assert reply.status == 200
    assert reply.headers == ((b"Content-Type", b"application/json; charset=utf-8"),)
    assert reply.body == cases.golden("instance/versions.json")


def test_every_golden_file_is_used() -> None:
    used = {
        *(f"{v.name}/{kind.value}.json" for v in VERSIONS for kind in cases.DOCUMENTS),
        *(f"errors/{name}.http" for name in ERRORS),
        *(f"answers/{name}.http" for name in ANSWERS),
        *("section_4.json", "empty.json"),
        *(f"instance/{name}.json" for name in (*TREES, "versions")),
    }
    there = {
        path.relative_to(cases.GOLDEN).as_posix()
        for path in cases.GOLDEN.rglob("*")
        if path.is_file() and path.suffix in {".json", ".http"}
    }
    assert there == used


def test_nothing_in_the_tree_can_write_a_golden_file() -> None:
    root = Path(__file__).parents[2]
    files = [path for top in ("src", "tests") for path in (root / top).rglob("*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in files if path != Path(__file__)}
    assert cases.GOLDEN.parent / "cases.py" in texts
    writing = ("write_bytes", "write_text", "open(", "shutil", "os.")
    for path, text in texts.items():
        if path.parent == cases.GOLDEN.parent:
            assert not [word for word in writing if word in text], path
        knows = re.search(r"protocol/golden|cases\.GOLDEN", text)
        assert not knows, f"{path} speaks of the golden files: does it write them?"
