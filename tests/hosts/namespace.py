"""The namespaces in which a lab stands: users, processes, mounts and network of its own."""

import os
import subprocess
from typing import Final

INSIDE: Final = "FOREWARN_HOSTS"
"""The variable that tells a test's process whether it is inside: YES, or why it is not."""
YES: Final = "inside"
ROOT: Final = "FOREWARN_HOSTS_ROOT"
"""The variable with which root stays root: only a libvirtd of root has packet filters."""
AS_ROOT: Final = ("unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc")
UNSHARE: Final = (
    "unshare",
    "--map-root-user",
    "--net",
    "--mount",
    "--pid",
    "--fork",
    "--mount-proc",
)


def command() -> tuple[str, ...]:
    """Return what makes the namespaces."""
    return AS_ROOT if with_root() else UNSHARE


def with_root() -> bool:
    return bool(os.environ.get(ROOT))


def refused() -> str:
    """Say why the namespaces cannot be made here; empty if they can."""
    try:
        tried = subprocess.run([*command(), "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unshare is not installed: install util-linux"
    if tried.returncode:
        return f"this user cannot make namespaces: {tried.stderr.strip()}"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "/dev/net/tun cannot be opened by this user"
    return ""


def outside() -> str:
    """Say why this process is not in them; empty if it is."""
    said = os.environ.get(
        INSIDE, "these tests run in namespaces of their own: make prove AREA=hosts"
    )
    return "" if said == YES else said
