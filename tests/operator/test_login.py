"""`forewarn login`: an address and a token are remembered, used there alone, and forgotten."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import forked
from forewarn.cli import login
from forewarn.cli.exits import ExitStatus, Failed
from forewarn.clock import ManualClock
from forewarn.store.sqlite import InMemoryStore
from server.running import NOON, Running, settings_in

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's own folder of settings, without any variable of ours."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    for name in ("FOREWARN_OPERATOR", "FOREWARN_TOKEN_FILE", "FOREWARN_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "config" / "forewarn"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    settings = settings_in(tmp_path, listen="127.0.0.1:0")
    with Running(settings, InMemoryStore(), ManualClock(NOON)) as service:
        yield service


@pytest.fixture
def url(running: Running) -> str:
    return running.opened.operators[1]


@pytest.fixture
def token(running: Running) -> str:
    body = {"name": "bob", "role": "viewer"}
    made: str = running.client().ask("POST", "/v1/tokens", body).json["token"]
    return made


@pytest.fixture
def run(home: Path) -> Run:
    del home

    def called(*argv: str, stdin: str = "") -> tuple[int, str]:
        ended = forked.run(["-m", "forewarn", *argv], stdin=stdin, env={**os.environ})
        return ended.returncode, ended.stdout + ended.stderr

    return called


def test_a_login_is_used_until_it_is_forgotten(run: Run, home: Path, url: str, token: str) -> None:
    assert run("login", url.removeprefix("http://"), stdin=f"{token}\n")[0] == ExitStatus.OK
    assert (home / "login").stat().st_mode & 0o777 == 0o600
    assert token not in run("events")[1]
    assert run("events")[0] == ExitStatus.OK
    assert run("hold", "everything")[0] == ExitStatus.UNAUTHORIZED  # bob is a viewer
    for address in (url, f"{url}/", url.removeprefix("http://")):
        assert run("events", "--operator", address)[0] == ExitStatus.OK
    assert run("logout")[0] == ExitStatus.OK
    assert not (home / "login").exists()
    assert run("events")[0] == ExitStatus.UNREACHABLE
    assert run("logout")[0] == ExitStatus.OK


def test_a_refused_token_is_not_kept_nor_nonsense_sent(run: Run, home: Path, url: str) -> None:
    status, said = run("login", url, stdin="fw_guessed")
    assert status == ExitStatus.UNAUTHORIZED
    assert "fw_guessed" not in said
    assert not (home / "login").exists()
    for typed in ("", "two words", "fw_\u00fc"):
        assert run("login", "http://127.0.0.1:1", stdin=typed)[0] == ExitStatus.USAGE
    # A socket needs none.
    assert run("login", "/run/forewarn/operator.sock", stdin="fw_x")[0] == ExitStatus.USAGE


def test_a_login_that_others_may_read_or_that_is_damaged_is_refused(run: Run, home: Path) -> None:
    path = login.remember(login.Login("http://127.0.0.1:1", "fw_secret"), os.environ)
    assert path == home / "login"
    path.chmod(0o640)
    for command in (("events",), ("events", "--operator", "127.0.0.1:1")):
        status, said = run(*command)
        assert status == ExitStatus.UNAUTHORIZED
        assert f"chmod 600 {path}" in said
        assert "fw_secret" not in said
    path.chmod(0o600)
    path.write_text("http://127.0.0.1:1\n")
    with pytest.raises(Failed):
        login.read(os.environ)


def test_a_token_is_sent_to_its_own_address_alone(run: Run, url: str) -> None:
    login.remember(login.Login("http://127.0.0.1:1", "fw_secret"), os.environ)
    status, said = run("events", "--operator", url)
    assert status == ExitStatus.UNAUTHORIZED
    assert "no token was sent" in said


def test_settings_that_are_named_go_before_a_login(
    run: Run, url: str, token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login.remember(login.Login(url, token), os.environ)
    settings = tmp_path / "other.toml"
    settings.write_text('operator.socket = "nobody.sock"\n')
    monkeypatch.setenv("FOREWARN_CONFIG", str(settings))
    assert run("events")[0] == ExitStatus.UNREACHABLE
    assert run("events", "--operator", url)[0] == ExitStatus.OK


def test_a_variable_names_the_file_of_a_token(
    run: Run, url: str, token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login.remember(login.Login(url, "fw_old"), os.environ)
    assert run("events")[0] == ExitStatus.UNAUTHORIZED
    file = tmp_path / "bob.token"
    file.write_text(token)
    monkeypatch.setenv("FOREWARN_TOKEN_FILE", str(file))
    assert run("events")[0] == ExitStatus.OK
