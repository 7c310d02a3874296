"""What a quick answer costs."""

import json
import subprocess
import sys
import time

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
LIMIT_SECONDS = 1.5  # 0.25 s is the goal, measured with nothing else to do; this only finds a slip

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


def test_help_is_quick() -> None:
    took = []
    for _ in range(3):
        began = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "forewarn", "--help"], check=True, capture_output=True
        )
        took.append(time.monotonic() - began)
    assert min(took) < LIMIT_SECONDS
