"""What packages ship for the agent and for a relay."""

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from reference import each_setting

from forewarn.agent import settings
from forewarn.agent.decider import GRACE_SECONDS
from forewarn.agent.settings import AgentSettings, StatusSettings
from forewarn.relay import settings as relay_settings
from house import tree

PACKAGING = tree.ROOT / "packaging"
SETTINGS = PACKAGING / "agent.toml"
UNIT = PACKAGING / "forewarn-agent.service"


@pytest.mark.parametrize("name", ["forewarn", "forewarn-agent", "forewarn-relay"])
def test_systemd_starts_each_program_again_however_often_and_whatever_ended_it(name: str) -> None:
    """A late folder, a lock, a half-written file: nobody would start it once that is mended."""
    unit = (tree.ROOT / "packaging" / f"{name}.service").read_text(encoding="utf-8")
    assert re.search(r"(?m)^Restart=always$", unit)
    assert re.search(r"(?m)^StartLimitIntervalSec=0$", unit)
    assert "RestartPreventExitStatus" not in unit


def test_stopping_waits_longer_than_actions_may_go_on() -> None:
    (seconds,) = re.findall(r"(?m)^TimeoutStopSec=(\d+)$", UNIT.read_text(encoding="utf-8"))
    assert int(seconds) > AgentSettings().stop_seconds + GRACE_SECONDS


def loaded(folder: Path, text: str) -> AgentSettings:
    (folder / "agent.toml").write_text(text, encoding="utf-8")
    return settings.load(folder / "agent.toml", {"STATE_DIRECTORY": str(folder)}).settings


def turned_on(text: str) -> str:
    """Return the file with everything on that it shows; its prose has a space after the sign."""
    lines = [re.sub(r"^#(?=[^:\s]|  )", "", line) for line in text.splitlines()]
    return "\n".join(lines)


def test_the_packaged_settings_are_the_defaults_and_approve_nothing(tmp_path: Path) -> None:
    told = loaded(tmp_path, SETTINGS.read_text(encoding="utf-8"))
    (rule,) = told.rule
    assert (rule.approve, rule.acts, rule.match.machine) == ("never", False, "any")
    assert msgspec.structs.replace(told, rule=()) == loaded(tmp_path, "")


def test_what_the_packaged_settings_show_is_so_without_them(tmp_path: Path) -> None:
    text = SETTINGS.read_text(encoding="utf-8")
    told = loaded(tmp_path, turned_on(text))
    assert msgspec.structs.replace(told, rule=()) == loaded(tmp_path, "")
    for path, _ in each_setting(AgentSettings):
        if not path.startswith("rule"):
            assert re.search(rf"(?m)^#{path.rpartition('.')[2]} = ", text), path


def test_the_packaged_examples_are_rules_and_the_last_word_is_the_lasts(tmp_path: Path) -> None:
    text = SETTINGS.read_text(encoding="utf-8")
    *examples, last = loaded(tmp_path, turned_on(text)).rule
    assert len(examples) == text.count("#[[rule]]") == 3
    assert all(rule.acts and rule.when_cut == "hold" for rule in examples)
    assert {action.kind for rule in examples for action in rule.prepare} >= {"notify"}
    assert (last.name, last.acts) == ("write down what nothing else takes", False)


def test_no_page_of_the_service_suggests_the_agents_port() -> None:
    own = StatusSettings().listen.rpartition(":")[2]
    pages = [tree.ROOT / "packaging" / "forewarn.toml"]
    pages += [tree.ROOT / "docs" / "reference" / f"{n}.md" for n in ("settings", "metrics", "cli")]
    assert not [page.name for page in pages if f":{own}" in page.read_text(encoding="utf-8")]


def test_the_relays_files_agree_with_each_other_and_with_the_defaults(tmp_path: Path) -> None:
    """Only where the service is has no default."""
    files = ("relay.toml", "forewarn-relay.service", "forewarn-relay.socket")
    text, unit, socket = ((PACKAGING / name).read_text(encoding="utf-8") for name in files)

    def load(text: str) -> relay_settings.HostRelaySettings:
        (tmp_path / "relay.toml").write_text(text, encoding="utf-8")
        return relay_settings.load(tmp_path / "relay.toml", {"STATE_DIRECTORY": str(tmp_path)})

    told = load(text)
    plain = load(f'[upstream]\nurls = ["{told.upstream.urls[0]}"]\ntoken_file = "/token"\n')
    assert (told.guest, told.status, told.state) == (plain.guest, plain.status, plain.state)
    assert load(re.sub(r"(?m)^#(?=[^\s:])", "", text)) == told
    (listener,) = relay_settings.RelayGuestSettings().listener
    assert f"ListenStream={listener.address}:{listener.port}\n" in socket
    (name,) = re.findall(r"(?m)^LoadCredential=(.+):/etc/forewarn/relay.token$", unit)
    assert told.upstream.token_file == f"/run/credentials/forewarn-relay.service/{name}"


POISON = """
import os, pkgutil, signal, socket, sys

for name in ("fcntl", "pwd", "grp", "resource", "termios"):
    sys.modules[name] = None
for name in ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "pidfd_send_signal", "pthread_sigmask"):
    delattr(signal, name)
for name in ("fork", "killpg", "setsid", "getuid", "geteuid", "pidfd_open", "waitid"):
    delattr(os, name)
delattr(socket, "AF_UNIX")
"""

IMPORT = """
import forewarn.agent

names = [
    module.name
    for module in pkgutil.walk_packages(forewarn.agent.__path__, "forewarn.agent.")
]
for name in names:
    __import__(name)
print(len(names))
"""

CHECK = """
from forewarn.agent import settings
from forewarn.cli import main

settings.load.__kwdefaults__["platform"] = "win32"
sys.exit(main.execute(["agent", "check", "--config", sys.argv[1]]))
"""

STEPS = {"command": "run = ['stop.exe']", "service": "stop = 'web'"}


def poisoned(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", POISON + program, *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def written(folder: Path, kind: str, terms: str) -> Path:
    path = folder / "agent.toml"
    path.write_text(f"[[rule]]\nname = 'r'\nprepare = [{{ {kind} = {{ {terms} }} }}]\n")
    return path


def test_every_module_of_the_agent_is_imported_without_posix() -> None:
    done = poisoned(IMPORT)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10


def test_check_itself_runs_without_posix_and_refuses_in_one_line(tmp_path: Path) -> None:
    refused = poisoned(CHECK, str(written(tmp_path, "service", STEPS["service"])))
    assert refused.returncode == 2, refused.stderr
    (line,) = refused.stderr.splitlines()
    assert "prepare[0].service" in line
    taken = poisoned(CHECK, str(written(tmp_path, "command", STEPS["command"])))
    assert taken.returncode == 0, taken.stderr
    assert "r: command; approve never" in taken.stdout
