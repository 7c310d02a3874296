"""What a mistake on the command line is answered with: one line, a status, never a traceback."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import forked
from forewarn.cli import fleet, guest, main
from forewarn.cli.command import as_typed
from forewarn.cli.exits import ExitStatus, Failed
from forewarn.client.event import Trouble

NOWHERE = "/nonexistent/operator.sock"
UNREADABLE = f"/{'x' * 300}"
"""Longer than a name may be: the system refuses even a look, as it does in a closed folder."""

Capture = pytest.CaptureFixture[str]


def every_command(tree: click.Group) -> dict[str, click.Command]:
    """Every command that is no group, by its path."""
    found: dict[str, click.Command] = {}
    waiting: list[tuple[str, click.Command]] = [("", tree)]
    while waiting:
        path, command = waiting.pop()
        if isinstance(command, click.Group):
            waiting += [(f"{path} {name}", sub) for name, sub in command.commands.items()]
        else:
            found[path.strip()] = command
    return found


def said_once(capsys: Capture) -> str:
    """The one line on stderr; nothing on stdout."""
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("forewarn: ")
    assert "Traceback" not in captured.err
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bogus"], "bogus"),
        (["schedul"], "'schedule'"),
        (["schedule", "reboot", "web-0", "--notice", "abc"], "'--notice'"),
        (["schedule", "reboot", "web-0", "--notice", "abc"], "'forewarn schedule --help'"),
        (["postpone", "3", "-1x"], "'TIME'"),
        (["rollout", "plan", "reboot", "--blackout", "x/y"], "'--blackout'"),
        (["rollout", "plan", "reboot", "--blackout", "x/y"], "'forewarn rollout plan --help'"),
        (["fleet", "aply"], "'apply'"),
        (["fleet", "apply"], "FILE"),
        (["fleet", "apply", "/nonexistent.toml"], "No such file"),
        (["certify", "--junit", "/nonexistent/x", "--", "true"], "No such file"),
        (["schedule", "boot", "web-0"], "'reboot'"),
        (["schedule", "reboot"], "--scope"),
        (["rollout", "start", "reboot", "--at-once", "many"], "--at-once"),
        (["rollout", "start", "reboot", "--window", "whenever"], "--window"),
        (["schedule", "reboot", "--tag", "leader"], "leader"),
        (["schedule", "reboot", "web-0", "--not-before", "2026-01-01T00:00:00"], "Z for UTC"),
        (["schedule", "reboot", "web-0", "--not-before", "soon"], "'soon'"),
        (["schedule", "reboot", "web-0", "--duration", "1.5h"], "'1.5h'"),
        (["schedule", "reboot", "web-0", "--source", "me"], "'me'"),
        (["history", "--limit", "0"], "--limit"),
        (["history", "--limit", "1", "--limit", "2"], "--limit"),
        (["history", "--status", "done"], "'done'"),
        (["history", "--since"], "'forewarn history --help'"),
        (["maintenance", "show", "x"], "NUMBER"),
        (["maintenance", "show", "0"], "NUMBER"),
        (["maintenance", "show", "-1"], "from 1, not '-1'"),
        (["schedule", "reboot", "web-0", "--description", "--dry-run"], "value before --dry-run"),
        (["cancel", "1", "--reason", "--json"], "--reason needs a value"),
        (["cancel", "1", "--reason", "-h"], "--reason needs a value"),
        (["hold", "machine", "-x"], "'-x'"),
        (["fleet", "tag", "web-0", "--domain", "x"], "--domain"),
        (["fleet", "tag", "web-0", "--domain", "20"], "between 0 and 19"),
        (["certify", "--patience", "nan", "--", "true"], "--patience"),
        (["fleet", "list", "--scopes", "--host", "h1"], "--scopes"),
        (["fleet", "list", "--lost", "--scope", "web"], "--lost"),
        (["fleet", "list", "--lost", "--scopes"], "--lost"),
        (["hold", "rack", "r1"], "'rack'"),
        (["hold", "list", "web"], "hold list"),
        (["release", "list"], "'list'"),
        (["postpone", "12.1"], "TIME"),
        (["postpone", "12.1", "soon"], "'soon'"),
        (["resolve", "12.1", "perhaps"], "'perhaps'"),
        (["acknowledge"], "REF"),
        (["events", "--operator", "ftp://x"], "'ftp://x'"),
        (["events", "--operator", "http://"], "'http://'"),
        (["events", "--operator", "http://h:x"], "'http://h:x'"),
        (["events", "--frob"], "--frob"),
        (["host", "drain", "h1", "--notice", "1h"], "least notice"),
        (["watch", "--since", "/nonexistent/state"], "/nonexistent"),
        (["watch", "--since", "/"], "since"),
        (["watch", "--exec", "./nosuch"], "./nosuch"),
        (["watch", "--exec", "/no/such/drain --now | cat"], "/no/such/drain"),
        (["certify", "--", "./nosuch"], "./nosuch"),
        (["token", "create", "ann", "--role", "root"], "'root'"),
        (["audit", "--since", "soon"], "'soon'"),
        (["serve", "--config", "/nonexistent.toml"], "/nonexistent.toml"),
        (["restore-check", UNREADABLE], "cannot read"),
        (["store", "copy", UNREADABLE, "postgresql://db/forewarn"], "cannot read"),
        (["relay", "token", "h1", "--output", UNREADABLE], "cannot write"),
    ],
    ids=lambda given: given if isinstance(given, str) else " ".join(given)[:40],
)
def test_a_mistake_is_said_in_one_line(arguments: list[str], said: str, capsys: Capture) -> None:
    assert main.execute(arguments) == ExitStatus.USAGE
    assert said in said_once(capsys)


@pytest.mark.parametrize(
    ("path", "where", "message", "said"),
    [
        ("rollout start", "policy.waves[1]", "at policy.waves[1]: bad", "--waves: bad"),
        ("schedule", "policy.notice_seconds", "too short", "--notice: too short"),
        ("schedule", "machines[0]", "at machines[0]: bad", "TARGET: bad"),
        ("schedule", "", "no machine named 'x'", "no machine named 'x'"),
        ("token create", "expires_at", "at expires_at: bad", "--expires: bad"),
        ("maintenance show", "", "at number: too large", "NUMBER: too large"),
        ("acknowledge", "even_if_down", "add --even-if-down", "add --even-if-down"),
    ],
)
def test_a_refusal_names_the_option_as_it_is_typed(
    path: str, where: str, message: str, said: str
) -> None:
    params = every_command(main.FOREWARN)[path].params
    assert as_typed(message, where, params) == said


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [("--notice", ""), ("--without-notic", "--without-notice"), ("--rebot", "--reboot")],
)
def test_no_option_that_removes_a_protection_is_suggested_for_another(
    typed: str, suggested: str, capsys: Capture
) -> None:
    assert main.execute(["host", "drain", "h1", typed]) == ExitStatus.USAGE
    line = said_once(capsys)
    assert suggested in line
    assert bool(suggested) or "--without-notice" not in line


def test_an_option_with_one_value_is_refused_when_it_is_repeated() -> None:
    tree, looked_at = main.FOREWARN, 0
    for path, command in every_command(tree).items():
        for option in command.params:
            if not isinstance(option, click.Option) or option.multiple or option.is_flag:
                continue
            name = option.opts[0]
            words = [*path.split(), name, "1", name, "2"]
            try:
                tree.main(args=words, standalone_mode=False)
            except click.UsageError as refused:
                assert name in refused.format_message(), words
            else:
                pytest.fail(f"{words} is not refused")
            looked_at += 1
    assert looked_at > 100


def test_an_option_that_takes_several_values_may_be_repeated(capsys: Capture) -> None:
    several = ["--type", "reboot", "--type", "freeze"]
    assert main.execute(["history", *several, "--operator", NOWHERE]) == ExitStatus.UNREACHABLE
    assert NOWHERE in said_once(capsys)


@pytest.mark.parametrize("arguments", [[], ["fleet"], ["maintenance"]], ids=str)
def test_no_command_shows_the_help_and_is_a_mistake(arguments: list[str], capsys: Capture) -> None:
    assert main.execute(arguments) == ExitStatus.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Usage: forewarn")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[[machine]\n", "TOML"),
        (b'{"machine": [', "JSON"),
        (b"name = \xff", "UTF-8"),
        (b'{"machine": [{"name": "\xff"}]}', "UTF-8"),
        (b"when = 2026-01-01", "2026-01-01"),
        (b"when = nan", "nan"),
        (b'{"machine": ' + b"[" * 100_000, "deep"),
    ],
    ids=["toml", "json", "bytes", "bytes in json", "date", "no number", "depth"],
)
def test_a_fleet_file_that_cannot_be_read_is_a_mistake(
    content: bytes, said: str, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "fleet"
    file.write_bytes(content)
    assert main.execute(["fleet", "apply", str(file), "--operator", NOWHERE]) == ExitStatus.USAGE
    line = said_once(capsys)
    assert said in line
    assert str(file) in line


def test_the_address_is_of_an_option_else_the_environment_else_the_services_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    settings = tmp_path / "forewarn.toml"
    settings.write_text('[store]\npath = "here.db"\n')
    monkeypatch.setenv("FOREWARN_CONFIG", str(settings))
    monkeypatch.delenv("FOREWARN_OPERATOR", raising=False)
    assert main.execute(["events"]) == ExitStatus.UNREACHABLE
    assert str(tmp_path / "operator.sock") in said_once(capsys)
    monkeypatch.setenv("FOREWARN_OPERATOR", NOWHERE)
    assert main.execute(["events"]) == ExitStatus.UNREACHABLE
    assert NOWHERE in said_once(capsys)
    assert main.execute(["events", "--operator", "/another"]) == ExitStatus.UNREACHABLE
    assert "/another" in said_once(capsys)
    # Nobody has to be able to read the service's own settings where another address is given.
    monkeypatch.delenv("FOREWARN_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", UNREADABLE)
    elsewhere = "http://127.0.0.1:1"
    assert main.execute(["events", "--operator", elsewhere]) == ExitStatus.UNREACHABLE
    assert elsewhere in said_once(capsys)
    monkeypatch.delenv("FOREWARN_OPERATOR")
    assert main.execute(["events"]) == ExitStatus.USAGE
    assert UNREADABLE in said_once(capsys)


@contextlib.contextmanager
def answering(listener: socket.socket, answer: bytes) -> Iterator[None]:
    """Answer one connection."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    thread.join()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "hung up"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "HTTP"),
        (b"", "hung up"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "--version"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", "status 404"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort", "hung up"),
    ],
    ids=["line", "ssh", "nothing", "other", "status", "short"],
)
@pytest.mark.parametrize("scheme", ["", "unix:"])
def test_something_else_at_the_address_is_not_taken_for_the_service(
    answer: bytes, said: str, scheme: str, tmp_path: Path, capsys: Capture
) -> None:
    address = str(tmp_path / "other.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        with answering(listener, answer):
            assert main.execute(["events", "--operator", scheme + address]) == (
                ExitStatus.UNREACHABLE
            )
    assert said in said_once(capsys)


def test_https_to_a_port_without_tls_names_http(capsys: Capture) -> None:
    refusal = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener, answering(listener, refusal):
        address = f"https://127.0.0.1:{listener.getsockname()[1]}"
        assert main.execute(["events", "--operator", address]) == ExitStatus.UNREACHABLE
    assert "http://" in said_once(capsys)


def test_a_missing_extra_is_named_in_one_line(tmp_path: Path) -> None:
    hide = "import sys; sys.modules['starlette'] = None; from forewarn.cli import main; main.run()"
    settings = tmp_path / "forewarn.toml"
    settings.write_text('[store]\npath = "here.db"\n')
    served = forked.completed([sys.executable, "-c", hide, "serve", "--config", str(settings)])
    assert served.returncode == ExitStatus.MISSING_EXTRA
    assert served.stdout == ""
    assert len(served.stderr.splitlines()) == 1
    assert "pip install '.[server]'" in served.stderr


def test_a_fault_of_our_own_is_one_line_unless_the_traceback_is_asked_for(
    tmp_path: Path,
) -> None:
    broken = "import sys; sys.modules['tomllib'] = 1; from forewarn.cli import main; main.run()"
    fleet = tmp_path / "fleet.toml"
    fleet.write_text("")
    command = [sys.executable, "-c", broken, "fleet", "apply", str(fleet)]
    plain = subprocess.run(command, capture_output=True, text=True, check=False)
    assert plain.returncode == ExitStatus.INTERNAL
    assert len(plain.stderr.splitlines()) == 1
    assert "FOREWARN_TRACEBACK=1" in plain.stderr
    told = forked.completed(command, env={**os.environ, "FOREWARN_TRACEBACK": "1"})
    assert "Traceback" in told.stderr


def test_a_reader_that_stops_reading_is_no_fault() -> None:
    command = [sys.executable, "-m", "forewarn", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as piped:
        assert piped.stdout is not None
        assert piped.stderr is not None
        piped.stdout.close()
        errors = piped.stderr.read()
        status = piped.wait()
    assert errors == b""
    assert status == ExitStatus.BROKEN_PIPE


@pytest.mark.parametrize("word", ["cd", '"$HOME/x"', "X=a/b", "drain", "(./x;"])
def test_watch_leaves_other_commands_to_the_shell(word: str) -> None:
    assert guest.NAMED.fullmatch(word) is None


def test_watch_prints_one_trouble_of_name_and_events_once(capsys: Capture) -> None:
    troubles = guest.Troubles()
    for message in ("the name is not known: no answer", "no answer", "it answers", "no answer"):
        troubles.tell(Trouble(reason="no-answer", message=message))
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[2] for line in told] == [
        "the name is not known: no answer",
        "it answers",
        "no answer",
    ]


TOML = """
[[availability_set]]
name = "web"
machines = [{ name = "web-0" }, { name = "web-1", host = "h1" }]
[[scale_set]]
name = "batch"
machines = [{ index = 7 }]
[[machine]]
address = "10.0.0.1"
"""


def told(folder: Path, message: str, text: str = TOML, **facts: str) -> str:
    """What is said of a file that the service refuses with this message."""
    path = folder / "fleet"
    path.write_text(text)
    failed = fleet.read_file(str(path)).blamed(Failed(ExitStatus.USAGE, message, facts))
    assert (failed.status, failed.facts) == (ExitStatus.USAGE, facts)
    return failed.message.replace(str(path), "FILE")


def test_words_of_libvirt_in_another_encoding_are_shown(tmp_path: Path, capsys: Capture) -> None:
    python = tmp_path / "python"
    python.write_bytes(b"#!/bin/sh\nprintf 'verweigert \\374ber' >&2\nexit 1\n")
    python.chmod(0o700)
    hypervisor = ["--libvirt", "test:///default", "--python", str(python)]
    assert main.execute(["fleet", "tag", "web-0", "--scope", "web", *hypervisor]) == 1
    assert "failed: verweigert \N{REPLACEMENT CHARACTER}ber" in said_once(capsys)


@pytest.mark.parametrize("text", [TOML, '{"machine": [{"name": "a"}]}'])
def test_a_byte_order_mark_is_no_part_of_a_fleet_file(tmp_path: Path, text: str) -> None:
    for name, encoding in (("plain", "utf-8"), ("marked", "utf-8-sig")):
        (tmp_path / name).write_text(text, encoding=encoding)
    plain, marked = (fleet.read_file(str(tmp_path / name)) for name in ("plain", "marked"))
    assert marked.body == plain.body


SET = "availability_set[0]"


@pytest.mark.parametrize(
    ("where", "more", "shown"),
    [
        (SET, "", f"{SET} 'web'"),
        (f"{SET}.machines[1]", "", f"{SET}.machines[1] 'web-1'"),
        (f"{SET}.machines[1]", ".host", f"{SET}.machines[1].host of 'web-1'"),
        (f"{SET}.machines[1].name", "", f"{SET}.machines[1].name"),
        ("scale_set[0].machines[0]", ".host", "scale_set[0].machines[0].host of 'batch'"),
        ("machine[0]", "", "machine[0]"),
        ("machine[9]", "", "machine[9]"),
    ],
)
def test_a_place_has_the_files_name_and_its_entrys(
    where: str, more: str, shown: str, tmp_path: Path
) -> None:
    said = told(tmp_path, f"at {where}{more}: it is: wrong", where=where)
    assert said == f"FILE: {shown}: it is: wrong"


def test_what_concerns_the_whole_body_is_said_of_the_file(tmp_path: Path) -> None:
    said = "there is no key 'x' here; known are machine"
    assert told(tmp_path, f"the body: {said}", where="", key="x") == f"FILE: {said}"
    assert told(tmp_path, "the body is over 9 bytes, the most") == "FILE is over 9 bytes, the most"


def test_what_is_no_place_of_the_file_is_said_as_it_is(tmp_path: Path) -> None:
    for message, facts in (
        ("web-0 has the live event X: wait", {"machine": "web-0"}),
        ("at by: 'x' holds characters that cannot be printed", {"where": "by"}),
    ):
        assert told(tmp_path, message, **facts) == message


def test_a_toml_file_is_told_in_its_own_words(tmp_path: Path) -> None:
    message = "at availability_set[0].machines: expected `array`, got `object`"
    facts = {"where": "availability_set[0].machines"}
    toml = '[[availability_set]]\nname = "web"\n[availability_set.machines]\nname = "a"\n'
    place = "FILE: availability_set[0].machines 'a': expected `array`, got"
    assert told(tmp_path, message, toml, **facts) == f"{place} `table`"
    json = '{"availability_set": [{"name": "web", "machines": {"name": "a"}}]}'
    assert told(tmp_path, message, json, **facts) == f"{place} `object`"
