"""The program's start: `python -I __main__.py VERB`.

    carry-out, check     one machine's part of a task (`program`)
    survey               the facts of all hosts (`program`)
    list, tag, states    domains for the fleet (`domains`)
    probe                a test for the module `libvirt` in this Python

It runs under any Python from 3.11 on that has the module `libvirt`, also one without the rest of
the service's libraries. So the package `forewarn` is entered here by the side: its folder is found,
and its own `__init__`, which belongs to the client, is not run.
"""

import os
import sys
import types
from pathlib import Path


def main(verb: str, *arguments: str) -> int:
    """Run a verb; return the exit status."""
    if "forewarn" not in sys.modules:
        package = types.ModuleType("forewarn")
        package.__path__ = [str(Path(__file__).resolve().parents[2])]
        sys.modules["forewarn"] = package
    from forewarn.connectors.libvirt import program  # noqa: PLC0415 - found now

    try:
        import libvirt  # noqa: F401, PLC0415 - only to know whether it is there
    except ImportError as error:
        sys.stderr.write(f"{error}\n")
        return program.NO_LIBVIRT
    if verb in {"list", "tag", "states"}:
        from forewarn.connectors.libvirt import domains  # noqa: PLC0415 - found now

        status = domains.run(verb, arguments)
    else:
        status = 0 if verb == "probe" else program.run(verb, sys.stdin.read())
    sys.stderr.flush()
    program.end_group()
    return status


if __name__ == "__main__":
    os._exit(main(*sys.argv[1:]))  # a thread may be in a call that never returns
