"""What a mistake on the command line is answered with: one line, a status, never a traceback."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import forked
import patience
import stories
from cli.tree import every_command
from forewarn.cli import fleet, guest, main, operator_client
from forewarn.cli.command import as_typed
from forewarn.cli.exits import ExitStatus, Failed
from forewarn.client.event import Trouble

UNREADABLE = f"/{'x' * 300}"
"""Longer than a name may be: the system refuses even a look, as it does in a closed folder."""

Capture = pytest.CaptureFixture[str]


def said_once(capsys: Capture) -> str:
    """The one line on stderr; nothing on stdout."""
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("forewarn: ")
    assert lines[0].isprintable()
    assert "Traceback" not in captured.err
    return lines[0]


class Mistakes:
    """A story of wrong uses so far: the fleet file, and what is printed."""

    def __init__(self, folder: Path, capsys: Capture) -> None:
        self.folder, self.capsys = folder, capsys
        self.file = str(folder / "fleet")

    def carry_out(self, row: str) -> None:
        line, _, follows = row.partition(" -> ")
        verb, words, options = stories.split(line)
        if not verb:
            return
        named = {"FILE": self.file, "LONG": UNREADABLE, "BYTE": os.fsdecode(b"\xff"), "BELL": "\a"}
        given = [re.sub("|".join(named), lambda name: named[name[0]], word) for word in words]
        said = getattr(self, verb)(*given, **options)
        for part in filter(None, follows.split(" | ")):
            self.compare(said.replace(self.file, "FILE"), part)

    def compare(self, said: str, part: str) -> None:
        match part[:2]:
            case "= ":
                assert said == part[2:]
            case "! ":
                assert part[2:] not in said
            case _:
                assert part in said, said

    def forewarn(self, *arguments: str) -> str:
        assert main.execute(list(arguments)) == ExitStatus.USAGE
        return said_once(self.capsys)

    def typed(self, path: str, where: str, message: str) -> str:
        return as_typed(message, where, every_command()[f"forewarn {path}"].params)

    def fleet(self, text: str, more: str = "", times: str = "0") -> str:
        Path(self.file).write_bytes(spelled(text + more * int(times)))
        return ""

    def blamed(self, message: str, **facts: str) -> str:
        """Return how a refusal of the fleet file is told."""
        refused = Failed(ExitStatus.USAGE, message, facts)
        failed = fleet.read_file(self.file).blamed(refused)
        assert (failed.status, failed.facts) == (ExitStatus.USAGE, facts)
        return failed.message

    def answered(self, answer: str) -> str:
        """Return what is said where this is answered at the service's socket."""
        path = self.folder / "other.sock"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            told = {self._asked(listener, scheme, answer) for scheme in ("", "unix:")}
        path.unlink()
        (line,) = told
        return line

    def _asked(self, listener: socket.socket, scheme: str, answer: str) -> str:
        with answering(listener, spelled(answer)):
            events = ["events", "--operator", f"{scheme}{self.folder}/other.sock"]
            assert main.execute(events) == ExitStatus.UNREACHABLE
        return said_once(self.capsys)


def spelled(text: str) -> bytes:
    """Return bytes that are written with backslashes."""
    return text.encode().decode("unicode_escape").encode("latin-1")


@pytest.mark.parametrize("rows", stories.stories_beside(__file__, "mistakes.txt"))
def test_a_mistake_is_said_in_one_line(tmp_path: Path, capsys: Capture, rows: stories.Rows) -> None:
    assert stories.play("mistakes.txt", rows, Mistakes(tmp_path, capsys).carry_out)


def test_an_option_with_one_value_is_refused_when_it_is_repeated() -> None:
    looked_at = 0
    for path, command in every_command().items():
        for option in command.params:
            if not isinstance(option, click.Option) or option.multiple or option.is_flag:
                continue
            name = option.opts[0]
            words = [*path.split()[1:], name, "1", name, "2"]
            try:
                main.FOREWARN.main(args=words, standalone_mode=False)
            except click.UsageError as refused:
                assert name in refused.format_message(), words
            else:
                pytest.fail(f"{words} is not refused")
            looked_at += 1
    assert looked_at > 100


def test_no_command_shows_the_help_and_is_a_mistake(capsys: Capture) -> None:
    for arguments in ([], ["fleet"], ["maintenance"]):
        assert main.execute(arguments) == ExitStatus.USAGE
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("Usage: forewarn"), arguments


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


UNKNOWN = b'{"error": {"code": "unknown-outcome", "message": "may have been done", "facts": {}}}'


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 504 Gateway Time-out\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 503 Unavailable\r\nContent-Length: %d\r\n\r\n%b" % (len(UNKNOWN), UNKNOWN),
    ],
    ids=["a proxy", "the database"],
)
def test_who_had_no_answer_leaves_a_change_open(
    answer: bytes, tmp_path: Path, capsys: Capture
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        with answering(listener, answer):
            asked = main.execute(["hold", "everything", "--operator", str(tmp_path / "s")])
    assert asked == ExitStatus.UNREACHABLE
    assert "may have been done" in said_once(capsys)


def test_who_interrupts_a_change_is_told_that_it_may_be_done(
    tmp_path: Path, capsys: Capture
) -> None:
    ended = threading.Event()

    def interrupt() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            os.kill(os.getpid(), signal.SIGINT)
            ended.wait(patience.SECONDS)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        for command, told in (("hold everything", True), ("events", False)):
            thread = threading.Thread(target=interrupt)
            thread.start()
            status = main.execute([*command.split(), "--operator", str(tmp_path / "s")])
            ended.set()
            thread.join()
            assert status == ExitStatus.INTERRUPTED
            assert ("may have been done" in capsys.readouterr().err) == told
            ended.clear()


def test_https_to_a_port_without_tls_names_http(capsys: Capture) -> None:
    refusal = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener, answering(listener, refusal):
        address = f"https://127.0.0.1:{listener.getsockname()[1]}"
        assert main.execute(["events", "--operator", address]) == ExitStatus.UNREACHABLE
    assert "http://" in said_once(capsys)


def test_a_long_wait_for_the_service_is_said(capsys: Capture) -> None:
    with operator_client.waiting("http://a:1"):
        pass
    assert capsys.readouterr().err == ""
    with operator_client.waiting("http://a:1", 0.0) as said:
        said.join(patience.SECONDS)
    assert "http://a:1" in capsys.readouterr().err


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


def test_watch_leaves_other_commands_to_the_shell() -> None:
    for word in ("cd", '"$HOME/x"', "X=a/b", "drain", "(./x;"):
        assert guest.NAMED.fullmatch(word) is None, word


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


def test_a_byte_order_mark_is_no_part_of_a_fleet_file(tmp_path: Path) -> None:
    for number, text in enumerate(('[[machine]]\nname = "a"\n', '{"machine": [{"name": "a"}]}')):
        plain, marked = tmp_path / f"plain{number}", tmp_path / f"marked{number}"
        plain.write_text(text, encoding="utf-8")
        marked.write_text(text, encoding="utf-8-sig")
        assert fleet.read_file(str(marked)).body == fleet.read_file(str(plain)).body
