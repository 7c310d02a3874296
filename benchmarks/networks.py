"""Where the service, its guests and those who attack it are.

In namespaces, each side is a host of its own on one bridge: the service, its neighbours (this
process), and the attackers, with as many addresses as they like. Where no namespace can be had, all
of them share the loopback interface, with as many addresses.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable
from typing import NamedTuple

UNSHARE = ("unshare", "--net", "--mount")
"""As root. A namespace made so goes with its last process, whatever ends it."""

AS_ANYBODY = ("--user", "--map-root-user")
"""What another user says beside, where the system lets users have namespaces."""

SERVICE, ATTACKERS, BRIDGE = "service", "attackers", "bridge"

ATTACKER, STRANGER, PROXY, NEIGHBOUR, WORKER = 1, 5, 10, 16, 32
"""The third byte of the first address of each kind."""

A_NET = 250
"""Addresses of a kind with the same third byte."""


class Network(NamedTuple):
    """The addresses of one form, which differ by their first two bytes alone."""

    prefix: str
    is_parted: bool
    """Whether each side has a namespace of its own."""

    @property
    def service(self) -> str:
        """Where guests find the service."""
        return f"{self.prefix}.0.1"

    def address(self, kind: int, number: int) -> str:
        return f"{self.prefix}.{kind + number // A_NET}.{1 + number % A_NET}"

    def addresses(self, kind: int, numbers: Iterable[int]) -> list[str]:
        return [self.address(kind, number) for number in numbers]

    def within(self, side: str) -> list[str]:
        """Return what stands before a command that runs there."""
        return ["nsenter", f"--net=/run/netns/{side}"] if self.is_parted else []


LOOPBACK = Network("127.77", is_parted=False)
PARTED = Network("10.77", is_parted=True)


def parting() -> list[str]:
    """Return what stands before a command that `part` works in; nothing if nothing does."""
    if not all(shutil.which(program) for program in ("unshare", "nsenter", "ip", "mount")):
        return []
    command = [*UNSHARE, *([] if os.geteuid() == 0 else AS_ANYBODY)]
    trial = "mount -t tmpfs tmpfs /run && ip netns add x && ip link add type bridge"
    tried = subprocess.run([*command, "sh", "-ec", trial], capture_output=True, check=False)
    return command if tried.returncode == 0 else []


def part() -> Network:
    """Make the namespaces, and be the neighbours' host. Only in a process that `parting` began."""
    # What `ip netns` writes down is seen here alone, and nothing is left of it.
    lines = ["mount -t tmpfs tmpfs /run", "ip link set lo up"]
    lines += [f"ip netns add {name}" for name in (SERVICE, ATTACKERS, BRIDGE)]
    lines += [f"ip -n {BRIDGE} link add guests type bridge", f"ip -n {BRIDGE} link set guests up"]
    for side, kinds in {"": range(16, 64), SERVICE: range(1), ATTACKERS: range(1, 16)}.items():
        inside, port = f"-n {side}" if side else "", side or "neighbours"
        own = f"netns {side}" if side else ""
        lines += [
            f"ip link add {port} netns {BRIDGE} type veth peer name eth0 {own}",
            f"ip -n {BRIDGE} link set {port} master guests up",
            f"ip {inside} link set lo up",
            f"ip {inside} link set eth0 up",
            f"ip {inside} address add {PARTED.prefix}.{kinds[0]}.1/16 dev eth0",
            # All addresses of the side, for its processes to bind, without naming each.
            *(f"ip {inside} route add local {PARTED.prefix}.{k}.0/24 dev lo" for k in kinds),
        ]
    subprocess.run(["sh", "-ec", "\n".join(lines)], check=True)
    return PARTED
