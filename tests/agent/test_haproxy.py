"""Draining a server of a real HAProxy."""

import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import patience
import stories
from agent.test_actions import Story
from agent.workplace import Done, Units
from client.scripted import Keeping
from forewarn.agent.actions import haproxy
from forewarn.agent.actions.action import Action
from forewarn.agent.actions.haproxy import HaproxyAction
from forewarn.agent.rules import HaproxySettings
from ports import free_port
from recipes.balancer import Balancer

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


class Balanced(Story):
    """A story of actions with a HAProxy."""

    port = 0

    def filled(self, text: str) -> str:
        action = r'{ haproxy = { socket = "@/api", server = "web/\1" } }'
        return super().filled(re.sub(r"@(one|two|three|checked)\b", action, text))

    def action(self, server: str) -> HaproxyAction:
        made = of(self.folder, server).action
        assert isinstance(made, HaproxyAction)
        return made

    def ask(self, line: str) -> None:
        assert self.action("one")._ask(line).strip() == ""

    def state(self, told: str) -> None:
        server, word = told.split()
        patience.until(lambda: haproxy._state(self.action(server)._row()) == word)

    def undo_begins(self, _: str) -> None:
        self.begun = self.done.begin(undo=True)

    def goes_on(self, _: str) -> None:
        assert self.begun.outcome == ""


def of(folder: Path, server: str = "one") -> Done:
    """Return the action that drains a server."""
    return Done(haproxy={"socket": str(folder / "api"), "server": f"web/{server}"})


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
def balanced(tmp_path: Path, units: Units, site: Keeping) -> Iterator[Balanced]:
    port = free_port()
    text = SETTINGS.format(socket=tmp_path / "api", port=port, first=site.port)
    balancer = Balancer(tmp_path, text, tmp_path / "api", ("one", "two", "checked"))
    with ExitStack() as opened:
        opened.callback(balancer.close)
        balancer.wait_for("checked")  # the others have no checks
        made = Balanced(tmp_path, units, site, opened)
        made.port = port
        yield made


@pytest.mark.parametrize("rows", stories.stories_beside(__file__, "haproxy.txt"))
def test_the_story_holds(balanced: Balanced, rows: stories.Rows) -> None:
    assert stories.play("haproxy.txt", rows, balanced.carry_out)


def test_waiting_for_a_server_that_is_cut_says_that_it_is_down(balanced: Balanced) -> None:
    done = of(balanced.folder, "checked")
    done.prepare()
    balanced.ask("set server web/checked health down")
    done.turn()
    action = done.action = Counting(done.action)
    begun = done.begin()
    assert action.waits.wait(patience.SECONDS)
    said = begun.stop()
    assert said.startswith("cut")
    assert "web/checked" in said


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


def test_a_server_is_not_set_where_haproxy_ends_before_it_answers(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dying:
        dying.bind(str(tmp_path / "api"))
        dying.listen()
        done = of(tmp_path)
        done.facts = {"state": "ready"}
        begun = done.begin(undo=True)
        for answer in (b"1\n# srv_name srv_admin_state srv_op_state\none 8 2\n\n", b""):
            asking, _ = dying.accept()
            with asking:
                asking.recv(100)
                asking.sendall(answer)
        assert begun.end().startswith("failed")


def test_draining_waits_for_the_last_session_and_says_how_many_were_left_when_it_is_cut(
    balanced: Balanced, site: Keeping
) -> None:
    site.goes_on.clear()
    argv = ["curl", "-s", f"http://127.0.0.1:{balanced.port}/"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as asking:
        assert site.arrived.wait(patience.SECONDS)
        done = of(balanced.folder)
        action = done.action = Counting(done.action)
        cut = done.begin()
        assert action.counted.wait(patience.SECONDS)
        assert re.fullmatch(r"cut .*\b1\b.*", cut.stop())
        balanced.state("one drain")
        waiting = of(balanced.folder).begin()
        assert waiting.outcome == ""
        site.goes_on.set()
        assert waiting.end().startswith("done")
        assert asking.communicate()[0] == b"said"


def test_draining_that_is_cut_at_once_says_that_nothing_was_counted(balanced: Balanced) -> None:
    done = of(balanced.folder)
    action = done.action = Counting(done.action)
    action.first = done.run.stop
    assert re.fullmatch(r"cut [^0-9]*", done.begin().end())
    balanced.state("one drain")
