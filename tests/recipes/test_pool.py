"""docs/guides/draining.md: with agents no request of the pool fails, without them many do.

Six web servers behind HAProxy are rebooted by the service, two at a time, while clients that never
ask twice send requests. A machine's processes are killed, as by a power switch.
"""

import contextlib
import csv
import http.client
import re
import shutil
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import patience
from end_to_end.agents import Agent
from end_to_end.running import Running
from patience import until
from ports import free_port
from recipes import commands, pages
from recipes.power import Power

needs_haproxy = pytest.mark.skipif(not shutil.which("haproxy"), reason="haproxy is not installed")
AGENT = pages.block("draining", "toml", "/room")
BALANCER = pages.block("draining", "haproxy", "nbsrv")
ASKS_AGENT = re.findall(r"(?ms)^    # One probe asks twice:.*?^    # \.\.\. then.*?\n", BALANCER)[0]
SLOW_SECONDS = 2
"""The longest request of the page."""
PAUSE_SECONDS = 0.05
"""Between two requests of a client."""
NAMES = [f"web-{number}" for number in range(6)]
ADDRESS = {name: f"127.0.0.{number + 11}" for number, name in enumerate(NAMES)}
FLEET = f"""
[[availability_set]]
name = "web"
update_domains = 3
machines = [{", ".join(f'{{ name = "{name}", host = "{name}" }}' for name in NAMES)}]
"""
WEB = f"""
import http.server, sys, threading

class Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "20")
        self.end_headers()
        for _ in range(20):
            if self.path == "/slow":
                threading.Event().wait({SLOW_SECONDS} / 20)
            self.wfile.write(b".")

    def log_message(self, *args):
        pass

class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *args):
        pass  # the balancer hangs up on its probes

Server((sys.argv[1], int(sys.argv[2])), Page).serve_forever()
"""
"""A web server that is no friend of orderly ends: what is under way is lost when it is killed."""


class Machine:
    """A machine of the pool: its web server, and its agent where it has one."""

    def __init__(self, address: str, port: int, agent: Agent | None) -> None:
        self.at, self.agent, self.boots = (address, port), agent, 0
        self._web: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        """Cut its power."""
        if self.agent is not None:
            self.agent.kill()
        if self._web is not None:
            self._web.kill()
            self._web.wait()

    def start(self) -> None:
        """Boot it; it is up when its web server answers."""
        self.boots += 1
        self._web = subprocess.Popen([sys.executable, "-c", WEB, self.at[0], str(self.at[1])])
        if self.agent is not None:
            self.agent.start()
        until(self._answers)

    def _answers(self) -> bool:
        with contextlib.closing(
            http.client.HTTPConnection(*self.at, timeout=patience.SECONDS)
        ) as connection:
            return not failure(connection, "/")


class Pool:
    """The balancer, by the page's settings with other addresses, and its six machines."""

    def __init__(self, folder: Path, service: Running, *, agents: bool) -> None:
        self.port, room, self._admin = free_port(), free_port(), folder / "haproxy.sock"
        web, status = free_port(*ADDRESS.values()), free_port(*ADDRESS.values())
        numbered = list(enumerate(ADDRESS.values()))
        peers = {f"10.0.0.1{number}:8171": f"{at}:{status}" for number, at in numbered}
        rules = pages.placed(AGENT, {"10.0.0.5:8405": f"127.0.0.1:{room}", **peers})
        guests = f"http://127.0.0.1:{service.guest_port}"
        self.machines = {
            name: Machine(
                at,
                web,
                Agent(folder / name, guests, rules, machine=name, listen=(at, status))
                if agents
                else None,
            )
            for name, at in ADDRESS.items()
        }
        places = {
            "/dev/log local0": "stderr format raw local0",
            "/run/haproxy/admin.sock": str(self._admin),
            "10.0.0.5:80\n": f"127.0.0.1:{self.port}\n",
            "10.0.0.5:8405": f"127.0.0.1:{room}",
            **{f"10.0.0.1{number}:8080": f"{at}:{web}" for number, at in numbered},
            **({"port 8171": f"port {status}"} if agents else {ASKS_AGENT: ""}),
        }
        (folder / "haproxy.cfg").write_text(pages.placed(BALANCER, places))
        for machine in self.machines.values():
            machine.start()
        with (folder / "haproxy.log").open("wb") as log:
            argv = ["haproxy", "-db", "-f", str(folder / "haproxy.cfg")]
            self._process = subprocess.Popen(argv, stderr=log)
        until(self._admin.exists)
        until(self.whole)

    def whole(self) -> bool:
        """Tell whether every machine gets requests."""
        with socket.socket(socket.AF_UNIX) as admin:
            admin.connect(str(self._admin))
            admin.sendall(b"show stat\n")
            rows = csv.DictReader(admin.makefile())
            states = [row["status"] for row in rows if row["svname"] in NAMES]
        return len(states) == len(NAMES) and all(state.startswith("UP") for state in states)

    def close(self) -> None:
        for machine in self.machines.values():
            machine.stop()
        self._process.kill()
        self._process.wait()


