"""The production guide's examples are what they say: parsed, judged, and run where a tool is."""

import configparser
import hashlib
import hmac
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

from end_to_end.production import EXAMPLES, ROOT, TEXT, by_this_python, example, examples
from end_to_end.running import Running
from forewarn.maintenance import fleet_file
from forewarn.relay import settings as relay_settings
from forewarn.server import settings

SETTINGS = examples("toml", "# /etc/forewarn/forewarn.toml")
RELAYS = examples("toml", "# /etc/forewarn/relay.toml")
FLEETS = [text for text in examples("toml") if text not in {*SETTINGS, *RELAYS}]
SOURCES = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "src").rglob("*.py"))


def test_every_example_is_of_a_language_that_is_tested() -> None:
    assert {language for language, _ in EXAMPLES} == {
        "ini",
        "nft",
        "nginx",
        "sh",
        "toml",
        "xml",
    }


@pytest.mark.parametrize("text", SETTINGS, ids=range(len(SETTINGS)))
def test_settings_are_taken_as_they_stand(tmp_path: Path, text: str) -> None:
    path = tmp_path / "forewarn.toml"
    path.write_text(text)
    loaded = settings.load(path, {"STATE_DIRECTORY": str(tmp_path)})
    listener = loaded.guest.listener != settings.GuestSettings().listener
    assert (listener, bool(loaded.relay.listen)) == (
        "[[guest.listener]]" in text,
        "[relay]" in text,
    )


@pytest.mark.parametrize("text", RELAYS, ids=range(len(RELAYS)))
def test_settings_of_relays_are_taken_as_they_stand(tmp_path: Path, text: str) -> None:
    path = tmp_path / "relay.toml"
    path.write_text(text)
    loaded = relay_settings.load(path, {"STATE_DIRECTORY": str(tmp_path)})
    assert loaded.upstream.urls
    assert loaded.upstream.token_file in (ROOT / "packaging" / "relay.toml").read_text()


@pytest.mark.parametrize("text", FLEETS, ids=range(len(FLEETS)))
def test_fleets_are_taken_as_they_stand(text: str) -> None:
    (group,) = fleet_file.flatten(msgspec.convert(tomllib.loads(text), fleet_file.Fleet))
    assert group.members


def test_libvirts_examples_are_well_formed_and_agree() -> None:
    interface = ET.fromstring(example("xml", "<interface"))
    network = ET.fromstring(example("xml", "<network"))
    filtered = interface.find("filterref")
    assert filtered is not None
    assert filtered.get("filter") == "clean-traffic"
    given = {one.get("name"): one.get("value") for one in filtered}
    host = network.find("ip/dhcp/host")
    assert host is not None
    assert given == {"IP": host.get("ip")}
    options = [
        str(one.get("value")) for one in network.iter() if one.tag.endswith("dnsmasq/1.0}option")
    ]
    assert [option.split(",")[0] for option in options] == ["dhcp-option=245", "dhcp-option=121"]


@pytest.mark.skipif(shutil.which("nft") is None, reason="nft is not installed")
def test_the_firewall_is_taken_by_nft(tmp_path: Path) -> None:
    path = tmp_path / "forewarn.nft"
    path.write_text(example("nft", "table ip forewarn"))
    checked = subprocess.run(["nft", "-c", "-f", str(path)], capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("text", examples("ini"), ids=range(len(examples("ini"))))
def test_units_are_well_formed(text: str) -> None:
    parser = configparser.RawConfigParser(strict=False)
    parser.read_string(text)
    assert parser.sections()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_units_with_their_drop_ins_are_taken_by_systemd(tmp_path: Path) -> None:
    drop_ins = {
        "forewarn.socket": "[Socket]",
        "forewarn.service": "proxy.secret",
    }
    for name, words in drop_ins.items():
        unit = (ROOT / "packaging" / name).read_text(encoding="utf-8")
        unit = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit, flags=re.MULTILINE)
        (tmp_path / name).write_text(unit)
        drop_in = tmp_path / f"{name}.d" / "override.conf"
        drop_in.parent.mkdir()
        drop_in.write_text(example("ini", words))
    units = [str(tmp_path / name) for name in drop_ins]
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units],
        capture_output=True,
        text=True,
        check=False,
    )
    told = [line for line in checked.stderr.splitlines() if "forewarn" in line]
    assert told == []


@pytest.mark.parametrize("text", examples("sh"), ids=range(len(examples("sh"))))
def test_every_command_is_well_formed(text: str) -> None:
    checked = subprocess.run(["sh", "-n"], input=text, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_signatures_map_is_what_nginx_reads_and_nobody_else(tmp_path: Path) -> None:
    secret = "a secret of sixteen bytes and more"
    (tmp_path / "proxy.secret").write_text(f"{secret}\n")
    command = by_this_python(example("sh", "signatures.map"))
    subprocess.run(["sh", "-ec", command], cwd=tmp_path, check=True)
    made = tmp_path / "signatures.map"
    expected = hmac.new(secret.encode(), b"web-0", hashlib.sha256).hexdigest()
    assert made.read_text().splitlines()[0] == f"web-0 {expected};"
    assert len(made.read_text().splitlines()) == 2
    assert made.stat().st_mode & 0o077 == 0


def test_every_line_of_the_log_that_it_names_is_one_that_is_said() -> None:
    table = TEXT.partition("## What is logged")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert len(named) >= 9
    assert [name for name in named if f'"{name.removesuffix("...")}' not in SOURCES] == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process's limits")
@pytest.mark.parametrize(
    ("relays", "hard", "may_open", "fewer"),
    [
        (0, 20_000, 11_280, set()),
        (0, 2_000, 2_000, {"guest"}),
        (5_000, 20_000, 16_280, set()),
        (5_000, 12_000, 12_000, {"relay"}),
        (5_000, 2_000, 2_000, {"guest", "relay"}),
    ],
)
def test_the_service_may_open_as_many_files_as_the_page_says(
    folder: Path, relays: int, hard: int, may_open: int, fewer: set[str]
) -> None:
    import resource  # noqa: PLC0415 - POSIX only

    plane = f'[relay]\nlisten = "127.0.0.1:0"\nconnections = {relays}' if relays else ""
    service = Running(folder, clock=plane)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < hard:
        pytest.skip("this session may open fewer files")
    program = folder / "limited"
    program.write_text(f'#!/bin/sh\nulimit -Sn 512\nulimit -Hn {hard}\nexec "$@"\n')
    program.chmod(0o700)
    service.start(str(program))
    try:
        (line,) = [one for one in service.limits().splitlines() if "open files" in one]
        assert line.split()[3:5] == [str(may_open), str(hard)]
        told = [one for one in service.log.read_text().splitlines() if "fewer connections" in one]
        warned = set(re.findall(r"(guest|relay)\.connections", "\n".join(told)))
        assert warned == fewer
    finally:
        assert service.stop() == 0
