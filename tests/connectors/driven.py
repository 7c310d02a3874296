"""The program for libvirt's hosts, with a hand on the domain of libvirt's test driver.

That driver lives within a process, so what happens to its domain has to happen in the program's
process: on a thread, by lines of standard input that begin with `do `. Run by the system's Python,
which has the library and nothing of ours.
"""

import importlib.util
import os
import sys
import threading
from typing import Any


def act(orders: Any, uri: str) -> None:
    """Do what is ordered to the test driver's domain."""
    import libvirt  # noqa: PLC0415 - the program under test says it where it is missing

    for statement in orders:
        connection = libvirt.open(uri)
        names = {"libvirt": libvirt, "domain": connection.lookupByName("test"), "answer": answer}
        exec(statement, names)


def answer(text: str) -> None:
    """Print a line beside those of the program."""
    os.write(1, f"{text}\n".encode())


def main(program: str, uri: str) -> int:
    """Run the program's `states` with a thread that does what `do` lines say."""
    spec = importlib.util.spec_from_file_location("program", program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    given = os.fdopen(os.dup(0), "rb", buffering=0)
    passed, onward = os.pipe()
    os.dup2(passed, 0)
    orders, ordered = os.pipe()

    def sort() -> None:
        while line := given.readline():
            ours = line.startswith(b"do ")
            os.write(ordered if ours else onward, line.removeprefix(b"do "))
        os.close(onward)

    threading.Thread(target=sort, daemon=True).start()
    threading.Thread(target=act, args=(os.fdopen(orders), uri), daemon=True).start()
    os.close(passed)
    return int(module.main("states", uri))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
