"""The rules of a request, as a text of requests and answers, and the verbs that it is made of.

A target begins with a path or with `events`, `preview`, `instance` or `versions`, which stand for
one of a version. A word with a colon is a header. `\\xff` is a byte, `<x*500>` so many x. In a line
`each A B do ROW` the row is carried out for each of the words, in the place of `{}`; so does
`every`, in the place of `[]`.
"""

import json
import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import stories
from forewarn.protocol import codec, exchange, refusals
from forewarn.protocol.codec import AgentReport, Malformed
from forewarn.protocol.message import HttpRequest, Reply
from forewarn.protocol.versions import NEWEST_VERSION, VERSIONS, Version
from forewarn.vocabulary import ScopeKind
from protocol import cases, world
from protocol.world import EVENT_ID, EVENTS, HEADER, SECRET, World
from stories import spelled

FILE: Final = Path(__file__).with_name("requests.txt")
STORIES: Final = stories.stories(FILE.read_text(encoding="utf-8"))
TARGETS: Final = {
    "events": EVENTS.decode(),
    "preview": "/metadata/scheduledevents?api-version=2017-03-01",
    "instance": "/metadata/instance?api-version=2017-04-02",
    "versions": "/metadata/versions",
}
PEERS: Final = {
    "guest": world.GUEST,
    "loopback": world.LOOPBACK,
    "stranger": world.STRANGER,
    "desk": exchange.Peer(address=world.STRANGER.address, vm_paths=True),
    "proxy": world.PROXY,
    "own-proxy": exchange.Peer(address=world.ADDRESS, trusted_proxy=True),
    "dropping": exchange.Peer(address="192.0.2.7", trusted_proxy=True, without_header=True),
}
DOCUMENTS: Final = {
    "availability-set": cases.DOCUMENTS[ScopeKind.AVAILABILITY_SET],
    "preview": cases.SECTION_4,
    "empty": cases.EMPTY,
}
JSON: Final = "application/json; charset=utf-8"
OTHER: Final = b"another secret of sixteen bytes"


