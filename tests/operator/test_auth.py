"""Who may ask: the token, the Host, the Origin, the content type; and the sockets themselves."""

import os
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.server.operator import auth, sockets
from forewarn.server.operator.auth import TokenUnusable
from forewarn.server.operator.sockets import SocketUnusable
from forewarn.store import memory
from server.running import Client, Running, settings_in


@pytest.fixture(scope="module")
def on_tcp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    wanted = settings_in(
        tmp_path_factory.mktemp("service"), listen="127.0.0.1:0", hosts=["ops.example"]
    )
    with Running(wanted, memory.MemoryStore()) as running:
        yield running


@pytest.fixture
def url(on_tcp: Running) -> str:
    return on_tcp.opened.operators[1]


@pytest.fixture
def token(on_tcp: Running) -> str:
    return Path(on_tcp.settings.operator.token_file).read_text(encoding="ascii").strip()


def test_the_unix_socket_is_this_users_alone_and_wants_no_token(on_tcp: Running) -> None:
    path = Path(on_tcp.settings.operator.socket)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert on_tcp.client().get("/v1/clock")["scale"] == 1.0


def test_on_tcp_the_token_is_wanted_and_enough(url: str, token: str) -> None:
    assert Client(url, token).get("/v1/clock")["scale"] == 1.0
    refused = Client(url).ask("GET", "/v1/clock")
    assert (refused.status, refused.error["code"]) == (401, "unauthorized")
    assert refused.headers["WWW-Authenticate"].startswith("Bearer")
    assert Client(url, token[:-1]).ask("GET", "/v1/clock").status == 401
    assert Client(url, token + "x").ask("GET", "/v1/clock").status == 401


@pytest.mark.parametrize("value", ["", "Bearer", "Bearer ", "Basic {token}", "{token}", "\xff"])
def test_what_is_no_bearer_token_is_refused(url: str, token: str, value: str) -> None:
    shown = value.format(token=token)
    assert Client(url).ask("GET", "/v1/clock", None, {"Authorization": shown}).status == 401


def test_without_the_token_nothing_changes_and_nothing_is_told(url: str, token: str) -> None:
    fleet = {"machine": [{"name": "a"}]}
    assert Client(url).ask("PUT", "/v1/fleet", fleet).status == 401
    assert Client(url).ask("GET", "/v1/schema").status == 401
    assert Client(url).ask("GET", "/nothing/here").status == 401
    assert Client(url, token).get("/v1/fleet/machines")["machines"] == []


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_a_probe_needs_no_token(url: str, path: str) -> None:
    assert Client(url).ask("GET", path).status == 200


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:99", "OPS.example:1", "[::1]:80"])
def test_a_host_that_is_ours_is_served(url: str, token: str, host: str) -> None:
    assert Client(url, token).ask("GET", "/v1/clock", None, {"Host": host}).status == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[::2]:80"])
def test_a_host_that_is_not_ours_is_refused_whatever_the_token(
    url: str, token: str, host: str
) -> None:
    refused = Client(url, token).ask("GET", "/healthz", None, {"Host": host})
    assert (refused.status, refused.error["code"]) == (421, "unauthorized")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://localhost"])
def test_another_origin_is_refused_on_both_sockets(
    on_tcp: Running, url: str, token: str, origin: str
) -> None:
    for client in (on_tcp.client(), Client(url, token)):
        refused = client.ask("GET", "/v1/clock", None, {"Origin": origin})
        assert (refused.status, refused.error["code"]) == (403, "unauthorized")


def test_the_services_own_origin_is_served(url: str, token: str) -> None:
    answer = Client(url, token).ask("GET", "/v1/clock", None, {"Origin": url})
    assert answer.status == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_that_a_page_could_send_is_refused(on_tcp: Running, kind: str) -> None:
    refused = on_tcp.client().ask("PUT", "/v1/fleet", b"{}", {"Content-Type": kind})
    assert (refused.status, refused.error["code"]) == (415, "invalid")


def test_a_refused_client_reads_why_however_long_its_body_is(on_tcp: Running, url: str) -> None:
    fleet = b"{}" + b" " * (20 * 1024 * 1024)
    refused = Client(url).ask("PUT", "/v1/fleet", fleet)
    assert (refused.status, refused.error["code"]) == (401, "unauthorized")
    too_long = on_tcp.client().ask("POST", "/v1/approvals", fleet)
    assert (too_long.status, too_long.error["code"]) == (413, "limit")


def test_json_with_its_charset_is_json(on_tcp: Running) -> None:
    kind = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert on_tcp.client().ask("PUT", "/v1/fleet", b"{}", kind).status == 200


# The token's file.


def test_the_token_is_made_once_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    before = os.umask(0)
    try:
        first = auth.token(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(first) >= 43
    assert auth.token(path) == first
    assert auth.token(tmp_path / "other") != first
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "token"]


def test_a_token_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    auth.token(path)
    path.chmod(0o640)
    with pytest.raises(TokenUnusable, match="0640"):
        auth.token(path)


@pytest.mark.parametrize("text", ["", "short", "a" * 15, "a" * 20 + "\x00", "ü" * 30])
def test_a_file_without_a_token_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    with pytest.raises(TokenUnusable, match="no token"):
        auth.token(path)


def test_a_token_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(TokenUnusable, match="gone"):
        auth.token(tmp_path / "gone" / "token")


# The sockets.


def test_a_socket_that_a_crash_left_behind_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "operator.sock"
    sockets.open_unix(path).close()
    assert path.exists()
    opened = sockets.open_unix(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    opened.close()


def test_a_socket_that_somebody_answers_on_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "operator.sock"
    with sockets.open_unix(path):
        with pytest.raises(SocketUnusable, match="another server answers at"):
            sockets.open_unix(path)
        with socket.socket(socket.AF_UNIX) as still:
            still.connect(str(path))


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "operator.sock"
    path.write_text("precious", encoding="utf-8")
    with pytest.raises(SocketUnusable, match="not a socket"):
        sockets.open_unix(path)
    assert path.read_text(encoding="utf-8") == "precious"


def test_a_path_that_is_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SocketUnusable, match="107"):
        sockets.open_unix(tmp_path / ("x" * 108))


def test_a_folder_that_does_not_exist_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SocketUnusable, match=f"folder {tmp_path}/gone "):
        sockets.open_unix(tmp_path / "gone" / "operator.sock")


def test_a_file_in_the_place_of_the_sockets_folder_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SocketUnusable, match=f"folder {tmp_path}/file "):
        sockets.open_unix(tmp_path / "file" / "operator.sock")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_place_that_takes_no_socket_is_told_in_one_line() -> None:
    with pytest.raises(SocketUnusable, match=r"operator\.socket"):
        sockets.open_unix(Path("/proc/self/operator.sock"))


def test_a_taken_port_is_told_in_one_line() -> None:
    with sockets.open_tcp("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SocketUnusable, match=f"127.0.0.1:{port} .*in use"):
            sockets.open_tcp("127.0.0.1", port)


def test_removing_takes_sockets_only(tmp_path: Path) -> None:
    path = tmp_path / "operator.sock"
    sockets.open_unix(path).close()
    sockets.remove(path)
    assert not path.exists()
    sockets.remove(path)
    path.write_text("precious", encoding="utf-8")
    sockets.remove(path)
    assert path.exists()
