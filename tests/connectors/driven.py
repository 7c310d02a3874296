"""The program for libvirt's hosts, with a hand on the domain of libvirt's test driver.

That driver lives within a process, so what happens to its domain has to happen in the program's:
before each line that it is asked. Run by the system's Python, which has the library and nothing of
ours; on standard input it gets JSON, each time a statement and the line that follows it.
"""

import importlib.util
import json
import sys


class Lines:
    """Lines for the program, each of which comes after a statement about `domain` or `libvirt`."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.steps = json.load(sys.stdin)

    def get(self) -> str:
        import libvirt  # noqa: PLC0415 - the program under test says it where it is missing

        if not self.steps:
            raise SystemExit
        statement, line = self.steps.pop(0)
        if statement:
            domain = libvirt.open(self.uri).lookupByName("test")
            exec(statement, {"libvirt": libvirt, "domain": domain})
        return str(line)


def main(program: str, uri: str) -> None:
    spec = importlib.util.spec_from_file_location("program", program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main("probe")
    from forewarn.connectors.libvirt import domains  # noqa: PLC0415 - found now

    domains._answer(uri, Lines(uri))


if __name__ == "__main__":
    main(*sys.argv[1:])
