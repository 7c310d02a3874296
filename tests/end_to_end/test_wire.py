"""Service, relay and emulator answer alike, whatever is read, and whatever form the field sends.

Each form is what some library or tool sends by default, or what people write by hand; the service
gives the answer that the field needs. What differs by nature is taken out of the answers: the
time, and ids. All three have one guest plane, for which tests/fuzz has any bytes.
"""

import itertools
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import patience
from end_to_end.running import Running
from forewarn.protocol.instance import INSTANCE_VERSIONS
from forewarn.testing import Emulator
from ports import free_port
from relays.process import Relay, settings, until

CONNECTOR: Final = "reboot_seconds = 3600"
OWN: Final = re.compile(
    rb'(?m)^(Date|x-ms-request-id): .*\r$|"(NotBefore|vmId|macAddress)":"[^"]*"'
)
EVENT: Final = b"THE-EVENT"
"""Stands for the event's id, which is another one in each."""

VERSIONS: Final = (
    *("2017-03-01", "2017-08-01", "2017-11-01", "2019-01-01"),
    *("2019-04-01", "2019-08-01", "2020-07-01", "latest", "2020-07-02", ""),
)

FLEET: Final = """
[[availability_set]]
name = "web"
update_domains = 2
machines = [
  { name = "web-0", host = "h1", update_domain = 0, tags = { role = "leader" } },
  { name = "web-1", host = "h1", update_domain = 0 },
  { name = "web-2", host = "h2", update_domain = 1 },
]
[[scale_set]]
name = "batch"
priority = "low"
machines = [ { index = 0, host = "h1", address = "10.0.1.10" } ]
[[cloud_service]]
name = "shop"
roles = [ { name = "FrontEnd", instances = [ { host = "h1" } ] } ]
[[machine]]
name = "bastion"
host = "h1"
"""

PATH: Final = "/vm/web-0/metadata/scheduledevents"
QUERY: Final = "?api-version=2020-07-01"
HEAD: Final = "Host: 169.254.169.254\r\nMetadata: true\r\n"
BODY: Final = '{"StartRequests":[{"EventId":"THE-EVENT"}]}'


def read(target: str = PATH + QUERY, head: str = HEAD, version: str = "1.1") -> bytes:
    return f"GET {target} HTTP/{version}\r\n{head}\r\n".encode()


def approve(
    body: str = BODY, head: str = HEAD, target: str = PATH + QUERY, v: str = "1.1"
) -> bytes:
    length = len(body.replace("THE-EVENT", "x" * 36).encode())
    return f"POST {target} HTTP/{v}\r\n{head}Content-Length: {length}\r\n\r\n{body}".encode()


def chunked(head: str = HEAD, extension: str = "", trailer: str = "") -> bytes:
    first, second = BODY[:7], BODY[7:]
    size = len(second.replace("THE-EVENT", "x" * 36))
    parts = f"7{extension}\r\n{first}\r\n{size:X}\r\n{second}\r\n0\r\n{trailer}\r\n"
    return f"POST {PATH}{QUERY} HTTP/1.1\r\n{head}\r\n{parts}".encode()


JAVA: Final = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA"
"""What Java's HttpClient asks for, and curl with --http2."""

