"""The wheel, and a machine's root folder with an environment that it was installed into."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import filelock
import pytest

import forewarn
from house.tree import ROOT

SOON = {"DPKG_DEB_COMPRESSOR_TYPE": "none"}
"""Packages of tests are as large as they like: xz takes a minute of processor time."""

DEPENDENCIES = sysconfig.get_path("purelib")
"""Those of this environment serve the installed one: no index is asked."""


def built(folder: Path, of: Path = ROOT) -> Path:
    """Build the wheel of a source tree."""
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(argv, cwd=of, check=True, capture_output=True)
    (wheel,) = folder.glob("forewarn-*.whl")
    return wheel


def published(repository: Path) -> dict[str, str]:
    """Put the tree as it stands into a bare repository, which stands for the public one.

    Returns: The environment by which git takes its address for the public one's.
    """
    git = ["git", f"--git-dir={repository}", f"--work-tree={ROOT}"]
    author = ["-c", "user.name=Tests", "-c", "user.email=tests@localhost"]
    subprocess.run(["git", "init", "--quiet", "--bare", str(repository)], check=True)
    subprocess.run([*git, "add", "--all"], cwd=ROOT, check=True)
    subprocess.run([*git, *author, "commit", "--quiet", "--message=The tree"], check=True)
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{repository.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/forewarn/forewarn",
    }


def builder(folder: Path, *others: str) -> dict[str, str]:
    """Put what builds the wheel, and other packages, into a folder of links.

    Returns: The environment by which pip builds with it, asks no index, and installs nothing else.
    """
    for name in ("hatchling", "packaging", "pathspec", "pluggy", "trove_classifiers", *others):
        for path in Path(DEPENDENCIES).glob(f"{name}*"):
            (folder / path.name).symlink_to(path)
    return {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_BUILD_ISOLATION": "0",  # pip's way to say yes
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        "PYTHONPATH": str(folder),
    }


def once(program: str, folders: pytest.TempPathFactory) -> Path:
    """Run one of `packaging/build_*.py`, once for all workers of a run; return its folder."""
    script = ROOT / "packaging" / f"build_{program}.py"
    return _once(program, folders, [sys.executable, str(script)], {**os.environ, **SOON})


def debian(folders: pytest.TempPathFactory, root: Path) -> None:
    """Put a Debian that was just installed into a folder; it was made once for all workers."""
    include = "--include=systemd,systemd-sysv,dbus,python3"
    argv = ["mmdebstrap", "--quiet", "--variant=minbase", "--format=directory", include, "bookworm"]
    made = _once("debian", folders, argv, {**os.environ})
    subprocess.run(["cp", "--archive", made, root], check=True)


def _once(
    name: str, folders: pytest.TempPathFactory, command: list[str], environment: dict[str, str]
) -> Path:
    root = folders.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder = root / name
    with filelock.FileLock(f"{folder}.lock"):
        if not folder.exists():
            building = folder.with_suffix(".building")
            subprocess.run([*command, building], check=True, env=environment)
            building.rename(folder)
    return folder


def take(wheels: Path, *locks: str) -> str:
    """Put the packages of locked requirements into a folder, for Debian 12's Python.

    Returns: Settings of a pip that sees this folder as /wheels, and asks no index.
    """
    argv = [sys.executable, "-m", "pip", "download", "--quiet", f"--dest={wheels}"]
    argv += ["--require-hashes", "--only-binary=:all:", "--python-version=3.11"]
    argv += [f"--requirement={ROOT / 'requirements' / lock}.txt" for lock in locks]
    subprocess.run(argv, check=True, capture_output=True)
    return "[global]\nno-index = true\nfind-links = /wheels\n"


class Machine:
    """A folder that is the root of a machine, with Forewarn in its /opt/forewarn."""

    def __init__(self, root: Path, wheel: Path, python: str) -> None:
        self.root = root
        self.environment = root / "opt" / "forewarn"
        argv = [python, "-m", "venv", "--without-pip", str(self.environment)]
        subprocess.run(argv, check=True)
        (packages,) = self.environment.glob("lib/python*/site-packages")
        shutil.unpack_archive(wheel, packages, "zip")
        (packages / "dependencies.pth").write_text(DEPENDENCIES)
        program = self.environment / "bin" / "forewarn"
        program.write_text(
            f"#!{self.environment}/bin/python\nfrom forewarn.__main__ import run\nrun()\n"
        )
        program.chmod(0o755)
        assert Path(forewarn.__file__).parent != packages / "forewarn"


def namespaces() -> bool:
    """Tell whether a namespace with mounts of its own can be made here."""
    argv = ["unshare", "--user", "--map-root-user", "--mount", "true"]
    return bool(shutil.which(argv[0])) and not subprocess.run(argv, check=False).returncode
