"""The program of the `command` connector: asks the host to restart a machine.

It stands where `virsh` would; docs/guides/connectors.md has its contract. Its argument is the
socket of the host.
"""

import os
import socket
import sys


def main() -> str | None:
    """Restart the machine FOREWARN_MACHINE; return what went wrong, None for success."""
    kind, machine = os.environ["FOREWARN_EVENT_TYPE"], os.environ["FOREWARN_MACHINE"]
    if kind != "Reboot":
        return f"no rule for {kind}"
    with socket.socket(socket.AF_UNIX) as host:
        host.connect(sys.argv[1])
        host.sendall(f"reboot {machine}\n".encode())
        answer = host.makefile().readline().strip()
    return None if answer == "done" else answer or "the host hung up"


if __name__ == "__main__":
    sys.exit(main())
