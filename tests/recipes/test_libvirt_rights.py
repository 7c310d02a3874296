"""What the guide `libvirt.md` gives the service to reach its hosts: a drop-in, SSH's settings.

What takes real hosts, and root, is in tests/hosts.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from recipes import pages

PAGE = "libvirt"
CREDENTIAL = re.compile(r"LoadCredential=(\S+):(\S+)")


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
