"""The operator's program of the `command` connector: asks the machines' host for a restart.

Run by `python -I`, it imports nothing of Forewarn. It stands where `virsh` would; its contract is
docs/guides/connectors.md. Its argument is the host's socket.
"""

import os
import socket
import sys


def main() -> str | None:
    """Have the machine of FOREWARN_MACHINE restarted; return what went wrong, None if nothing."""
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
