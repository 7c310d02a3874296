"""The forms in which clients in the field send their requests, to the service and to the emulator.

Each form is what some library or tool sends by default, or what people write by hand. The service
gives the answer that the field needs, and the emulator gives the same bytes.
"""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import pytest

from end_to_end.raw_http import exchanged
from end_to_end.running import Running
from forewarn.testing import Emulator

FLEET: Final = """
[[availability_set]]
name = "web"
update_domains = 2
machines = [{ name = "web-0" }, { name = "web-1" }]
"""
LASTING: Final = "reboot_seconds = 3600"
MAINTENANCE: Final = {"event_type": "Reboot", "machines": ["web-0"]}
NOT_BEFORE: Final = rb'"NotBefore":"[^"]+"'
EVENT: Final = b"THE-EVENT"
"""Stands for the event's id, which is another one in each of the two."""

PATH: Final = "/vm/web-0/metadata/scheduledevents"
QUERY: Final = "?api-version=2020-07-01"
HEAD: Final = "Host: 169.254.169.254\r\nMetadata: true\r\n"
BODY: Final = '{"StartRequests":[{"EventId":"THE-EVENT"}]}'


def get(target: str = PATH + QUERY, head: str = HEAD, version: str = "1.1") -> bytes:
    return f"GET {target} HTTP/{version}\r\n{head}\r\n".encode()


def post(body: str = BODY, head: str = HEAD, target: str = PATH + QUERY, v: str = "1.1") -> bytes:
    length = len(body.replace("THE-EVENT", "x" * 36).encode())
    return f"POST {target} HTTP/{v}\r\n{head}Content-Length: {length}\r\n\r\n{body}".encode()


def chunked(head: str = HEAD, extension: str = "", trailer: str = "") -> bytes:
    first, second = BODY[:7], BODY[7:]
    size = len(second.replace("THE-EVENT", "x" * 36))
    parts = f"7{extension}\r\n{first}\r\n{size:X}\r\n{second}\r\n0\r\n{trailer}\r\n"
    return f"POST {PATH}{QUERY} HTTP/1.1\r\n{head}\r\n{parts}".encode()


JAVA: Final = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
"""What Java's HttpClient asks for, and curl with --http2."""

