"""Guests of two bridges with equal addresses are told apart, in real network namespaces."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import patience

OWN_NETWORK = ("unshare", "--user", "--map-root-user", "--net")


def is_possible() -> bool:
    """Whether this machine lets us make network namespaces, and has what sets them up."""
    if any(shutil.which(tool) is None for tool in ("ip", "unshare", "nsenter")):
        return False
    link = ("ip", "link", "add", "name", "fw0", "type", "veth", "peer", "name", "fw1")
    return (
        subprocess.run(
            (*OWN_NETWORK, *link), capture_output=True, check=False, timeout=patience.SECONDS
        ).returncode
        == 0
    )


@pytest.mark.skipif(not is_possible(), reason="no network namespaces here")
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_equal_addresses_are_told_apart_by_listener_and_by_interface(loop: str) -> None:
    if loop == "uvloop":
        pytest.importorskip("uvloop", reason="uvloop is not for this platform")
    played = subprocess.run(
        (*OWN_NETWORK, sys.executable, "-m", "guest.bridges", loop),
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * patience.SECONDS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=Path(__file__).parent,
    )
    assert played.returncode == 0, played.stderr
    assert json.loads(played.stdout) == {
        "blue": ["at-blue", "on-blue"],
        "green": ["at-green", "on-green"],
    }
