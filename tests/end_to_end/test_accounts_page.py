"""The guide `accounts.md`: its blocks are run, by an admin on the socket and by bob over TCP."""

import os
import subprocess
import sys
from pathlib import Path

from end_to_end.running import Running
from forewarn.cli.exits import ExitStatus
from ports import free_port
from recipes import pages

PAGE = "accounts"
LISTEN = "127.0.0.1:8172"


def test_a_colleague_looks_and_is_refused_and_both_are_told(tmp_path: Path) -> None:
    listen = f"127.0.0.1:{free_port()}"
    make, look, change, revoke, audit = pages.blocks(PAGE, "sh")
    setting = pages.placed(pages.block(PAGE, "toml"), {LISTEN: listen}).split("\n", 1)[1]
    service = Running(tmp_path, operator=setting)
    service.start()
    bob = pages.placed(look, {LISTEN: listen})

    def run(text: str, user: str = "root") -> subprocess.CompletedProcess[str]:
        given = {
            **os.environ,
            "XDG_CONFIG_HOME": str(tmp_path / user),
            "FOREWARN_CONFIG": str(service.settings) if user == "root" else "",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        return subprocess.run(
            ["sh", "-ec", text],
            cwd=tmp_path,
            env=given,
            capture_output=True,
            text=True,
            check=False,
        )

    try:
        assert run(make).returncode == 0
        assert (tmp_path / "bob.token").stat().st_mode & 0o077 == 0
        looked = run(bob, "bob")
        assert looked.returncode == 0, looked.stderr
        assert listen in looked.stdout  # of the link to the page
        assert run(change, "bob").returncode == ExitStatus.UNAUTHORIZED
        ended = run(revoke)
        assert (ended.returncode, "viewer" in ended.stdout) == (0, True), ended.stderr
        assert run(bob, "bob").returncode != 0
        told = run(audit)
        assert told.returncode == 0, told.stderr
        assert [word in told.stdout for word in ("bob", "forbidden", "viewer")] == [True] * 3
    finally:
        assert service.stop() == 0
