"""The guides to production, backups and accounts: their blocks are judged and run."""

import contextlib
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import forked
from end_to_end.running import Running
from forewarn.cli.exits import ExitStatus
from ports import free_port
from recipes import pages


def test_libvirts_examples_are_well_formed_and_agree() -> None:
    interface = ET.fromstring(pages.block("production", "xml", "<interface"))
    network = ET.fromstring(pages.block("production", "xml", "<network"))
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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process's limits")
@pytest.mark.parametrize(
    ("relays", "hard", "may_open", "fewer"),
    [
        (0, 20_000, 11_280, set()),
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
    limited = f"resource.setrlimit(resource.RLIMIT_NOFILE, (512, {hard}))"
    service.start(
        program=("-c", f"import resource; {limited}; from forewarn.cli import main; main.run()")
    )
    try:
        limits = Path(f"/proc/{service.pid}/limits").read_text().splitlines()
        (line,) = [one for one in limits if "open files" in one]
        assert line.split()[3:5] == [str(may_open), str(hard)]
        told = [one for one in service.log.read_text().splitlines() if "fewer connections" in one]
        warned = set(re.findall(r"(guest|relay)\.connections", "\n".join(told)))
        assert warned == fewer
    finally:
        assert service.stop() == 0


def moved(command: str, folder: Path) -> str:
    """Return a command of the guides with its places in this folder, and without systemd."""
    own = f'forewarn() {{ {shlex.quote(sys.executable)} -m forewarn "$@"; }}\n'
    lines = [line for line in command.splitlines() if not line.startswith("systemctl ")]
    text = "\n".join(lines).replace("/var/backups", str(folder / "backups"))
    text = text.replace("python3 -c", f"'{sys.executable}' -c")
    return own + text.replace("/var/lib/forewarn", str(folder))


def by_the_guide(words: str, folder: Path) -> None:
    command = moved(pages.block("running", "sh", words), folder)
    subprocess.run(["sh", "-ec", command], check=True)


def killed_after_a_backup(folder: Path) -> Running:
    """A service that was killed, and whose last change, a cancel, its backup does not have."""
    service = Running(folder)
    (folder / "backups").mkdir()
    service.start()
    try:
        service.apply('[[machine]]\nname = "web-0"\n')
        service.document("schedule", "reboot", "web-0")
        by_the_guide("live.backup", folder)
        service.document("cancel", "1")
    finally:
        service.kill()
    assert (folder / "forewarn.db-wal").stat().st_size
    return service


def test_a_backup_is_put_back_after_a_kill_by_the_guides_steps(folder: Path) -> None:
    service = killed_after_a_backup(folder)
    by_the_guide("restore-check", folder)
    (aside,) = folder.glob("aside.*")
    assert {"forewarn.db", "forewarn.db-wal"} <= {file.name for file in aside.iterdir()}
    with service:
        (event,) = service.document("events")["events"]
        assert (event["machines"], event["status"]) == (["web-0"], "Scheduled")
    with contextlib.closing(sqlite3.connect(folder / "forewarn.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


PAGE = "accounts"
LISTEN = "127.0.0.1:8172"


def test_a_colleague_looks_and_is_refused_and_both_are_told(tmp_path: Path) -> None:
    listen = f"127.0.0.1:{free_port()}"
    make, look, change, revoke, audit = pages.blocks(PAGE, "sh")
    setting = pages.placed(pages.block(PAGE, "toml"), {LISTEN: listen}).split("\n", 1)[1]
    service = Running(tmp_path, operator=setting)
    bob = pages.placed(look, {LISTEN: listen})

    def run(text: str, user: str = "root") -> subprocess.CompletedProcess[str]:
        given = {
            **os.environ,
            "XDG_CONFIG_HOME": str(tmp_path / user),
            "FOREWARN_CONFIG": str(service.settings) if user == "root" else "",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        return forked.completed(["sh", "-ec", text], cwd=tmp_path, env=given)

    with service:
        assert run(make).returncode == 0
        assert (tmp_path / "bob.token").stat().st_mode & 0o077 == 0
        looked = run(bob, "bob")
        assert looked.returncode == 0, looked.stderr
        assert listen in looked.stdout  # of the link to the page
        assert run(change, "bob").returncode == ExitStatus.UNAUTHORIZED
        ended = run(revoke)
        assert (ended.returncode, "viewer" in ended.stdout) == (0, True), ended.stderr
        assert run(bob, "bob").returncode != 0
        told = run(audit)
        assert told.returncode == 0, told.stderr
        assert [word in told.stdout for word in ("bob", "forbidden", "viewer")] == [True] * 3
