"""What a mistake on the command line is answered with: one line, a status, never a traceback."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.core import TyperGroup, TyperOption

from forewarn.cli import main
from forewarn.cli.exits import ExitStatus

NOWHERE = "/nonexistent/operator.sock"

Capture = pytest.CaptureFixture[str]


def every_command() -> dict[str, object]:
    """Every command that is no group, by its path."""
    found: dict[str, object] = {}
    waiting: list[tuple[str, object]] = [("", main.command())]
    while waiting:
        path, command = waiting.pop()
        if isinstance(command, TyperGroup):
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
        (["bogus"], "No such command 'bogus'. See 'forewarn --help'"),
        (["schedul"], "Did you mean 'schedule'?"),
        (["fleet", "aply"], "Did you mean 'apply'?"),
        (["fleet", "apply"], "Missing argument 'FILE'"),
        (["schedule", "boot", "web-0"], "'boot' is not one of 'reboot'"),
        (["schedule", "reboot"], "name machines, or one --scope, or one --host: one of them"),
        (["schedule", "reboot", "web-0", "--scope", "web"], "one of them"),
        (["schedule", "reboot", "--host", "h1", "--scope", "web"], "one of them"),
        (["schedule", "reboot", "web-0", "--not-before", "2026-01-01T00:00:00"], "add Z for UTC"),
        (["schedule", "reboot", "web-0", "--not-before", "soon"], "'soon' is no time"),
        (["schedule", "reboot", "web-0", "--duration", "1.5h"], "'1.5h' is no span of time"),
        (["schedule", "reboot", "web-0", "--live-migration"], "goes with freeze only"),
        (["schedule", "reboot", "web-0", "--source", "me"], "'me' is not one of"),
        (["history", "--limit", "0"], "--limit"),
        (["history", "--status", "done"], "'done' is not one of"),
        (["maintenance", "show", "x"], "NUMBER"),
        (["fleet", "list", "--scopes", "--host", "h1"], "--scopes goes with neither"),
        (["fleet", "list", "--lost", "--scope", "web"], "--lost goes with neither"),
        (["fleet", "list", "--lost", "--scopes"], "either --scopes or --lost"),
        (["hold", "scope"], "name the scope"),
        (["hold", "everything", "web"], "everything has no name"),
        (["hold", "rack", "r1"], "'rack' is not one of"),
        (["hold", "list", "web"], "'hold list' lists all holds"),
        (["release", "machine"], "name the machine"),
        (["release", "list"], "'list' is not one of"),
        (["postpone", "12.1"], "Missing argument 'TIME'"),
        (["postpone", "12.1", "soon"], "'soon' is no time"),
        (["resolve", "12.1", "perhaps"], "'perhaps' is not one of"),
        (["note"], "Missing argument 'REF"),
        (["events", "--operator", "ftp://x"], "is no operator's address"),
        (["events", "--operator", "http://"], "is no operator's address"),
        (["events", "--operator", "http://h:x"], "is no URL"),
        (["events", "--frob"], "No such option"),
        (["serve", "--config", "/nonexistent.toml"], "/nonexistent.toml"),
    ],
    ids=" ".join,
)
def test_a_mistake_is_said_in_one_line(arguments: list[str], said: str, capsys: Capture) -> None:
    assert main.execute(arguments) == ExitStatus.USAGE
    assert said in said_once(capsys)


def single_valued() -> list[tuple[str, str]]:
    """Every option of every command that takes one value."""
    return [
        (path, option.opts[0])
        for path, command in every_command().items()
        for option in getattr(command, "params")  # noqa: B009 - of Typer's own inner type
        if isinstance(option, TyperOption) and not (option.multiple or option.is_flag)
    ]


@pytest.mark.parametrize(("path", "option"), single_valued())
def test_an_option_with_one_value_is_refused_when_it_is_repeated(
    path: str, option: str, capsys: Capture
) -> None:
    assert main.execute([*path.split(), option, "1", option, "2"]) == ExitStatus.USAGE
    assert option in said_once(capsys)


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
        (b"[[machine]\n", "is neither JSON nor TOML"),
        (b'{"machine": [', "begins as JSON and is none"),
        (b"name = \xff", "is no UTF-8 text"),
        (b'{"machine": [{"name": "\xff"}]}', "is no UTF-8 text"),
        (b"when = 2026-01-01", "has, 2026-01-01 without quotes: is it to be a text?"),
        (b"when = nan", "holds what no fleet has: a number that is none, nan or inf"),
        (b'{"machine": ' + b"[" * 100_000, "lists or tables too deep in one another"),
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


def test_a_fleet_file_that_is_not_there_is_named(capsys: Capture) -> None:
    assert main.execute(["fleet", "apply", "/nonexistent.toml"]) == ExitStatus.USAGE
    assert "No such file" in said_once(capsys)


def test_nothing_at_the_address_says_what_to_start(capsys: Capture) -> None:
    assert main.execute(["events", "--operator", NOWHERE]) == ExitStatus.UNREACHABLE
    assert f"nothing listens at {NOWHERE}: start 'forewarn serve'" in said_once(capsys)


def test_the_address_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("FOREWARN_OPERATOR", NOWHERE)
    assert main.execute(["events"]) == ExitStatus.UNREACHABLE
    assert NOWHERE in said_once(capsys)


def test_the_default_address_is_the_services_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    settings = tmp_path / "forewarn.toml"
    settings.write_text('[store]\npath = "here.db"\n')
    monkeypatch.delenv("FOREWARN_OPERATOR", raising=False)
    monkeypatch.setenv("FOREWARN_CONFIG", str(settings))
    assert main.execute(["events"]) == ExitStatus.UNREACHABLE
    assert f"nothing listens at {tmp_path / 'operator.sock'}" in said_once(capsys)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak HTTP"),
        (b"", "hung up before its answer was whole"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "is not what this release"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", "answered with status 404"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort", "hung up before its answer"),
    ],
    ids=["ssh", "nothing", "other", "status", "short"],
)
def test_something_else_at_the_address_is_not_taken_for_the_service(
    answer: bytes, said: str, tmp_path: Path, capsys: Capture
) -> None:
    address = str(tmp_path / "other.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()

        def serve_one() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve_one)
        thread.start()
        assert main.execute(["events", "--operator", address]) == ExitStatus.UNREACHABLE
        thread.join()
    assert said in said_once(capsys)


def test_a_missing_extra_is_named_in_one_line(tmp_path: Path) -> None:
    hide = "import sys; sys.modules['litestar'] = None; from forewarn.cli import main; main.run()"
    settings = tmp_path / "forewarn.toml"
    settings.write_text('[store]\npath = "here.db"\n')
    served = subprocess.run(
        [sys.executable, "-c", hide, "serve", "--config", str(settings)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert served.returncode == ExitStatus.MISSING_EXTRA
    assert served.stdout == ""
    assert served.stderr == (
        "forewarn: 'forewarn serve' needs the package litestar: pip install 'forewarn[server]'\n"
    )


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
    assert "FOREWARN_TRACEBACK=1 shows where" in plain.stderr
    told = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "FOREWARN_TRACEBACK": "1"},
    )
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
