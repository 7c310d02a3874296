"""A relay answers word for word as the service: the same bytes are sent to both.

What differs by nature is taken out: the time, and the id that each answer has.
"""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import patience
from end_to_end.raw_http import exchanged
from end_to_end.running import SWIFT, Running
from ports import free_port
from relays.process import Relay, until

EVENTS: Final = "/metadata/scheduledevents?api-version=2020-07-01"
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

RELAY: Final = """
[upstream]
urls = ["http://127.0.0.1:{plane}"]
token_file = "{folder}/token"
[state]
folder = "{folder}"
[status]
listen = "off"
[[guest.listener]]
address = "127.0.0.1"
port = {port}
default_vm = "bastion"
[log]
format = "json"
"""


class Pair:
    """A service, and a relay that stands in front of it for the host h1."""

    def __init__(self, folder: Path, *, connector: str = SWIFT, more: str = "") -> None:
        plane = free_port()
        self.service = Running(folder, connector=connector, more=more)
        self.service.settings.write_text(
            self.service.settings.read_text().replace(
                f"port = {self.service.guest_port}\n",
                f'port = {self.service.guest_port}\ndefault_vm = "bastion"\n',
            )
            + f'[relay]\nlisten = "127.0.0.1:{plane}"\n'
        )
        self.service.start()
        self.service.apply(FLEET)
        own = folder / "relay"
        own.mkdir(mode=0o700)
        called = self.service.call("relay", "token", "h1", "--output", str(own / "token"))
        assert called.returncode == 0, called.stderr
        self.port = free_port()
        text = RELAY.format(plane=plane, folder=own, port=self.port)
        self.relay = Relay(own, "h1", text)
        self.relay.start()
        self.relay.wait_until_ready()

    def both(self, request: bytes) -> tuple[bytes, bytes]:
        """Return what the service and what the relay answers, to compare."""
        return exchanged(self.service.guest_port, request), exchanged(self.port, request)

    def close(self) -> None:
        self.relay.end()
        assert self.service.stop() == 0

    def settle(self) -> None:
        """Return when the relay shows what the service shows."""
        for name in ("web-0", "batch_0", "FrontEnd_IN_0", "bastion"):
            until(lambda: len(set(self.both(get(name)))) == 1)  # noqa: B023 - called at once


def get(name: str, path: str = EVENTS, *headers: str) -> bytes:
    """Return the GET of a machine."""
    lines = [f"GET /vm/{name}{path} HTTP/1.1", "Host: 127.0.0.1", "Metadata: true", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def post(name: str, body: str, version: str = "2020-07-01", *headers: str) -> bytes:
    """Return the POST of a machine."""
    path = f"/vm/{name}/metadata/scheduledevents?api-version={version}"
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("pair"))
    maintenance = {"event_type": "Reboot", "machines": ["web-0"]}
    assert made.service.operator.ask("POST", "/v1/maintenances", maintenance).status == 201
    made.settle()
    yield made
    made.close()


