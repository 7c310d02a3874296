"""The production guide's two nginx configurations, through a real nginx to a real service."""

import contextlib
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import patience
import web
from end_to_end.metadata_agent import Agent
from end_to_end.nginx import NGINX, serving
from end_to_end.production import example
from end_to_end.running import Running
from forewarn.protocol import exchange
from ports import answers, free_port

pytestmark = [
    pytest.mark.skipif(NGINX is None, reason="nginx is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8"),
]

SECRET = "the secret of the proxies"
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


@pytest.fixture
def service(folder: Path) -> Iterator[Running]:
    made = Running(folder)
    secret = folder / "proxy.secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    listener = (
        f'port = {made.guest_port}\ntrusted_proxies = ["{PROXY}/32"]\n'
        'proxy_secret_files = ["proxy.secret"]\n'
    )
    text = made.settings.read_text()
    made.settings.write_text(text.replace(f"port = {made.guest_port}\n", listener))
    with made:
        made.apply(FLEET)
        yield made


@contextlib.contextmanager
def nginx(folder: Path, block: str, **places: str) -> Iterator[int]:
    """Run nginx with a block of the guide, its addresses replaced; return its port."""
    port = free_port(PROXY)
    for written, ours in places.items():
        address = PLACES[written]
        assert address in block, address
        block = block.replace(address, ours.format(port=port))
    with serving(folder, block, PROXY, port):
        yield port


PLACES = {
    "listen": "169.254.169.254:80",
    "agents": "192.0.2.7:8775",
    "nova": "192.0.2.9:8775",
    "service": "192.0.2.10:8170",
    "bind": "192.0.2.7",
    "guest": "10.0.0.10",
}


def ask(
    port: int, source: str, path: str = EVENTS, *, to: str = PROXY, body: str = "", **more: str
) -> web.Told:
    headers = web.METADATA | {name.replace("_", "-"): value for name, value in more.items()}
    method = "POST" if body else "GET"
    return web.ask(port, path, method, body or None, headers=headers, to=to, source=source)


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


def test_nginx_signs_for_guests_that_it_knows_by_address(service: Running, folder: Path) -> None:
    for name in ("web-0", "web-1"):
        signature = exchange.sign(name.encode(), SECRET.encode()).decode()
        with (folder / "signatures.map").open("a") as made:
            made.write(f"{name} {signature};\n")
    block = example("nginx", "$forewarn_signature")
    places = {"service": f"127.0.0.1:{service.guest_port}", "bind": PROXY, "guest": GUEST}
    with nginx(folder, block, listen=f"{PROXY}:{{port}}", **places) as port:
        assert ask(port, GUEST, NAME)[:2] == (200, "web-0")
        assert ask(port, GUEST, NAME.replace("metadata", "Metadata"))[:2] == (200, "web-0")
        assert ask(port, OTHER)[0] == 403
        # What a guest says of itself is gone: nginx sets the headers anew.
        forged = {
            "X_Instance_ID": "web-1",
            "X_Instance_ID_Signature": exchange.sign(b"web-1", SECRET.encode()).decode(),
            "X_Forwarded_For": "10.0.0.11",
        }
        assert ask(port, GUEST, NAME, **forged)[:2] == (200, "web-0")
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


def test_nginx_between_openstacks_agents_and_nova(service: Running, folder: Path) -> None:
    block = example("nginx", "metadata agents")
    with nova(folder) as elsewhere:
        places = {
            "agents": f"{PROXY}:{{port}}",
            "nova": f"127.0.0.1:{elsewhere}",
            "service": f"127.0.0.1:{service.guest_port}",
            "bind": PROXY,
        }
        with (
            nginx(folder, block, **places) as port,
            Agent(AGENT, port, SECRET, {GUEST: UUID}, upstream_host=PROXY) as agent,
        ):
            assert ask(agent.port, GUEST, NAME, to=AGENT)[:2] == (200, "web-0")
            status, body, _ = ask(agent.port, GUEST, to=AGENT)
            assert (status, json.loads(body)["Events"]) == (200, [])
            assert ask(agent.port, GUEST, "/openstack", to=AGENT)[:2] == (200, "nova's own")
            assert ask(port, GUEST, NAME)[0] == 400
            agent.secret = "another secret altogether"
            assert ask(agent.port, GUEST, NAME, to=AGENT)[0] == 403


@contextlib.contextmanager
def nova(folder: Path) -> Iterator[int]:
    """Serve one page where nova would serve its own."""
    port = free_port()
    there = folder / "nova"
    there.mkdir()
    (there / "openstack").write_text("nova's own")
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    running = subprocess.Popen(
        command, cwd=there, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        patience.until(lambda: answers(port))
        yield port
    finally:
        running.terminate()
        running.wait(patience.SECONDS)
