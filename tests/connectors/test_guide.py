"""The guide keeps step with the connector: its scripts, its fields, its variables, its choices."""

import re
import subprocess
import tomllib
import typing
from pathlib import Path

import msgspec
import pytest

from connectors.workshop import Workshop, play, task
from forewarn.connectors.command import CHECK_SECONDS, CommandConnectorSettings
from forewarn.connectors.libvirt.decide import PRESS_EVERY_SECONDS
from forewarn.connectors.libvirt.facts import MARKER_URI
from forewarn.connectors.port import Outcome
from forewarn.connectors.settings import LibvirtHost, LibvirtMigration, LibvirtSettings
from forewarn.control.executor import OnUnknown
from forewarn.server.settings import ConnectorSettings
from forewarn.vocabulary import EventType

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "connectors.md"
TEXT = GUIDE.read_text(encoding="utf-8")
LIBVIRT = (LibvirtSettings, LibvirtHost, LibvirtMigration)
SCRIPTS = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("script", SCRIPTS, ids=range(len(SCRIPTS)))
def test_every_script_of_the_guide_is_well_formed(script: str) -> None:
    checked = subprocess.run(
        ["sh", "-n"], input=script, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_guide_has_its_examples() -> None:
    assert len(SCRIPTS) == 5
    assert all(tool in TEXT for tool in ("qm ", "pvesh", "openstack"))


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


def test_the_guides_libvirt_settings_are_taken() -> None:
    (block,) = [
        text for text in re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL) if "qemu" in text
    ]
    connector = msgspec.convert(tomllib.loads(block)["connector"], ConnectorSettings)
    assert [host.name for host in connector.libvirt.host] == ["h1", "h2"]
    assert all(host.reboot and host.boot_id_command for host in connector.libvirt.host)


def test_the_guide_names_the_marker_and_what_it_quotes() -> None:
    section = TEXT.split("## libvirt")[1].split("\n## ")[0]
    assert MARKER_URI in section
    assert f"again every {PRESS_EVERY_SECONDS:g} s" in section
    names = {each.name for shape in LIBVIRT for each in msgspec.structs.fields(shape)}
    assert {
        name for name in re.findall(r"`(\w+)(?: = [^`]*)?`", section) if "_" in name
    } - names <= {
        "vm_id",
        "on_unknown",
    }
