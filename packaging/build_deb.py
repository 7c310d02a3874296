"""Builds the Debian packages `forewarn` and `forewarn-agent`: `make deb`.

Needs Debian's dpkg-dev, debhelper, go-md2man and python3-venv. The packages are for the Debian, or
Ubuntu, that they are built on: they use its Python.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from email.utils import formatdate
from pathlib import Path
from typing import Final

from forewarn.version import __version__

ROOT: Final = Path(__file__).resolve().parents[1]
PARTS: Final = ("packaging", "requirements")
TOOLS: Final = {"dpkg-buildpackage": "dpkg-dev", "dh": "debhelper", "go-md2man": "go-md2man"}
WRITERS: Final = ("write_manual.py", "write_schemas.py")

CHANGELOG: Final = """forewarn ({version}) unstable; urgency=medium

  * https://github.com/forewarn/forewarn/blob/main/CHANGELOG.md

 -- Forewarn's developers <forewarn@users.noreply.github.com>  {date}
"""


def build(to: Path, version: str) -> list[Path]:
    """Build both packages of this checkout; return their files."""
    missing = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if missing:
        sys.exit(f"packages are missing: apt-get install {' '.join(missing)} python3-venv")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "forewarn"
        for part in PARTS:
            shutil.copytree(ROOT / part, tree / part)
        for writer in WRITERS:
            _run([sys.executable, f"packaging/{writer}", str(tree / "packaging")], ROOT)
        shutil.move(tree / "packaging" / "debian", tree / "debian")
        stamp = formatdate(int(os.environ.get("SOURCE_DATE_EPOCH") or _committed_at()))
        text = CHANGELOG.format(version=debian_version(version), date=stamp)
        (tree / "debian" / "changelog").write_text(text, encoding="utf-8")
        _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tree)], ROOT)
        # Build dependencies are checked above: not every machine that has them is Debian's.
        _run(["dpkg-buildpackage", "--build=binary", "--no-sign", "--no-check-builddeps"], tree)
        to.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy(made, to)) for made in sorted(Path(folder).glob("*.deb"))]


def debian_version(version: str) -> str:
    """Return a version of Python's as dpkg sorts it: `1.0rc1` comes before `1.0`."""
    others = version.replace(".dev", "~~dev").replace(".post", "+post")
    return re.sub("(a|b|rc)(?=[0-9])", r"~\1", others)


def _committed_at() -> str:
    if shutil.which("git") is None:
        return "0"
    argv = ["git", "log", "-1", "--format=%ct"]
    found = subprocess.run(  # noqa: S603 - our own words
        argv, cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "0"


def _run(argv: list[str], folder: Path) -> None:
    ran = subprocess.run(  # noqa: S603 - our own words
        argv, cwd=folder, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        sys.exit(f"{argv[0]} failed:\n{ran.stdout[-4000:]}\n{ran.stderr[-4000:]}")


if __name__ == "__main__":
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist"
    for package in build(out, sys.argv[2] if len(sys.argv) > 2 else __version__):
        sys.stdout.write(f"{package}  {package.stat().st_size / 1e6:.1f} MB\n")
