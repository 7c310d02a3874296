"""The wheel installs itself as systemd services, below a root folder, and is undone."""

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from end_to_end import installed
from end_to_end.installed import Machine
from forewarn.cli.exits import ExitStatus
from house import tree
from house.tree import ROOT

PACKAGING = ROOT / "packaging"
NOT_SHIPPED = {"Containerfile", "compose.yaml", "haproxy.cfg"}
"""Of whole deployments: to read in the repository."""

SYSTEM_PYTHON = installed.system_python()
UNITS = "/etc/systemd/system"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed.built(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    if SYSTEM_PYTHON is None:
        pytest.skip("there is no Python outside home folders")
    return Machine(tmp_path_factory.mktemp("root"), wheel, SYSTEM_PYTHON)


@pytest.fixture
def machine(environment: Machine) -> Machine:
    environment.clear()
    return environment


def shipped(wheel: Path, folder: str) -> dict[str, bytes]:
    """Return what the wheel has below a folder, by the path below it."""
    with zipfile.ZipFile(wheel) as opened:
        return {
            name.partition(folder)[2]: opened.read(name)
            for name in opened.namelist()
            if folder in name
        }


def test_the_wheel_has_every_unit_setting_and_rule_as_it_stands(wheel: Path) -> None:
    folders = (PACKAGING, PACKAGING / "schemas")
    there = {
        str(path.relative_to(PACKAGING)): path.read_bytes()
        for path in tree.committed_files()
        if path.parent in folders and path.name not in NOT_SHIPPED and path.suffix != ".py"
    }
    assert shipped(wheel, "forewarn/packaging/") == there


def test_the_wheel_has_the_pages_templates_its_files_and_their_licence(wheel: Path) -> None:
    folder = ROOT / "src" / "forewarn" / "server" / "page"
    there = {
        f"{part}/{path.relative_to(folder / part)}": path.read_bytes()
        for part in ("templates", "static")
        for path in (folder / part).rglob("*")
        if path.is_file()
    }
    assert "static/htmx/LICENSE" in there
    found = shipped(wheel, "forewarn/server/page/")
    assert {name: body for name, body in found.items() if not name.endswith(".py")} == there


def test_the_image_is_built_of_what_its_context_has(tmp_path: Path) -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = [ROOT / line[1:] for line in lines if line.startswith("!")]
    for path in tree.committed_files():
        if any(path == each or each in path.parents for each in kept):
            to = tmp_path / path.relative_to(ROOT)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, to)
    assert installed.built(tmp_path / "dist", of=tmp_path).suffix == ".whl"


def test_the_wheel_has_the_manual_and_the_completions_where_they_are_looked_for(
    wheel: Path,
) -> None:
    pages = {f"man/man{p.name[-1]}/{p.name}": p.read_bytes() for p in (PACKAGING / "man").iterdir()}
    folders = {
        "forewarn": "bash-completion/completions/",
        "_forewarn": "zsh/site-functions/",
        "forewarn.fish": "fish/vendor_completions.d/",
    }
    scripts = {
        folders[path.name] + path.name: path.read_bytes()
        for path in (PACKAGING / "completion").iterdir()
    }
    assert shipped(wheel, ".data/data/share/") == pages | scripts


