"""The agent's settings: what is refused says in which file, where and what was expected."""

from pathlib import Path

import pytest

from forewarn.agent import settings
from forewarn.agent.settings import Loaded
from forewarn.configuration import SettingsError

EXAMPLE = """
[[rule]]
name    = "leave the pool for anything that stops us"
match   = { types = ["Reboot", "Redeploy", "Preempt", "Terminate"] }
prepare = [ { ready = { wait_seconds = 20 } }, { service = { stop = "web" } } ]
approve = "when-prepared"            # or "never", "at-once", "when-all-ready"

[[rule]]
name    = "short freezes are nothing"
match   = { types = ["Freeze"], max_duration_seconds = 10 }
approve = "at-once"
"""


def load(
    folder: Path, text: str, *drop_ins: str, platform: str = "linux", **environment: str
) -> Loaded:
    path = folder / "agent.toml"
    path.write_text(text, encoding="utf-8")
    (folder / "agent.d").mkdir(exist_ok=True)
    for number, drop_in in enumerate(drop_ins):
        (folder / "agent.d" / f"{number}.toml").write_text(drop_in, encoding="utf-8")
    return settings.load(path, {"STATE_DIRECTORY": str(folder), **environment}, platform=platform)


def refusal(folder: Path, text: str, *drop_ins: str, platform: str = "linux") -> str:
    with pytest.raises(SettingsError) as refused:
        load(folder, text, *drop_ins, platform=platform)
    return str(refused.value).replace(str(folder), "")


def step(text: str, approve: str = "when-prepared") -> str:
    return f"[[rule]]\nname = 'r'\napprove = '{approve}'\nprepare = [{{ {text} }}]\n"


def test_the_example_is_read_as_it_stands(tmp_path: Path) -> None:
    pool, freezes = load(tmp_path, EXAMPLE).settings.rule
    ready, service = pool.prepare
    assert (ready.kind, service.kind) == ("ready", "service")
    assert (ready.terms.repeatable, service.terms.effect) == (True, "service stop web")
    assert freezes.match.max_duration_seconds == 10
    assert freezes.approve == "at-once"


