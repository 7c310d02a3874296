"""How `forewarn doctor` carries out its checks; what they find is told in doctor.txt."""

import threading
from collections.abc import Iterator

import patience
from forewarn.cli.doctor import Finding, Level, examine


def test_a_check_that_hangs_ends_by_its_limit_and_holds_no_other_up() -> None:
    never = threading.Event()

    def hangs(_: object) -> Iterator[Finding]:
        never.wait()
        yield Finding(Level.OK, "never")

    def fails(_: object) -> Iterator[Finding]:
        yield Finding(Level.OK, "so far")
        raise ZeroDivisionError

    table = {"hangs": hangs, "fails": fails}
    found = [(name, level) for name, (level, _) in examine(table, None, limit_seconds=0.0)]
    never.set()
    assert ("hangs", Level.FAIL) in found
    whole = [(name, level) for name, (level, _) in examine(table, None, patience.SECONDS)]
    assert whole == [("hangs", Level.OK), ("fails", Level.OK), ("fails", Level.FAIL)]
