"""Which boot of the machine this is."""

from pathlib import Path
from typing import Final

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
"""random(4): another with each boot."""


def name() -> str:
    """Return what names this boot of the machine; `""` where the platform does not tell."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