def test_without_a_file_there_are_the_defaults(tmp_path: Path) -> None:
    nowhere = {"XDG_CONFIG_HOME": str(tmp_path), "STATE_DIRECTORY": str(tmp_path)}
    loaded = settings.load(None, nowhere)
    assert loaded.settings.rule == ()
    assert loaded.files == ()
    assert loaded.settings.state.folder == str(tmp_path / "agent")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[rule]]\n", "at rule[0]: Object missing required field `name`"),
        ("[rule]\nname = 'r'\n", "at rule: Expected `array`, got `table`; write [[rule]]"),
        (
            "[[rule]]\nname = 'r'\n[rule.prepare]\nready = {}\n",
            "at rule[0].prepare: Expected `array`, got `table`; write [[rule.prepare]]",
        ),
        (
            "[[rule]]\nname = 'r'\nmatch = { types = 'Reboot' }\n",
            (
                "at rule[0].match.types: Expected `array`, got `string`; give a list, such as "
                '["Reboot"]'
            ),
        ),
        (
            step("command = { run = '/bin/drain now' }"),
            (
                "at rule[0].prepare[0].command.run: Expected `array`, got `string`; give a list, "
                'such as ["/bin/drain", "now"]'
            ),
        ),
        (
            step("command = { run = 'sh -c \"a b\"' }"),
            ("at rule[0].prepare[0].command.run: Expected `array`, got `string`; give a list"),
        ),
        (
            "[status]\nlisten = '10.0.0.1:8171'\npeers = 'http://{machine}:8171'\n",
            (
                "there is no setting status.peers; [status] knows listen; peers is a setting of "
                "the top level and belongs above the first table"
            ),
        ),
        ("peers = 3\n", "at peers: Expected `string | array`, got `integer`; the default is ()"),
        ("[[rule]]\nname = ''\n", "at rule[0].name: Expected `string` of length >= 1"),
        (
            "[[rule]]\nname = 'r'\napprove = 'soon'\n",
            (
                "at rule[0].approve: Invalid enum value 'soon'; give one of 'never', "
                "'at-once', 'when-prepared', 'when-all-ready'"
            ),
        ),
        (
            "[[rule]]\nname = 'r'\nmatch = { types = ['Reebot'] }\n",
            (
                "at rule[0].match.types[0]: Invalid enum value 'Reebot'; give one of "
                "'Freeze', 'Reboot', 'Redeploy', 'Preempt', 'Terminate'"
            ),
        ),
        (
            step("service = { sotp = 'web' }"),
            (
                "there is no setting rule[0].prepare[0].service.sotp; did you mean "
                "rule[0].prepare[0].service.stop? [rule[0].prepare[0].service] knows "
                "time_limit_seconds, needs_seconds, retries, retry_seconds, undo_retries, "
                "on_failure, repeatable, after_boot, stop, start"
            ),
        ),
        (
            step("service = { stop = 'a', start = 'b' }"),
            "at rule[0].prepare[0].service: give one of stop and start",
        ),
        (
            step("service = { stop = '--now' }"),
            "at rule[0].prepare[0].service.stop: '--now' is no name of a unit",
        ),
        (
            step("service = { stop = 'a' }, ready = {}"),
            (
                "at rule[0].prepare[0]: an action has one kind, and this one service and "
                "ready: give one of command, service, signal, ready, haproxy, http, notify, log"
            ),
        ),
        (
            step(""),
            (
                "at rule[0].prepare[0]: an action has one kind, and this one nothing: "
                "give one of command, service, signal, ready, haproxy, http, notify, log"
            ),
        ),
        (
            step("command = { run = [] }"),
            "at rule[0].prepare[0].command.run: give the program and its arguments",
        ),
        (
            step("ready = { wait_seconds = 60 }"),
            ("at rule[0].prepare[0].ready.wait_seconds: 60 is not below time_limit_seconds, 60"),
        ),
        (
            step("ready = { wait_seconds = -1 }"),
            (
                "at rule[0].prepare[0].ready.wait_seconds: Expected `number` >= 0.0; the "
                "default is 20.0"
            ),
        ),
        (
            step("signal = { signal = 'SIGTERM' }"),
            "at rule[0].prepare[0].signal: give one of unit and pid_file",
        ),
        (
            step("signal = { unit = 'a', signal = 'term' }"),
            (
                "at rule[0].prepare[0].signal.signal: 'term' is no signal's name: give "
                "one such as 'SIGTERM'"
            ),
        ),
        (
            step("signal = { unit = 'a', wait = 'file' }"),
            ('at rule[0].prepare[0].signal.file: it goes with wait = "file", and that with it'),
        ),
        (
            step("haproxy = { socket = '/run/h', server = 'web' }"),
            (
                "at rule[0].prepare[0].haproxy.server: 'web' is no server: give it as "
                "'backend/server'"
            ),
        ),
        (
            step("haproxy = { socket = '/run/h', server = 'a/b; shutdown' }"),
            (
                "at rule[0].prepare[0].haproxy.server: 'a/b; shutdown' is no server: give "
                "it as 'backend/server'"
            ),
        ),
        (
            step("http = { url = 'ftp://x' }"),
            (
                "at rule[0].prepare[0].http.url: 'ftp://x' is no address: give one such "
                "as 'https://example.org/x'"
            ),
        ),
        (
            step("http = { url = 'http://x', body = '$event' }"),
            (
                "at rule[0].prepare[0].http.body: there is no $event; known are event_id, "
                "event_type, event_status, event_source, description, resources, not_before, "
                "duration_seconds, machine, phase, rule"
            ),
        ),
        (
            step("log = { message = '5 $' }"),
            ("at rule[0].prepare[0].log.message: a dollar sign stands alone; write it as $$"),
        ),
        (
            step("service = { stop = 'a' }", approve="at-once"),
            (
                "at rule[0].prepare[0]: approve = 'at-once' waits for nothing, so only "
                "log and notify may stand beside it; 'when-prepared' waits"
            ),
        ),
        (
            "[[rule]]\nname = 'r'\nmatch = { machine = 'others' }\napprove = 'when-prepared'\n",
            (
                "at rule[0].approve: 'when-prepared' is decided by an event's own "
                "machines, and this rule takes events of others: give 'never' or 'at-once'"
            ),
        ),
        (
            "[[rule]]\nname = 'r'\nmatch = { min_notice_seconds = 9, max_notice_seconds = 9 }\n",
            (
                "at rule[0].match: no event has more than min_notice_seconds and less "
                "than max_notice_seconds"
            ),
        ),
        (
            "[[rule]]\nname = 'r'\n[[rule]]\nname = 'r'\n",
            "at rule[1].name: 'r' is the name of another rule of this file",
        ),
        (
            "peers = 'http://peer:8171'\n",
            ("at peers: 'http://peer:8171' lacks {machine}: give a pattern with it, or a list"),
        ),
        (
            "peers = ['http://a:1', 'b:2']\n",
            ("at peers[1]: 'b:2' is no agent's address: give one such as 'http://10.0.0.5:8171'"),
        ),
        (
            "peers = 'http://{machine}:{port}'\n",
            (
                "at peers: 'http://{machine}:{port}' is no agent's address: give one such "
                "as 'http://10.0.0.5:8171'"
            ),
        ),
        (
            "[status]\nlisten = '8171'\n",
            (
                "at status.listen: '8171' is no address with a port: give one such as "
                "'127.0.0.1:PORT' or '[::1]:PORT'"
            ),
        ),
    ],
)
def test_what_is_wrong_is_refused_by_file_and_path(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path, text) == f"/agent.toml: {message}"


