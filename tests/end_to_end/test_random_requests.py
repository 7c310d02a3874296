"""Service, relay and emulator answer random requests alike: right ones, wrong ones, broken ones.

The seed is printed; SEED in the environment repeats the choices. REQUESTS sets how many there are.
"""

import json
import os
import random
import re
import sys
from collections.abc import Iterator
from typing import Final

import pytest

from end_to_end.raw_http import exchanged
from end_to_end.test_relay_wire import FLEET, VERSIONS, Pair, post
from forewarn.protocol.instance import INSTANCE_VERSIONS
from forewarn.server.guest.http import CONTINUE
from forewarn.testing import Emulator
from seeds import SEED

COUNT: Final = int(os.environ.get("REQUESTS", "600"))
CONNECTOR: Final = "reboot_seconds = 3600"
OWN: Final = re.compile(rb'"(NotBefore|vmId|macAddress)":"[^"]*"')
EVENT: Final = b"THE-EVENT"
"""Stands for the event's id, which is another one in each."""

METHODS: Final = (*("GET",) * 12, *("POST",) * 9, "HEAD", "PUT", "OPTIONS", "CONNECT", "get", "PRI")
TARGETS: Final = (
    *("/vm/web-0/metadata/scheduledevents",) * 8,
    *("/vm/batch_0/metadata/scheduledevents", "/metadata/scheduledevents", "/metadata/versions"),
    *("/vm/nobody/metadata/scheduledevents", "/VM/WEB-0/Metadata/ScheduledEvents/", "*", "/"),
    *("/vm/web-0/metadata/instance", "/metadata/instance/compute/name", "//metadata/versions"),
    *("/metadata/instance/network/interface/0", "/metadata/latest/scheduledevents", "/vm//"),
    *("http://169.254.169.254/metadata/scheduledevents", "/metadata/scheduled%65vents"),
    *("/metadata/identity/oauth2/token", "/vm/web-0/metadata/identity/info", "/metadata"),
    *("/metadata/loadbalancer", "/vm/web-0/metadata/loadbalancer/nothing"),
)
PARAMETERS: Final = (
    "format=json",
    "format=text",
    "format=",
    "x=1&x=2",
    "&",
    "%",
    "a=%zz",
    "api-x=1",
)
PROTOCOLS: Final = (*("HTTP/1.1",) * 12, *("HTTP/1.0",) * 3, "HTTP/2.0", "HTTP/0.9", "http/1.1", "")
HEADERS: Final = (
    *("Metadata: false", "Metadata: true, true", "X-Forwarded-For: 10.0.0.1", "Origin: http://x"),
    *("Connection: close", "Connection: keep-alive", "Connection: Upgrade\r\nUpgrade: h2c"),
    *("If-None-Match: 0", "If-None-Match: *", 'If-None-Match: W/"2", "3"', 'If-None-Match: "'),
    *("Prefer: wait=1", "Forewarn-Agent: ready", "Forewarn-Agent: x;;", "X-Instance-ID: web-0"),
    *("Expect: 100-continue", "Expect: 200-ok", "Host: 127.0.0.1", "Host: example.org", "X y: z"),
    *(": z", " folded: x", "X: \x00", "X: é", f"X: {'y' * 17_000}", "X: 1\r\n" * 98 + "X: 2"),
    *("Transfer-Encoding: gzip", "Content-Length: -1", "Content-Length: 5\r\nContent-Length: 6"),
)
BODIES: Final = (
    *('{"StartRequests":[{"EventId":"THE-EVENT"}]}',) * 6,
    '{"startRequests":[{"eventId":"THE-EVENT"}],"DocumentIncarnation":"1"}',
    *('{"StartRequests":[{"EventId":""}]}', '{"StartRequests":[{"EventId":null}]}'),
    *('{"StartRequests":[{"EventId":"\\ud800"}]}', '{"StartRequests":{}}', '{"StartRequests":[]}'),
    *("", "{}", "[]", "null", "x", "[" * 2000, "x" * 65_537, " " * 60_000 + "{}"),
    '{"StartRequests":[' + '{"EventId":"THE-EVENT"},' * 999 + '{"EventId":"THE-EVENT"}]}',
    '{"StartRequests":[' + '{"EventId":"THE-EVENT"},' * 1000 + '{"EventId":"THE-EVENT"}]}',
)
NOISE: Final = (b"", b"\r\n", b"\n", b"\r", b" ", b":", b"\x00", b"\xff", b"%", b"\t")


