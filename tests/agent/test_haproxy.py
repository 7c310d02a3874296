"""Draining a server of a real HAProxy."""

import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import patience
from agent.workplace import Done
from client.scripted import Keeping
from forewarn.agent.actions import haproxy
from forewarn.agent.actions.action import Action, ActionFailed
from forewarn.agent.actions.haproxy import HaproxyAction
from forewarn.agent.rules import HaproxySettings
from ports import free_port

pytestmark = pytest.mark.skipif(not shutil.which("haproxy"), reason="haproxy is not installed")

SETTINGS = """
global
    stats socket {socket} level admin
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend in
    bind 127.0.0.1:{port}
    default_backend web
backend web
    server one 127.0.0.1:{first}
    server two 127.0.0.1:{first} disabled
    server checked 127.0.0.1:{first} check inter 24h
"""


class Balancer:
    def __init__(self, folder: Path, first: int) -> None:
        self.socket, self.port = str(folder / "api"), free_port()
        (folder / "cfg").write_text(
            SETTINGS.format(socket=self.socket, port=self.port, first=first)
        )
        self.process = subprocess.Popen(["haproxy", "-db", "-q", "-f", str(folder / "cfg")])

    def state(self, server: str = "one") -> str:
        return haproxy._state(self.action(server)._row())

    def action(self, server: str) -> HaproxyAction:
        made = self.done(server).action
        assert isinstance(made, HaproxyAction)
        return made

    def done(self, server: str = "one", *, durable: bool = True, **terms: object) -> Done:
        haproxy = {"socket": self.socket, "server": f"web/{server}", **terms}
        return Done(durable=durable, haproxy=haproxy)


class Counting(HaproxyAction):
    """Tells when it has counted sessions, and when it begins to wait for the server's checks."""

    def __init__(self, usual: Action[HaproxySettings]) -> None:
        super().__init__(usual.run, usual.settings)
        self.counted = threading.Event()
        self.waits = threading.Event()
        self.first: Callable[[], None] = lambda: None
        """What happens just before it counts."""

    def _sessions(self) -> int:
        self.first()
        left = super()._sessions()
        self.counted.set()
        return left

    def _wait_until_up(self) -> None:
        self.waits.set()
        super()._wait_until_up()


@pytest.fixture
def site() -> Iterator[Keeping]:
    with Keeping() as server:
        yield server


@pytest.fixture
def balancer(tmp_path: Path, site: Keeping) -> Iterator[Balancer]:
    made = Balancer(tmp_path, site.port)
    with socket.socket(socket.AF_UNIX) as probe:
        # Its name is there before it listens.
        patience.until(lambda: made.process.poll() is not None or not probe.connect_ex(made.socket))
    assert made.process.poll() is None
    yield made
    made.process.kill()
    made.process.wait()


READY, SHUT = {"state": "ready", "up": True}, {"state": "maint", "up": False}


@pytest.mark.parametrize(
    ("server", "facts", "drained", "meanwhile", "after"),
    [
        ("one", READY, "drain", "", "ready"),
        ("one", READY, "drain", "maint", "maint"),
        ("two", SHUT, "maint", "", "maint"),
        ("two", SHUT, "maint", "ready", "ready"),
    ],
    ids=["drained", "an administrator shut it", "in maintenance", "an administrator opened it"],
)
def test_a_server_is_left_as_it_was_or_as_an_administrator_wants_it(
    balancer: Balancer,
    server: str,
    facts: dict[str, object],
    drained: str,
    meanwhile: str,
    after: str,
) -> None:
    done = balancer.done(server)
    done.prepare()
    assert (done.facts, balancer.state(server)) == (facts, drained)
    if meanwhile:
        balancer.action(server)._set(meanwhile)
    assert ("maint" in done.recover()) is ("maint" in {drained, meanwhile})
    assert balancer.state(server) == after


@pytest.mark.parametrize("word", ["health up", "state maint"])
def test_a_server_is_waited_for_until_its_checks_or_an_administrator_say_otherwise(
    word: str, balancer: Balancer
) -> None:
    done = balancer.done("checked")
    done.prepare()
    action = balancer.action("checked")
    assert action._ask("set server web/checked health down").strip() == ""
    begun = done.begin(undo=True)
    patience.until(lambda: balancer.state("checked") == "ready")
    assert not haproxy._is_up(action._row())
    assert begun.outcome == ""
    assert action._ask(f"set server web/checked {word}").strip() == ""
    assert begun.end().startswith("done")


def test_waiting_for_a_server_that_is_cut_says_that_it_is_down(balancer: Balancer) -> None:
    done = balancer.done("checked")
    done.prepare()
    balancer.action("checked")._ask("set server web/checked health down")
    done.turn()
    action = done.action = Counting(done.action)
    begun = done.begin()
    assert action.waits.wait(patience.SECONDS)
    said = begun.stop()
    assert said.startswith("cut")
    assert "web/checked" in said


def test_a_server_is_drained_only_once_its_state_is_on_the_disk(balancer: Balancer) -> None:
    done = balancer.done(durable=False)
    begun = done.begin()
    assert done.noted.wait(patience.SECONDS)
    assert begun.stop() == "cut"
    assert balancer.state() == "ready"


def test_a_stop_in_mid_answer_is_no_answer(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "api"))
        silent.listen()
        done = Done(haproxy={"socket": str(tmp_path / "api"), "server": "web/one"})
        begun = done.begin()
        asking, _ = silent.accept()
        with asking:
            asking.recv(100)
            assert begun.stop().startswith("cut")


def test_a_server_that_was_down_before_is_not_waited_for(balancer: Balancer) -> None:
    balancer.action("checked")._ask("set server web/checked health down")
    done = balancer.done("checked")
    done.prepare()
    assert done.facts == {"state": "ready", "up": False}
    done.recover()
    assert balancer.state("checked") == "ready"


def test_draining_waits_for_the_last_session_and_says_how_many_were_left_when_it_is_cut(
    balancer: Balancer, site: Keeping
) -> None:
    site.goes_on.clear()
    argv = ["curl", "-s", f"http://127.0.0.1:{balancer.port}/"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as asking:
        assert site.arrived.wait(patience.SECONDS)
        done = balancer.done()
        action = done.action = Counting(done.action)
        cut = done.begin()
        assert action.counted.wait(patience.SECONDS)
        assert re.fullmatch(r"cut .*\b1\b.*", cut.stop())
        assert balancer.state() == "drain"
        waiting = balancer.done().begin()
        assert waiting.outcome == ""
        site.goes_on.set()
        assert waiting.end().startswith("done")
        assert asking.communicate()[0] == b"said"


def test_draining_that_is_cut_at_once_says_that_nothing_was_counted(balancer: Balancer) -> None:
    done = balancer.done()
    action = done.action = Counting(done.action)
    action.first = done.run.stop
    assert re.fullmatch(r"cut [^0-9]*", done.begin().end())
    assert balancer.state() == "drain"


def test_a_server_that_there_is_not_is_a_failure(balancer: Balancer) -> None:
    with pytest.raises(ActionFailed, match="web/three"):
        balancer.done("three").prepare()


def test_an_api_that_does_not_answer_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ActionFailed, match=r"HAProxy's API at .* does not answer: .*No such file"):
        Done(haproxy={"socket": str(tmp_path / "none"), "server": "a/b"}).prepare()
    nobody = f"127.0.0.1:{free_port()}"
    with pytest.raises(ActionFailed, match=r"does not answer: .*Connection refused"):
        Done(haproxy={"socket": nobody, "server": "a/b"}).prepare()
