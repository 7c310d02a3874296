"""Where libvirt's library is."""

import functools
import subprocess
from pathlib import Path

PYTHON = "/usr/bin/python3"
"""The Python that has Debian's python3-libvirt."""


@functools.cache
def has_libvirt() -> bool:
    """Tell whether the system's Python has the library."""
    asked = [PYTHON, "-Ic", "import libvirt"]
    return (
        Path(PYTHON).exists()
        and not subprocess.run(asked, check=False, capture_output=True).returncode
    )
