"""Guests behind proxies, and guests with equal addresses, over real sockets of a real process."""

import http.client
import json
import os
import pty
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import patience
from end_to_end.metadata_agent import Agent
from end_to_end.running import Running
from forewarn.protocol import exchange
from forewarn.server import run
from patience import until
from ports import free_port

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8 without being told"
)

EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
UUID = "106d02d7-73b0-49dc-8bc6-390bf9635575"
SECRET, NEW = "the first secret of the proxies", "the second secret of the proxies"
PROXY, GUEST = "127.0.0.7", "127.0.0.10"
FLEET = f"""
[[machine]]
name = "web-0"
vm_id = "{UUID}"
[[machine]]
name = "proxy"            # the proxy's own address is a machine's: no guest may be taken for it
address = "{PROXY}"
[[machine]]
name = "blue-0"
address = "{GUEST}"
listener = "blue"
[[availability_set]]
name = "green"
listener = "green"
machines = [{{ name = "green-0", address = "{GUEST}" }}, {{ name = "green-1", address = "::1" }}]
"""


class Service(Running):
    """A service with a listener for proxies, and two for guests with equal addresses."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.secret = folder / "proxy.secret"
        self.put(SECRET)
        self.blue, self.green = free_port(), free_port()
        listeners = f"""
[[guest.listener]]
port = {self.guest_port}
trusted_proxies = ["{PROXY}/32"]
proxy_secret_files = ["proxy.secret", "other.secret"]
proxy_without_header = true
[[guest.listener]]
name = "blue"
port = {self.blue}
[[guest.listener]]
name = "green"
port = {self.green}
[[guest.listener]]
name = "green"
address = "::1"
port = {self.green}
"""
        (folder / "other.secret").write_text("a secret that nobody uses\n")
        (folder / "other.secret").chmod(0o600)
        text = self.settings.read_text()
        self.settings.write_text(
            text.replace(f"[[guest.listener]]\nport = {self.guest_port}\n", listeners)
        )

    def put(self, secret: str) -> None:
        self.secret.write_text(secret + "\n")
        self.secret.chmod(0o640)

    def reload(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def until(self, condition: Callable[[], bool]) -> None:
        until(condition, self.log.read_text, seconds=patience.SECONDS)


@pytest.fixture
def service(folder: Path) -> Iterator[Service]:
    made = Service(folder)
    made.start()
    try:
        made.apply(FLEET)
        yield made
    finally:
        assert made.stop() == run.STOPPED


def ask(
    port: int, source: str, path: str = EVENTS, headers: dict[str, str] | None = None, **to: str
) -> tuple[int, str]:
    there = http.client.HTTPConnection(
        to.get("host", "127.0.0.1"), port, source_address=(source, 0), timeout=patience.SECONDS
    )
    try:
        there.request("GET", path, headers={"Metadata": "true"} if headers is None else headers)
        answer = there.getresponse()
        return answer.status, answer.read().decode()
    finally:
        there.close()


def signed(id_: str, secret: str = SECRET) -> dict[str, str]:
    signature = exchange.sign(id_.encode(), secret.encode()).decode()
    return {"Metadata": "true", "X-Instance-ID": id_, "X-Instance-ID-Signature": signature}


def test_a_guest_behind_an_openstack_agent_reads_and_approves(service: Service) -> None:
    with Agent(PROXY, service.guest_port, SECRET, {GUEST: UUID, "127.0.0.11": "no-such"}) as agent:
        to = {"host": PROXY}
        assert ask(agent.port, GUEST, NAME, **to) == (200, "web-0")
        assert ask(agent.port, "127.0.0.11", **to)[0] == 403
        planned = service.document("schedule", "reboot", "web-0")
        event = planned["operations"][0]["events"][0]["id"]
        status, body = ask(agent.port, GUEST, **to)
        assert status == 200
        assert [one["EventId"] for one in json.loads(body)["Events"]] == [event]
        there = http.client.HTTPConnection(
            PROXY, agent.port, source_address=(GUEST, 0), timeout=patience.SECONDS
        )
        there.request("POST", EVENTS, body=json.dumps({"StartRequests": [{"EventId": event}]}))
        assert there.getresponse().status == 200
        there.close()
        shown = json.dumps(service.document("maintenance", "show", "1"))
        assert '"by": "web-0"' in shown
        assert PROXY in shown
        agent.secret = "not the secret at all"
        assert ask(agent.port, GUEST, **to)[0] == 403
    log = service.log.read_text()
    assert "wrong-signature" in log or "unknown-instance" in log
    assert SECRET not in log


def test_at_a_terminal_a_hangup_ends_the_service(folder: Path) -> None:
    service = Service(folder)
    master, slave = pty.openpty()
    service.start(errors=slave)
    os.close(slave)
    try:
        service.reload()
        assert service.ended() == -signal.SIGHUP
    finally:
        os.close(master)


def test_a_secret_is_changed_without_a_restart(service: Service) -> None:
    def status(secret: str) -> int:
        return ask(service.guest_port, PROXY, headers=signed("web-0", secret))[0]

    assert (status(SECRET), status(NEW)) == (200, 403)
    service.put(NEW)
    service.reload()
    service.until(lambda: status(NEW) == 200)
    assert status(SECRET) == 403
    service.secret.chmod(0o644)
    service.reload()
    service.until(lambda: "has mode 0644" in service.log.read_text())
    assert status(NEW) == 200
