"""The guides to production, backups, accounts, growing and patching: their blocks are run."""

import base64
import contextlib
import hashlib
import hmac
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest
import yaml

import forked
import web
from client.scripted import Asked, message, serving
from end_to_end.agents import until
from end_to_end.running import Running
from forewarn.cli.exits import ExitStatus
from forewarn.maintenance import fleet_file
from forewarn.server import settings
from house.tree import ROOT
from ports import free_port
from recipes import pages
from recipes.balancer import Balancer


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
    service = Running(folder, more=plane)
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


# Growing: what can be judged without a database. tests/replicas follow it.

GROW = "grow"
PACKAGING = ROOT / "packaging"
HAPROXY = PACKAGING / "haproxy.cfg"
KEY = base64.b64encode(b"a secret of sixteen bytes and more").decode()
REPLICAS = ("fw1", "fw2", "fw3")
needs_haproxy = pytest.mark.skipif(not shutil.which("haproxy"), reason="haproxy is not installed")


def compose() -> Any:
    return yaml.safe_load((PACKAGING / "compose.yaml").read_text(encoding="utf-8"))


def test_patroni_waits_for_a_standby_always() -> None:
    text = pages.block(GROW, "yaml", "bootstrap:")
    dcs = yaml.safe_load(text)["bootstrap"]["dcs"]
    assert dcs["synchronous_mode"]
    assert dcs["synchronous_mode_strict"] is True
    replica = pages.block(GROW, "toml", "[replica]")
    (stale,) = re.findall(r"max_stale_seconds = (\d+)", replica)
    assert int(stale) > dcs["ttl"]


def test_the_commands_before_compose_make_its_secrets_for_nobody_else(tmp_path: Path) -> None:
    block = pages.block(GROW, "sh", "mkdir -p secrets")
    # Only root gives files away: what the image's user owns is written down.
    chown = 'chown() { echo "$@" >owners; }\n'
    subprocess.run(["sh", "-eu", "-c", chown + block], cwd=tmp_path, check=True)
    owner, *given = (tmp_path / "owners").read_text().split()
    assert f"useradd --uid {owner} " in (PACKAGING / "Containerfile").read_text()
    read = {secret for name in REPLICAS for secret in compose()["services"][name]["secrets"]}
    assert set(given) == {compose()["secrets"][secret]["file"] for secret in read}
    made = {path.name: path for path in (tmp_path / "secrets").iterdir()}
    assert {path.stat().st_mode & 0o777 for path in made.values()} == {0o600}
    settled = dict(line.split("=", 1) for line in made["db.env"].read_text().splitlines())
    assert settled["POSTGRES_PASSWORD"] == made["store.password"].read_text()
    (key,) = made["haproxy.env"].read_text().splitlines()
    secret = base64.b64decode(key.removeprefix("FOREWARN_PROXY_KEY="))
    assert secret == made["proxy.secret"].read_bytes()
    services = compose()["services"]
    address = services["guest"]["networks"]["guests"]["ipv4_address"]
    commands = pages.block(GROW, "console", "docker compose up")
    (written,) = re.findall(r"echo '(.*)' \| docker compose exec .* fleet apply -\n", commands)
    groups = fleet_file.flatten(msgspec.json.decode(written, type=fleet_file.Fleet))
    (name,) = [member.name for one in groups for member in one.members]
    assert made["machines.map"].read_text() == f"{address} {name}\n"


def test_composes_replicas_have_settings_files_and_addresses_that_there_are(
    tmp_path: Path,
) -> None:
    read = compose()
    made = pages.block(GROW, "sh", "mkdir -p secrets")
    named = [one["file"] for one in read["secrets"].values()]
    for service in read["services"].values():
        named += [each.partition(":")[0] for each in service.get("volumes", [])]
        named += [service["env_file"]] if "env_file" in service else []
    for name in set(named) - set(read["volumes"]):
        stem = name.removeprefix("./").removeprefix("secrets/")
        assert stem in made or (PACKAGING / stem).exists(), name
    services = read["services"]
    for name in REPLICAS:
        given = {**services[name]["environment"], "STATE_DIRECTORY": str(tmp_path)}
        loaded = settings.load(None, given)
        assert loaded.store.url.startswith("postgresql://forewarn@db/")
        assert loaded.guest.listener[0].trusted_proxies
        assert services[name]["hostname"] == name
        files = (loaded.store.password_file, *loaded.guest.listener[0].proxy_secret_files)
        assert [Path(each).name for each in files] == services[name]["secrets"]
    text = HAPROXY.read_text(encoding="utf-8")
    servers = dict(re.findall(r"^    server (\w+) ([\d.]+):8170$", text, re.MULTILINE))
    placed = {name: services[name]["networks"]["service"]["ipv4_address"] for name in REPLICAS}
    assert servers == placed
    networks = services["proxy"]["networks"]
    assert f'"{networks["service"]["ipv4_address"]}/32"' in str(services["fw1"]["environment"])
    assert f"bind {networks['guests']['ipv4_address']}:80" in text


