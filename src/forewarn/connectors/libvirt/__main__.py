"""The program's start: `python -I __main__.py carry-out | check | survey | probe`.

It runs under any Python from 3.11 on that has the module `libvirt`, also one without the rest of
the service's libraries. So the package `forewarn` is entered here by the side: its folder is found,
and its own `__init__`, which belongs to the client, is not run.
"""

import os
import signal
import sys
import types
from pathlib import Path

NO_LIBVIRT = 12
"""The exit status of a Python without the module `libvirt`."""


def main(verb: str) -> int:
    """Do what the verb says; return the exit status."""
    if "forewarn" not in sys.modules:
        package = types.ModuleType("forewarn")
        package.__path__ = [str(Path(__file__).resolve().parents[2])]
        sys.modules["forewarn"] = package
    try:
        import libvirt  # noqa: F401, PLC0415 - only to know whether it is there
    except ImportError as error:
        sys.stderr.write(f"{error}\n")
        return NO_LIBVIRT
    from forewarn.connectors.libvirt import program  # noqa: PLC0415 - found now

    return 0 if verb == "probe" else program.run(verb, sys.stdin.read())


def end_group() -> None:
    """End what this program's connections have begun: an ssh to a host that hangs never ends."""
    if os.getpgrp() == os.getpid():  # otherwise the group is the caller's
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)


if __name__ == "__main__":
    status = main(sys.argv[1])
    sys.stderr.flush()
    end_group()
    os._exit(status)  # a thread may be in a call that never returns
