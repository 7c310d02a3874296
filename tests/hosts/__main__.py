"""Run pytest on this folder in namespaces of its own: `python -m hosts [PYTEST ARGUMENTS]`.

Needs no root, only namespaces for ordinary users and /dev/net/tun; with FOREWARN_HOSTS_ROOT set it
runs, as root, the tests that do need it. Whatever a test leaves running ends with the namespaces.
Where they cannot be made, pytest runs outside and says so by its skips.
"""

import os
import subprocess
import sys
from pathlib import Path

from hosts import namespace

HERE = Path(__file__).resolve().parent


def main(arguments: list[str]) -> None:
    pytest = [sys.executable, "-m", "pytest", str(HERE), *arguments]
    os.environ[namespace.INSIDE] = why = namespace.refused() or namespace.YES
    if why == namespace.YES:
        reaper = [sys.executable, str(HERE / "reaper.py")]
        pytest = [*namespace.command(), "--kill-child", *reaper, *pytest]
    sys.exit(subprocess.run(pytest, check=False).returncode)


main(sys.argv[1:])
