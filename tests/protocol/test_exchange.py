"""The rules of sections 3, 4, 5 and 9, one by one and in their order."""

import msgspec
import pytest

from forewarn.protocol import exchange, refusals
from forewarn.protocol.codec import AgentReport
from forewarn.protocol.exchange import (
    CATCH_UP_SECONDS,
    GetDocument,
    GetInstance,
    GetVersions,
    IfNoneMatch,
    Peer,
    PostApproval,
    Rules,
)
from forewarn.protocol.instance import INSTANCE_VERSIONS
from forewarn.protocol.message import HttpRequest, Reply
from forewarn.protocol.versions import NEWEST_VERSION, VERSIONS, Version
from forewarn.vocabulary import AgentStatus, EventStatus
from protocol import cases, world
from protocol.world import (
    EVENT_ID,
    EVENTS,
    GUEST,
    HEADER,
    LOOPBACK,
    World,
    approval,
    ask,
    get,
    post,
)

PREVIEW = b"/metadata/scheduledevents?api-version=2017-03-01"
INSTANCE = b"/metadata/instance?api-version=2017-04-02"
VERSIONS_PATH = b"/metadata/versions"
JSON = (b"Content-Type", b"application/json; charset=utf-8")
TEXT = (b"Content-Type", b"text/plain; charset=utf-8")
FORWARDED = (b"X-Forwarded-For", b"10.0.0.1")


def judge(
    target: bytes = EVENTS,
    *headers: tuple[bytes, bytes],
    method: bytes = b"GET",
    peer: Peer = GUEST,
    rules: Rules | None = None,
) -> Reply | exchange.ValidRequest:
    return exchange.judge(HttpRequest(method, target, headers), peer, rules or Rules())


def error(reply: object) -> tuple[int, str]:
    assert isinstance(reply, Reply)
    if reply.status == 429:
        assert reply.headers[0] == TEXT
        return reply.status, reply.body.decode()
    assert reply.headers[0] == JSON
    assert reply.body.startswith(b'{"error":"')
    assert reply.body.endswith((b'"}', b"]}"))
    return reply.status, reply.body.decode().split('"')[3]


# rule 1: the header


