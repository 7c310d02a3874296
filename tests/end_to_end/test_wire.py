"""Service, relay and emulator answer alike, whatever is read, and whatever form the field sends.

Each form is what some library or tool sends by default, or what people write by hand; the service
gives the answer that the field needs. What differs by nature is taken out of the answers: the
time, and ids. All three have one guest plane, for which tests/fuzz has any bytes.
"""

import fcntl
import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

import patience
import stories
import web
from end_to_end.running import Running
from forewarn.protocol.instance import INSTANCE_VERSIONS
from forewarn.testing import Emulator
from ports import free_port
from relays.process import Relay, settings

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

LIGHT: Final = """
import sys
packages = "starlette uvicorn prometheus_client filelock click rich"
sys.modules |= dict.fromkeys(packages.split())  # so an import says that there is none
from forewarn.relay import run
sys.exit(run.main(sys.argv[1:]))
"""
"""A relay that has no database and no framework."""

HAND_OVER: Final = 'exec 3<&"$1"; shift; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"'
FIRST_FILE: Final = 20

TARGET: Final = "/vm/web-0/metadata/scheduledevents?api-version=2020-07-01"
HEAD: Final = "Host: 169.254.169.254\r\nMetadata: true\r\n"
BODY: Final = '{"StartRequests":[{"EventId":"THE-EVENT"}]}'


def get(
    *lines: str, target: str = TARGET, head: str = HEAD, http: str = "1.1", rest: str = ""
) -> str:
    headers = "".join(f"{line}\r\n" for line in lines)
    return f"GET {target} HTTP/{http}\r\n{head}{headers}\r\n{rest}"


def post(*lines: str, body: str = BODY, **form: str) -> str:
    length = len(body.replace("THE-EVENT", "x" * 36).encode())
    return get(*lines, f"Content-Length: {length}", rest=body, **form).replace("GET", "POST", 1)


def chunked(*lines: str, extension: str = "", trailer: str = "") -> str:
    size = len(BODY[7:].replace("THE-EVENT", "x" * 36))
    parts = f"7{extension}\r\n{BODY[:7]}\r\n{size:X}\r\n{BODY[7:]}\r\n0\r\n{trailer}\r\n"
    return get(*lines, rest=parts).replace("GET", "POST", 1)


FORMS: Final[dict[str, Callable[..., str]]] = {
    "get": get,
    "post": post,
    "chunked": chunked,
    "blank": lambda: "\r\n",
}


def spelled(row: str) -> bytes:
    """Return the request, or the requests, of a line."""
    text = ""
    for part in row.split(" + "):
        verb, lines, form = stories.split(part)
        unescaped = {
            name: value.encode("latin-1").decode("unicode_escape") for name, value in form.items()
        }
        text += FORMS[verb](*lines, **unescaped)
    return text.encode()


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
        file = str(own / "token")
        called = self.service.call("relay", "token", "h1", "--output", file, "--json")
        assert json.loads(called.stdout) == {"host": "h1", "file": file}, called.stderr
        relayed = free_port()
        listener = f'address = "127.0.0.1"\nport = {relayed}\ndefault_vm = "bastion"'
        self.status = free_port()
        own_settings = settings(own, f"http://127.0.0.1:{plane}", listener=listener)
        own_settings = own_settings.replace('"off"', f'"127.0.0.1:{self.status}"')
        self.relay = Relay(own, "h1", own_settings, program=("-c", LIGHT))
        self.relayed = relayed
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
        """Approve the event by relay and emulator, so that nothing changes any more."""
        for number in (1, 2):
            port, event_id = self._all[number]
            exchanged(port, spelled("post").replace(EVENT, event_id.encode()))
        patience.until(lambda: len(set(self.ask(spelled("get")))) == 1)

    def close(self) -> None:
        self.relay.stop()
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


@pytest.mark.parametrize("rows", stories.stories_beside(__file__, "forms.txt"))
def test_what_the_field_sends_is_answered_as_it_needs_by_all(
    three: Three, rows: stories.Rows
) -> None:
    def hold(row: str) -> None:
        verb, words, _ = stories.split(row)
        if verb == "read":
            read_alike(three, words[0])
        elif verb:
            form, _, expected = row.partition(" -> ")
            service, *others = three.ask(spelled(form))
            statuses = b" ".join(re.findall(rb"HTTP/1\.1 (\d+) ", service)).decode()
            assert statuses == (expected.partition("#")[0].strip() or "200")
            assert others == [service] * 2

    assert stories.play("forms.txt", rows, hold)


def read_alike(three: Three, target: str) -> None:
    versions = VERSIONS if "scheduled" in target else (*INSTANCE_VERSIONS, "")
    as_text = [f"{version}&format=text" for version in (*versions[-3:-1], "")]
    for version in (*versions, *as_text):
        asked = f"{target}?api-version={version}"
        service, *others = three.ask(get(target=asked).encode())
        assert others == [service] * 2, asked
    service, *others = three.ask(get(target=target).replace("GET", "PUT", 1).encode())
    assert others == [service] * 2


def test_a_relay_tells_how_it_is(three: Three) -> None:
    pages = {path: web.ask(three.status, path) for path in ("/readyz", "/healthz", "/status")}
    assert {page.status for page in pages.values()} == {200}
    assert json.loads(pages["/status"].body)["host"] == "h1"


def test_a_relays_restart_refuses_nobody_where_systemd_has_the_socket(three: Three) -> None:
    three.relay.stop()
    with socket.create_server(("127.0.0.1", three.relayed), backlog=1024) as listening:
        number = fcntl.fcntl(listening, fcntl.F_DUPFD, FIRST_FILE)
        try:
            three.relay.within = ("bash", "-c", HAND_OVER, "hand-over", str(number))
            for _ in range(3):
                three.relay.start(files=(number,))
                # It waits in the queue until the relay is ready.
                assert exchanged(three.relayed, get().encode()).startswith(b"HTTP/1.1 200")
                assert three.relay.stop() == 0
        finally:
            os.close(number)
