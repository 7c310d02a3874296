"""What a quick answer costs."""

import json
import subprocess
import sys

import pytest

HEAVY = (
    "rich",
    "litestar",
    "sqlalchemy",
    "alembic",
    "uvicorn",
    "httptools",
    "msgspec",
    "structlog",
)
LIMIT_SECONDS = 0.75  # of processor time; 0.18 s on a quiet machine, and a busy one is slower

LOOK = """
import json, sys
from forewarn.cli import main
status = main.execute(sys.argv[1:])
print(json.dumps([status, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def modules_after(*arguments: str) -> set[str]:
    looked = subprocess.run(
        [sys.executable, "-c", LOOK, *arguments], capture_output=True, text=True, check=True
    )
    status, modules = json.loads(looked.stdout.splitlines()[-1])
    assert status == 0, looked.stderr
    return set(modules)


def test_help_loads_nothing_heavy() -> None:
    assert not modules_after("--help") & set(HEAVY)
    assert not modules_after("schedule", "--help") & set(HEAVY)
    assert not modules_after("--version") & set(HEAVY)


@pytest.mark.skipif(sys.platform == "win32", reason="only POSIX tells what children took")
def test_help_is_quick() -> None:
    took = []
    for _ in range(3):
        began = children_took()
        subprocess.run(
            [sys.executable, "-m", "forewarn", "--help"], check=True, capture_output=True
        )
        took.append(children_took() - began)
    assert 0 < min(took) < LIMIT_SECONDS


def children_took() -> float:
    """Return the processor time of the processes that this one has waited for, in seconds."""
    import resource  # noqa: PLC0415 - POSIX only

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
