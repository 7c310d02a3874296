"""Proxies that sign: a real nginx by the two configurations of proxies.md, and another secret."""

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import patience
import web
from client.scripted import message, serving
from end_to_end import nginx
from end_to_end.running import Running
from forewarn.protocol import exchange
from ports import free_port
from recipes import pages

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8 without being told"
)
NEEDS_NGINX = pytest.mark.skipif(nginx.NGINX is None, reason="nginx is not installed")

PAGE = "proxies"
SECRET, NEW = "the first secret of the proxies", "the second secret of the proxies"
PROXY, GUEST, OTHER, AGENT = "127.0.0.7", "127.0.0.10", "127.0.0.12", "127.0.0.8"
UUID = "106d02d7-73b0-49dc-8bc6-390bf9635575"
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
FLEET = f"""
[[machine]]
name = "web-0"
vm_id = "{UUID}"
[[machine]]
name = "web-1"
"""


def put(folder: Path, secret: str, mode: int = 0o640) -> None:
    (folder / "proxy.secret").write_text(secret + "\n")
    (folder / "proxy.secret").chmod(mode)


@pytest.fixture
def service(folder: Path) -> Iterator[Running]:
    """A service with a listener for proxies."""
    made = Running(folder)
    put(folder, SECRET)
    port = f"port = {made.guest_port}\n"
    more = f'trusted_proxies = ["{PROXY}/32"]\nproxy_secret_files = ["proxy.secret"]\n'
    made.settings.write_text(made.settings.read_text().replace(port, port + more))
    with made:
        made.apply(FLEET)
        yield made


def signed(name: str, secret: str = SECRET) -> dict[str, str]:
    signature = exchange.sign(name.encode(), secret.encode()).decode()
    return {"X-Instance-ID": name, "X-Instance-ID-Signature": signature}


def test_a_secret_is_changed_without_a_restart(service: Running) -> None:
    def status(secret: str) -> int:
        headers = web.METADATA | signed("web-0", secret)
        return web.ask(service.guest_port, EVENTS, headers=headers, source=PROXY).status

    assert (status(SECRET), status(NEW)) == (200, 403)
    put(service.folder, NEW)
    service.send(signal.SIGHUP)
    patience.until(lambda: status(NEW) == 200, service.log.read_text)
    assert status(SECRET) == 403
    put(service.folder, SECRET, mode=0o644)
    service.send(signal.SIGHUP)
    patience.until(lambda: "has mode 0644" in service.log.read_text())
    assert status(NEW) == 200


@contextlib.contextmanager
def proxy(service: Running, words: str, places: dict[str, str]) -> Iterator[int]:
    """Run nginx with a block of the page, its addresses replaced; return its port."""
    port = free_port(PROXY)
    given = {"192.0.2.10:8170": f"127.0.0.1:{service.guest_port}", "192.0.2.7": PROXY}
    given = {written: ours.format(port=port) for written, ours in places.items()} | given
    block = pages.placed(pages.block(PAGE, "nginx", words), given)
    with nginx.serving(service.folder, block, PROXY, port):
        yield port


def ask(port: int, source: str, path: str = EVENTS, body: str = "", **more: str) -> web.Told:
    headers = web.METADATA | {name.replace("_", "-"): value for name, value in more.items()}
    method = "POST" if body else "GET"
    return web.ask(port, path, method, body or None, headers=headers, to=PROXY, source=source)


def waiters(service: Running) -> int:
    page = service.operator.ask("GET", "/metrics").body.decode()
    (count,) = re.findall(r"(?m)^forewarn_guest_waiters (\d+)", page)
    return int(count)


@contextlib.contextmanager
def waiting(port: int, source: str, number: int) -> Iterator[None]:
    """Have so many requests wait for a change."""
    head = f"GET {EVENTS} HTTP/1.1\r\nHost: x\r\nMetadata: true\r\n"
    request = f"{head}If-None-Match: 1\r\nPrefer: wait=60\r\n\r\n".encode()
    with contextlib.ExitStack() as opened:
        for _ in range(number):
            there = socket.create_connection((PROXY, port), source_address=(source, 0))
            opened.enter_context(there).sendall(request)
        yield


