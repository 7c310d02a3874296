"""What actions do, to real programs, processes, units and servers."""

import base64
import json
import logging
import os
import pkgutil
import random
import ssl
import subprocess
import sys
import threading
import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import patience
import stories
from agent import workplace
from agent.bench import event, rule
from agent.workplace import Begun, Done, Units
from authority import Authority
from client.scripted import Keeping, serving
from forewarn import agent, clock
from forewarn.agent.actions import http
from forewarn.agent.actions.action import ActionFailed, ActionStopped
from forewarn.agent.decider import DocumentSeen
from forewarn.agent.journal import Journal
from forewarn.agent.state import ActionBegun
from forewarn.client import proxies
from forewarn.client.event import Event
from house import tree
from http_proxy import HttpProxy
from ports import free_port

TELLER = """
import json, os, sys
told = {k: v for k, v in os.environ.items() if k.startswith("FOREWARN_")}
out = {"argv": sys.argv[1:], "event": json.load(sys.stdin), "variables": told}
open(sys.argv[1], "w").write(json.dumps(out))
print("all is well")
"""

FAMILY = """
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
open(sys.argv[1] + ".part", "w").write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".part", sys.argv[1])
signal.pause()
"""

CHECKPOINTER = """
import os, signal, sys
def save(number, frame):
    open(sys.argv[1] + ".part", "w").write("saved")
    os.rename(sys.argv[1] + ".part", sys.argv[1])
signal.signal(signal.SIGUSR1, save)
signal.signal(signal.SIGUSR2, lambda number, frame: sys.exit(0))
print("set", flush=True)
while True:
    signal.pause()
"""


class Story:
    """A story so far: the folder, the units and the server that actions work upon."""

    def __init__(self, folder: Path, units: Units, site: Keeping, opened: ExitStack) -> None:
        self.folder = folder
        self.units = units
        self.site = site
        self.opened = opened
        self.of: Event | None = None
        self.done: Done
        self.begun: Begun
        self.process: subprocess.Popen[str]

    def filled(self, text: str) -> str:
        text = text.replace("@url", self.site.url).replace("@/", f"{self.folder}/")
        return text.replace("@pid", str(self.process.pid)) if "@pid" in text else text

    def carry_out(self, row: str) -> None:
        """Carry a line out, and compare what is said."""
        if row.startswith("#") or not row:
            return
        line, arrow, follows = row.partition(" ->")
        verb, _, rest = self.filled(line).partition(" ")
        act = getattr(self, verb.replace("-", "_"))
        if not follows.startswith(" fails "):
            said = act(rest)
            assert not arrow or said == follows.strip()
            return
        with pytest.raises(ActionFailed) as failed:
            act(rest)
        assert follows.removeprefix(" fails ") in str(failed.value)
        assert "s3cret" not in str(failed.value)

    def prepare(self, told: str) -> str:
        self.done = Done(self.of, **tomllib.loads(f"step = {told}")["step"])
        return self.done.prepare()

    def undo(self, told: str) -> str:
        """Undo what was done, or what was never begun."""
        if told:
            self.done = Done(self.of, **tomllib.loads(f"step = {told}")["step"])
        return self.done.recover()

    def begin(self, told: str) -> None:
        self.done = Done(self.of, **tomllib.loads(f"step = {told}")["step"])
        self.begun = self.done.begin()

    def note(self, told: str) -> None:
        """Begin an action whose note does not come to the disk."""
        self.done = Done(self.of, durable=False, **tomllib.loads(f"step = {told}")["step"])
        self.begun = self.done.begin()
        assert self.done.noted.wait(patience.SECONDS)

    def stop(self, _: str) -> str:
        return self.begun.stop()

    def event(self, told: str) -> None:
        """Have the next actions be of an event with these facts."""
        facts = json.loads(told)
        if "resources" in facts:
            facts["resources"] = tuple(facts["resources"])
        self.of = event(**facts)

    def unit(self, told: str) -> None:
        name, _, word = told.partition(" ")
        self.units.put(name, word.strip('"'))

    def looks_again(self, _: str) -> None:
        patience.until(lambda: self.begun.outcome or len(self.units.asked) > 1)
        assert self.begun.outcome == ""

    def ends(self, told: str) -> None:
        assert self.begun.end().startswith(told)

    def break_unit(self, name: str) -> None:
        self.units.break_(name)

    def unit_is(self, told: str) -> None:
        name, word = told.split()
        assert self.units.word(name) == word

    def systemctl(self, told: str) -> None:
        """Compare what systemctl was asked but for looks."""
        assert [line for line in self.units.asked if line[:4] != "show"] == told.split(", ")

    def facts(self, told: str) -> None:
        assert self.done.facts == json.loads(told)

    def write(self, told: str) -> None:
        name, _, text = told.partition(" ")
        (self.folder / name).write_text(json.loads(text) if '"' in text else text, "utf-8")
        (self.folder / name).chmod(0o755)

    def file(self, told: str) -> None:
        name, text = told.split()
        assert (self.folder / name).read_text() == text

    def fifo(self, name: str) -> None:
        os.mkfifo(self.folder / name)

    def ended_process(self, name: str) -> None:
        """Write the number of a process that has ended."""
        with subprocess.Popen(["true"]) as ended:
            (self.folder / name).write_text(str(ended.pid))

    def checkpointer(self, _: str) -> None:
        """Run a program that saves on SIGUSR1 and ends on SIGUSR2."""
        argv = [sys.executable, "-c", CHECKPOINTER, str(self.folder / "saved")]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        self.process = self.opened.enter_context(process)
        self.opened.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == "set\n"
        (self.folder / "pid").write_text(f"{process.pid}\n")

    def ended(self, told: str) -> None:
        """Compare how that has ended, or that it goes on."""
        if told == "still":
            assert self.process.poll() is None
        else:
            assert self.process.wait(patience.SECONDS) == int(told)

    def answers(self, status: str) -> None:
        self.site.status = int(status)

    def asked(self, times: str) -> None:
        assert len(self.site.asked) == int(times)

    def request(self, told: str) -> None:
        """Compare the method and path of the last request."""
        asked = self.site.asked[-1]
        assert f"{asked.method} {asked.target}" == told

    def header(self, told: str) -> None:
        name, _, value = told.partition(" ")
        assert str(self.site.asked[-1].headers.get(name)) == value

    def body(self, told: str) -> None:
        assert self.site.asked[-1].body.decode() == told

    def json(self, told: str) -> None:
        assert json.loads(self.site.asked[-1].body) == json.loads(told)

    def tries(self, told: str) -> str:
        """Count the tries of an agent with two retries at a request that is answered so."""
        status, _, terms = told.partition(" ")
        self.site.status, before = int(status), len(self.site.asked)
        state = self.folder / f"state-{before}"
        number = tries(state, **tomllib.loads(f"http = {terms}")["http"])
        assert len(self.site.asked) - before == number
        return str(number)

    def goes(self, told: str) -> str:
        """Tell how a URL is asked, where there is a proxy, and exceptions behind a bar."""
        url, _, exceptions = told.partition(" | ")
        environment = {"http_proxy": "10.0.0.5:3128", "NO_PROXY": exceptions}
        return "directly" if proxies.chosen(url, environment) is None else "by-proxy"

    def has(self, told: str) -> None:
        assert told in self.site.asked[-1].body.decode()

    def lacks(self, told: str) -> None:
        assert told not in self.site.asked[-1].body.decode()


@pytest.mark.parametrize("rows", stories.stories_beside(__file__, "actions.txt"))
def test_the_story_holds(tmp_path: Path, units: Units, site: Keeping, rows: stories.Rows) -> None:
    with ExitStack() as opened:
        story = Story(tmp_path, units, site, opened)
        assert stories.play("actions.txt", rows, story.carry_out)


# command


def test_a_program_that_fails_says_the_end_of_what_it_said() -> None:
    script = "echo begun; yes long line | head -c 9000; echo the end >&2; exit 7"
    with pytest.raises(ActionFailed, match=r"(?s)^sh ended with 7: .*the end$") as failed:
        Done(command={"run": ["sh", "-c", script]}).prepare()
    assert len(str(failed.value)) < 4200


def test_a_program_gets_the_event_and_no_shell_reads_its_arguments(tmp_path: Path) -> None:
    out = tmp_path / "a b; touch c $HOME"
    program = workplace.python(tmp_path, "tell", TELLER)
    done = Done(command={"run": [program, str(out)], "undo": [program, str(out), "undo"]})
    assert done.prepare() == "all is well"
    told = workplace.read_json(out)
    assert told["event"]["event_id"] == "E1"
    assert told["event"]["resources"] == ["web-0"]
    assert told["event"]["seconds_left"] == 30
    assert told["variables"]["FOREWARN_EVENT_TYPE"] == "Reboot"
    assert told["variables"]["FOREWARN_PHASE"] == "prepare"
    assert told["variables"]["FOREWARN_SECONDS_LEFT"] == "30"
    done.recover()
    told = workplace.read_json(out)
    assert told["argv"][1:] == ["undo"]
    assert told["variables"]["FOREWARN_PHASE"] == "undo"


def test_a_program_that_is_told_to_stop_ends_with_all_that_it_began(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = workplace.python(tmp_path, "family", FAMILY)
    begun = Done(command={"run": [program, str(pids)]}).begin()
    patience.until(pids.exists)
    assert begun.stop() == "cut"
    for pid in pids.read_text().split():
        workplace.check_ended(int(pid))


def test_what_a_program_that_is_told_to_stop_began_can_put_things_in_order(tmp_path: Path) -> None:
    """A shell that waits for a program ends by SIGTERM before that program does."""
    begun, tidy = tmp_path / "begun", tmp_path / "tidy"
    child = f"trap 'sleep 0.1; touch {tidy}; exit' TERM; touch {begun}; while :; do sleep 0.1; done"
    drain = Done(command={"run": ["sh", "-c", f'sh -c "{child}"; true']}).begin()
    patience.until(begun.exists)
    assert drain.stop() == "cut"
    assert tidy.exists()


def test_what_a_program_leaves_behind_in_its_group_ends_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    script = f"sleep 1000 & echo $! > {pids}"
    Done(command={"run": ["sh", "-c", script]}).prepare()
    workplace.check_ended(int(pids.read_text()))


def test_what_a_program_leaves_behind_elsewhere_is_not_read_for_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pids = tmp_path / "pid"
    endless = f"echo $$ > {pids}; while echo x; do sleep 0.02; done"
    script = f'setsid sh -c "{endless}" & while [ ! -s {pids} ]; do sleep 0.02; done'
    Done(command={"run": ["sh", "-c", script.replace("$$", "\\$\\$")]}).prepare()
    workplace.check_ended(int(pids.read_text()))
    assert [each.levelname for each in caplog.records] == ["WARNING"]


def test_an_action_that_is_stopped_before_it_begins_is_cut() -> None:
    done = Done(command={"run": ["true"]})
    done.run.stop()
    with pytest.raises(ActionStopped):
        done.prepare()


WATCHED = """
import os, sys
from pathlib import Path

from agent.workplace import Done

sent = []


def watch(event, arguments):
    if event == "os.killpg":
        sent.append(Path(f"/proc/{arguments[0]}").exists())


sys.addaudithook(watch)
for argv in ([sys.executable, "-c", "pass"], ["sh", "-c", "sleep 1000 &"]):
    Done(command={"run": argv}).prepare()
print(sent)
"""


def test_no_signal_is_sent_to_a_group_whose_number_may_be_anothers() -> None:
    """A leader that was waited for has given its number, and its group's, back to the system."""
    ran = subprocess.run(
        [sys.executable, "-c", WATCHED],
        capture_output=True,
        text=True,
        check=True,
        cwd=tree.ROOT / "tests",
    )
    assert ran.stdout == "[True, True]\n"


def test_an_agent_has_loaded_all_of_itself_before_it_runs() -> None:
    """Its files may be another release's by the time that it first needs them."""
    code = "import sys, forewarn.agent.__main__; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    own = {each.name for each in pkgutil.walk_packages(agent.__path__, f"{agent.__name__}.")}
    assert own <= set(ran.stdout.split())


def test_a_stop_while_the_program_ends_by_itself_reaches_nobody_else() -> None:
    """Programs that end at any moment around the stop, with real threads (seeded pauses)."""
    chance = random.Random(11)
    for _ in range(40):
        begun = Done(command={"run": ["sleep", f"{chance.uniform(0, 0.02):.4f}"]}).begin()
        threading.Event().wait(chance.uniform(0, 0.02))
        assert begun.stop().strip() in {"cut", "done"}


def test_an_event_larger_than_the_kernel_takes_is_whole_on_standard_input(tmp_path: Path) -> None:
    """3,000 machines with long names: more than one variable may hold."""
    out = tmp_path / "out"
    program = workplace.python(tmp_path, "tell", TELLER)
    names = tuple(f"machine-{number:04d}-{'x' * 60}" for number in range(3000))
    done = Done(event(resources=names), command={"run": [program, str(out)]})
    assert done.prepare() == "all is well"
    told = workplace.read_json(out)
    assert told["event"]["resources"] == list(names)
    assert "FOREWARN_RESOURCES" not in told["variables"]
    assert told["variables"]["FOREWARN_EVENT_ID"] == "E1"


def test_log_writes_a_line_with_the_event_beside_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    done = Done(log={"message": "$event_type of $machine", "level": "warning"})
    done.prepare()
    done.recover()
    first, second = caplog.records
    assert (first.levelname, first.getMessage()) == ("WARNING", "Reboot of web-0")
    assert first.__dict__["facts"]["event_id"] == "E1"
    assert second.getMessage() == "Reboot of web-0 is over"
    Done(log={"undo_message": ""}).recover()
    assert len(caplog.records) == 2


# http, notify


def tries(state: Path, **http: Any) -> int:
    """Return how many tries an agent with two retries makes of a request that fails."""
    journal = Journal(state)
    daemon = workplace.daemon(journal, rule({"http": {"retry_seconds": 0, **http}}))
    seen = event(starts_by=clock.monotonic() + 900)
    daemon._handle(DocumentSeen((seen,), "web-0"))
    while daemon._decider.busy:
        daemon._turn()
    journal.close()
    again = Journal(state)
    again.close()
    return sum(isinstance(record, ActionBegun) for record in again.records)


def test_a_post_that_nobody_got_is_retried_and_one_whose_answer_is_lost_not(tmp_path: Path) -> None:
    assert tries(tmp_path / "nobody", url=f"http://127.0.0.1:{free_port()}/") == 3
    with serving(lambda _asked, _number: b"") as server:
        assert tries(tmp_path / "lost", url=server.url) == 1


def test_a_post_that_is_cut_while_it_waits_for_its_answer_is_final(site: Keeping) -> None:
    site.goes_on.clear()
    begun = Done(http={"url": site.url}).begin()
    assert site.arrived.wait(patience.SECONDS)
    assert begun.stop() == "cut"
    assert begun.final


@pytest.mark.skipif(not http.installed(), reason="apprise is not installed")
def test_people_are_told_by_apprise_in_a_process_of_its_own(
    site: Keeping, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "apprise.py").write_text("raise SystemExit('of whoever may write here')")
    monkeypatch.chdir(tmp_path)
    urls = tmp_path / "urls"
    urls.write_text(f"# ours\njson://127.0.0.1:{site.port}/hook\n")
    told = {"urls_file": str(urls), "body": "$event_type, $description"}
    done = Done(notify=told)
    assert done.prepare() == "told 1"
    (asked,) = site.asked
    assert b'"message": "Reboot, It\'s so."' in asked.body
    assert "apprise" not in sys.modules
    assert done.recover() == ""
    urls.write_text(f"# ours\nnonsense\njson://127.0.0.1:{site.port}/hook\n")
    with pytest.raises(ActionFailed, match="in line 2") as failed:
        Done(notify=told).prepare()
    assert failed.value.final, "another try would tell the others again"
    assert len(site.asked) == 2
    site.status = 500
    with pytest.raises(ActionFailed, match="the message was not delivered"):
        Done(notify=told).prepare()


def test_a_file_of_addresses_that_is_not_there_is_a_failure() -> None:
    with pytest.raises(ActionFailed, match="/no/such" if http.installed() else "needs"):
        Done(notify={"urls_file": "/no/such"}).prepare()


NOWHERE = "chat.invalid"
"""A name that no name server knows: only a proxy can reach it."""


def test_a_request_goes_through_the_proxy_of_the_environment(
    site: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HttpProxy(site.port) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//us%40er:p%E9\udcfcss@"))
        done = Done(http={"url": f"http://{NOWHERE}/drain?now=1", "body": "x" * 60_000})
        assert done.prepare() == "answered 200"
    (lines,) = proxy.asked
    assert lines[0] == f"POST http://{NOWHERE}/drain?now=1 HTTP/1.1"
    secret = base64.b64encode(b"us@er:p\xe9\xfcss").decode()  # the bytes as they are
    assert f"Proxy-Authorization: Basic {secret}" in lines
    (asked,) = site.asked
    assert (asked.method, asked.target) == ("POST", "/drain?now=1")
    assert (asked.headers["host"], len(asked.body)) == (NOWHERE, 60_000)


def test_a_chat_by_https_is_reached_by_a_tunnel_and_its_certificate_checked(
    site: Keeping, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "ca")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.sign("chat", f"DNS:{NOWHERE}"))
    site.tls = context
    with HttpProxy(site.port) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
        assert Done(notify={"slack": f"https://{NOWHERE}/x"}).prepare() == "answered 200"
        with pytest.raises(ActionFailed, match="certificate"):
            Done(notify={"slack": "https://other.invalid/x"}).prepare()
    assert [lines[0] for lines in proxy.asked] == [
        f"CONNECT {NOWHERE}:443 HTTP/1.1",
        "CONNECT other.invalid:443 HTTP/1.1",
    ]
    assert len(site.asked) == 1


def test_a_proxy_that_refuses_was_sent_nothing(
    site: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HttpProxy(site.port, refusal="407 Who are you") as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        done = Done(http={"url": f"https://{NOWHERE}/"})
        begun = Begun(done.run, done.action.act)
        assert "407 Who are you" in begun.end()
        assert not begun.final  # so it may be retried


def test_what_is_no_http_proxy_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    for named in ("socks5://127.0.0.1:1", "http://:3128", "http://h:x"):
        monkeypatch.setenv("http_proxy", named)
        with pytest.raises(ActionFailed, match="invalid proxy"):
            Done(http={"url": f"http://{NOWHERE}/"}).prepare()


def test_small_letters_and_the_urls_own_scheme_win() -> None:
    environment = {"HTTPS_PROXY": "http://a", "https_proxy": "http://b:81", "all_proxy": "http://c"}
    chosen = [proxies.chosen(f"{scheme}://x.org/", environment) for scheme in ("https", "http")]
    assert [str(proxy.endpoint) for proxy in chosen if proxy] == ["http://b:81", "http://c"]
