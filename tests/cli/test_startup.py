"""A quick answer loads little; `benchmarks` measure how long it takes."""

import json
import subprocess
import sys

HEAVY = (
    "rich",
    "starlette",
    "uvicorn",
    "httptools",
    "msgspec",
    "structlog",
)

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
