"""A fresh Debian with its own systemd: our packages are installed, upgraded and purged."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from end_to_end import installed
from forewarn.version import __version__

TOOLS = ("mmdebstrap", "dpkg-buildpackage", "dh", "systemd-nspawn")
BEFORE, NOW = "0.0.1", __version__

UNIT = """
[Service]
Type=oneshot
ExecStart=/bin/sh /script
StandardOutput=file:/told
StandardError=file:/told
"""

SCRIPT = f"""
end() {{
    journalctl --no-pager -n 40 -u forewarn -u forewarn-agent
    systemctl --no-block --force exit
}}
trap end EXIT
set -ex
export DEBIAN_FRONTEND=noninteractive
install() {{ apt-get install -qq -y "$@"; }}

install /debs/forewarn_{BEFORE}.deb
systemctl is-active forewarn
systemctl is-enabled forewarn
test "$(forewarn --version)" = "forewarn {NOW}"
for part in man/man1/forewarn.1.gz man/man5/forewarn.toml.5.gz \
    bash-completion/completions/forewarn zsh/vendor-completions/_forewarn \
    fish/vendor_completions.d/forewarn.fish forewarn/schemas/service.json; do
    test -e /usr/share/$part
done
echo '{{"machine": [{{"name": "web-0"}}]}}' | forewarn fleet apply -
echo '# a change of ours' >>/etc/forewarn/forewarn.toml
before=$(systemctl show -P MainPID forewarn)

install /debs/forewarn_{NOW}.deb
systemctl is-active forewarn
test "$(systemctl show -P MainPID forewarn)" != "$before"
forewarn fleet list --json | grep web-0
grep 'a change of ours' /etc/forewarn/forewarn.toml

apt-get remove -qq -y forewarn
if systemctl is-active forewarn; then false; fi
test -e /var/lib/forewarn/forewarn.db
install /debs/forewarn_{NOW}.deb
forewarn fleet list --json | grep web-0
apt-get purge -qq -y forewarn
if ls -d /opt/forewarn /etc/forewarn /var/lib/forewarn* /var/lib/private/forewarn*; then false; fi

install /debs/forewarn-agent_{NOW}.deb
systemctl is-enabled forewarn-agent
systemctl cat forewarn-agent | grep ExecStart=/usr/bin/forewarn
install /debs/forewarn_{NOW}.deb
if dpkg -s forewarn-agent | grep 'Status: install ok installed'; then false; fi
systemctl is-active forewarn
forewarn agent check --config /etc/forewarn/agent.toml
apt-get purge -qq -y forewarn forewarn-agent
if ls -d /opt/forewarn /etc/forewarn /var/lib/forewarn* /var/lib/private/forewarn*; then false; fi
echo it is all undone
"""


def lowered(package: Path, to: Path) -> None:
    """Make the same package of the version before."""
    folder = to.parent / "unpacked"
    subprocess.run(["dpkg-deb", "--raw-extract", package, folder], check=True)
    control = folder / "DEBIAN" / "control"
    control.write_text(control.read_text().replace(f"Version: {NOW}", f"Version: {BEFORE}"))
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "--build", folder, to], check=True)
    shutil.rmtree(folder)


pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, TOOLS)),
        reason=f"root makes a Debian and boots it, with {', '.join(TOOLS)}",
    ),
]


@pytest.fixture
def root(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the root of a Debian that was just installed."""
    installed.debian(tmp_path_factory, tmp_path / "root")
    return tmp_path / "root"


def booted(root: Path, script: str) -> str:
    """Boot it without a network, and return what a script printed in it."""
    (root / "script").write_text(script)
    units = root / "etc" / "systemd" / "system"
    (units / "try.target").write_text("[Unit]\nRequires=try.service\n")
    (units / "try.service").write_text(UNIT)
    argv = ["systemd-nspawn", "--quiet", f"--directory={root}", "--register=no", "--keep-unit"]
    argv += ["--private-network", "--link-journal=no", "--console=pipe", "--boot"]
    argv += ["--", "--unit=try.target"]
    subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return (root / "told").read_text()


def test_the_packages_are_installed_started_upgraded_and_purged(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    debs = root / "debs"
    debs.mkdir()
    for package in installed.once("deb", tmp_path_factory).glob("*.deb"):
        shutil.copy(package, debs / f"{package.name.rpartition('_')[0]}.deb")
    lowered(debs / f"forewarn_{NOW}.deb", debs / f"forewarn_{BEFORE}.deb")
    told = booted(root, SCRIPT)
    assert "\nit is all undone\n" in told, told
