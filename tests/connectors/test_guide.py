"""The guide keeps step with the connector: its scripts, its fields, its variables, its choices."""

import os
import re
import shutil
import typing
from pathlib import Path

import msgspec
import pytest

from connectors.workshop import Workshop, play, task
from forewarn.connectors.command import CHECK_SECONDS, CommandConnector, CommandConnectorSettings
from forewarn.connectors.libvirt.decide import PRESS_EVERY_SECONDS
from forewarn.connectors.libvirt.facts import MARKER_URI
from forewarn.connectors.port import Outcome
from forewarn.connectors.settings import LibvirtHost, LibvirtMigration, LibvirtSettings
from forewarn.control.executor import OnUnknown
from forewarn.vocabulary import EventType

DOCS = Path(__file__).parents[2] / "docs"
TEXT, OF_LIBVIRT = (
    (DOCS / "guides" / f"{page}.md").read_text(encoding="utf-8")
    for page in ("connectors", "libvirt-connector")
)
PVESH = """
case "$1 $2" in
"get /cluster/resources") echo '[{"name": "web-0", "node": "n1", "vmid": 100}]' ;;
get*/current) echo '{"status": "stopped"}' ;;
get*) exit 1 ;;
*) echo "$2" >> log; echo '"UPID:1"' ;;
esac
"""
"""A cluster that carries out, but does not say how its tasks are."""
LIBVIRT = (LibvirtSettings, LibvirtHost, LibvirtMigration)


def test_the_guide_names_every_field_and_variable_that_a_program_gets(shop: Workshop) -> None:
    connector = shop.connector("env | grep ^FOREWARN_ > variables")
    assert play(connector.perform(task())) == Outcome(succeeded=True)
    given = {line.partition("=")[0] for line in shop.lines("variables")}
    rows = dict(re.findall(r"^\| `(\w+)` \| `(FOREWARN_\w+)` \|", TEXT, re.MULTILINE))
    assert set(rows.values()) == given
    assert {f"FOREWARN_{field.upper()}" for field in rows} == given


@pytest.mark.skipif(shutil.which("jq") is None, reason="the example needs jq")
def test_the_example_for_proxmox_leaves_no_machine_paused_or_off(shop: Workshop) -> None:
    shop.program(PVESH, "pvesh")
    path = f"{shop.folder}:{os.environ['PATH']}"
    program = ("sh", str(DOCS / "examples" / "proxmox.sh"))
    settings = CommandConnectorSettings(program=program)
    proxmox = CommandConnector(settings, shop.state, {**os.environ, "PATH": path})
    frozen = play(proxmox.perform(task(event_type=EventType.FREEZE)))
    assert isinstance(frozen, Outcome)
    assert not frozen.succeeded
    play(proxmox.perform(task(operation="2.1", unforeseen=True)))
    asked = [line.rpartition("/")[2] for line in shop.lines("log")]
    assert asked == ["suspend", "resume", "start"]


def test_the_guide_names_every_event_type_and_choice() -> None:
    assert set(re.findall(r"^\| `([A-Z]\w+)` \|", TEXT, re.MULTILINE)) == set(EventType)
    assert set(re.findall(r"^- `(\w+)`[,:]", TEXT, re.MULTILINE)) >= {
        *typing.get_args(OnUnknown),
        "simulated",
    }
    assert f"{CHECK_SECONDS:g} seconds" in TEXT
    for field in msgspec.structs.fields(CommandConnectorSettings):
        assert field.name in TEXT, field.name


def test_the_guide_names_the_marker_and_what_it_quotes() -> None:
    assert MARKER_URI in OF_LIBVIRT
    assert f"again every {PRESS_EVERY_SECONDS:g} s" in OF_LIBVIRT
    names = {each.name for shape in LIBVIRT for each in msgspec.structs.fields(shape)}
    assert {
        name for name in re.findall(r"`(\w+)(?: = [^`]*)?`", OF_LIBVIRT) if "_" in name
    } - names <= {
        "vm_id",
        "on_unknown",
    }