@NEEDS_NGINX
def test_nginx_signs_for_guests_that_it_knows_by_address(service: Running, folder: Path) -> None:
    command = pages.block(PAGE, "sh", "signatures.map")
    command = pages.placed(command, {"python3 -c": f"'{sys.executable}' -c"})
    subprocess.run(["sh", "-ec", command], cwd=folder, check=True)
    assert (folder / "signatures.map").stat().st_mode & 0o077 == 0
    places = {"169.254.169.254:80": f"{PROXY}:{{port}}", "10.0.0.10": GUEST}
    with proxy(service, "$forewarn_signature", places) as port:
        assert ask(port, GUEST, NAME)[:2] == (200, "web-0")
        assert ask(port, GUEST, NAME.replace("metadata", "Metadata"))[:2] == (200, "web-0")
        assert ask(port, OTHER)[0] == 403
        # What a guest says of itself is gone: nginx sets the headers anew.
        assert ask(port, GUEST, NAME, **signed("web-1"))[:2] == (200, "web-0")
        assert ask(port, GUEST, NAME, X_Forwarded_For="10.0.0.11")[0] == 400
        planned = service.document("schedule", "reboot", "web-0")
        event = planned["operations"][0]["events"][0]["id"]
        status, body, headers = ask(port, GUEST)
        assert (status, headers["etag"]) == (200, "1")
        assert [one["EventId"] for one in json.loads(body)["Events"]] == [event]
        # A guest has 64 requests under way, and nginx refuses more before the service sees them.
        with waiting(port, GUEST, 64):
            patience.until(lambda: waiters(service) == 64)
            refused = patience.until(
                lambda: answer if (answer := ask(port, GUEST))[0] != 200 else None
            )
            assert refused.status == 503
            assert refused.headers["server"].startswith("nginx")
        patience.until(lambda: ask(port, GUEST)[0] == 200)
        approval = json.dumps({"StartRequests": [{"EventId": event}]})
        assert ask(port, GUEST, body=approval)[0] == 200
        waited = ask(port, GUEST, If_None_Match="99", Prefer="wait=60")
        assert waited.status == 200
        assert waited.headers["preference-applied"] == "wait=60"
        while json.loads(body)["Events"]:  # the reboot ends by itself, and changes the document
            told = ask(port, GUEST, If_None_Match=headers["etag"], Prefer="wait=20")
            if told.status == 200:  # 304: it is to say that it is back
                _, body, headers = told


@NEEDS_NGINX
def test_nginx_between_openstacks_agents_and_nova(service: Running) -> None:
    def agent(path: str, secret: str = SECRET) -> web.Told:
        """Ask as an agent does, which drops all headers of its guest."""
        of_guest = {"X-Forwarded-For": GUEST, "X-Tenant-ID": "4a5e1b9342c342c7873de76a8a070b83"}
        headers = of_guest | signed(UUID, secret)
        return web.ask(port, path, headers=headers, to=PROXY, source=AGENT)

    with serving(lambda *_: message(200, b"nova's own")) as nova:
        places = {
            "192.0.2.7:8775": f"{PROXY}:{{port}}",
            "192.0.2.9:8775": f"127.0.0.1:{nova.port}",
        }
        with proxy(service, "metadata agents", places) as port:
            assert agent(NAME)[:2] == (200, "web-0")
            status, body, _ = agent(EVENTS)
            assert (status, json.loads(body)["Events"]) == (200, [])
            assert agent("/openstack")[:2] == (200, "nova's own")
            assert ask(port, GUEST, NAME)[0] == 400
            assert agent(NAME, "another secret altogether")[0] == 403