def test_what_is_wrong_in_a_drop_in_is_blamed_on_the_drop_in(tmp_path: Path) -> None:
    said = refusal(tmp_path, EXAMPLE, "[[rule]]\nname = 'x'\n", step("service = {}"))
    assert said == "/agent.d/1.toml: at rule[0].prepare[0].service: give one of stop and start"


def test_an_action_that_needs_posix_is_refused_on_windows(tmp_path: Path) -> None:
    said = refusal(tmp_path, step("service = { stop = 'web' }"), platform="win32")
    assert said == (
        "/agent.toml: at rule[0].prepare[0].service: this action needs systemd, which Windows does "
        "not have; use command there"
    )


def test_later_files_win_setting_by_setting(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        "margin_seconds = 1\n[client]\nendpoint = 'http://a'\nmachine = 'm'\n",
        "[client]\nendpoint = 'http://b'\n",
        "[client]\nendpoint = 'http://c'\n",
    )
    assert loaded.settings.client == settings.Client(endpoint="http://c", machine="m")
    assert loaded.settings.margin_seconds == 1
    assert [path.name for path in loaded.files] == ["agent.toml", "0.toml", "1.toml"]


def test_a_later_rule_replaces_its_namesake_or_is_tried_first(tmp_path: Path) -> None:
    named = "[[rule]]\nname = '{}'\napprove = '{}'\n"
    loaded = load(
        tmp_path,
        named.format("a", "never") + named.format("b", "never"),
        named.format("b", "at-once") + named.format("c", "never") + named.format("d", "never"),
        named.format("e", "never"),
    )
    assert [rule.name for rule in loaded.settings.rule] == ["e", "c", "d", "a", "b"]
    assert loaded.settings.rule[-1].approve == "at-once"
    assert {name: path.name for name, path in loaded.origins.items()} == {
        "e": "1.toml",
        "c": "0.toml",
        "d": "0.toml",
        "a": "agent.toml",
        "b": "0.toml",
    }


def test_the_environment_has_the_last_word(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        "[client]\nmachine = 'm'\n",
        FOREWARN_AGENT_SET_CLIENT__MACHINE="n",
        FOREWARN_SET_GUEST__HEAD_SECONDS="3",  # the service's business
    )
    assert loaded.settings.client.machine == "n"


def test_places_start_at_the_files_folder(tmp_path: Path) -> None:
    assert load(tmp_path, "").settings.state.folder == str(tmp_path / "agent")
    loaded = load(tmp_path, "[state]\nfolder = 'kept'\n")
    assert loaded.settings.state.folder == str(tmp_path / "kept")


def test_too_many_drop_ins_are_refused(tmp_path: Path) -> None:
    said = refusal(tmp_path, "", *([""] * (settings.MAX_DROP_INS + 1)))
    assert said == "/agent.d holds 101 files, and 100 are read at most"
