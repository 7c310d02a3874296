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

SCRIPT = (Path(__file__).parent / "scripts" / "fresh_debian.sh").read_text(encoding="utf-8")


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
    told = booted(root, SCRIPT.replace("NOW", NOW).replace("BEFORE", BEFORE))
    assert "\nit is all undone\n" in told, told