class Story:
    """A story so far: the world that is asked."""

    def __init__(self) -> None:
        self.there = World()
        self.rules = exchange.Rules()

    def carry_out(self, row: str) -> None:
        """Carry a line out, and compare its answer."""
        if row.startswith(("each ", "every ")):
            told, _, inner = row.partition(" do ")
            verb, *words = shlex.split(told)
            place = "{}" if verb == "each" else "[]"
            for word in words:
                self.carry_out(inner.replace(place, shlex.quote(word)))
            return
        told, _, follows = row.partition(" -> ")
        verb, words, options = stories.split(told)
        if verb:
            act = VERBS.get(verb) or getattr(Story, verb.replace("-", "_"))
            act(self, shlex.split(follows), *words, **options)

    def setting(self, _: list[str], post_without_header: Any) -> None:
        self.rules = exchange.Rules(post_without_header=post_without_header)

    def over(self, _: list[str], seconds: str) -> None:
        """Have the machine be over its rate, and away for so long."""
        self.there = World(over_the_rate_for_seconds=int(seconds))

    def away(self, _: list[str]) -> None:
        """Have the store be away."""
        self.there = World(store_is_away=True)

    def shows(self, _: list[str], document: str) -> None:
        """Have the scope show another document."""
        self.there = World(document_shown=DOCUMENTS[document])

    def request(
        self,
        method: str,
        target: str,
        *headers: str,
        header: str = "",
        signed: str | None = None,
        secret: str = "",
        body: str = "",
    ) -> HttpRequest:
        """Return a request as a line tells it."""
        pairs = [spelled(word).partition(b":") for word in headers if word]
        given = tuple((name, value) for name, _, value in pairs)
        if signed is not None:
            given += world.signed(signed.encode(), OTHER if secret else SECRET)
        told = re.sub(
            "events|preview|instance|versions", lambda found: TARGETS[found[0]], target, count=1
        )
        path = spelled(target if target.startswith(("/metadata", "http")) else told)
        sent = world.approval(EVENT_ID) if body == "A" else spelled(body)
        return HttpRequest(spelled(method), path, (() if header else HEADER) + given, sent)

    def ask(self, follows: list[str], method: str, *words: str, **options: str) -> None:
        """Ask, and compare the answer."""
        peer = PEERS[options.pop("peer", "guest")]
        reply = self.there.ask(self.request(method, *words, **options), self.rules, peer)
        status, *facts = follows
        assert reply.status == int(status), reply
        if reply.status >= 400:
            check_refusal(reply)
        for fact in facts:
            check(reply, fact)

    def judge(self, follows: list[str], *words: str, **options: str) -> None:
        """Compare facts of a request that was understood."""
        peer = PEERS[options.pop("peer", "guest")]
        wanted = exchange.judge(self.request("GET", *words, **options), peer, self.rules)
        assert not isinstance(wanted, Reply)
        for fact in follows:
            name, _, value = fact.partition("=")
            assert shown(getattr(wanted, name)) == value

    def leads(self, follows: list[str], target: str) -> None:
        """Compare where a target leads."""
        found = exchange.read_target(spelled(target))
        resource, *facts = follows
        if resource == "nowhere":
            assert found is None
            return
        assert found is not None
        known = {"machine": found.machine, "api_version": found.api_version}
        known |= {"format": found.format, "doubled": found.doubled}
        if found.below:
            known["below"] = "/".join(each.replace("/", "%2F") for each in found.below)
        given = dict(fact.split("=", 1) for fact in facts)
        assert found.resource is exchange.Resource[resource]
        assert {name: value for name, value in known.items() if value is not None} == given

    def approves(self, _: list[str], target: str, case: str = "") -> None:
        """Approve all events of the document that is read, in one body, as clients do."""
        before = len(self.there.approved)
        document = json.loads(self.there.ask(self.request("GET", "events")).body)
        events = document["Events"]
        key = "startRequests" if case else "StartRequests"
        if case:
            events = [{name[0].lower() + name[1:]: each[name] for name in each} for each in events]
        sent = json.dumps(
            {"DocumentIncarnation": document["DocumentIncarnation"], key: events}, indent=4
        )
        request = self.request("POST", target)
        assert self.there.ask(msgspec.structs.replace(request, body=sent.encode())).status == 200
        ids = tuple(each["eventId" if case else "EventId"] for each in events)
        assert self.there.approved[before:] == [ids]

    def approved(self, _: list[str], *ids: str) -> None:
        """Compare all that was approved."""
        assert self.there.approved == [tuple(each.split(",")) for each in ids]

    def hold(self, follows: list[str], tags: str, asked: str, incarnation: str) -> None:
        """Compare for how long an answer is held."""
        wanted = waiting(*spelled(tags).split(b","), seconds=int(asked))
        told = exchange.CATCH_UP_SECONDS if follows == ["catch-up"] else float(follows[0])
        assert exchange.hold_seconds(wanted, int(incarnation)) == told

    def reads(self, follows: list[str], body: str) -> None:
        """Compare the ids of an approval's body."""
        assert codec.decode_start_requests(spelled(body)) == tuple(
            spelled(each).decode() for each in follows
        )

    def refuses(self, follows: list[str], body: str) -> None:
        """Compare what is said of a body that is no approval."""
        with pytest.raises(Malformed) as caught:
            codec.decode_start_requests(spelled(body))
        assert str(caught.value).startswith(spelled(follows[0]).decode())
        assert len(str(caught.value)) < 150


def check_refusal(reply: Reply) -> None:
    """Check the form of a refusal: JSON with one text, or a plain one."""
    kind = dict(reply.headers)[b"Content-Type"].decode()
    if reply.status == 429:
        assert (kind, reply.body) == ("text/plain; charset=utf-8", b"Too many requests")
        return
    assert kind == JSON
    told = json.loads(reply.body)
    assert isinstance(told["error"], str)
    assert reply.body.startswith(b'{"error":"')
    assert set(told) <= {"error", "error_description", "newest-versions"}


