"""The container image: built, and run as the guide `container.md` says, block by block."""

import json
import os
import resource
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import forked
from end_to_end import installed
from house.tree import ROOT
from recipes import pages

PAGE = "container"
TOOLS = ("podman", "runc", "mmdebstrap", "curl", "jq")
BASE = "docker.io/library/debian:12-slim"
"""No registry is asked: this image is made here, of what Debian's own has."""

BOOTSTRAP = [
    "mmdebstrap",
    "--quiet",
    "--variant=minbase",
    "--include=ca-certificates,python3-venv,tzdata",  # the build has less to do
    *(f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("doc", "man", "locale")),
    "bookworm",
]
FLEET = '[[machine]]\nname = "web-0"\naddress = "10.0.0.10"\n'

SCRIPT = (Path(__file__).parent / "scripts" / "container.sh").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What lets podman keep all that it makes in a folder, with the rights that there are here."""
    folder = tmp_path_factory.mktemp("podman")
    places = {name: str(folder / name) for name in ("runroot", "graphroot")}
    written = [f'{name} = "{place}"' for name, place in places.items()]
    (folder / "storage.conf").write_text("\n".join(["[storage]", 'driver = "overlay"', *written]))
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    (folder / "containers.conf").write_text(
        f'[containers]\ndefault_ulimits = ["nofile={files}:{files}", "nproc=4096:4096"]\n'
        '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nlock_type = "file"\n'
        f'events_logger = "file"\ntmp_dir = "{folder}/tmp"\n'
    )
    files_of = {"CONTAINERS_CONF": "containers.conf", "CONTAINERS_STORAGE_CONF": "storage.conf"}
    return {**os.environ, **{name: str(folder / path) for name, path in files_of.items()}}


@pytest.fixture(scope="module")
def image(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Build the image on a fresh Debian; return what podman knows of it."""
    folder = tmp_path_factory.mktemp("build")
    making = subprocess.Popen([*BOOTSTRAP, str(folder / "base.tar")])
    (folder / "pip.conf").write_text(installed.take(folder / "wheels", "server", "package"))
    assert making.wait() == 0
    subprocess.run(["podman", "import", folder / "base.tar", BASE], env=environment, check=True)
    here = f"podman build --layers=false --network host --volume {folder}/wheels:/wheels:ro"
    here += f" --volume {folder}/pip.conf:/etc/pip.conf:ro"
    text = pages.placed(pages.block(PAGE, "sh", "podman build"), {"podman build": here})
    subprocess.run(["sh", "-ec", text], cwd=ROOT, env=environment, check=True)
    told = subprocess.check_output(["podman", "inspect", "forewarn"], env=environment)
    (found,) = json.loads(told)
    return dict(found)


pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, TOOLS)),
        reason=f"root builds and runs the image, with {', '.join(TOOLS)}",
    ),
]


@pytest.mark.usefixtures("image")
def test_every_block_of_the_page_is_run(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "forewarn.toml").write_text(pages.block(PAGE, "toml"))
    build, try_it, operate, upgrade, production, emulator = pages.blocks(PAGE, "sh")
    assert "podman build" in build
    places = {"--volume /etc/forewarn:": f"--volume {tmp_path}/etc:"}
    blocks = {
        "@try_it@": try_it,
        "@operate@": operate,
        "@upgrade@": f"{upgrade}{try_it}",
        "@production@": pages.placed(production, places),
        "@emulator@": emulator,
    }
    script = pages.placed(SCRIPT, blocks)
    argv = ["unshare", "--net", "sh", "-c", script]
    ran = forked.completed(argv, cwd=tmp_path, env=environment)
    assert "all of the page was run\n" in ran.stdout, ran.stdout + ran.stderr