WITH_A_GET: Final = {
    "Connection: close, as urllib": "Connection: close",
    "Connection: TE, close, as LWP": "TE: deflate,gzip;q=0.3\r\nConnection: TE, close",
    "an upgrade to HTTP/2": JAVA,
    "media types that are not served": "Accept: application/xml",
    "codings that are not served": "Accept-Encoding: gzip, deflate, br",
    "a GET with a Content-Type": "Content-Type: application/json",
    "a GET with a length of 0": "Content-Length: 0",
    "a Range": "Range: bytes=0-9",
    "an If-Modified-Since": "If-Modified-Since: Thu, 01 Jan 2099",
    "other headers of a proxy": "Via: 1.1 squid\r\nForwarded: for=10.0.0.1",
    "a proxy's X-Forwarded-For": "X-Forwarded-For: 10.0.0.1",
    "If-None-Match: 0, as Azure's sample for Node": "If-None-Match: 0",
}
WITH_A_POST: Final = {
    "as a form, as curl -d": "Content-Type: application/x-www-form-urlencoded",
    "as text, as .NET's StringContent": "Content-Type: text/plain; charset=utf-8",
    "a tag that the GETs need": "If-None-Match: 1",
    "with an upgrade to HTTP/2": JAVA,
    "Expect: 100-continue, as .NET Framework": "Expect: 100-continue",
    "Expect in another case, as Java": "Expect: 100-Continue",
}
CAMEL: Final = BODY.replace("StartRequests", "startRequests").replace("EventId", "eventId")
BODIES: Final = {
    "a mark before the JSON, as .NET's StreamWriter": "\ufeff" + BODY,
    "a newline behind it": BODY + "\r\n",
    "tabs and lines, as a template": BODY.replace("[", "[\r\n\t\t"),
    "the incarnation as text beside it": BODY.replace("{", '{"DocumentIncarnation":"1",', 1),
    "names in camel case, as PostAsJsonAsync": CAMEL,
    "an empty list": '{"StartRequests":[]}',
    "an object in place of the list": '{"StartRequests":{"EventId":"THE-EVENT"}}',
    "a form's fields": "StartRequests=THE-EVENT",
    "JSON in a string of JSON": json.dumps(BODY),
    "nothing": "",
    "an event that never was": BODY.replace("THE-EVENT", "0" * 36),
}
LOCAL: Final = "Host: 127.0.0.1\r\n"
FORMS: Final[dict[str, bytes]] = {
    **{name: read(head=f"{HEAD}{lines}\r\n") for name, lines in WITH_A_GET.items()},
    **{name: approve(head=f"{HEAD}{lines}\r\n") for name, lines in WITH_A_POST.items()},
    **{name: approve(body) for name, body in BODIES.items()},
    "Metadata:True, as Python's str(True)": read(head=LOCAL + "metadata:True\r\n"),
    "HTTP/1.0 without a Host, as old scripts": read(head="Metadata: true\r\n", version="1.0"),
    "HTTP/1.0 that keeps the connection": read(
        head="Metadata: true\r\nConnection: Keep-Alive\r\n", version="1.0"
    ),
    "a GET with a body": read(head=HEAD + "Content-Length: 2\r\n") + b"{}",
    "an empty chunked GET": read(head=HEAD + "Transfer-Encoding: chunked\r\n") + b"0\r\n\r\n",
    "an absolute target": read(f"http://169.254.169.254:80{PATH}{QUERY}"),
    "another case and a slash": read(f"{PATH.upper()}/{QUERY}".replace("WEB-0", "web-0")),
    "other parameters before and behind": read(f"{PATH}?format=json&{QUERY[1:]}&"),
    "an encoded query": read(f"{PATH}?API%2Dversion=2020%2D07%2D01"),
    "a version twice": read(f"{PATH}{QUERY}&{QUERY[1:]}"),
    "no version": read(PATH),
    "Metadata: 1": read(head=LOCAL + "Metadata: 1\r\n"),
    "the original's own name": read(head="Host: metadata.azure.internal\r\nMetadata: true\r\n"),
    "two in one packet": read() * 2,
    "an empty line before it": b"\r\n" + read(),
    "by another version": approve(target=f"{PATH}?api-version=2017-08-01"),
    "the preview's, without the header": approve(
        head=LOCAL, target=f"{PATH}?api-version=2017-03-01"
    ),
    "by HTTP/1.0, as PHP": approve(head="Metadata: true\r\nConnection: close\r\n", v="1.0"),
    "Expect, and refused by its head": approve(head=LOCAL + "Expect: 100-continue\r\n"),
    "chunked, as Node without a length": chunked(HEAD + "Transfer-Encoding: chunked\r\n"),
    "chunked, with an extension and a trailer": chunked(
        HEAD + "Transfer-Encoding: Chunked\r\nTrailer: X\r\n", ";a=b", "X: y\r\n"
    ),
    "approvals and polls in one packet": read() + approve() + read(),
}
OTHERWISE: Final = {
    "two in one packet": "200 200",
    "Expect: 100-continue, as .NET Framework": "100 200",
    "Expect in another case, as Java": "100 200",
    "approvals and polls in one packet": "200 200 200",
    **dict.fromkeys(("a version twice", "no version", "Metadata: 1"), "400"),
    **dict.fromkeys(("a proxy's X-Forwarded-For", "Expect, and refused by its head"), "400"),
    **dict.fromkeys(("an object in place of the list", "a form's fields", "nothing"), "400"),
    **dict.fromkeys(("JSON in a string of JSON", "an event that never was"), "400"),
}
"""The statuses where they are not one 200."""