def requests() -> Iterator[bytes]:
    """Yield requests of every kind, right and wrong."""
    for version in VERSIONS:
        for name in ("web-0", "batch_0", "FrontEnd_IN_0", "bastion"):
            yield get(name, f"/metadata/scheduledevents?api-version={version}")
    for path in (
        *("/metadata/versions", "/metadata/instance?api-version=2021-02-01", "/", "/metadata/"),
        "/metadata/instance/compute/name?api-version=2021-02-01&format=text",
        *("/METADATA/ScheduledEvents/?api-version=2020-07-01", f"{EVENTS}&api-version=1"),
        "/metadata/instance/network/interface/0?api-version=2021-02-01",
        "/metadata/instance/compute/tags?api-version=2021-02-01",
        "/metadata/instance/network?api-version=2021-02-01&format=text",
    ):
        yield get("web-0", path)
    for name in ("web-9", "%77eb-0", "", "WEB-1"):
        yield get(name)
    for header in (
        *("X-Forwarded-For: 10.0.0.1", "X-Instance-ID: web-0", "Connection: close"),
        *("If-None-Match: 1", 'If-None-Match: "1", W/"7"', "If-None-Match: 0", "metadata: TRUE"),
        *("Host: example.org", "Expect: 100-continue", "Transfer-Encoding: gzip", "A" * 20_000),
        *("X: 1\r\n" * 120, "Content-Length: 3", "Prefer: wait=0"),
    ):
        yield get("web-0", EVENTS, header)
    yield f"GET {EVENTS} HTTP/1.0\r\nMetadata: true\r\n\r\n".encode()
    yield f"GET {EVENTS} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    yield get("web-0").replace(b"GET", b"HEAD")
    yield get("web-0").replace(b"GET", b"PUT")
    yield get("web-0") * 5
    yield get("web-0")[:40]
    yield b"nonsense\r\n\r\n"
    yield b""
    unknown = '{"StartRequests":[{"EventId":"00000000-0000-4000-8000-000000000000"}]}'
    nameless = '{"StartRequests":[{"EventId":""}]}'
    bodies = ("", "{}", "[]", unknown, nameless, '{"StartRequests":[]}', '{"StartRequests":{}}')
    for body in (*bodies, "x" * 70_000, '{"StartRequests":[' + '{"EventId":"x"},' * 1001 + "{}]}"):
        yield post("web-0", body, "2020-07-01", "Metadata: true")
    yield post("web-0", '{"StartRequests":[]}')
    yield post("web-0", '{"StartRequests":[]}', "2017-03-01")


REQUESTS: Final = tuple(requests())


@pytest.mark.parametrize("request_bytes", REQUESTS, ids=range(len(REQUESTS)))
def test_what_the_service_answers_the_relay_answers(pair: Pair, request_bytes: bytes) -> None:
    service, relay = pair.both(request_bytes)
    assert relay == service


@given(
    st.lists(
        st.one_of(
            st.sampled_from(REQUESTS[:40]),
            st.binary(max_size=200),
            st.sampled_from(
                [b"\r\n", b"\r\n\r\n", b"GET ", b" HTTP/1.1\r\n", b"Metadata: true\r\n"]
            ),
        ),
        max_size=4,
    ).map(b"".join)
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_answered_alike(pair: Pair, sent: bytes) -> None:
    service, relay = pair.both(sent)
    assert relay == service


def test_an_approval_by_the_relay_is_the_services_and_is_read_at_both(pair: Pair) -> None:
    maintenance = {"event_type": "Reboot", "machines": ["bastion"]}
    planned = pair.service.operator.ask("POST", "/v1/maintenances", maintenance)
    (event,) = json.loads(planned.body)["operations"][0]["events"]
    pair.settle()
    body = json.dumps({"StartRequests": [{"EventId": event["id"]}]})
    told = exchanged(pair.port, post("bastion", body, "2020-07-01", "Metadata: true"))
    assert told.startswith(b"HTTP/1.1 200 ")
    approval = pair.service.operation()["events"][0]["approval"]
    assert approval["by"] == "bastion"
    pair.settle()
    service, relay = pair.both(post("bastion", body, "2020-07-01", "Metadata: true"))
    assert relay == service


def test_a_machine_that_waits_at_the_relay_reads_the_change_at_once(pair: Pair) -> None:
    with socket.create_connection(("127.0.0.1", pair.port), patience.SECONDS) as connection:
        number = json.loads(exchanged(pair.port, get("batch_0")).partition(b"\r\n\r\n")[2])[
            "DocumentIncarnation"
        ]
        wait = (f"If-None-Match: {number}", "Prefer: wait=60")
        connection.sendall(get("batch_0", EVENTS, *wait))
        maintenance = {"event_type": "Freeze", "machines": ["batch_0"]}
        assert pair.service.operator.ask("POST", "/v1/maintenances", maintenance).status == 201
        got = connection.recv(65536)
    assert got.startswith(b"HTTP/1.1 200 ")
    assert b'"EventType":"Freeze"' in got
