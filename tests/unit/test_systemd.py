"""What systemd is told, by real sockets; and whose streams are the journal's."""

import io
import os
import socket
from pathlib import Path

import pytest

import patience
from forewarn.systemd import Notifier, listening_files, reads


def bound(name: str) -> socket.socket:
    heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    heard.bind(name)
    heard.settimeout(patience.SECONDS)
    return heard


def test_lines_are_one_datagram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a path that is short enough, wherever the tests run
    with bound("notify") as heard:
        Notifier({"NOTIFY_SOCKET": "notify"}).tell("RELOADING=1", "MONOTONIC_USEC=5")
        assert heard.recv(1000) == b"RELOADING=1\nMONOTONIC_USEC=5"


def test_an_abstract_name_begins_with_an_at_sign_and_a_text_is_one_line() -> None:
    name = f"forewarn-test-{os.getpid()}"
    with bound(f"\0{name}") as heard:
        Notifier({"NOTIFY_SOCKET": f"@{name}"}).tell("STATUS=a\nSTOPPING=1\udc80")
        assert heard.recv(1000) == b"STATUS=a STOPPING=1?"


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": "/no/such/place"}])
def test_where_nobody_listens_nothing_is_told_and_nothing_fails(
    environment: dict[str, str],
) -> None:
    notifier = Notifier(environment)
    notifier.tell("READY=1")
    assert notifier.every is None


@pytest.mark.parametrize(
    ("given", "every"),
    [
        ({"WATCHDOG_USEC": "60000000"}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_wants_a_word_twice_in_its_time(
    given: dict[str, str], every: float | None
) -> None:
    assert Notifier({"NOTIFY_SOCKET": "/run/x", **given}).every == every


@pytest.mark.parametrize(
    ("given", "files"),
    [
        ({"LISTEN_FDS": "2", "LISTEN_PID": str(os.getpid())}, [3, 4]),
        ({"LISTEN_FDS": "2", "LISTEN_PID": "1"}, []),
        ({"LISTEN_FDS": "2"}, []),
        ({"LISTEN_FDS": "two", "LISTEN_PID": str(os.getpid())}, []),
        ({"LISTEN_FDS": "-1", "LISTEN_PID": str(os.getpid())}, []),
        ({}, []),
    ],
)
def test_sockets_are_ours_only_if_they_were_opened_for_this_process(
    given: dict[str, str], files: list[int]
) -> None:
    assert list(listening_files(given)) == files


def test_only_the_very_stream_that_the_variable_names_is_the_journals(tmp_path: Path) -> None:
    with (tmp_path / "one").open("w") as one, (tmp_path / "other").open("w") as other:
        found = os.fstat(one.fileno())
        given = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        assert reads(one, given)
        assert not reads(other, given)
        assert not reads(one, {})
    assert not reads(io.StringIO(), given)
    assert not reads(one, given)  # it is closed
