"""Which steps install a component as a systemd service, and which remove it."""

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path, PurePosixPath

import pytest

from forewarn.cli import installation
from forewarn.cli.exits import ExitStatus
from forewarn.cli.installation import (
    AGENT,
    RELAY,
    SERVICE,
    Component,
    Environment,
    InstallStep,
    StepKind,
    Surroundings,
)

COMPONENTS = [SERVICE, AGENT, RELAY]
OPT = Environment("/opt/forewarn/bin/forewarn", ("/opt/forewarn", "/usr"))
ETC = PurePosixPath("/etc/forewarn")
UNITS = PurePosixPath("/etc/systemd/system")
MINE = "[Service]\nExecStart=/bin/mine\n"


def shipped(component: Component) -> dict[str, str]:
    names = (*component.units, component.settings)
    return {name: installation.packaged(name) for name in names}


def install(
    component: Component, around: Surroundings, environment: Environment = OPT
) -> list[InstallStep]:
    return installation.install_steps(component, shipped(component), environment, around)


def uninstall(
    component: Component, around: Surroundings, *, purge: bool = False
) -> list[InstallStep]:
    return installation.uninstall_steps(component, shipped(component), around, purge=purge)


def written(steps: list[InstallStep]) -> dict[str, str]:
    return {step.target: step.text for step in steps if step.kind is StepKind.WRITE_FILE}


def after(component: Component, steps: list[InstallStep]) -> Surroundings:
    """Return what there is once the steps of an installation were carried out on nothing."""
    files = written(steps)
    folders = {PurePosixPath(step.target) for step in steps if step.kind is StepKind.MAKE_FOLDER}
    return Surroundings(
        units={name: files[str(UNITS / name)] for name in component.units},
        paths=frozenset({*map(PurePosixPath, files), *folders}),
        users={
            step.target: installation.USER_COMMENT
            for step in steps
            if step.kind is StepKind.ADD_USER
        },
    )


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_unit_and_the_sample_settings_are_written_where_there_is_nothing(
    component: Component,
) -> None:
    files = written(install(component, Surroundings()))
    assert set(files) == {
        *(str(UNITS / name) for name in component.units),
        str(ETC / component.settings),
    }
    assert files[str(ETC / component.settings)] == shipped(component)[component.settings]


@pytest.mark.parametrize("component", COMPONENTS)
def test_the_unit_runs_the_program_of_the_environment_and_differs_in_nothing_else(
    component: Component,
) -> None:
    name = component.units[0]
    text = written(install(component, Surroundings()))[str(UNITS / name)]
    (command,) = re.findall(r"(?m)^ExecStart=(.*)$", text)
    (packaged,) = re.findall(r"(?m)^ExecStart=(.*)$", shipped(component)[name])
    assert command.split()[0] == OPT.program
    assert command.split()[1:] == packaged.split()[1:]
    assert text.replace(command, packaged).endswith(shipped(component)[name])


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("/opt/f 1/forewarn", '"/opt/f 1/forewarn"'),
        ("/opt/100%/forewarn", "/opt/100%%/forewarn"),
        ('/opt/a"b\\c/forewarn', r'"/opt/a\"b\\c/forewarn"'),
    ],
)
def test_a_path_with_what_systemd_would_read_is_written_so_that_it_reads_the_path(
    program: str, told: str
) -> None:
    text = written(install(AGENT, Surroundings(), OPT._replace(program=program)))
    assert f"ExecStart={told} agent run\n" in text[str(UNITS / AGENT.units[0])]


def test_the_user_is_the_units_and_the_agent_which_runs_as_root_has_none() -> None:
    assert InstallStep(StepKind.ADD_USER, "forewarn") in install(SERVICE, Surroundings())
    assert not [s for s in install(AGENT, Surroundings()) if s.kind is StepKind.ADD_USER]
    there = Surroundings(users={"forewarn": "an operator made it"})
    assert not [s for s in install(SERVICE, there) if s.kind is StepKind.ADD_USER]


@pytest.mark.parametrize("component", COMPONENTS)
def test_settings_that_are_there_are_never_written(component: Component) -> None:
    around = Surroundings(paths=frozenset({ETC / component.settings}))
    steps = install(component, around)
    assert str(ETC / component.settings) not in written(steps)
    assert InstallStep(StepKind.KEEP, str(ETC / component.settings)) in steps


@pytest.mark.parametrize("component", COMPONENTS)
def test_the_same_installation_a_second_time_changes_nothing(component: Component) -> None:
    around = after(component, install(component, Surroundings()))._replace(booted=True)
    assert {step.kind for step in install(component, around)} == {StepKind.KEEP}


@pytest.mark.parametrize("component", COMPONENTS)
def test_an_installation_from_another_environment_writes_only_the_service(
    component: Component,
) -> None:
    around = after(component, install(component, Surroundings()))._replace(booted=True)
    steps = install(component, around, OPT._replace(program="/opt/newer/bin/forewarn"))
    assert set(written(steps)) == {str(UNITS / component.units[0])}
    assert steps[-1] == InstallStep(StepKind.SYSTEMCTL, "daemon-reload")


def test_systemd_is_told_last_and_only_where_it_runs() -> None:
    assert install(SERVICE, Surroundings(booted=True))[-1] == InstallStep(
        StepKind.SYSTEMCTL, "daemon-reload"
    )
    assert not [s for s in install(SERVICE, Surroundings()) if s.kind is StepKind.SYSTEMCTL]


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_unit_that_somebody_else_wrote_is_neither_replaced_nor_removed(
    component: Component,
) -> None:
    for name in component.units:
        around = Surroundings(units={name: MINE})
        for act in (install, uninstall):
            with pytest.raises(installation.Refused, match=re.escape(str(UNITS / name))):
                act(component, around)