TARGETS: Final = (
    *("/vm/web-0/metadata/scheduledevents", "/vm/batch_0/metadata/scheduledevents"),
    *("/metadata/scheduledevents", "/metadata/versions", "/vm/nobody/metadata/scheduledevents"),
    *("/vm/web-0/metadata/instance", "/metadata/instance", "/metadata/instance/compute/name"),
    *("/vm/batch_0/metadata/instance", "/metadata/instance/network/interface/0", "/vm//", "*", "/"),
    *("/metadata/latest/scheduledevents", "/metadata/identity/oauth2/token", "//metadata/versions"),
    *("/vm/web-0/metadata/identity/info", "/metadata", "/metadata/loadbalancer"),
)


class Three:
    """A service, a relay in front of it for the host h1, and an emulator with the same event."""

    def __init__(self, folder: Path, emulator: Emulator) -> None:
        plane = free_port()
        rules = "[rules]\nrate_per_second = 0\n"
        self.service = Running(folder, connector=CONNECTOR, more=rules)
        port = f"port = {self.service.guest_port}\n"
        text = self.service.settings.read_text().replace(port, port + 'default_vm = "bastion"\n')
        text += f'[relay]\nlisten = "127.0.0.1:{plane}"\n'
        self.service.settings.write_text(text)
        self.service.start()
        self.service.apply(FLEET)
        own = folder / "relay"
        own.mkdir(mode=0o700)
        called = self.service.call("relay", "token", "h1", "--output", str(own / "token"))
        assert called.returncode == 0, called.stderr
        relayed = free_port()
        listener = f'address = "127.0.0.1"\nport = {relayed}\ndefault_vm = "bastion"'
        own_settings = settings(own, f"http://127.0.0.1:{plane}", listener=listener)
        self.relay = Relay(own, "h1", own_settings)
        self.relay.start()
        self.relay.wait_until_ready()
        maintenance = {"event_type": "Reboot", "machines": ["web-0"]}
        planned = self.service.operator.ask("POST", "/v1/maintenances", maintenance)
        (event,) = json.loads(planned.body)["operations"][0]["events"]
        emulator.default(next(m for m in emulator.fleet(FLEET) if m.name == "bastion"))
        other = emulator.schedule("Reboot", "web-0").event_id
        self._all = (
            (self.service.guest_port, event["id"]),
            (relayed, event["id"]),
            (int(emulator.endpoint.rpartition(":")[2]), other),
        )

    def ask(self, request: bytes) -> list[bytes]:
        """Return what each answers, without what is its own."""
        answers = []
        for port, event_id in self._all:
            got = exchanged(port, request.replace(EVENT, event_id.encode()))
            answers.append(OWN.sub(b"", got.replace(event_id.encode(), EVENT)))
        return answers

    def approve(self) -> None:
        """Approve the event at each, so that nothing changes any more."""
        for number in (0, 2):
            port, event_id = self._all[number]
            exchanged(port, approve().replace(EVENT, event_id.encode()))
        until(lambda: len(set(self.ask(read()))) == 1)

    def close(self) -> None:
        self.relay.end()
        assert self.service.stop() == 0


def exchanged(port: int, request: bytes) -> bytes:
    """Send bytes and the end of them; return all that comes."""
    with socket.create_connection(("127.0.0.1", port), patience.SECONDS) as connection:
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
        except OSError:  # it was refused before it was whole
            pass
        got = b""
        try:
            while data := connection.recv(65536):
                got += data
        except ConnectionResetError:
            pass
    return got


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    with Emulator(rules={"rate_per_second": 0}) as emulator:
        made = Three(tmp_path_factory.mktemp("three"), emulator)
        made.approve()
        yield made
    made.close()


@pytest.mark.parametrize("form", FORMS)
def test_what_the_field_sends_is_answered_as_it_needs_by_all(three: Three, form: str) -> None:
    service, *others = three.ask(FORMS[form])
    statuses = b" ".join(re.findall(rb"HTTP/1\.1 (\d+) ", service))
    assert statuses.decode() == OTHERWISE.get(form, "200")
    assert others == [service] * 2


@pytest.mark.parametrize("target", TARGETS)
def test_whatever_is_read_is_answered_alike(three: Three, target: str) -> None:
    versions = VERSIONS if "scheduled" in target else (*INSTANCE_VERSIONS, "")
    for version, form in itertools.product(versions, ("", "&format=text")):
        asked = f"{target}?api-version={version}{form}"
        service, *others = three.ask(read(asked))
        assert others == [service] * 2, asked
    service, *others = three.ask(read(target).replace(b"GET", b"PUT", 1))
    assert others == [service] * 2
