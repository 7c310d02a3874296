"""A disk with an interpreter and the very agent under test, which a guest of 256 MiB runs.

The interpreter is the one that runs the tests, with what its libraries need of this machine; no
distribution is in it. The disk is read-only, and all guests share it; what an agent remembers is
on a small disk of its own.
"""

import compileall
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from house.tree import ROOT
from machines import image

PACKAGES = ("h11", "msgspec")
"""All that the agent imports beside itself."""
LEFT_OUT = shutil.ignore_patterns(
    "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "pydoc_data",
    "site-packages", "dist-packages", "config-*", "distutils", "unittest", "_tkinter*", "_test*",
    "*.opt-?.pyc", "*.a",
)  # fmt: skip
DISK_MIB = 192
STATE_MIB = 8
MEMORY_MIB = 256
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
FILES = Path(__file__).with_name("agent")
"""What a rule runs, the agent's settings, and what runs the agent."""


def make(folder: Path) -> Path:
    """Make the disk that guests share; return its path."""
    tree = folder / "agent"
    for name in ("proc", "sys", "dev", "tmp", "state", "bin", "etc", "source", "python/bin"):
        (tree / name).mkdir(parents=True)
    compileall.compile_dir(ROOT / "src", quiet=1)  # once here, and not at each start in there
    python = tree / "python" / "bin" / VERSION
    shutil.copy2(sys.executable, python)
    shutil.copytree(
        sysconfig.get_path("stdlib"), tree / "python" / "lib" / VERSION, ignore=LEFT_OUT
    )
    shutil.copytree(ROOT / "src" / "forewarn", tree / "source" / "forewarn")
    for name in PACKAGES:
        shutil.copytree(Path(sysconfig.get_path("purelib")) / name, tree / "source" / name)
    for binary in [python, *tree.rglob("*.so")]:
        for library in needed(binary):
            to = tree / library.relative_to("/")
            if not to.exists():
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(library, to)
    busybox = shutil.which("busybox")
    assert busybox is not None
    for name in ("busybox", "sh", "cat"):
        shutil.copy(busybox, tree / "bin" / name)
    made = {"action": "bin/action", "run": "bin/agent", "agent.toml": "etc/agent.toml"}
    for name, path in made.items():
        text = (FILES / name).read_text().replace("{VERSION}", VERSION)
        (tree / path).write_text(text)
        (tree / path).chmod(0o755)
    return image.formatted(folder / "agent.ext4", DISK_MIB, tree)


def state(folder: Path, name: str) -> Path:
    """Make the disk of one guest's agent; return its path."""
    return image.formatted(folder / f"{name}.ext4", STATE_MIB)


def needed(binary: Path) -> list[Path]:
    """Return the libraries that a binary loads, by the loader's own word."""
    told = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False).stdout
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", told)]


def disks(shared: Path, own: Path) -> str:
    """Return the XML of a guest's disks: `shareable`, as each host opens them in a move."""
    disk = (
        "<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='{}'/>"
        "<target dev='{}' bus='virtio'/>{}</disk>"
    )
    return disk.format(shared, "vda", "<readonly/>") + disk.format(own, "vdb", "<shareable/>")