@pytest.mark.parametrize(
    ("component", "folder", "taken"),
    [
        (SERVICE, "/home/ann/.local/share/pipx/venvs/forewarn", False),
        (SERVICE, "/root/.local/share/uv/python/cpython-3.13", False),
        (SERVICE, "/tmp/venv", False),
        (SERVICE, "/homes/forewarn", True),
        (AGENT, "/root/.local/share/uv/tools/forewarn", True),
        (AGENT, "/var/tmp/venv", False),
    ],
)
def test_an_environment_that_the_unit_cannot_read_is_refused(
    component: Component, folder: str, *, taken: bool
) -> None:
    for environment in (
        OPT._replace(program=f"{folder}/bin/forewarn"),
        OPT._replace(folders=(*OPT.folders, folder)),
    ):
        found = installation.obstacle(component, shipped(component), environment)
        assert (folder not in found) is taken
        assert bool(found) is not taken


def test_a_folder_that_only_root_may_enter_is_refused_for_the_units_user_and_not_for_root() -> None:
    environment = OPT._replace(closed=("/opt/secret",))
    assert "/opt/secret" in installation.obstacle(SERVICE, shipped(SERVICE), environment)
    assert not installation.obstacle(AGENT, shipped(AGENT), environment)


def test_a_dry_run_shows_its_steps_also_where_the_unit_could_not_run_the_program(
    tmp_path: Path,
) -> None:
    with tempfile.TemporaryDirectory(dir=installation.TEMPORARY[1]) as hidden:
        venv.create(hidden, symlinks=True)
        program = Path(hidden, "bin", "forewarn")
        program.write_text("")
        program.chmod(0o755)

        def install(*more: str) -> subprocess.CompletedProcess[str]:
            python = [f"{hidden}/bin/python", "-m", "forewarn", "agent", "install"]
            return subprocess.run(
                [*python, "--root", str(tmp_path), *more],
                env={"PYTHONPATH": os.pathsep.join(sys.path)},
                capture_output=True,
                text=True,
                check=False,
            )

        refused, shown = install(), install("--dry-run")
    assert (refused.returncode, refused.stdout) == (ExitStatus.REFUSED, "")
    assert shown.returncode == ExitStatus.OK
    assert str(UNITS / AGENT.units[0]) in shown.stdout
    assert hidden in shown.stderr
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("component", COMPONENTS)
def test_an_uninstallation_removes_the_units_and_keeps_what_people_and_the_service_wrote(
    component: Component,
) -> None:
    around = after(component, install(component, Surroundings()))
    steps = uninstall(component, around)
    removed = {PurePosixPath(step.target) for step in steps if step.kind is StepKind.REMOVE_PATH}
    assert removed == {UNITS / name for name in component.units}
    assert InstallStep(StepKind.KEEP, str(ETC / component.settings)) in steps
    assert not [s for s in steps if s.kind in {StepKind.REMOVE_USER, StepKind.REMOVE_EMPTY}]


def test_an_uninstallation_stops_the_socket_before_the_service_and_tells_systemd_at_the_end() -> (
    None
):
    around = after(SERVICE, install(SERVICE, Surroundings()))
    steps = uninstall(SERVICE, around._replace(booted=True))
    stop = InstallStep(StepKind.SYSTEMCTL, "disable --now forewarn.socket forewarn.service")
    assert (steps[0], steps[-1]) == (stop, InstallStep(StepKind.SYSTEMCTL, "daemon-reload"))
    (only,) = [s for s in uninstall(SERVICE, around) if s.kind is StepKind.SYSTEMCTL]
    assert only == InstallStep(StepKind.SYSTEMCTL, "disable forewarn.socket forewarn.service")


def test_a_purge_removes_settings_drop_ins_state_and_the_user_that_was_added() -> None:
    own = {
        ETC / "forewarn.toml",
        UNITS / "forewarn.service.d",
        PurePosixPath("/var/lib/forewarn"),
        PurePosixPath("/var/lib/private/forewarn"),
    }
    others = {ETC / "agent.toml", ETC}
    around = Surroundings(
        paths=frozenset(own | others), users={"forewarn": installation.USER_COMMENT}
    )
    steps = uninstall(SERVICE, around, purge=True)
    assert {
        PurePosixPath(step.target) for step in steps if step.kind is StepKind.REMOVE_PATH
    } == own
    assert InstallStep(StepKind.REMOVE_EMPTY, str(ETC)) in steps
    assert steps[-1] == InstallStep(StepKind.REMOVE_USER, "forewarn")
    made_by_hand = around._replace(users={"forewarn": "an operator made it"})
    assert InstallStep(StepKind.REMOVE_USER, "forewarn") not in uninstall(
        SERVICE, made_by_hand, purge=True
    )


def test_the_paths_to_look_at_are_those_that_a_purge_may_remove() -> None:
    for component in COMPONENTS:
        looked_at = frozenset(installation.paths_of(component, shipped(component)))
        steps = uninstall(component, Surroundings(paths=looked_at), purge=True)
        removed = {
            PurePosixPath(step.target) for step in steps if step.kind is StepKind.REMOVE_PATH
        }
        assert removed == looked_at - {ETC, UNITS}


def test_where_nothing_is_installed_there_is_nothing_to_remove() -> None:
    for component in COMPONENTS:
        assert uninstall(component, Surroundings(booted=True), purge=True) == []


@pytest.mark.parametrize("kind", StepKind)
def test_each_step_is_shown_by_what_it_touches(kind: StepKind) -> None:
    assert str(InstallStep(kind, "/etc/x")).endswith(" /etc/x")
