"""What the guide `libvirt.md` gives the service to reach its hosts: a drop-in, SSH's settings.

What takes real hosts, and root, is in tests/hosts.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from house.tree import ROOT
from recipes import pages

PAGE = "libvirt"
CREDENTIAL = re.compile(r"LoadCredential=(\S+):(\S+)")


def test_every_block_is_of_a_language_that_a_test_runs() -> None:
    text = (pages.GUIDES / f"{PAGE}.md").read_text(encoding="utf-8")
    found = {*re.findall(r"(?m)^```(\S+)$", text)}
    assert found == {"console", "ini", "js", "nft", "sh", "ssh-config", "toml", "xml"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_drop_in_is_taken_by_systemd(tmp_path: Path) -> None:
    unit = (ROOT / "packaging" / "forewarn.service").read_text(encoding="utf-8")
    path = tmp_path / "forewarn.service"
    path.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", unit))
    drop_in = tmp_path / "forewarn.service.d" / "override.conf"
    drop_in.parent.mkdir()
    drop_in.write_text(pages.block(PAGE, "ini"))
    argv = ["systemd-analyze", "verify", "--man=no", str(path)]
    checked = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert [line for line in checked.stderr.splitlines() if "forewarn" in line] == []


@pytest.mark.skipif(shutil.which("ssh") is None, reason="ssh is not installed")
def test_ssh_takes_the_key_that_systemd_hands_over_and_asks_nobody(tmp_path: Path) -> None:
    settings = tmp_path / "ssh_config"
    settings.write_text(pages.block(PAGE, "ssh-config"))
    settings.chmod(0o600)
    (name, path) = CREDENTIAL.findall(pages.block(PAGE, "ini"))[0]
    for host in ("h1", "h2"):
        argv = ["ssh", "-G", "-F", str(settings), f"root@{host}"]
        read = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
        keys = [line.split()[1] for line in read if line.startswith("identityfile ")]
        assert keys == [f"/run/credentials/forewarn.service/{name}", path]
        assert "batchmode yes" in read
    assert f"-f {path}\n" in pages.block(PAGE, "console", "ssh-keygen")
