"""The production guide's examples are what they say: parsed, judged, and run where a tool is."""

import hashlib
import hmac
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from end_to_end.production import by_this_python, example
from end_to_end.running import Running


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
