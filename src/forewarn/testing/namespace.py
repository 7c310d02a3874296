"""Runs a handler in a network namespace of its own, where 169.254.169.254 is the emulator.

    python namespace.py HANDED_TO ENVIRONMENT UID GID PORTS -- COMMAND...

The endpoint's socket, and one for each port of the host that the handler is to reach at 127.0.0.1,
are opened inside and handed to the process that listens at the Unix socket HANDED_TO; then the
process becomes the handler. So one emulator outside serves any number of namespaces. The rest of
the host's network is not there. This file runs by itself, and imports nothing of the package.
"""

import ctypes
import fcntl
import json
import os
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

ADDRESS = "169.254.169.254"
PORT = 80

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000  # <linux/sched.h>
_SET_ADDRESS, _SET_NETMASK, _SET_FLAGS = 0x8916, 0x891C, 0x8914  # <linux/sockios.h>
_UP_AND_RUNNING = 0x41


def unshare(*, with_user: bool) -> None:
    """Enter a new network namespace; OSError where the system refuses it.

    Args:
        with_user: True to enter a new user namespace too, as users without rights must.
    """
    uid, gid = os.getuid(), os.getgid()
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_NET | (_NEW_USER if with_user else 0)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if with_user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def open_sockets(ports: Sequence[int]) -> list[socket.socket]:
    """Bring the loopback interface up with the endpoint's address, and listen there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP_AND_RUNNING))
        for order, address in ((_SET_ADDRESS, ADDRESS), (_SET_NETMASK, "255.255.255.255")):
            packed = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
            fcntl.ioctl(control, order, struct.pack("16s16s", b"lo:0", packed))
    addresses = [(ADDRESS, PORT), *(("127.0.0.1", port) for port in ports)]
    return [socket.create_server(address) for address in addresses]


def hand_over(path: str, opened: Sequence[socket.socket]) -> None:
    """Hand the sockets to the process that listens at this path, and keep none."""
    with socket.socket(socket.AF_UNIX) as parent:
        parent.connect(path)
        socket.send_fds(parent, [b"\0"], [each.fileno() for each in opened])
    for each in opened:
        each.close()


def main(arguments: Sequence[str]) -> None:
    """Enter the namespace and become the handler; without one, only try that."""
    as_root = os.geteuid() == 0
    unshare(with_user=not as_root)
    if not arguments:
        for opened in open_sockets(()):
            opened.close()
        return
    handed_to, environment, uid, gid, ports, _, *command = arguments
    hand_over(handed_to, open_sockets([int(port) for port in ports.split(",") if port]))
    variables = json.loads(Path(environment).read_text(encoding="utf-8"))
    if as_root and int(uid) != 0:  # by sudo: the handler runs as the user who started it
        os.setgroups([])
        os.setgid(int(gid))
        os.setuid(int(uid))
    os.execvpe(command[0], command, variables)  # noqa: S606 - no shell is the point


if __name__ == "__main__":
    main(sys.argv[1:])