def failure(connection: http.client.HTTPConnection, path: str) -> str:
    """Ask once; return how it failed, `""` for an answer that came whole."""
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        return f"{path}: {type(error).__name__}"
    return "" if (answer.status, len(body)) == (200, 20) else f"{path}: {answer.status}"


class Clients:
    """Clients that send requests without a pause, on new and on kept connections."""

    def __init__(self, port: int) -> None:
        self._port, self._over = port, threading.Event()
        self.answered = 0
        self.failures: list[str] = []
        kinds = [(path, kept) for path in ("/quick", "/slow") for kept in (True, False)] * 4
        self._threads = [threading.Thread(target=self._ask, args=kind) for kind in kinds]
        for thread in self._threads:
            thread.start()

    def _ask(self, path: str, kept: bool) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=patience.SECONDS)
        while not self._over.wait(PAUSE_SECONDS):
            if not kept:
                connection.close()
            failed = failure(connection, path)
            if failed:
                self.failures.append(failed)
            else:
                self.answered += 1
        connection.close()

    def end(self) -> None:
        """Send nothing more, and wait for what is under way."""
        self._over.set()
        for thread in self._threads:
            thread.join()


@contextlib.contextmanager
def rolling(
    folder: Path, service: Running, switch: Power, *, agents: bool
) -> Iterator[tuple[Pool, Clients]]:
    """Reboot the pool under load; without agents the operator approves."""
    service.apply(FLEET)
    pool = Pool(folder, service, agents=agents)
    clients = None
    try:
        clients = Clients(pool.port)
        switch.machines = pool.machines
        assert service.call("schedule", "reboot", "--scope", "web").returncode == 0

        def over() -> bool:
            for event in service.operator.get("/v1/events")["events"]:
                waits = event["status"] == "Scheduled" and not event["approval"]
                if waits and not agents and pool.whole():
                    service.call("approve", event["operation"])
            return all(machine.boots == 2 for machine in pool.machines.values()) and pool.whole()

        until(over, lambda: service.document("history"))
        clients.end()
        yield pool, clients
    finally:
        if clients is not None:
            clients.end()
        pool.close()


@pytest.mark.soak
@needs_haproxy
def test_with_agents_no_request_fails(folder: Path, service: Running, switch: Power) -> None:
    with rolling(folder, service, switch, agents=True) as (_, clients):
        assert clients.failures == []
        assert clients.answered > 1000
    operations: list[dict[str, Any]] = service.document("history")["operations"]
    assert len(operations) == 3
    for operation in operations:
        (event,) = operation["events"]
        assert operation["status"] == "Completed"
        assert len(event["machines"]) == 2
        assert (event["approval"]["kind"], event["approval"]["by"]) == (
            "guest",
            event["machines"][0],
        )


@pytest.mark.soak
@needs_haproxy
def test_without_agents_more_than_one_in_a_hundred_fails(
    folder: Path, service: Running, switch: Power
) -> None:
    with rolling(folder, service, switch, agents=False) as (_, clients):
        assert len(clients.failures) > clients.answered / 100
        assert any(": 503" in failed for failed in clients.failures)  # sent to who is not there
        assert any("/slow: I" in failed for failed in clients.failures)  # cut short by the kill


@needs_haproxy
def test_haproxy_takes_the_pages_settings(tmp_path: Path) -> None:
    (tmp_path / "haproxy.cfg").write_text(BALANCER)
    argv = ["haproxy", "-c", "-f", str(tmp_path / "haproxy.cfg")]
    judged = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert judged.returncode == 0, judged.stderr
    assert "WARNING" not in judged.stderr


@pytest.mark.parametrize("line", commands.named("draining"))
def test_every_command_of_the_page_runs(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agent.d").mkdir()
    (tmp_path / "agent.d" / "machine.toml").write_text(
        pages.block("draining", "toml", "own address")
    )
    assert "leave the pool" in commands.run(line, AGENT, tmp_path, capsys)


def test_the_wait_covers_the_probes_and_the_longest_request() -> None:
    (inter,) = re.findall(r" inter (\d+)s ", BALANCER)
    (fast,) = re.findall(r" fastinter (\d+)ms ", BALANCER)
    (answer,) = re.findall(r"timeout check (\d+)s", BALANCER)
    assert " fall 2 " in BALANCER
    noticed = (int(inter) + int(answer)) + (int(fast) / 1000 + int(answer))
    rules = tomllib.loads(AGENT)["rule"]
    waits = [step["ready"] for rule in rules for step in rule.get("prepare", []) if "ready" in step]
    assert len(waits) == 2
    for wait in waits:
        assert wait["wait_seconds"] >= noticed + SLOW_SECONDS + 1
        assert wait["wait_seconds"] < 30 - 5  # a Preempt's notice, less the agent's margin