@needs_haproxy
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")
def test_haproxy_signs_for_the_guest_and_drops_what_it_claims(tmp_path: Path) -> None:
    """By the page's configuration, before one replica of three that is ours."""
    heard: list[dict[str, str]] = []

    def replica(asked: Asked, _: int) -> bytes:
        """Answer HAProxy's probe as a replica does, and keep what it signs for a guest."""
        signed = "x-instance-id" in asked.headers
        if signed:
            heard.append(asked.headers)
        return message(200 if signed else 400)

    (tmp_path / "machines.map").write_text("127.0.0.1 web-0\n")
    with serving(replica) as server:
        port = free_port()
        places = {
            "169.254.169.254:80": f"127.0.0.1:{port}",
            "/etc/haproxy/": f"{tmp_path}/",
            "/run/haproxy/": f"{tmp_path}/",
            "maxconn 20000": "maxconn 200",
            "10.0.1.11:8170": f"127.0.0.1:{server.port}",
            "10.0.1.12:8170": f"127.0.0.1:{free_port()}",
            "10.0.1.13:8170": f"127.0.0.1:{free_port()}",
        }
        settled = pages.placed(HAPROXY.read_text(encoding="utf-8"), places)
        key = {"FOREWARN_PROXY_KEY": KEY}
        claims = {"X-Instance-ID": "web-1", "X-Instance-ID-Signature": "0"}
        with contextlib.closing(Balancer(tmp_path, settled, tmp_path / "admin.sock", (), key)):
            until(lambda: asked(port, "127.0.0.1", claims) == 200)
            told = heard[-1]
            assert told["x-instance-id"] == "web-0"
            signature = hmac.new(base64.b64decode(KEY), b"web-0", hashlib.sha256).hexdigest()
            assert told["x-instance-id-signature"] == signature
            before = len(heard)
            assert asked(port, "127.0.0.1", {"X-Forwarded-For": ""}) == 400
            assert asked(port, "127.0.0.9", claims) == 403  # it is not on the map
            assert len(heard) == before


def asked(port: int, source: str, headers: dict[str, str]) -> int:
    """Return the status of a guest's GET, 0 where there was none."""
    try:
        return web.ask(port, "/metadata/versions", headers=headers, source=source).status
    except OSError:
        return 0


# The story of patch-all-hosts.md, from its fleet file to the end, with a failure in it: the page's
# own blocks, in their order. But time passes faster.

WEEKEND = "patch-all-hosts"
SCALE = 300
"""How many seconds pass in one: the notice of a quarter of an hour is over in three."""

PATCHED = {f"h{n}" for n in range(1, 7)}


def commands(words: str = "") -> list[list[str]]:
    """The command lines of the page that have some words in them, in their order."""
    lines = [line for block in pages.blocks(WEEKEND, "console") for line in block.splitlines()]
    found = [shlex.split(line.removeprefix("$ forewarn ")) for line in lines]
    return [line for line in found if words in shlex.join(line)]


def test_the_page_names_only_commands_that_are_run_here() -> None:
    assert {line[0] for line in commands()} == {
        *("fleet", "rollout", "maintenance", "alerts", "history"),
    }
    assert {line[1] for line in commands("rollout ")} == {"plan", "start"}
    assert {line[1] for line in commands("maintenance ")} == {"watch", "show", "retry", "resume"}


class Story:
    """A service in a folder, the page's program and fleet beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "weekend"
        making, *_, self.mending = pages.blocks(WEEKEND, "sh")
        self.run_shell(making, folder)
        (check,) = pages.blocks(WEEKEND, "toml")
        self.service = Running(folder)
        text = self.service.settings.read_text().split("[connector.simulated]")[0]
        made = (self.folder / "forewarn.toml").read_text()
        quicker = pages.placed(made, {"scale = 60": f"scale = {SCALE}"})
        self.service.settings.write_text(f"{text}{quicker}\n{check}")

    def run_shell(self, text: str, home: Path) -> None:
        """Run commands of the page, as a user whose home is this folder."""
        variables = {**os.environ, "HOME": str(home)}
        folder = self.folder if self.folder.exists() else home
        subprocess.run(["sh", "-e", "-c", text], cwd=folder, env=variables, check=True)

    def call(self, line: list[str], status: int = ExitStatus.OK) -> str:
        given = [str(self.folder / word) if word == "fleet.toml" else word for word in line]
        called = self.service.call(*given)
        assert called.returncode == status, (given, called.stdout, called.stderr)
        return called.stdout

    def maintenance(self) -> Any:
        return self.service.operator.get("/v1/maintenances/1")

    def until(self, *states: str) -> None:
        until(lambda: self.maintenance()["maintenance"]["status"] in states, self.maintenance)


@pytest.mark.soak
def test_the_weekend_goes_from_the_fleet_file_to_the_end_with_a_failure_in_it(
    tmp_path: Path,
) -> None:
    story = Story(tmp_path)
    with story.service:
        (apply,) = commands("fleet apply")
        (plan,), (start,) = commands("rollout plan"), commands("rollout start")
        watch, again = commands("maintenance watch")
        show, *_ = commands("maintenance show")
        (alerts,), (retry,), (resume,) = (
            commands(words) for words in ("alerts", "maintenance retry", "maintenance resume")
        )
        (history,) = commands("history")
        story.call(apply)
        planned = story.call(plan)
        assert len(planned.splitlines()) == 3  # the heading and two waves
        story.call(start)
        story.until("halted")
        story.call(watch, ExitStatus.ALERTS)
        assert re.search(r"(?m)^h1 +failed ", story.call(show))
        assert "halted" in story.call(alerts, ExitStatus.ALERTS)
        story.run_shell(story.mending, tmp_path)
        assert "h1 is waiting" in story.call(retry)
        story.call(resume)
        story.call(again)
        assert "6 done" in story.call(show)
        assert "Failed" in story.call(history)
        patched = (story.folder / "patched.txt").read_text()
        assert set(re.findall(r"h\d", patched)) >= PATCHED