def check(reply: Reply, fact: str) -> None:
    """Check one fact of a reply: the refusal's name, a header, or something about its body."""
    name, _, value = fact.partition("=")
    headers = {key.decode().lower().replace("-", "_"): each for key, each in reply.headers}
    match name:
        case "has":
            assert spelled(value) in reply.body
        case "short":
            assert len(reply.body) < int(value)
        case "body":
            assert reply.body == spelled(value)
        case "bytes":
            assert world.as_golden(reply) == cases.golden(f"{value}.http")
        case "golden":
            assert reply.body == cases.golden(value)
        case "newest":
            assert json.loads(reply.body)["newest-versions"] == value.split(",")
        case _ if name.isupper():
            refusal = refusals.REFUSALS[name]
            told = json.loads(reply.body)
            assert reply.status == refusal.status
            said = told.get("error_description", told["error"])
            assert re.fullmatch(
                re.sub(r"\\\{\w+\\\}", ".*", re.escape(refusal.text)), said, re.DOTALL
            )
        case _:
            assert headers[name] == value.encode()


def shown(value: Any) -> str:
    """Return a fact of a request in a word."""
    match value:
        case exchange.IfNoneMatch():
            return "*" if value.anything else b",".join(value.tags).decode()
        case exchange.Claim():
            return f"{value.id.decode()},{value.signature.decode()}"
        case AgentReport():
            return f"{value.status},{value.reason}"
        case _:
            return str(value)


VERBS: Final[dict[str, Callable[..., None]]] = {
    "get": lambda story, follows, *words, **options: story.ask(follows, "GET", *words, **options),
    "post": lambda story, follows, *words, **options: story.ask(follows, "POST", *words, **options),
}
"""What is no method of a story by its own name."""


@pytest.mark.parametrize("title", STORIES)
def test_the_story_holds(title: str) -> None:
    assert stories.play(FILE.name, STORIES[title], Story().carry_out)


# Beside the stories.


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_each_version_may_read_and_approve(version: Version) -> None:
    target = b"/metadata/scheduledevents?api-version=" + version.name.encode()
    for method, wanted in ((b"GET", exchange.GetDocument), (b"POST", exchange.PostApproval)):
        request = HttpRequest(method, target, HEADER)
        assert exchange.judge(request, world.GUEST, exchange.Rules()) == wanted(version=version)


def waiting(*tags: bytes, seconds: int = 0) -> exchange.GetDocument:
    return exchange.GetDocument(
        version=NEWEST_VERSION, if_none_match=exchange.IfNoneMatch(tags), wait_seconds=seconds
    )


def test_a_client_that_asks_to_wait_learns_where_the_server_waits() -> None:
    wanted, applied = waiting(b"7", seconds=60), (b"Preference-Applied", b"wait=60")
    for incarnation, status in ((7, 304), (8, 200)):
        reply = exchange.document_reply(wanted, incarnation, b"{}", waits=True)
        assert (reply.status, reply.headers[-1]) == (status, applied)
        assert applied not in exchange.document_reply(wanted, incarnation, b"{}").headers
    hasty = exchange.document_reply(waiting(b"7"), 8, b"{}", waits=True)
    assert applied not in hasty.headers


def test_nobody_is_told_to_come_back_at_once_and_a_refusal_keeps_its_other_headers() -> None:
    allow = (b"Allow", b"GET")
    for seconds, told in ((0, b"1"), (1, b"1"), (2, b"2")):
        reply = exchange.refuse(refusals.METHOD, allow, retry_after_seconds=seconds)
        assert reply.headers[1:] == (allow, (b"Retry-After", told))


