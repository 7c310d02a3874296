"""Run the tests of this folder, each file in namespaces of its own, several of them at once.

`python -m hosts [FILES] [PYTEST'S ARGUMENTS]`; a file is of tests or a text of stories. It needs no
root, only namespaces for ordinary users and /dev/net/tun; with FOREWARN_HOSTS_ROOT set it runs, as
root, the files that do need it. What a test leaves running ends with its namespaces. Where they
cannot be made, pytest runs outside and says so by its skips.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hosts import namespace

HERE = Path(__file__).resolve().parent
OF_ROOT = ("filter", "nat", "polkit", "ssh")
STORIES = HERE / "test_stories.py"
"""What plays a text of stories: it is told which."""
AT_ONCE = int(os.environ.get("HOSTS_AT_ONCE", "") or 2)
"""Files: a guest that boots takes a core, but most of the time all of them wait."""


def chosen(arguments: Sequence[str]) -> list[str]:
    """Return the files that are named; all that can run if none is."""
    named = [each for each in arguments if Path(each.partition("::")[0]).exists()]
    of_root = {HERE / f"test_{name}.py" for name in OF_ROOT}
    told = {*HERE.glob("test_*.py"), *HERE.glob("*.txt")} - {STORIES}
    every = of_root if namespace.with_root() else told - of_root
    # The longest first: whoever begins last ends last.
    return named or [
        str(path) for path in sorted(every, key=lambda each: each.stat().st_size, reverse=True)
    ]


def run(file: str, arguments: Sequence[str], *, alone: bool) -> int:
    """Run the tests of one file; print what they print, at once or when they have ended."""
    start = time.monotonic()
    path = str(STORIES) if file.endswith(".txt") else file
    command = [sys.executable, "-m", "pytest", path, *arguments]
    if os.environ[namespace.INSIDE] == namespace.YES:
        reaper = [sys.executable, str(HERE / "reaper.py")]
        command = [*namespace.command(), "--kill-child", *reaper, *command]
    ran = subprocess.run(
        command,
        stdout=None if alone else subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "HOSTS_STORIES": file},
    )
    if ran.returncode != pytest.ExitCode.NO_TESTS_COLLECTED:
        took = time.monotonic() - start
        sys.stdout.write(f"{ran.stdout or ''}{Path(file).name}: {took:.0f} s\n\n")
        sys.stdout.flush()
    return ran.returncode


def main(arguments: Sequence[str]) -> int:
    os.environ[namespace.INSIDE] = namespace.refused() or namespace.YES
    files = chosen(arguments)
    others = [each for each in arguments if each not in files]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ends = set(pool.map(lambda file: run(file, others, alone=len(files) == 1), files))
    nothing = int(pytest.ExitCode.NO_TESTS_COLLECTED)
    return max(ends - {nothing}, default=nothing)


sys.exit(main(sys.argv[1:]))
