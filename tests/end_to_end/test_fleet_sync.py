"""A service that watches hosts: its programs are children that do not outlive it."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from end_to_end.running import Running
from patience import until

PROGRAM = """#!{python}
# A host's program: it has no domain to tell of.
import os, pathlib, sys
pathlib.Path({folder!r}, sys.argv[4].removeprefix("x:///")).write_text(str(os.getpid()))
for line in sys.stdin:
    print('{{"domains": []}}', flush=True)
"""
SETTINGS = """
[fleet.libvirt]
sync = true
python = "{program}"
uris = {{ h0 = "x:///h0", h1 = "x:///h1" }}
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1]


@pytest.mark.parametrize("end", [Running.kill, Running.stop], ids=["killed", "stopped"])
def test_no_program_outlives_its_service(folder: Path, end: Callable[[Running], object]) -> None:
    program = folder / "python"
    program.write_text(PROGRAM.format(python=sys.executable, folder=str(folder)))
    program.chmod(0o755)
    service = Running(folder, more=SETTINGS.format(program=program))
    service.start()
    until(lambda: len(service.said("a host is watched")) == 2, service.log.read_text)
    pids = [int((folder / host).read_text()) for host in ("h0", "h1")]
    assert all(map(alive, pids))
    end(service)
    until(lambda: not any(map(alive, pids)), lambda: pids)
