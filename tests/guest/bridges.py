"""Two bridges whose guests hold equal addresses, in network namespaces of their own.

Run by `test_bridges` within a fresh namespace: `unshare --user --map-root-user --net`. What it
finds is printed as JSON: the name that each guest was answered by, at each listener.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import patience
from forewarn.maintenance.model import Changes, Machine, Scope
from forewarn.server.guest.listener import Listener, Listeners
from forewarn.server.sockets import HandedOver
from guest import room

BRIDGES = ("blue", "green")
GUEST, HOST = "fe80::20", "fe80::1"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
CLIENT = """
import socket, sys
host, port, request = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode()
(found, *_) = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
with socket.socket(found[0], socket.SOCK_STREAM) as there:
    there.connect(found[4])
    there.sendall(request)
    there.shutdown(socket.SHUT_WR)
    got = b""
    while part := there.recv(65536):
        got += part
sys.stdout.write(got.decode())
"""


def run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=patience.SECONDS)


@contextmanager
def guest_of(bridge: str) -> Iterator[int]:
    """Give a bridge one guest, in a namespace of its own; the process that holds it open."""
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo ready; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"ready\n"
        inside = ("nsenter", "--target", str(holder.pid), "--net")
        run("ip", "link", "add", "name", bridge, "type", "veth", "peer", "name", f"{bridge}-in")
        run("ip", "link", "set", f"{bridge}-in", "netns", str(holder.pid))
        for where, name, address in (((), bridge, HOST), (inside, f"{bridge}-in", GUEST)):
            run(*where, "ip", "link", "set", name, "addrgenmode", "none")
            run(*where, "ip", "link", "set", name, "up")
            run(*where, "ip", "address", "add", f"{address}/64", "dev", name, "nodad")
        yield holder.pid
    finally:
        holder.kill()
        holder.communicate()


async def ask(holder: int, bridge: str, port: int) -> str:
    """Ask as the bridge's guest; return the body of the answer."""
    process = await asyncio.create_subprocess_exec(
        *("nsenter", "--target", str(holder), "--net", sys.executable, "-c", CLIENT),
        *(f"{HOST}%{bridge}-in", str(port), room.get(NAME).decode()),
        stdout=subprocess.PIPE,
    )
    got, _ = await asyncio.wait_for(process.communicate(), patience.SECONDS)
    (answer,) = room.answers(got)
    return answer.body.decode()


def machines() -> list[Machine]:
    """Guests by the name of their listener, and, at the one that hears both, by interface."""
    named = [room.machine(f"at-{name}", GUEST, listener=name) for name in BRIDGES]
    return named + [room.machine(f"on-{name}", f"{GUEST}%{name}") for name in BRIDGES]


async def play(guests: dict[str, int]) -> dict[str, Any]:
    plane = room.Room(asyncio.get_running_loop())
    fleet = machines()
    plane.registry.learn(Changes(machines=tuple(fleet)))
    plane.documents.learn(Changes(scopes=tuple(Scope(**facts(machine)) for machine in fleet)))
    listeners = Listeners(asyncio.get_running_loop(), plane.connections)
    wanted = [Listener(address=f"{HOST}%{name}", port=0, name=name) for name in BRIDGES]
    opened = await listeners.open(
        [(each, None) for each in (*wanted, Listener(address="::", port=0))], HandedOver()
    )
    found = {
        name: [await ask(guests[name], name, at.port) for at in (opened[number], opened[-1])]
        for number, name in enumerate(BRIDGES)
    }
    listeners.close()
    await plane.connections.retire(0)
    return found


def facts(machine: Machine) -> dict[str, Any]:
    return {"name": machine.name, "kind": room.SCOPES[1].kind, "update_domains": 1}


def main() -> None:
    factory = None
    if sys.argv[1] == "uvloop":
        import uvloop  # noqa: PLC0415 - only where it was asked for

        factory = uvloop.new_event_loop
    with ExitStack() as stack:
        guests = {name: stack.enter_context(guest_of(name)) for name in BRIDGES}
        with asyncio.Runner(loop_factory=factory) as runner:
            sys.stdout.write(json.dumps(runner.run(play(guests))))


if __name__ == "__main__":
    main()