@pytest.mark.parametrize(
    "header",
    [
        (b"Metadata", b"true"),
        (b"metadata", b"True"),
        (b"METADATA", b"TRUE"),
        (b"Metadata", b" true\t"),
        (b"Metadata", b"true, true"),
        (b"Metadata", b"false,True"),
    ],
)
def test_the_header_counts_in_any_case(header: tuple[bytes, bytes]) -> None:
    for target in (EVENTS, INSTANCE, VERSIONS_PATH):
        assert not isinstance(judge(target, (b"Host", b"x"), header), Reply)
    assert not isinstance(judge(EVENTS, header, method=b"POST"), Reply)


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ((b"Metadata", b"false"),),
        ((b"Metadata", b""),),
        ((b"Metadata", b"true true"),),
        ((b"Metadata", b"untrue, false"),),
        ((b"X-Metadata", b"true"),),
        ((b"true", b"Metadata"),),
    ],
)
def test_a_request_without_the_header_is_refused(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    for target in (EVENTS, PREVIEW, INSTANCE, VERSIONS_PATH):
        assert error(judge(target, *headers)) == (400, refusals.NO_HEADER.text)


def test_one_true_header_among_several_is_enough() -> None:
    for values in ((b"true", b"false"), (b"false", b"true")):
        assert not isinstance(judge(EVENTS, *((b"Metadata", value) for value in values)), Reply)


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_the_setting_says_which_posts_need_no_header(version: Version) -> None:
    target = b"/metadata/scheduledevents?api-version=" + version.name.encode()
    taken = judge(target, method=b"POST")
    if version.name == "2017-03-01":
        assert taken == PostApproval(version=version)
    else:
        assert error(taken) == (400, refusals.NO_HEADER.text)
    assert error(judge(target)) == (400, refusals.NO_HEADER.text)
    assert judge(target, method=b"POST", rules=Rules(post_without_header="always")) == (
        PostApproval(version=version)
    )
    turned_off = Rules(post_without_header="never")
    assert error(judge(target, method=b"POST", rules=turned_off))[0] == 400
    with_header = judge(target, *HEADER, method=b"POST", rules=turned_off)
    assert with_header == PostApproval(version=version)


def test_the_previews_neighbours_want_the_header_still() -> None:
    for target in (VERSIONS_PATH, INSTANCE.replace(b"2017-04-02", b"2017-03-01")):
        assert error(judge(target)) == (400, refusals.NO_HEADER.text)
        assert error(judge(target, rules=Rules(post_without_header="always")))[0] == 400
    latest = b"/metadata/latest/scheduledevents?api-version=2017-03-01"
    assert error(judge(latest, method=b"POST")) == (400, refusals.NO_HEADER.text)


# rule 2: X-Forwarded-For


@pytest.mark.parametrize("name", [b"X-Forwarded-For", b"x-forwarded-for"])
@pytest.mark.parametrize("value", [b"10.0.0.1", b""])
def test_a_forwarded_request_is_refused_but_from_a_trusted_proxy(name: bytes, value: bytes) -> None:
    for target in (EVENTS, INSTANCE, VERSIONS_PATH):
        refused = judge(target, *HEADER, (name, value))
        assert error(refused) == (400, refusals.FORWARDED.text)
        signed = world.signed(b"web-0")
        trusted = judge(target, *HEADER, (name, value), *signed, peer=world.PROXY)
        assert not isinstance(trusted, Reply)


# rule 2: web pages


@pytest.mark.parametrize(
    "host",
    (
        b"127.0.0.1 127.0.0.1:8170 169.254.169.254 [::1] [::1]:8170 localhost LocalHost:80 "
        b"metadata.azure.internal Metadata.Azure.Internal:80 host.docker.internal:8170 "
        b"host.containers.internal:8170"
    ).split(),
)
def test_an_address_or_an_own_name_as_the_host_is_no_web_page(host: bytes) -> None:
    assert not isinstance(judge(EVENTS, *HEADER, (b"host", host), peer=LOOPBACK), Reply)


@pytest.mark.parametrize(
    "host",
    (
        b"example.org example.org:8170 127.0.0.1.example.org localhost.example.org :80 [localhost] "
        b"[127.0.0.1] ::1 127.0.0.1:80:80 [::1]x \xff a@127.0.0.1 2130706433 127.0.0.1:x "
        b"127.0.0.1,example.org metadata.azure.internal.example.org azure.internal "
        b"[host.docker.internal]"
    ).split(),
)
@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_a_page_whose_name_points_here_is_refused_on_loopback_alone(
    host: bytes, method: bytes
) -> None:
    headers = (*HEADER, (b"Host", host))
    for path in (EVENTS, b"/vm/web-0" + EVENTS):
        refused = judge(path, *headers, method=method, peer=LOOPBACK)
        assert error(refused) == (403, refusals.WEB_PAGE.text)
    assert not isinstance(judge(EVENTS, *headers, method=method), Reply)
    signed = world.signed(b"web-0")
    assert not isinstance(judge(EVENTS, *headers, *signed, method=method, peer=world.PROXY), Reply)


@pytest.mark.parametrize("origin", [b"http://example.org", b"null", b"http://127.0.0.1:8170", b""])
def test_a_page_that_says_its_origin_is_refused_on_loopback_alone(origin: bytes) -> None:
    """The preview's approvals need no header, so that any page's form could post one."""
    preview = b"/vm/web-0/metadata/scheduledevents?api-version=2017-03-01"
    headers = ((b"Host", b"127.0.0.1:8170"), (b"ORIGIN", origin))
    refused = judge(preview, *headers, method=b"POST", peer=LOOPBACK)
    assert error(refused) == (403, refusals.WEB_PAGE.text)
    assert not isinstance(judge(EVENTS, *HEADER, *headers), Reply)


# rule 3: parameters and methods


def test_a_parameter_named_twice_is_refused_whichever_it_is() -> None:
    for target in (EVENTS + b"&x=1&X=2", VERSIONS_PATH + b"?x&x", INSTANCE + b"&x=1&x=1"):
        status, text = error(judge(target, *HEADER))
        assert status == 400
        assert text == "Bad request. Query parameter 'x' is given more than once: give it once"


def test_a_long_parameter_is_named_in_part() -> None:
    _, text = error(judge(EVENTS + b"&%s&%s" % (b"x" * 500, b"x" * 500), *HEADER))
    assert f"'{'x' * 100}...'" in text


def test_unknown_parameters_are_ignored() -> None:
    plain = judge(EVENTS, *HEADER)
    assert judge(EVENTS + b"&x=1&format=xml&y", *HEADER) == plain
    assert judge(VERSIONS_PATH + b"?api-version=nonsense", *HEADER) == GetVersions()


@pytest.mark.parametrize(
    "method", [b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"TRACE", b"get", b"", b"\xff"]
)
def test_other_methods_are_refused_and_the_right_ones_named(method: bytes) -> None:
    for target, allowed in ((EVENTS, b"GET, POST"), (INSTANCE, b"GET"), (VERSIONS_PATH, b"GET")):
        reply = judge(target, *HEADER, method=method)
        assert error(reply) == (405, "Method not allowed")
        assert isinstance(reply, Reply)
        assert reply.headers[1:] == ((b"Allow", allowed),)


def test_the_neighbours_take_no_post() -> None:
    for target in (INSTANCE, VERSIONS_PATH):
        assert error(judge(target, *HEADER, method=b"POST")) == (405, "Method not allowed")


# versions


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_each_version_may_read_and_approve(version: Version) -> None:
    target = b"/metadata/scheduledevents?api-version=" + version.name.encode()
    assert judge(target, *HEADER) == GetDocument(version=version)
    assert judge(target, *HEADER, method=b"POST") == PostApproval(version=version)


@pytest.mark.parametrize(
    "wrong", [b"", b"?api-version=", b"?api-version=latest", b"?api-version=2021-02-01",
              b"?api-version=2020-07-01%20", b"?api-version=2020-7-1", b"?version=2020-07-01"]
)  # fmt: skip
def test_an_unknown_version_is_told_the_newest_of_its_list(wrong: bytes) -> None:
    for method in (b"GET", b"POST"):
        reply = judge(b"/metadata/scheduledevents" + wrong, *HEADER, method=method)
        assert error(reply) == (400, refusals.VERSION.text)
        assert isinstance(reply, Reply)
        newest = b'"newest-versions":["2020-07-01","2019-08-01","2019-04-01"]}'
        assert reply.body.endswith(newest)


@pytest.mark.parametrize("wrong", [b"", b"?api-version=2020-07-01", b"?api-version=latest"])
def test_the_instance_service_has_its_own_versions(wrong: bytes) -> None:
    reply = judge(b"/metadata/instance" + wrong, *HEADER)
    assert error(reply) == (400, refusals.VERSION.text)
    assert isinstance(reply, Reply)
    assert reply.body.endswith(b'"newest-versions":["2025-04-07","2024-07-17","2024-03-15"]}')


@pytest.mark.parametrize("name", INSTANCE_VERSIONS)
def test_every_instance_version_is_served(name: str) -> None:
    target = f"/metadata/instance/compute/name?api-version={name}&format=text".encode()
    wanted = GetInstance(version=name, path=("compute", "name"), format="text")
    assert judge(target, *HEADER) == wanted


@pytest.mark.parametrize("target", [b"/metadata/latest/scheduledevents", EVENTS[:-10] + b"latest"])
def test_latest_is_no_version_any_more(target: bytes) -> None:
    assert error(judge(target, *HEADER)) == (400, refusals.VERSION.text)
    assert error(judge(target, *HEADER, method=b"HEAD"))[0] == 405


# what no machine has


NO_IDENTITY = (400, b'{"error":"invalid_request","error_description":"Identity not found"}')
OLDEST = b"?api-version=2017-03-01"


@pytest.mark.parametrize("path", [b"", b"/", b"/oauth2/token", b"/info", b"/a//b"])
@pytest.mark.parametrize("query", [b"", b"?api-version=2018-02-01&resource=x", OLDEST])
def test_no_machine_has_an_identity_whatever_is_asked_of_it(path: bytes, query: bytes) -> None:
    """A 404 would keep Azure's libraries asking, so that each process waits for half a minute."""
    for peer in (GUEST, world.STRANGER):
        refused = get(b"/metadata/identity" + path + query, world=World(peer=peer))
        assert (refused.status, refused.body) == NO_IDENTITY
    named = get(b"/vm/nobody/metadata/identity" + path + query, world=World(peer=LOOPBACK))
    assert (named.status, named.body) == NO_IDENTITY


def test_the_rules_of_a_request_hold_for_identities_too() -> None:
    token = b"/metadata/identity/oauth2/token"
    assert error(judge(token, *HEADER, FORWARDED)) == (400, refusals.FORWARDED.text)
    assert error(judge(token, *HEADER, method=b"POST")) == (405, "Method not allowed")
    assert error(judge(token + b"?x=1&x=2", *HEADER))[1].startswith("Bad request. Query parameter")
    page = judge(token, *HEADER, (b"Origin", b"null"), peer=LOOPBACK)
    assert error(page) == (403, refusals.WEB_PAGE.text)


def test_no_machine_has_a_load_balancer() -> None:
    balancer = b"/metadata/loadbalancer"
    found = judge(balancer + b"/?api-version=2020-10-01", *HEADER)
    assert error(found) == (404, refusals.NO_LOAD_BALANCER.text)
    assert error(judge(balancer, *HEADER)) == (400, refusals.VERSION.text)
    assert error(judge(balancer)) == (400, refusals.NO_HEADER.text)
    wrong = judge(balancer + b"/%22/" + b"x" * 500, *HEADER)
    assert isinstance(wrong, Reply)
    assert b'Path = \\"/metadata/loadbalancer/\\"/xxx' in wrong.body
    assert len(wrong.body) < 200


def test_the_root_and_what_is_below_it_want_a_version() -> None:
    for query in (b"", OLDEST):
        assert error(judge(b"/" + query, *HEADER)) == (400, refusals.VERSION.text)
    for wrong in (b"", b"/", b"?api-version=2020-07-01"):
        reply = judge(b"/metadata" + wrong, *HEADER)
        assert error(reply) == (400, refusals.VERSION.text)
        assert isinstance(reply, Reply)
        assert reply.body.endswith(b'"newest-versions":["2025-04-07","2024-07-17","2024-03-15"]}')
    assert error(judge(b"/metadata" + OLDEST, *HEADER)) == (404, refusals.NOT_FOUND.text)
    for path in (b"/", b"/metadata"):
        assert error(judge(path)) == (400, refusals.NO_HEADER.text)
        assert error(judge(path, *HEADER, method=b"POST")) == (405, "Method not allowed")


# rule 6: the order


WRONGS = {
    "path": (404, refusals.NOT_FOUND.text),
    "method": (405, refusals.METHOD.text),
    "page": (403, refusals.WEB_PAGE.text),
    "forwarded": (400, refusals.FORWARDED.text),
    "identity": (400, refusals.NO_TRUSTED_PROXY.text),
    "header": (400, refusals.NO_HEADER.text),
    "doubled": (
        400,
        "Bad request. Query parameter 'x' is given more than once: give it once",
    ),
    "version": (400, refusals.VERSION.text),
    "caller": (
        403,
        (
            "Forbidden. No registered machine has the address 10.0.0.99: "
            "register the machine with this address"
        ),
    ),
    "rate": (429, refusals.TOO_MANY_REQUESTS.text),
}
ORDER = list(WRONGS)


@pytest.mark.parametrize("first", range(len(ORDER)), ids=ORDER)
def test_of_several_wrongs_the_first_in_the_order_is_answered(first: int) -> None:
    """For each rule: it and all the later ones are broken, and it alone is answered."""
    wrong = set(ORDER[first:])
    path = b"/metadata/nothing" if "path" in wrong else b"/metadata/scheduledevents"
    version = b"1999-01-01" if "version" in wrong else b"2020-07-01"
    query = b"?x=1&api-version=" + version + (b"&x=2" if "doubled" in wrong else b"")
    headers = () if "header" in wrong else HEADER
    if "forwarded" in wrong:
        headers = (*headers, FORWARDED)
    if "page" in wrong:
        headers = (*headers, (b"Origin", b"null"))
    if "identity" in wrong:
        headers = (*headers, *world.signed(b"web-0"))
    method = b"PUT" if "method" in wrong else b"GET"
    there = World(
        peer=Peer(address=world.STRANGER.address, vm_paths=True) if "caller" in wrong else GUEST,
        over_the_rate_for_seconds=9 if "rate" in wrong else 0,
    )
    assert error(ask(HttpRequest(method, path + query, headers), there)) == WRONGS[ORDER[first]]


def test_the_body_is_judged_last_of_all() -> None:
    stranger = World(peer=world.STRANGER)
    assert error(post(b"nonsense", world=stranger))[0] == 403
    assert error(post(b"nonsense", target=b"/metadata/scheduledevents"))[1] == refusals.VERSION.text
    assert error(post(b"nonsense"))[1].startswith("Bad request. The body is not JSON")


def test_the_format_comes_after_the_version_and_before_the_caller() -> None:
    stranger = World(peer=world.STRANGER)
    assert error(get(b"/metadata/instance?format=xml"))[1] == refusals.VERSION.text
    assert error(get(INSTANCE + b"&format=xml", world=stranger))[0] == 400
    nothing = b"/metadata/instance/nothing?api-version=2017-04-02"
    assert error(get(nothing, world=stranger))[0] == 403


# who asks


def test_a_name_in_the_path_counts_where_the_listener_says_so() -> None:
    for rest in (EVENTS, INSTANCE, VERSIONS_PATH):
        named = judge(b"/vm/Web-0" + rest, *HEADER, peer=LOOPBACK)
        assert not isinstance(named, Reply)
        assert named.machine == "Web-0"
        assert error(judge(b"/vm/Web-0" + rest, *HEADER)) == (404, "Not found")
        plain = judge(rest, *HEADER, peer=LOOPBACK)
        assert not isinstance(plain, Reply)
        assert plain.machine is None
    approving = judge(b"/vm/a" + EVENTS, *HEADER, method=b"POST", peer=LOOPBACK)
    assert approving == PostApproval(version=NEWEST_VERSION, machine="a")


def test_whoever_asks_by_name_is_answered_as_the_machine_of_that_name() -> None:
    on_loopback = World(peer=LOOPBACK)
    assert get(b"/vm/WEB-1" + EVENTS, world=on_loopback).status == 200
    assert post(approval(EVENT_ID), target=b"/vm/web-0" + EVENTS, world=on_loopback).status == 200
    assert error(get(EVENTS, world=on_loopback))[0] == 403


def test_the_versions_are_told_to_registered_machines_only() -> None:
    assert get(VERSIONS_PATH).status == 200
    assert error(get(VERSIONS_PATH, world=World(peer=world.STRANGER)))[0] == 403


def test_everything_but_an_approval_is_rated() -> None:
    over = World(over_the_rate_for_seconds=3)
    for target in (EVENTS, INSTANCE, VERSIONS_PATH):
        reply = get(target, world=over)
        assert reply.status == 429
        assert reply.headers == (TEXT, (b"Retry-After", b"3"))
    assert post(approval(EVENT_ID), world=over).status == 200
    version = NEWEST_VERSION
    assert exchange.is_rated(GetDocument(version=version))
    assert not exchange.is_rated(PostApproval(version=version))


def test_nobody_is_told_to_come_back_at_once() -> None:
    for seconds, told in ((0, b"1"), (1, b"1"), (2, b"2")):
        reply = exchange.refuse(refusals.UNAVAILABLE, retry_after_seconds=seconds)
        assert reply.headers == (JSON, (b"Retry-After", told))


# the document and its tag


@pytest.mark.parametrize(
    "value",
    [
        b"2", b'"2"', b'W/"2"', b"w/2", b"W/2", b" 2 ", b"1,2", b'"1", "2"', b'W/"1",W/"2"', b"*",
        b'"a,b", "2"', b" * ", b",, 2 ,", b'2, "1', b'"", 2', b"1\t,\t2",
    ],
)  # fmt: skip
def test_a_client_that_holds_the_document_is_told_so(value: bytes) -> None:
    for name in (b"If-None-Match", b"if-none-match"):
        reply = get(EVENTS, (name, value))
        assert reply == Reply(304, b"", ((b"ETag", b"2"),))


@pytest.mark.parametrize(
    "value",
    [
        b"", b"0", b"22", b"02", b"2.0", b'"1,2"', b'"*"', b"1", b",,", b"W/", b"-2", b"\xff",
        b'"2', b'2"', b"2 2", b'"2" "2"', b'"2"2', b'2"2"', b"W/ 2", b'W/"2', b'"1,2', b'"1, "2"',
    ],
)  # fmt: skip
def test_a_client_that_holds_another_document_gets_this_one(value: bytes) -> None:
    reply = get(EVENTS, (b"If-None-Match", value))
    assert (reply.status, reply.body) == (200, cases.golden("section_4.json"))
    assert reply.headers == (JSON, (b"ETag", b"2"))


def test_tags_may_come_in_several_headers() -> None:
    assert get(EVENTS, (b"If-None-Match", b"1"), (b"If-None-Match", b"2")).status == 304
    assert get(EVENTS, (b"If-None-Match", b"1"), (b"If-None-Match", b"*")).status == 304
    assert get(EVENTS, (b"If-None-Match", b"1"), (b"If-None-Match", b"3")).status == 200


def test_the_tags_that_were_read_are_told_to_whoever_waits_for_a_change() -> None:
    wanted = judge(EVENTS, *HEADER, (b"If-None-Match", b'W/"7", 8'))
    assert wanted == GetDocument(
        version=NEWEST_VERSION, if_none_match=IfNoneMatch((b"7", b"8"), anything=False)
    )
    assert wanted.if_none_match.matches(8)
    assert not wanted.if_none_match.matches(9)


def test_an_empty_tag_is_one_and_matches_no_document() -> None:
    wanted = judge(EVENTS, *HEADER, (b"If-None-Match", b'""'))
    assert isinstance(wanted, GetDocument)
    assert wanted.if_none_match == IfNoneMatch((b"",))


@pytest.mark.parametrize("name", [b"Prefer", b"prefer"])
@pytest.mark.parametrize(
    ("tags", "seconds"),
    [((b"7",), 60), ((b"7", b"8"), 60), ((), 0), ((b"*",), 0), ((b"7", b"*"), 0)],
)
def test_only_a_client_that_says_which_document_it_has_may_wait(
    name: bytes, tags: tuple[bytes, ...], seconds: int
) -> None:
    headers = [(b"If-None-Match", tag) for tag in tags]
    wanted = judge(EVENTS, *HEADER, *headers, (name, b"wait=60"))
    assert isinstance(wanted, GetDocument)
    assert wanted.wait_seconds == seconds


@pytest.mark.parametrize(
    ("seconds", "incarnation", "held"),
    [(60, 7, True), (1, 7, True), (60, 8, False), (0, 7, False), (0, 8, False)],
)
def test_an_answer_is_held_while_the_client_has_the_document(
    seconds: int, incarnation: int, held: bool
) -> None:
    wanted = GetDocument(
        version=NEWEST_VERSION, if_none_match=IfNoneMatch((b"7",)), wait_seconds=seconds
    )
    assert exchange.hold_seconds(wanted, incarnation) == (seconds if held else 0)


@pytest.mark.parametrize(
    ("tags", "incarnation", "seconds"),
    [
        ((b"8",), 7, CATCH_UP_SECONDS),
        ((b"2", b"8"), 7, CATCH_UP_SECONDS),
        ((b"7", b"8"), 7, 0),
        ((b"6",), 7, 0),
        ((b"9" * 19,), 7, CATCH_UP_SECONDS),
        ((b"9" * 20,), 7, 0),
        ((b"eight",), 7, 0),
        ((b"-8",), 7, 0),
        ((b"",), 7, 0),
        (("\N{SUPERSCRIPT TWO}".encode(),), 0, 0),
    ],
)
def test_who_has_read_a_later_document_waits_a_moment_for_it(
    tags: tuple[bytes, ...], incarnation: int, seconds: int
) -> None:
    wanted = GetDocument(version=NEWEST_VERSION, if_none_match=IfNoneMatch(tags))
    assert exchange.hold_seconds(wanted, incarnation) == seconds


def test_a_client_that_asks_to_wait_learns_where_the_server_waits() -> None:
    wanted = GetDocument(
        version=NEWEST_VERSION, if_none_match=IfNoneMatch((b"7",)), wait_seconds=60
    )
    applied = (b"Preference-Applied", b"wait=60")
    for incarnation, status in ((7, 304), (8, 200)):
        waiting = exchange.document_reply(wanted, incarnation, b"{}", waits=True)
        assert (waiting.status, waiting.headers[-2:]) == (
            status,
            ((b"ETag", b"%d" % incarnation), applied),
        )
        assert applied not in exchange.document_reply(wanted, incarnation, b"{}").headers
    hasty = msgspec.structs.replace(wanted, wait_seconds=0)
    reply = exchange.document_reply(hasty, 8, b"{}", waits=True)
    assert reply.headers == (JSON, (b"ETag", b"8"))


def test_the_last_word_of_an_agent_that_is_understood_counts() -> None:
    said = [(b"Forewarn-Agent", value) for value in (b"preparing", b'held; reason="x"', b"?")]
    wanted = judge(EVENTS, *HEADER, *said)
    assert isinstance(wanted, GetDocument)
    assert wanted.agent == AgentReport(AgentStatus.HELD, "x")
    silent = judge(EVENTS, *HEADER)
    assert isinstance(silent, GetDocument)
    assert silent.agent is None


def test_a_refusal_that_says_when_to_come_back_keeps_its_other_headers() -> None:
    allow = (b"Allow", b"GET")
    for asked, said in ((3, b"3"), (0, b"1")):
        reply = exchange.refuse(refusals.METHOD, allow, retry_after_seconds=asked)
        assert reply.headers == (JSON, allow, (b"Retry-After", said))


def test_an_approval_and_the_neighbours_ignore_if_none_match() -> None:
    tag = (b"If-None-Match", b"*")
    assert post(approval(EVENT_ID), tag).status == 200
    assert get(INSTANCE, tag).status == 200
    assert get(VERSIONS_PATH, tag).status == 200


# approvals


def test_an_approval_reaches_the_scope_once_whole_and_in_upper_case() -> None:
    there = World(document_shown=cases.AVAILABILITY_SET)
    other = cases.AVAILABILITY_SET.events[1].event_id
    reply = post(approval(other.lower(), EVENT_ID, other), world=there)
    assert reply == Reply(200, b"", ())
    assert there.approved == [(other, EVENT_ID)]
    assert cases.AVAILABILITY_SET.events[1].status is EventStatus.STARTED


def test_an_approval_of_nothing_is_fine() -> None:
    assert post(b'{"StartRequests":[]}') == exchange.APPROVED


def test_one_unknown_id_and_nothing_is_approved() -> None:
    there = World()
    reply = post(approval(EVENT_ID, "no-such"), world=there)
    assert error(reply) == (
        400,
        (
            "Bad request. Event 'NO-SUCH' was never published to this machine: "
            "send EventIds of its own document. Nothing was approved"
        ),
    )
    assert there.approved == []


@pytest.mark.parametrize("event_id", ["x" * 60_000, "{}{0}{event_id}", '"\\\n', "\x00", "é"])
def test_whatever_an_id_is_the_refusal_is_json_and_short(event_id: str) -> None:
    reply = post(approval(event_id))
    assert reply.status == 400
    assert len(reply.body) < 400
    assert error(exchange.refuse(refusals.UNKNOWN_EVENT, event_id="\ud800"))[0] == 400


def test_a_store_that_is_away_approves_nothing_and_says_when_to_come_again() -> None:
    reply = post(approval(EVENT_ID), world=World(store_is_away=True))
    assert error(reply)[0] == 503
    assert reply.headers == (JSON, (b"Retry-After", b"5"))


# what belongs to every answer


def test_the_server_names_itself_and_the_service_that_clients_look_for() -> None:
    assert exchange.SERVER.startswith(b"IMDS/")
    assert b"Forewarn" in exchange.SERVER


def test_every_status_has_its_reason() -> None:
    statuses = {refusal.status for refusal in refusals.REFUSALS.values()} | {200, 304}
    assert set(exchange.REASONS) == statuses
    assert exchange.REASONS[200] == b"OK"
    assert exchange.REASONS[304] == b"Not Modified"


def test_the_limits_are_named_in_their_refusals() -> None:
    for refusal in (refusals.BODY_TOO_LARGE, refusals.HEAD_TOO_LARGE):
        assert " 10 bytes" in error(exchange.refuse(refusal, limit=10))[1]
    assert (refusals.MAX_BODY_BYTES, refusals.MAX_HEAD_BYTES) == (65_536, 16_384)


def test_the_preview_is_served_as_its_clients_expect_by_default() -> None:
    assert Rules() == Rules(post_without_header="preview")
    assert Peer() == Peer(address="", trusted_proxy=False, vm_paths=False)