FORMS: Final[dict[str, tuple[bytes, str]]] = {
    "Metadata:True, as Python's str(True)": (
        get(head="Host: 127.0.0.1\r\nmetadata:True\r\n"),
        "200",
    ),
    "HTTP/1.0 without a Host, as ab and old scripts": (
        get(head="Metadata: true\r\n", version="1.0"),
        "200",
    ),
    "HTTP/1.0 that keeps the connection": (
        get(head="Metadata: true\r\nConnection: Keep-Alive\r\n", version="1.0"),
        "200",
    ),
    "Connection: close, as urllib": (get(head=HEAD + "Connection: close\r\n"), "200"),
    "Connection: TE, close, as LWP": (
        get(head=HEAD + "TE: deflate,gzip;q=0.3\r\nConnection: TE, close\r\n"),
        "200",
    ),
    "an upgrade to HTTP/2": (get(head=HEAD + JAVA), "200"),
    "codings and media types that are not served": (
        get(head=HEAD + "Accept: application/xml\r\nAccept-Encoding: gzip, deflate, br\r\n"),
        "200",
    ),
    "a GET with a Content-Type": (get(head=HEAD + "Content-Type: application/json\r\n"), "200"),
    "a GET with a length of 0": (get(head=HEAD + "Content-Length: 0\r\n"), "200"),
    "a GET with a body": (get(head=HEAD + "Content-Length: 2\r\n") + b"{}", "200"),
    "a GET with an empty chunked body": (
        get(head=HEAD + "Transfer-Encoding: chunked\r\n") + b"0\r\n\r\n",
        "200",
    ),
    "a Range and an If-Modified-Since": (
        get(head=HEAD + "Range: bytes=0-9\r\nIf-Modified-Since: Thu, 01 Jan 2099 00:00:00 GMT\r\n"),
        "200",
    ),
    "an absolute target": (get(f"http://169.254.169.254:80{PATH}{QUERY}"), "200"),
    "another case and a slash": (get(f"{PATH.upper()}/{QUERY}".replace("WEB-0", "web-0")), "200"),
    "other parameters before and behind": (get(f"{PATH}?format=json&{QUERY[1:]}&"), "200"),
    "an encoded query": (get(f"{PATH}?API%2Dversion=2020%2D07%2D01"), "200"),
    "a version twice": (get(f"{PATH}{QUERY}&{QUERY[1:]}"), "400"),
    "no version": (get(PATH), "400"),
    "Metadata: 1": (get(head="Host: 127.0.0.1\r\nMetadata: 1\r\n"), "400"),
    "other headers of a proxy": (
        get(head=HEAD + "Via: 1.1 squid\r\nForwarded: for=10.0.0.1\r\n"),
        "200",
    ),
    "the original's own name": (
        get(head=HEAD.replace("169.254.169.254", "metadata.azure.internal")),
        "200",
    ),
    "a proxy's X-Forwarded-For": (get(head=HEAD + "X-Forwarded-For: 10.0.0.1\r\n"), "400"),
    "If-None-Match: 0, as Azure's sample for Node": (
        get(head=HEAD + "If-None-Match: 0\r\n"),
        "200",
    ),
    "two in one packet": (get() * 2, "200 200"),
    "an empty line before it": (b"\r\n" + get(), "200"),
    "as a form, as curl -d": (
        post(head=HEAD + "Content-Type: application/x-www-form-urlencoded\r\n"),
        "200",
    ),
    "as text, as .NET's StringContent": (
        post(head=HEAD + "Content-Type: text/plain; charset=utf-8\r\n"),
        "200",
    ),
    "a mark before the JSON, as .NET's StreamWriter": (post("\ufeff" + BODY), "200"),
    "a newline behind it": (post(BODY + "\r\n"), "200"),
    "tabs and lines, as a template": (post(BODY.replace("[", "[\r\n\t\t")), "200"),
    "the incarnation as text beside it": (
        post(BODY.replace("{", '{"DocumentIncarnation":"1",', 1)),
        "200",
    ),
    "names in camel case, as PostAsJsonAsync": (
        post(BODY.replace("StartRequests", "startRequests").replace("EventId", "eventId")),
        "200",
    ),
    "a tag that the GETs need": (post(head=HEAD + "If-None-Match: 1\r\n"), "200"),
    "by another version": (post(target=f"{PATH}?api-version=2017-08-01"), "200"),
    "the preview's, without the header": (
        post(head="Host: 127.0.0.1\r\n", target=f"{PATH}?api-version=2017-03-01"),
        "200",
    ),
    "by HTTP/1.0, as PHP": (post(head="Metadata: true\r\nConnection: close\r\n", v="1.0"), "200"),
    "with an upgrade to HTTP/2": (post(head=HEAD + JAVA), "200"),
    "Expect: 100-continue, as .NET Framework": (
        post(head=HEAD + "Expect: 100-continue\r\n"),
        "100 200",
    ),
    "Expect in another case, as Java": (post(head=HEAD + "Expect: 100-Continue\r\n"), "100 200"),
    "Expect, and refused by its head": (
        post(head="Host: 127.0.0.1\r\nExpect: 100-continue\r\n"),
        "400",
    ),
    "chunked, as Node without a length": (chunked(HEAD + "Transfer-Encoding: chunked\r\n"), "200"),
    "chunked, with an extension and a trailer": (
        chunked(HEAD + "Transfer-Encoding: Chunked\r\nTrailer: X\r\n", ";a=b", "X: y\r\n"),
        "200",
    ),
    "approvals and polls in one packet": (get() + post() + get(), "200 200 200"),
    "an empty list": (post('{"StartRequests":[]}'), "200"),
    "an object in place of the list": (post('{"StartRequests":{"EventId":"THE-EVENT"}}'), "400"),
    "a form's fields": (post("StartRequests=THE-EVENT"), "400"),
    "JSON in a string of JSON": (post(json.dumps(BODY)), "400"),
    "nothing": (post(""), "400"),
    "an event that never was": (post(BODY.replace("THE-EVENT", "0" * 36)), "400"),
}


class Pair:
    """A service and an emulator with the same fleet and the same event."""

    def __init__(self, service: Running, emulator: Emulator) -> None:
        planned = service.operator.ask("POST", "/v1/maintenances", MAINTENANCE)
        (event,) = json.loads(planned.body)["operations"][0]["events"]
        other = emulator.schedule("Reboot", "web-0").event_id
        port = int(emulator.endpoint.rpartition(":")[2])
        self._both = ((service.guest_port, event["id"]), (port, other))

    def ask(self, request: bytes) -> list[bytes]:
        """Return what both answer, without what is their own."""
        answers = []
        for port, event_id in self._both:
            got = exchanged(port, request.replace(EVENT, event_id.encode()))
            got = got.replace(event_id.encode(), EVENT)
            answers.append(re.sub(NOT_BEFORE, b'"NotBefore":"later"', got))
        return answers


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with ExitStack() as stack:
        service = Running(tmp_path_factory.mktemp("service"), connector=LASTING)
        service.start()
        stack.callback(service.stop)
        service.apply(FLEET)
        emulator = stack.enter_context(Emulator())
        emulator.fleet(FLEET)
        yield Pair(service, emulator)


@pytest.mark.parametrize("form", FORMS)
def test_the_service_and_the_emulator_answer_what_the_field_sends(pair: Pair, form: str) -> None:
    request, expected = FORMS[form]
    service, emulator = pair.ask(request)
    assert re.findall(rb"HTTP/1\.1 (\d+) ", service) == expected.encode().split()
    assert emulator == service
