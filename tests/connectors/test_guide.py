"""The guide keeps step with the connector: its scripts, its fields, its variables, its choices."""

import os
import re
import subprocess
import typing
from pathlib import Path

import msgspec
import pytest

from connectors.workshop import Workshop, play, task
from forewarn.connectors.command import CHECK_SECONDS, CommandConnector, CommandConnectorSettings
from forewarn.connectors.port import Outcome
from forewarn.control.executor import OnUnknown
from forewarn.vocabulary import EventType

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "connectors.md"
TEXT = GUIDE.read_text(encoding="utf-8")
SCRIPTS = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("script", SCRIPTS, ids=range(len(SCRIPTS)))
def test_every_script_of_the_guide_is_well_formed(script: str) -> None:
    checked = subprocess.run(
        ["sh", "-n"], input=script, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_guide_has_its_examples() -> None:
    assert len(SCRIPTS) == 7
    assert all(tool in TEXT for tool in ("virsh", "qm ", "pvesh", "openstack"))


def test_the_guide_names_every_field_and_variable_that_a_program_gets(shop: Workshop) -> None:
    connector = shop.connector("env | grep ^FOREWARN_ > variables")
    assert play(connector.perform(task())) == Outcome(succeeded=True)
    given = {line.partition("=")[0] for line in shop.lines("variables")}
    rows = dict(re.findall(r"^\| `(\w+)` \| `(FOREWARN_\w+)` \|", TEXT, re.MULTILINE))
    assert set(rows.values()) == given
    assert {f"FOREWARN_{field.upper()}" for field in rows} == given


def test_the_guide_names_every_event_type_and_choice() -> None:
    assert set(re.findall(r"^\| `([A-Z]\w+)` \|", TEXT, re.MULTILINE)) == set(EventType)
    assert set(re.findall(r"^- `(\w+)`[,:]", TEXT, re.MULTILINE)) >= {
        *typing.get_args(OnUnknown),
        "simulated",
    }
    assert f"{CHECK_SECONDS:g} seconds" in TEXT
    for field in msgspec.structs.fields(CommandConnectorSettings):
        assert field.name in TEXT, field.name


@pytest.mark.parametrize(
    ("event_type", "live_migration"),
    [
        (EventType.FREEZE, True),
        (EventType.REBOOT, False),
        (EventType.REDEPLOY, False),
        (EventType.PREEMPT, False),
    ],
)
def test_the_libvirt_example_does_as_it_says(
    shop: Workshop, event_type: EventType, live_migration: bool
) -> None:
    shop.program('echo "$@" >> virsh.log; case "$*" in *domstate*) echo shut off;; esac', "virsh")
    shop.program("echo h7", "choose-host")
    script = next(text for text in SCRIPTS if "qemu+ssh" in text)
    place = shop.folder / "maintain"
    place.write_text(script, encoding="utf-8")
    place.chmod(0o755)
    environment = {"PATH": f"{shop.folder}:{os.environ['PATH']}"}
    connector = CommandConnector(
        CommandConnectorSettings(program=("maintain",)), shop.state, environment
    )
    outcome = play(connector.perform(task(event_type=event_type, live_migration=live_migration)))
    moved = live_migration or event_type is EventType.REDEPLOY
    assert outcome == Outcome(
        succeeded=True,
        message="moved to h7" if moved else "",
        hosts={"web-0": "h7"} if moved else {},
    )
    wanted = {EventType.REBOOT: "start web-0", EventType.PREEMPT: "undefine"}
    expected = "qemu+ssh://h7/system" if moved else wanted[event_type]
    assert any(expected in line for line in shop.lines("virsh.log"))


def test_the_libvirt_check_is_sure_of_deletions_only(shop: Workshop) -> None:
    shop.program("echo web-1", "virsh")
    script = next(text for text in SCRIPTS if "--all --name" in text)

    def answers(event_type: str, machine: str) -> tuple[int, str]:
        variables = {
            "PATH": f"{shop.folder}:{os.environ['PATH']}",
            "FOREWARN_EVENT_TYPE": event_type,
            "FOREWARN_MACHINE": machine,
            "FOREWARN_HOST": "h1",
        }
        asked = ["sh", "-c", script]
        answer = subprocess.run(asked, env=variables, capture_output=True, text=True, check=False)
        return answer.returncode, answer.stdout.strip()

    assert answers("Preempt", "web-0") == (0, "")
    assert answers("Preempt", "web-1") == (0, '{"done": false}')
    assert answers("Reboot", "web-0") == (1, "")
