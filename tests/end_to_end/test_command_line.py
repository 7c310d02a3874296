"""The command line on a terminal, against a real service."""

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from end_to_end.running import Running
from forewarn.cli.exits import ExitStatus


@pytest.fixture(scope="module")
def service(shared_folder: Path) -> Iterator[Running]:
    with Running(shared_folder) as running:
        running.apply('[[machine]]\nname = "bastion"\n')
        yield running


AS_NOBODY = (
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", "--"),
)
"""As an ordinary user, who can read this test's Python wherever it is, and write nowhere."""


def can_be_nobody() -> bool:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return False
    return subprocess.run([*AS_NOBODY, "true"], check=False, capture_output=True).returncode == 0


def on_a_terminal(*command: str) -> tuple[int, bytes]:
    """Run the command line on a terminal; return its exit status and what is drawn."""
    ours, theirs = pty.openpty()
    variables = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=variables) as drawn:
        os.close(theirs)
        text = b""
        try:
            while part := os.read(ours, 65536):
                text += part
        except OSError:
            pass  # Linux tells so that the other end is closed
        os.close(ours)
    return drawn.returncode, text


def test_on_a_terminal_a_table_is_drawn(service: Running) -> None:
    forewarn = (sys.executable, "-m", "forewarn")
    status, text = on_a_terminal(*forewarn, "fleet", "list", "--operator", str(service.socket))
    assert status == 0
    assert b"\x1b[1m" in text  # the heading is bold
    assert "─".encode() in text
    assert b"bastion" in text


@pytest.mark.skipif(not can_be_nobody(), reason="needs root and setpriv, to be another user")
def test_an_ordinary_user_on_a_terminal_is_told_to_use_sudo(service: Running) -> None:
    forewarn = (*AS_NOBODY, sys.executable, "-m", "forewarn")
    status, text = on_a_terminal(*forewarn, "alerts", "--operator", str(service.socket))
    assert status == ExitStatus.UNREACHABLE
    assert b"permission denied" in text
    assert b"sudo" in text