def test_both_are_installed_for_the_environment_that_was_asked(machine: Machine) -> None:
    machine.run("serve", "--install")
    machine.run("agent", "install")
    files = machine.files()
    assert "\nExecStart=/opt/forewarn/bin/forewarn serve\n" in files[f"{UNITS}/forewarn.service"]
    agent = files[f"{UNITS}/forewarn-agent.service"]
    assert "\nExecStart=/opt/forewarn/bin/forewarn agent run\n" in agent
    for name in ("forewarn.toml", "agent.toml"):
        assert files[f"/etc/forewarn/{name}"] == (PACKAGING / name).read_text()
        assert machine.path(f"/etc/forewarn/{name}").stat().st_mode & 0o777 == 0o644
    assert [line.split(":")[0] for line in files["/etc/passwd"].splitlines()] == ["forewarn"]
    assert [line.split(":")[0] for line in files["/etc/group"].splitlines()] == ["forewarn"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.skipif(not installed.namespaces(), reason="no namespace can be made here")
def test_systemd_takes_the_units_and_finds_their_programs(machine: Machine) -> None:
    machine.run("serve", "--install")
    machine.run("agent", "install")
    machine.run("relay", "install")
    units = "forewarn.service forewarn.socket forewarn-agent.service"
    units += " forewarn-relay.service forewarn-relay.socket"
    checked = machine.inside(f"systemd-analyze verify --man=no {units}")
    told = [line for line in checked.stderr.splitlines() if "forewarn" in line]
    assert (checked.returncode, told) == (0, [])


def test_a_second_time_changes_nothing_and_keeps_changed_settings(machine: Machine) -> None:
    machine.run("agent", "install")
    settings = machine.path("/etc/forewarn/agent.toml")
    settings.write_text("margin_seconds = 7\n")
    before = machine.files()
    lines = machine.run("agent", "install")
    assert machine.files() == before
    assert {line.split()[0] for line in lines} == {"keep"}


def test_an_upgrade_replaces_the_units_that_it_wrote_and_no_other(machine: Machine) -> None:
    machine.run("agent", "install")
    unit = machine.path(f"{UNITS}/forewarn-agent.service")
    written = unit.read_text()
    unit.write_text(written.replace("WatchdogSec=60", "WatchdogSec=61"))
    machine.run("agent", "install")
    assert unit.read_text() == written
    own = "[Service]\nExecStart=/bin/true\n"
    unit.write_text(own)
    machine.run("agent", "install", status=ExitStatus.REFUSED)
    machine.run("agent", "install", "--uninstall", "--purge", status=ExitStatus.REFUSED)
    assert unit.read_text() == own


def test_a_dry_run_changes_nothing_and_shows_the_steps_that_are_done_then(
    machine: Machine,
) -> None:
    before = machine.files()
    shown = machine.run("serve", "--install", "--dry-run")
    assert machine.files() == before
    assert machine.run("serve", "--install") == shown
    before = machine.files()
    shown = machine.run("serve", "--uninstall", "--purge", "--dry-run")
    assert machine.files() == before
    assert machine.run("serve", "--uninstall", "--purge") == shown


@pytest.mark.skipif(shutil.which("systemctl") is None, reason="systemd is not installed")
def test_an_uninstallation_leaves_settings_and_state_and_a_purge_nothing(
    machine: Machine,
) -> None:
    machine.run("serve", "--install")
    machine.run("agent", "install")
    state = machine.path("/var/lib/private/forewarn/forewarn.db")
    state.parent.mkdir(parents=True)
    state.touch()
    machine.path("/var/lib/forewarn").symlink_to("private/forewarn")
    drop_in = machine.path(f"{UNITS}/forewarn.service.d/override.conf")
    drop_in.parent.mkdir()
    drop_in.touch()
    enabled = machine.path(f"{UNITS}/multi-user.target.wants/forewarn.service")
    enabled.parent.mkdir()
    enabled.symlink_to(f"{UNITS}/forewarn.service")
    kept = ["/etc/forewarn/forewarn.toml", "/var/lib/private/forewarn/forewarn.db"]

    machine.run("serve", "--uninstall")
    files = machine.files()
    assert not enabled.is_symlink()
    assert not {f"{UNITS}/forewarn.service", f"{UNITS}/forewarn.socket"} & set(files)
    assert {*kept, f"{UNITS}/forewarn.service.d/override.conf"} <= set(files)
    assert "forewarn:" in files["/etc/passwd"]

    machine.run("serve", "--uninstall", "--purge")
    files = machine.files()
    others = {"/etc/forewarn/agent.toml", f"{UNITS}/forewarn-agent.service"}
    assert {path for path in files if "forewarn" in path} == others
    assert (files["/etc/passwd"], files["/etc/group"]) == ("", "")
    assert not os.path.lexists(machine.path("/var/lib/forewarn"))

    machine.run("agent", "install", "--uninstall", "--purge")
    assert not [path for path in machine.files() if "forewarn" in path]
    assert not machine.path("/etc/forewarn").exists()


@pytest.mark.skipif(not installed.namespaces(), reason="no namespace can be made here")
def test_without_root_nothing_but_a_dry_run_is_done(machine: Machine) -> None:
    program = [str(machine.environment / "bin" / "forewarn"), "agent", "install"]
    for more, status in (([], ExitStatus.REFUSED), (["--purge"], ExitStatus.USAGE)):
        argv = ["unshare", "--user", *program, *more]  # a user whom nobody knows
        ran = subprocess.run(argv, capture_output=True, text=True, check=False, cwd="/")
        assert (ran.returncode, ran.stdout) == (status, "")
        assert more or "--dry-run" in ran.stderr  # what may be done without root
