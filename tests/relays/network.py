"""Hosts and their machines as network namespaces, beside the one that the service is in.

The service's side has 10.78.0.1, host h1 has 10.78.0.11 on the same wire, and each host answers
169.254.169.254 to its own machines alone. A machine is a namespace with a cable to its host; a live
move plugs the cable into another host, and what runs in the machine notices no more than it does on
a hypervisor. All of it goes with the thread that made it.
"""

import contextlib
import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Final

ENDPOINT: Final = "169.254.169.254"
SERVICE: Final = "10.78.0.1"
CLONE_NEWNET: Final = 0x40000000
"""Of unshare(2) and setns(2)."""

HOLD: Final = ("setpriv", "--pdeathsig", "KILL", "sh", "-c", "echo here; exec sleep infinity")
"""Keeps a namespace for as long as the thread lives that began it."""

DARK: Final = (
    "table ip dark { set hosts { type ipv4_addr; }; "
    "chain arriving { type filter hook input priority 0; ip saddr @hosts drop; }; "
    "chain leaving { type filter hook output priority 0; ip daddr @hosts drop; }; }"
)


def missing() -> str:
    """Say why these namespaces cannot be made here; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces with a PostgreSQL in them need root"
    absent = [each for each in ("ip", "nft", "nsenter", "setpriv") if not shutil.which(each)]
    return f"not installed: {', '.join(absent)}" if absent else ""


def enter(file: str) -> None:
    """Let this thread, with what it starts, be in the network namespace of a file in /proc."""
    handle = os.open(file, os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        assert libc.setns(handle, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    finally:
        os.close(handle)


class Namespace:
    """A network namespace, kept by a process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(["unshare", "--net", *HOLD], stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"here\n"
        self.pid = self._process.pid
        self.file = f"/proc/{self.pid}/ns/net"
        self.ip("link set lo up")

    def within(self) -> list[str]:
        """Return what stands before a command that runs there."""
        return ["nsenter", f"--net={self.file}"]

    def ip(self, words: str) -> None:
        """Run `ip` there."""
        subprocess.run([*self.within(), "ip", *words.split()], check=True)

    def close(self) -> None:
        """Let it go."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Host(Namespace):
    """A hypervisor: it has 169.254.169.254, and a wire to the service."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__()
        self.name = name
        self.address = f"10.78.0.{10 + number}"
        ip(f"link add to-{name} type veth peer name wire netns {self.pid}")
        ip(f"link set to-{name} master switch up")
        self.ip(f"address add {ENDPOINT}/32 dev lo")
        self.ip(f"address add {self.address}/24 dev wire")
        self.ip("link set wire up")

    def plug(self, guest: "Guest") -> None:
        """Take a machine's cable, wherever it was."""
        place = guest.host.within() if guest.host else []
        words = f"ip link set {guest.cable} netns {self.pid}"
        subprocess.run([*place, *words.split()], check=True)
        guest.host = self
        self.ip(f"link set {guest.cable} up")
        self.ip(f"route add {guest.address}/32 dev {guest.cable}")


class Guest(Namespace):
    """A virtual machine's network: one address, and a way to 169.254.169.254."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__()
        self.name = name
        self.address = f"10.79.0.{10 + number}"
        self.cable = f"vm-{name}"
        self.host: Host | None = None
        ip(f"link add {self.cable} type veth peer name eth0 netns {self.pid}")
        self.ip(f"address add {self.address}/32 dev eth0")
        self.ip("link set eth0 up")
        self.ip(f"route add {ENDPOINT}/32 dev eth0 src {self.address}")


class Site:
    """The wire between the service and its hosts, and what is plugged in."""

    def __init__(self) -> None:
        self.hosts: dict[str, Host] = {}
        self.guests: dict[str, Guest] = {}
        ip("link add switch type bridge")
        ip(f"address add {SERVICE}/24 dev switch")
        ip("link set switch up")
        subprocess.run(["nft", "-f", "-"], input=DARK, text=True, check=True)

    def host(self, name: str) -> Host:
        """Make a host."""
        return self.hosts.setdefault(name, Host(name, len(self.hosts) + 1))

    def guest(self, name: str, host: str) -> Guest:
        """Make a machine on a host."""
        made = self.guests[name] = Guest(name, len(self.guests) + 1)
        self.hosts[host].plug(made)
        return made

    def move(self, guest: str, host: str) -> None:
        """Let a machine go on at another host."""
        self.hosts[host].plug(self.guests[guest])

    def darken(self, host: str) -> None:
        """Let what a host and the service send each other vanish."""
        self._dark("add", host)

    def clear(self, host: str) -> None:
        """Let it pass again."""
        self._dark("delete", host)

    def _dark(self, verb: str, host: str) -> None:
        words = f"{verb} element ip dark hosts {{ {self.hosts[host].address} }}"
        subprocess.run(["nft", words], check=True)

    def close(self) -> None:
        """Let all namespaces go."""
        for each in (*self.guests.values(), *self.hosts.values()):
            each.close()


def ip(words: str) -> None:
    """Run `ip` where this thread is."""
    subprocess.run(["ip", *words.split()], check=True)


@contextlib.contextmanager
def own() -> Iterator[None]:
    """Make a network of its own for this thread, and what it starts."""
    home = os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    try:
        ip("link set lo up")
        yield
    finally:
        assert libc.setns(home, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        os.close(home)


@contextlib.contextmanager
def made() -> Iterator[Site]:
    """Make the service's side a network of its own on this thread, with a site around it."""
    with own(), contextlib.closing(Site()) as site:
        yield site


def on_thread_in(namespace: Namespace, work: Callable[[], None]) -> threading.Thread:
    """Begin work on a thread that is in a namespace."""

    def run() -> None:
        enter(namespace.file)
        work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread
