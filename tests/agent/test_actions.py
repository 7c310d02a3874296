"""What actions do, to real programs, processes, units and servers."""

import base64
import json
import logging
import os
import random
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import patience
from agent import workplace
from agent.bench import event, rule
from agent.workplace import Begun, Done, Site, Units
from authority import Authority
from client.scripted import serving
from forewarn import clock
from forewarn.agent.actions import http
from forewarn.agent.actions.action import ActionFailed, ActionStopped
from forewarn.agent.decider import DocumentSeen
from forewarn.agent.journal import Journal
from forewarn.agent.state import ActionBegun
from forewarn.client import proxies
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


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Units:
    made = Units(tmp_path)
    monkeypatch.setenv("PATH", f"{made.bin}:{os.environ['PATH']}")
    return made


@pytest.fixture
def site() -> Iterator[Site]:
    with workplace.site() as server:
        yield server


# Failures.

FAILURES = {
    "a program that is not there": ({"command": {"run": ["/no/such"]}}, "/no/such"),
    "a program without its interpreter": ({"command": {"run": ["@/broken"]}}, "No such file"),
    "a unit that systemd has not": ({"service": {"stop": "wbe"}}, "systemd has no unit wbe"),
    "a unit that does not stop": (
        {"service": {"stop": "web"}},
        "systemctl stop web ended with 1: Job for web failed",
    ),
    "a process that has ended": ({"signal": {"pid_file": "@/ended"}}, "does not run"),
    "a unit without a process": ({"signal": {"unit": "idle"}}, "idle has no main process"),
    "a pid file that is not there": ({"signal": {"pid_file": "@/none"}}, "none"),
    "a secret that is not there": ({"http": {"header_files": {"A": "/no/such"}}}, "/no/such"),
    "a secret of two lines": ({"http": {"header_files": {"A": "@/secret"}}}, "A in"),
    "a secret in a fifo": ({"http": {"header_files": {"A": "@/fifo"}}}, "ordinary file"),
    "nobody at the address": ({"http": {"url": "http://127.0.0.1:1/"}}, "Connection refused"),
    "a file without a URL": ({"notify": {"teams": "@/secret"}}, "URL"),
}
"""What cannot be done, by the rule's step and what it says; `@` is the test's folder."""


@pytest.mark.parametrize(("step", "says"), FAILURES.values(), ids=FAILURES)
def test_what_cannot_be_done_says_why_and_tells_no_secret(
    step: dict[str, dict[str, Any]], says: str, site: Site, units: Units, tmp_path: Path
) -> None:
    (tmp_path / "broken").write_text("#!/no/such/interpreter\n")
    (tmp_path / "broken").chmod(0o755)
    (tmp_path / "secret").write_text("s3cret\ntwo\n")
    os.mkfifo(tmp_path / "fifo")
    units.put("web", "active")
    units.break_("web")
    units.put("idle", "inactive")
    with subprocess.Popen(["true"]) as ended:
        (tmp_path / "ended").write_text(str(ended.pid))
    terms = json.loads(json.dumps(step).replace("@", str(tmp_path)))
    if "http" in terms:
        terms["http"].setdefault("url", site.url)
    with pytest.raises(ActionFailed, match=says) as failed:
        Done(**terms).prepare()
    assert "s3cret" not in str(failed.value)
    assert site.asked == []


# command


def test_a_program_gets_the_event_on_its_input_and_in_variables(tmp_path: Path) -> None:
    out = tmp_path / "out"
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


def test_no_shell_reads_a_programs_arguments(tmp_path: Path) -> None:
    program = workplace.python(tmp_path, "tell", TELLER)
    strange = str(tmp_path / "a b; touch c $HOME")
    Done(command={"run": [program, strange]}).prepare()
    assert Path(strange).is_file()


def test_a_program_that_fails_says_how_and_what_it_said_last() -> None:
    script = "echo begun; yes long line | head -c 9000; echo the end >&2; exit 7"
    with pytest.raises(ActionFailed, match=r"(?s)^sh ended with 7: .*the end$") as failed:
        Done(command={"run": ["sh", "-c", script]}).prepare()
    assert len(str(failed.value)) < 4200
    with pytest.raises(ActionFailed, match="sh was ended by signal 9"):
        Done(command={"run": ["sh", "-c", "kill -9 $$"]}).prepare()


def test_a_command_without_undo_has_nothing_to_undo() -> None:
    assert Done(command={"run": ["false"]}).recover() == ""


def test_a_program_that_is_told_to_stop_ends_with_all_that_it_began(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = workplace.python(tmp_path, "family", FAMILY)
    begun = Done(command={"run": [program, str(pids)]}).begin()
    patience.until(pids.exists)
    assert begun.stop() == "cut"
    assert all(workplace.ended(int(pid)) for pid in pids.read_text().split())


def test_what_a_program_leaves_behind_in_its_group_ends_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    script = f"sleep 1000 & echo $! > {pids}"
    Done(command={"run": ["sh", "-c", script]}).prepare()
    assert workplace.ended(int(pids.read_text()))


def test_what_a_program_leaves_behind_elsewhere_is_not_read_for_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pids = tmp_path / "pid"
    endless = f"echo $$ > {pids}; while echo x; do sleep 0.02; done"
    script = f'setsid sh -c "{endless}" & while [ ! -s {pids} ]; do sleep 0.02; done'
    Done(command={"run": ["sh", "-c", script.replace("$$", "\\$\\$")]}).prepare()
    assert workplace.ended(int(pids.read_text()))
    assert [each.levelname for each in caplog.records] == ["WARNING"]


def test_an_action_that_is_stopped_before_it_begins_is_cut() -> None:
    done = Done(command={"run": ["true"]})
    done.run.stop()
    with pytest.raises(ActionStopped):
        done.prepare()


def test_a_program_need_not_read_what_it_is_told() -> None:
    assert Done(command={"run": ["true"]}).prepare() == ""


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


# ready, log


def test_ready_waits_and_can_be_cut() -> None:
    assert Done(ready={"wait_seconds": 0.01}).prepare() == ""
    assert Done(ready={"wait_seconds": 50}).begin().stop() == "cut"
    assert Done(ready={}).recover() == ""


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


# service


def test_a_unit_that_ran_is_stopped_and_started_again(units: Units) -> None:
    units.put("web", "active")
    done = Done(service={"stop": "web"})
    assert done.prepare() == ""
    assert (units.word("web"), done.facts) == ("inactive", {"ran": True})
    done.recover()
    assert units.word("web") == "active"
    assert [line for line in units.asked if not line.startswith("show")] == [
        "stop -- web",
        "start -- web",
    ]


@pytest.mark.parametrize(
    ("step", "before", "during", "after"),
    [
        ({"stop": "web"}, "inactive", "inactive", "inactive"),
        ({"start": "web"}, "inactive", "active", "inactive"),
        ({"start": "web"}, "active", "active", "active"),
    ],
)
def test_a_unit_is_left_as_it_was_before(
    units: Units, step: dict[str, str], before: str, during: str, after: str
) -> None:
    units.put("web", before)
    done = Done(service=step)
    done.prepare()
    assert units.word("web") == during
    done.recover()
    assert units.word("web") == after


def test_what_was_never_noted_was_never_changed(units: Units) -> None:
    units.put("web", "inactive")
    Done(service={"stop": "web"}).recover()
    assert units.word("web") == "inactive"


# signal


@pytest.fixture
def checkpointer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", CHECKPOINTER, str(tmp_path / "saved")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "set\n"
        (tmp_path / "pid").write_text(f"{process.pid}\n")
        yield process
        process.kill()


def test_a_signal_brings_a_checkpoint_about(
    tmp_path: Path, checkpointer: subprocess.Popen[str]
) -> None:
    (tmp_path / "saved").write_text("old")
    done = Done(
        signal={
            "pid_file": str(tmp_path / "pid"),
            "signal": "SIGUSR1",
            "wait": "file",
            "file": str(tmp_path / "saved"),
            "undo_signal": "SIGUSR2",
        }
    )
    assert done.prepare() == f"SIGUSR1 to process {checkpointer.pid}"
    assert (tmp_path / "saved").read_text() == "saved"
    done.recover()
    assert checkpointer.wait(patience.SECONDS) == 0


def test_a_signal_is_waited_for_until_the_process_has_ended(
    units: Units, checkpointer: subprocess.Popen[str]
) -> None:
    units.put("batch", f"active {checkpointer.pid}")
    Done(signal={"unit": "batch"}).prepare()
    assert checkpointer.wait(patience.SECONDS) == -signal.SIGTERM


def test_a_signal_without_a_wait_is_done_when_it_is_sent(
    tmp_path: Path, checkpointer: subprocess.Popen[str]
) -> None:
    terms = {"pid_file": str(tmp_path / "pid"), "signal": "SIGUSR1", "wait": "nothing"}
    Done(signal=terms).prepare()
    assert Done(signal=terms).recover() == ""
    assert checkpointer.poll() is None


def test_a_process_that_ends_without_its_file_has_failed(
    tmp_path: Path, checkpointer: subprocess.Popen[str]
) -> None:
    terms = {"pid_file": str(tmp_path / "pid"), "wait": "file", "file": str(tmp_path / "never")}
    with pytest.raises(ActionFailed, match="ended and has not written"):
        Done(signal=terms).prepare()


def test_waiting_for_a_signals_effect_can_be_cut(
    tmp_path: Path, checkpointer: subprocess.Popen[str]
) -> None:
    terms = {"pid_file": str(tmp_path / "pid"), "signal": "SIGUSR1"}
    assert Done(signal=terms).begin().stop() == "cut"
    assert checkpointer.poll() is None


@pytest.mark.parametrize("text", ["", "0", "1", "-1", "web", "12 13"])
def test_a_pid_file_that_names_no_process_is_a_failure(tmp_path: Path, text: str) -> None:
    (tmp_path / "pid").write_text(text)
    with pytest.raises(ActionFailed, match="process"):
        Done(signal={"pid_file": str(tmp_path / "pid")}).prepare()


# http, notify


def test_a_request_is_made_from_templates_and_secrets_from_files(
    site: Site, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("Bearer s3cret\r\n", encoding="utf-8-sig")  # of an editor
    done = Done(
        http={
            "url": f"{site.url}/hook?x=1",
            "headers": {"Content-Type": "application/json", "X-Blank": " a\t"},
            "header_files": {"Authorization": str(tmp_path / "token")},
            "body": '{"text": "$event_type of $machine costs $$5"}',
            "undo_url": f"{site.url}/over",
            "undo_method": "DELETE",
        }
    )
    assert done.prepare() == "answered 200"
    assert done.recover() == "answered 200"
    first, second = site.asked
    assert first[:2] == ("POST", "/hook?x=1")
    assert first[2]["authorization"] == "Bearer s3cret"
    assert first[2]["x-blank"] == "a"
    assert first[3] == b'{"text": "Reboot of web-0 costs $5"}'
    assert second[:2] == ("DELETE", "/over")
    assert Done(http={"url": site.url}).recover() == ""


@pytest.mark.parametrize(
    ("method", "length"), [("POST", "0"), ("PUT", "0"), ("GET", None), ("DELETE", None)]
)
def test_a_request_without_a_body_says_so_where_one_is_expected(
    site: Site, method: str, length: str | None
) -> None:
    Done(http={"url": site.url, "method": method}).prepare()
    ((asked, _, headers, body),) = site.asked
    assert (asked, headers.get("content-length"), body) == (method, length, b"")


QUOTED = event(description='He said "now",\n\\ twice', resources=("web-0", 'we"b'))


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ('{"text": "$description of $resources", "s": $duration_seconds}', {}),
        (
            '{"text": "$description of $resources", "s": $duration_seconds}',
            {"content-type": "application/vnd.x+json; charset=utf-8"},
        ),
        ({"text": "$description of $resources", "s": -1}, {}),
    ],
)
def test_a_quote_in_an_event_leaves_a_json_body_json(
    site: Site, body: Any, headers: dict[str, str]
) -> None:
    Done(QUOTED, http={"url": site.url, "body": body, "headers": headers}).prepare()
    ((_, _, sent_headers, sent),) = site.asked
    text = f'{QUOTED.description} of web-0,we"b'
    assert json.loads(sent) == {"text": text, "s": -1}
    assert sent_headers["content-type"] == headers.get("content-type", "application/json")


def test_a_body_that_is_no_json_has_the_events_words_as_they_are(site: Site) -> None:
    for body, headers in (("[$description", {}), ('{"$description"', {"Content-Type": "text/x"})):
        Done(QUOTED, http={"url": site.url, "body": body, "headers": headers}).prepare()
    sent = [asked[3].decode() for asked in site.asked]
    assert sent == [f"[{QUOTED.description}", f'{{"{QUOTED.description}"']


@pytest.mark.parametrize("status", [301, 404, 503])
def test_an_answer_that_is_no_success_is_a_failure(site: Site, status: int) -> None:
    site.status = status
    with pytest.raises(ActionFailed, match=rf"was answered {status}: said"):
        Done(http={"url": site.url}).prepare()
    assert len(site.asked) == 1  # a redirect is not followed


def tries(tmp_path: Path, **http: Any) -> int:
    """Return how many tries an agent with two retries makes of a request that fails."""
    journal = Journal(tmp_path / "state")
    daemon = workplace.daemon(journal, rule({"http": {"retry_seconds": 0, **http}}))
    seen = event(starts_by=clock.monotonic() + 900)
    daemon._handle(DocumentSeen((seen,), "web-0"))
    while daemon._decider.busy:
        daemon._turn()
    journal.close()
    again = Journal(tmp_path / "state")
    again.close()
    return sum(isinstance(record, ActionBegun) for record in again.records)


@pytest.mark.parametrize(
    ("given", "status", "number"),
    [
        ({}, 500, 1),
        ({"method": "PATCH"}, 504, 1),
        ({}, 503, 3),
        ({}, 429, 3),
        ({"method": "PUT"}, 500, 3),
        ({"method": "GET"}, 500, 3),
        ({"repeatable": True}, 500, 3),
    ],
)
def test_a_request_that_may_have_been_carried_out_is_sent_once(
    site: Site, tmp_path: Path, given: dict[str, Any], status: int, number: int
) -> None:
    site.status = status
    assert tries(tmp_path, url=site.url, **given) == number
    assert len(site.asked) == number


def test_a_post_whose_answer_is_lost_is_sent_once(tmp_path: Path) -> None:
    with serving(lambda _asked, _number: b"") as server:
        assert tries(tmp_path, url=server.url) == 1


def test_a_post_that_nobody_has_got_is_retried(tmp_path: Path) -> None:
    assert tries(tmp_path, url=f"http://127.0.0.1:{free_port()}/") == 3


def test_a_post_that_is_cut_while_it_waits_for_its_answer_is_final(site: Site) -> None:
    site.hold.clear()
    begun = Done(http={"url": site.url}).begin()
    assert site.arrived.wait(patience.SECONDS)
    assert begun.stop() == "cut"
    assert begun.final


@pytest.mark.skipif(not http.installed(), reason="apprise is not installed")
def test_people_are_told_by_apprise_in_a_process_of_its_own(site: Site, tmp_path: Path) -> None:
    urls = tmp_path / "urls"
    urls.write_text(f"# ours\njson://127.0.0.1:{site.server_port}/hook\n")
    told = {"urls_file": str(urls), "body": "$event_type, $description"}
    done = Done(notify=told)
    assert done.prepare() == "told 1"
    (asked,) = site.asked
    assert b'"message": "Reboot, It\'s so."' in asked[3]
    assert "apprise" not in sys.modules
    assert done.recover() == ""
    site.status = 500
    with pytest.raises(ActionFailed, match="the message was not delivered"):
        Done(notify=told).prepare()


@pytest.mark.parametrize(
    ("chat", "place"), [("slack", ["text"]), ("teams", ["attachments", 0, "content", "body", 0])]
)
def test_a_chat_is_told_by_the_url_of_its_webhook(
    site: Site, tmp_path: Path, chat: str, place: list[Any]
) -> None:
    of = event(description="<!channel> now")
    assert Done(of, notify={chat: f"{site.url}/s3cret"}).prepare() == "answered 200"
    (tmp_path / "url").write_text(f"{site.url}/s3cret\n")
    Done(of, notify={chat: str(tmp_path / "url")}).prepare()
    first, second = site.asked
    assert first[:2] == ("POST", "/s3cret")
    assert first[3] == second[3]
    found = json.loads(first[3])
    for key in place:
        found = found[key]
    text = found if isinstance(found, str) else found["text"]
    assert "web-0: Reboot" in text
    assert "<!channel>" not in text


def test_a_webhook_gets_the_message_and_the_event(site: Site) -> None:
    done = Done(notify={"webhook": site.url, "undo_body": "over"})
    done.prepare()
    done.recover()
    first, second = (json.loads(asked[3]) for asked in site.asked)
    assert (first["event_id"], first["resources"], first["phase"]) == ("E1", ["web-0"], "prepare")
    assert second["text"] == "web-0: Reboot\nover"


def test_a_chat_that_refuses_is_a_failure_which_tells_no_secret(site: Site) -> None:
    site.status = 403
    with pytest.raises(ActionFailed, match="403") as failed:
        Done(notify={"slack": f"{site.url}/s3cret"}).prepare()
    assert "s3cret" not in str(failed.value)


def test_a_file_of_addresses_that_is_not_there_is_a_failure() -> None:
    with pytest.raises(ActionFailed, match="/no/such" if http.installed() else "needs"):
        Done(notify={"urls_file": "/no/such"}).prepare()


NOWHERE = "chat.invalid"
"""A name that no name server knows: only a proxy can reach it."""


def test_a_request_goes_through_the_proxy_of_the_environment(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HttpProxy(site.server_port) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//us%40er:pass@"))
        done = Done(http={"url": f"http://{NOWHERE}/drain?now=1", "body": "x" * 60_000})
        assert done.prepare() == "answered 200"
    (lines,) = proxy.asked
    assert lines[0] == f"POST http://{NOWHERE}/drain?now=1 HTTP/1.1"
    secret = base64.b64encode(b"us@er:pass").decode()
    assert f"Proxy-Authorization: Basic {secret}" in lines
    ((method, path, headers, body),) = site.asked
    assert (method, path, headers["host"], len(body)) == ("POST", "/drain?now=1", NOWHERE, 60_000)


def test_a_chat_by_https_is_reached_by_a_tunnel_and_its_certificate_checked(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "ca")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.sign("chat", f"DNS:{NOWHERE}"))
    site.socket = context.wrap_socket(site.socket, server_side=True)
    with HttpProxy(site.server_port) as proxy:
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


def test_a_proxy_that_refuses_says_so_and_nothing_was_sent(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HttpProxy(site.server_port, refusal="407 Who are you") as proxy:
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


def test_a_server_of_this_machine_is_asked_directly(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert Done(http={"url": site.url}).prepare() == "answered 200"


@pytest.mark.parametrize(
    ("url", "exceptions", "asked"),
    [
        ("http://example.org/", "", True),
        ("http://example.org/", "other.org, 10.0.0.0/8", True),
        ("http://example.org/", "*", False),
        ("http://example.org/", "EXAMPLE.org", False),
        ("http://www.example.org/", "example.org", False),
        ("http://www.example.org/", ".example.org", False),
        ("http://www.example.org/", "*.example.org", False),
        ("http://notexample.org/", "example.org", True),
        ("http://example.org:8080/", "example.org:8080", False),
        ("http://example.org/", "example.org:8080", True),
        ("http://10.1.2.3/", "10.0.0.0/8", False),
        ("http://10.1.2.3/", "10.1.2.3", False),
        ("http://11.1.2.3/", "10.0.0.0/8", True),
        ("http://[2001:db8::1]/", "2001:db8::/32", False),
        ("http://[2001:db8::1]:81/", "[2001:db8::1]:81", False),
        ("http://[2001:db8::1]/", "[2001:db8::1]:81", True),
        ("http://169.254.169.254/metadata", "", False),
        ("http://[::ffff:169.254.169.254]/metadata", "", False),
        ("http://[fe80::1]/", "", False),
        ("http://localhost:8170/", "", False),
        ("http://127.9.9.9/", "", False),
        ("http://[::1]/", "", False),
    ],
)
def test_the_metadata_service_and_exceptions_are_asked_directly(
    url: str, exceptions: str, asked: bool
) -> None:
    environment = {"http_proxy": "10.0.0.5:3128", "NO_PROXY": exceptions}
    assert (proxies.chosen(url, environment) is not None) is asked


def test_small_letters_and_the_urls_own_scheme_win() -> None:
    environment = {"HTTPS_PROXY": "http://a", "https_proxy": "http://b:81", "all_proxy": "http://c"}
    chosen = [proxies.chosen(f"{scheme}://x.org/", environment) for scheme in ("https", "http")]
    assert [str(proxy.endpoint) for proxy in chosen if proxy] == ["http://b:81", "http://c"]