def test_every_status_has_its_reason_and_the_server_its_name() -> None:
    statuses = {refusal.status for refusal in refusals.REFUSALS.values()} | {200, 304}
    assert set(exchange.REASONS) == statuses
    assert exchange.REASONS[304] == b"Not Modified"
    assert exchange.SERVER.startswith(b"IMDS/")
    assert b"Forewarn" in exchange.SERVER
    assert (refusals.MAX_BODY_BYTES, refusals.MAX_HEAD_BYTES) == (65_536, 16_384)


def test_a_long_target_is_read_as_a_short_one_is_and_not_remembered() -> None:
    start = EVENTS + b"&x="
    kept = start + b"y" * (exchange.MAX_REMEMBERED_TARGET_BYTES - len(start))
    exchange._remembered.cache_clear()
    for target in (kept, kept + b"y"):
        read = exchange.read_target(target)
        assert read is not None
        assert read.api_version == "2020-07-01"
        assert exchange._remembered.cache_info().currsize == 1
    assert exchange._remembered.cache_info().maxsize == 1024


@pytest.mark.parametrize(
    "piece", [b'"', b'"\\', b'\\"', b"a=", b"= ", b"\t", b'a="b",', b",", b"a", b'"\\",', b";"]
)
def test_no_preference_takes_longer_than_its_length(piece: bytes) -> None:
    for before, after in ((b"", b""), (b"wait=", b"@"), (b'"', b"\\"), (b"a=", b'"')):
        value = before + piece * (16_000 // len(piece)) + after
        began = time.process_time()
        exchange.wait_seconds((value,))
        assert time.process_time() - began < 0.2  # quadratic would be seconds


ID = b"02aab8a4-74ef-476e-8182-f6d2ba4166a6"


def test_a_proxy_signs_the_id_that_it_sends_as_openstacks_agent_and_openssl_do() -> None:
    # printf %s web-0 | openssl dgst -sha256 -hmac 0123456789abcdef
    known = b"ada9bdbe0a794214d1c5a9f68e59975c47565eb87971b5474f9bd873eac27c5e"
    assert exchange.sign(b"web-0", b"0123456789abcdef") == known
    signature = exchange.sign(ID, SECRET)
    claim = exchange.Claim(ID, signature)
    for secrets, good in (([OTHER, SECRET], True), ([SECRET, OTHER], True), ([OTHER], False)):
        assert exchange.is_signed(claim, secrets) is good
    assert not exchange.is_signed(claim, [])
    assert exchange.is_signed(exchange.Claim(ID, signature.upper()), [SECRET])
    for wrong in (b"", b"0" * 64, b"\xff" * 64, signature[:-1]):
        assert not exchange.is_signed(exchange.Claim(ID, wrong), [SECRET])
    assert not exchange.is_signed(exchange.Claim(ID.upper(), signature), [SECRET])


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_an_approval_may_come_in_any_unicode_encoding(encoding: str, mark: str) -> None:
    written = (mark + codec.encode_start_requests(["A"]).decode()).encode(encoding)
    assert codec.decode_start_requests(written) == ("A",)


def test_an_approval_is_written_as_clients_write_it_and_has_a_thousand_entries_at_most() -> None:
    assert codec.encode_start_requests([EVENT_ID, "b"]) == (
        b'{"StartRequests":[{"EventId":"C1BF8322-4CBF-4FC4-9C45-B40CF3106D0E"},{"EventId":"b"}]}'
    )
    assert refusals.MAX_START_REQUESTS == 1000
    thousand = [f"{number:036}" for number in range(1000)]
    assert codec.decode_start_requests(codec.encode_start_requests(thousand)) == tuple(thousand)
    assert len(codec.encode_start_requests(thousand)) < refusals.MAX_BODY_BYTES
    # Entries are counted before doubles are folded.
    assert codec.decode_start_requests(codec.encode_start_requests(["A"] * 1000)) == ("A",)
    for many in ([*thousand, "A"], ["A"] * 1001):
        with pytest.raises(Malformed, match=r"^has 1001 StartRequests$"):
            codec.decode_start_requests(codec.encode_start_requests(many))