class Three:
    """A service, its relay, and an emulator with the same machines and the same event."""

    def __init__(self, pair: Pair, emulator: Emulator) -> None:
        maintenance = {"event_type": "Reboot", "machines": ["web-0"]}
        planned = pair.service.operator.ask("POST", "/v1/maintenances", maintenance)
        (event,) = json.loads(planned.body)["operations"][0]["events"]
        other = emulator.schedule("Reboot", "web-0").event_id
        port = int(emulator.endpoint.rpartition(":")[2])
        self._all = (
            (pair.service.guest_port, event["id"]),
            (pair.port, event["id"]),
            (port, other),
        )
        for own_port, event_id in (self._all[0], self._all[2]):  # so nothing changes any more
            approval = BODIES[0].replace(EVENT.decode(), event_id)
            exchanged(own_port, post("web-0", approval, "2020-07-01", "Metadata: true"))
        pair.settle()

    def ask(self, request: bytes) -> list[bytes]:
        """Return what each answers, without what is its own."""
        answers = []
        for port, event_id in self._all:
            got = exchanged(port, request.replace(EVENT, event_id.encode()))
            got = got.replace(CONTINUE, b"")  # comes unasked where an approval had to wait
            answers.append(OWN.sub(b"", got.replace(event_id.encode(), EVENT)))
        return answers


def one(chance: random.Random) -> bytes:
    """Return a request, in most cases one that is nearly right."""
    target = chance.choice(TARGETS)
    versions = VERSIONS if "scheduled" in target.lower() else INSTANCE_VERSIONS
    query = [f"api-version={chance.choice(versions)}"] if chance.random() < 0.95 else []
    query += chance.choices(PARAMETERS, k=chance.random() < 0.15)
    headers = ["Host: 127.0.0.1"] if chance.random() < 0.95 else []
    headers += ["Metadata: true"] if chance.random() < 0.95 else []
    headers += chance.choices(HEADERS, k=chance.choice((0, 0, 1, 2)))
    method, body = chance.choice(METHODS), b""
    if method == "POST" or chance.random() < 0.1:
        body = chance.choice(BODIES).encode()
        length = len(body.replace(EVENT, b"x" * 36)) + chance.choice((0,) * 12 + (-3, 5))
        if chance.random() < 0.6:
            headers.append(f"Content-Length: {max(0, length)}")
        else:
            headers.append("Transfer-Encoding: chunked")
            parts = [part for part in re.split(rb"(THE-EVENT)", body) if part]
            coded = [b"%x\r\n%b\r\n" % (36 if part == EVENT else len(part), part) for part in parts]
            body = b"".join(
                [*coded, chance.choice((b"0\r\n\r\n",) * 9 + (b"0\r\nX: y\r\n\r\n", b""))]
            )
    chance.shuffle(headers)
    line = f"{method} {target}{'?' if query else ''}{'&'.join(query)} {chance.choice(PROTOCOLS)}"
    return "\r\n".join([line, *headers, "", ""]).encode() + body


def several(chance: random.Random) -> bytes:
    """Return what one connection sends: a request, or a few, maybe broken somewhere."""
    sent = b"".join(one(chance) for _ in range(chance.choice((1, 1, 1, 1, 2, 5))))
    if chance.random() < 0.2:
        at = chance.randrange(len(sent))
        sent = sent[:at] + chance.choice(NOISE) + sent[at + chance.randrange(6) :]
    return sent[: chance.randrange(len(sent))] if chance.random() < 0.1 else sent


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    more = "[rules]\nrate_per_second = 0\n"
    pair = Pair(tmp_path_factory.mktemp("three"), connector=CONNECTOR, more=more)
    with Emulator(rules={"rate_per_second": 0}) as emulator:
        emulator.default(next(m for m in emulator.fleet(FLEET) if m.name == "bastion"))
        yield Three(pair, emulator)
    pair.close()


def test_random_requests_are_answered_alike(three: Three) -> None:
    sys.stdout.write(f"SEED={SEED} REQUESTS={COUNT} repeats the choices\n")
    chance = random.Random(SEED)
    for number in range(COUNT):
        sent = several(chance)
        service, relay, emulator = three.ask(sent)
        assert relay == service, (number, sent[:2000])
        assert emulator == service, (number, sent[:2000])
