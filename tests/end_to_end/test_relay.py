"""A service and a host's relay as processes of their own: what guests of the host are answered."""

import fcntl
import functools
import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import web
from end_to_end.running import Running
from forewarn.relay import settings
from forewarn.version import __version__
from house import tree
from patience import until
from ports import free_port
from relays.process import Relay

PLANE = free_port()
EVENTS = "/vm/web-0/metadata/scheduledevents?api-version=2020-07-01"
FLEET = """
[[machine]]
name = "web-0"
host = "h1"
[[machine]]
name = "db-0"
host = "h2"
"""
BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {
            "starlette", "uvicorn", "prometheus_client", "filelock",
            "click", "rich",
        }:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
from forewarn.relay import run
sys.exit(run.main(sys.argv[1:]))
"""
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"
HAND_OVER = 'exec 3<&"$1"; shift; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"'
FIRST_FILE = 20


class HostRelay(Relay):
    """A relay of host h1, where no server's package can be imported."""

    def __init__(self, folder: Path, upstream: int, token: str) -> None:
        self.port, self.status_port = free_port(), free_port()
        settings = (
            f'[upstream]\nurls = ["http://127.0.0.1:{upstream}"]\ntoken_file = "relay.token"\n'
            f'[[guest.listener]]\naddress = "127.0.0.1"\nport = {self.port}\n'
            f'[state]\nfolder = "state"\n[status]\nlisten = "127.0.0.1:{self.status_port}"\n'
        )
        super().__init__(folder, "h1", settings, program=("-c", BLOCKED))
        (folder / "relay.token").write_text(token)
        (folder / "relay.token").chmod(0o600)

    def ask(self, method: str = "GET", body: Any = None, path: str = EVENTS) -> tuple[int, Any]:
        """Return the status and the document."""
        told = None if body is None else json.dumps(body)
        status, data, _ = web.ask(self.port, path, method, told)
        return status, json.loads(data) if data else None

    def page(self, path: str) -> tuple[int, str]:
        return web.ask(self.status_port, path)[:2]

    def metric(self, name: str) -> float:
        page = self.page("/metrics")[1]
        found = re.search(rf"(?m)^forewarn_relay_{name}(?:{{.*}})? (\S+)$", page)
        assert found is not None, name
        return float(found[1])

    def events(self) -> list[Any]:
        status, document = self.ask()
        assert status == 200, self.tail()
        return list(document["Events"])


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    with Running(tmp_path, more=f'[relay]\nlisten = "127.0.0.1:{PLANE}"') as running:
        running.apply(FLEET)
        yield running


@pytest.fixture
def relay(service: Running, tmp_path: Path) -> Iterator[HostRelay]:
    made = service.operator.ask("POST", "/v1/relays/tokens", {"host": "h1"})
    running = HostRelay(tmp_path / "h1", PLANE, made.json["token"])
    yield running
    running.stop()


def test_guests_read_and_approve_through_a_relay_that_has_no_database_and_no_framework(
    service: Running, relay: HostRelay
) -> None:
    relay.start()
    relay.wait_until_ready()
    assert relay.events() == []
    listed = rf"(?m)^h1 .*  present  {TIME} +{re.escape(__version__)} +1 +{TIME} "
    hosts = functools.partial(service.call, "host", "list")
    until(lambda: re.search(listed, hosts().stdout), lambda: hosts().stdout)
    body = {"event_type": "Reboot", "machines": ["web-0"]}
    assert service.operator.ask("POST", "/v1/maintenances", body).status == 201
    (event,) = until(relay.events, relay.tail)
    assert event["Resources"] == ["web-0"]
    approval = {"StartRequests": [{"EventId": event["EventId"]}]}
    assert relay.ask("POST", approval) == (200, None)
    assert service.operation()["events"][0]["approval"]["by"] == "web-0"
    never = {"StartRequests": [{"EventId": "A" * 36}]}
    assert relay.ask("POST", never)[0] == 400
    assert relay.ask(path=EVENTS.replace("web-0", "db-0"))[0] == 403
    assert relay.page("/readyz")[0] == relay.page("/healthz")[0] == 200
    assert json.loads(relay.page("/status")[1])["host"] == "h1"
    assert (relay.metric("serving"), relay.metric("upstream_up")) == (1, 1)
    assert relay.stop() == 0


@pytest.mark.usefixtures("service")
def test_a_restart_refuses_nobody_where_systemd_has_the_socket(relay: HostRelay) -> None:
    with socket.create_server(("127.0.0.1", relay.port), backlog=1024) as listening:
        number = fcntl.fcntl(listening, fcntl.F_DUPFD, FIRST_FILE)
        try:
            relay.within = ("bash", "-c", HAND_OVER, "hand-over", str(number))
            for _ in range(3):
                relay.start(files=(number,))
                assert relay.ask()[0] == 200  # it waits in the queue until the relay is ready
                assert relay.stop() == 0
        finally:
            os.close(number)


PACKAGING = tree.ROOT / "packaging"
SETTINGS = (PACKAGING / "relay.toml").read_text(encoding="utf-8")
UNIT = (PACKAGING / "forewarn-relay.service").read_text(encoding="utf-8")
SOCKET = (PACKAGING / "forewarn-relay.socket").read_text(encoding="utf-8")


def loaded(folder: Path, text: str) -> settings.HostRelaySettings:
    path = folder / "relay.toml"
    path.write_text(text, encoding="utf-8")
    return settings.load(path, {"STATE_DIRECTORY": str(folder)})


def test_the_packaged_files_agree_with_each_other_and_with_the_defaults(tmp_path: Path) -> None:
    """Only where the service is has no default."""
    told = loaded(tmp_path, SETTINGS)
    least = f'[upstream]\nurls = ["{told.upstream.urls[0]}"]\ntoken_file = "/token"\n'
    plain = loaded(tmp_path, least)
    assert (told.guest, told.status, told.state) == (plain.guest, plain.status, plain.state)
    assert told.upstream.token_file.endswith("/relay.token")
    assert loaded(tmp_path, re.sub(r"(?m)^#(?=[^\s:])", "", SETTINGS)) == told
    (listener,) = settings.RelayGuestSettings().listener
    assert f"ListenStream={listener.address}:{listener.port}\n" in SOCKET
    (name,) = re.findall(r"(?m)^LoadCredential=(.+):/etc/forewarn/relay.token$", UNIT)
    assert f'"/run/credentials/forewarn-relay.service/{name}"' in SETTINGS
