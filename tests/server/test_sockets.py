"""The operators' sockets and secrets: for this user alone, and never over somebody else's."""

import ast
import contextlib
import grp
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import patience
import programs
import stories
from forewarn.client import transport
from forewarn.client.transport import Probes
from forewarn.server import run, secret_files, sockets
from forewarn.server.guest.listener import Listener
from forewarn.server.secret_files import SecretUnusable
from forewarn.server.settings import GuestSettings, OperatorSettings, RelaySettings, Settings
from forewarn.server.sockets import HandedOver, SocketUnusable


def test_a_socket_that_a_crash_left_behind_is_taken_over_and_one_that_answers_left_alone(
    tmp_path: Path,
) -> None:
    path = tmp_path / "operator.sock"
    sockets.open_unix(path).close()
    assert path.exists()
    with sockets.open_unix(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(SocketUnusable, match="another server answers at"):
            sockets.open_unix(path)
        with socket.socket(socket.AF_UNIX) as still:
            still.connect(str(path))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have not all of them")
def test_connections_that_a_socket_accepts_are_probed_as_it_says() -> None:
    probes = Probes(silent_seconds=10, between_seconds=2, most=3)
    with sockets.open_tcp("127.0.0.1", 0) as opened:
        transport.probe(opened, probes)
        opened.settimeout(patience.SECONDS)
        with socket.create_connection(opened.getsockname()):
            accepted, _ = opened.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
            options = [getattr(socket, name) for name in names]
            found = [accepted.getsockopt(socket.IPPROTO_TCP, option) for option in options]
    assert found == [10, 2, 3, 16_000]
    assert probes.noticed_seconds == 16


def test_a_taken_port_is_told_in_one_line() -> None:
    with sockets.open_tcp("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SocketUnusable, match=f"127.0.0.1:{port} .*in use"):
            sockets.open_tcp("127.0.0.1", port)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux binds to an address in advance")
@pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::1"])
def test_an_address_that_comes_later_is_listened_on_in_advance(address: str) -> None:
    with sockets.open_tcp(address, 0) as opened:
        assert opened.getsockname()[0] == address


def test_removing_takes_sockets_only(tmp_path: Path) -> None:
    path = tmp_path / "operator.sock"
    sockets.open_unix(path).close()
    sockets.remove(path)
    assert not path.exists()
    sockets.remove(path)
    path.write_text("precious", encoding="utf-8")
    sockets.remove(path)
    assert path.exists()


# Sockets that systemd opened.


@contextlib.contextmanager
def handed_over(*given: Any) -> Iterator[list[int]]:
    """Give the numbers of copies of sockets, which are closed as a process's end would."""
    copies = [os.dup(each.fileno()) for each in given]
    try:
        yield copies
    finally:
        for number in copies:
            with contextlib.suppress(OSError):
                os.close(number)


def test_a_socket_is_taken_by_its_address_and_keeps_its_queue() -> None:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        port = opened.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)), handed_over(opened) as files:
            given = HandedOver(files)
            assert given.missing(["127.0.0.1:1", f"127.0.0.1:{port}"]) == ("127.0.0.1:1",)
            assert given.take("127.0.0.1:1") is None
            assert sockets.tcp_address("fd00:0::01", 80) == "[fd00::1]:80"
            taken = given.take(sockets.tcp_address("127.0.0.1", port))
            assert taken is not None
            with taken:
                taken.accept()[0].close()
                assert not taken.getblocking()
                assert not os.get_inheritable(taken.fileno())
            assert given.take(f"127.0.0.1:{port}") is None


def test_a_unix_socket_is_known_whatever_links_lead_to_it(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "public").symlink_to("private")
    opened = sockets.open_unix(tmp_path / "private" / "operator.sock")
    with opened, handed_over(opened) as files:
        given = HandedOver(files)
        address = sockets.unix_address(tmp_path / "public" / "operator.sock")
        assert given.missing([address]) == ()
        taken = given.take(address)
        assert taken is not None
        taken.close()


def test_a_socket_where_we_do_not_listen_is_refused_by_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as opened, handed_over(opened) as files:
        port = opened.getsockname()[1]
        given = HandedOver(files)
        with pytest.raises(SocketUnusable, match=f"127.0.0.1:{port}"):
            given.missing(["127.0.0.1:1"])
        given.close()


def test_systemd_may_hand_over_a_socket_of_each_plane(tmp_path: Path) -> None:
    unix = tmp_path / "operator.sock"
    with contextlib.ExitStack() as opened:
        tcp = [opened.enter_context(sockets.open_tcp("127.0.0.1", 0)) for _ in range(3)]
        operators = opened.enter_context(sockets.open_unix(unix))
        guests, pages, relays = (each.getsockname()[1] for each in tcp)
        wanted = Settings(
            guest=GuestSettings(listener=(Listener(port=guests),)),
            operator=OperatorSettings(socket=str(unix), listen=f"127.0.0.1:{pages}"),
            relay=RelaySettings(listen=f"127.0.0.1:{relays}"),
        )
        given = HandedOver(opened.enter_context(handed_over(*tcp, operators)))
        assert given.missing(run.addresses(wanted)) == ()
        given.close()


LOST = """
import os, socket
from forewarn import status_port
from forewarn.server.sockets import HandedOver

make_bridge()
lost, _ = status_port.listening((AT, 8080), 1)
delete_bridge()
make_bridge()
there, _ = status_port.listening((AT, 8080), 1)
here = socket.create_server(("127.0.0.1", 0))
wanted = [f"[{AT}]:8080", f"127.0.0.1:{here.getsockname()[1]}"]
for given, missing in (((lost, here), wanted[:1]), ((lost, there, here), [])):
    handed_over = HandedOver([os.dup(each.fileno()) for each in given])
    assert [*handed_over.missing(wanted)] == missing
    handed_over.close()
"""


def test_a_socket_of_systemds_whose_interface_was_made_again_is_left_out() -> None:
    assert programs.run_in_a_network(programs.BRIDGE + LOST) == 0


def unusable(*given: Any) -> str:
    with handed_over(*given) as files, pytest.raises(SocketUnusable) as caught:
        HandedOver(files)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_does_not_listen_two_of_one_address_and_what_is_no_socket_are_refused() -> None:
    with socket.socket() as bound, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        bound.bind(("127.0.0.1", 0))
        datagrams.bind(("127.0.0.1", 0))
        assert "Accept=no" in unusable(bound)
        assert "Accept=no" in unusable(datagrams)
    with socket.create_server(("127.0.0.1", 0)) as opened:
        assert str(opened.getsockname()[1]) in unusable(opened, opened)
    with Path(os.devnull).open("rb") as nothing:
        assert "file" in unusable(nothing)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has abstract sockets")
def test_an_abstract_socket_is_at_no_address_of_ours() -> None:
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind("\0forewarn")
        opened.listen()
        with (
            handed_over(opened) as files,
            contextlib.closing(HandedOver(files)) as given,
            pytest.raises(SocketUnusable, match="unix:@forewarn"),
        ):
            given.missing(["unix:/run/forewarn/operator.sock"])


@pytest.mark.parametrize(("only", "is_taken"), [(True, True), (False, False)])
def test_a_socket_of_every_address_takes_ipv6_alone_as_ours_do(only: bool, is_taken: bool) -> None:
    with socket.socket(socket.AF_INET6) as opened:
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
        opened.bind(("::", 0))
        opened.listen()
        if is_taken:
            with handed_over(opened) as files:
                given = HandedOver(files)
                assert len(given) == 1
                given.close()
        else:
            assert "BindIPv6Only" in unusable(opened)


def test_the_socket_of_a_group_is_open_to_its_members_alone(tmp_path: Path) -> None:
    group = grp.getgrgid(os.getegid()).gr_name
    path = tmp_path / "operator.sock"
    with sockets.open_unix(path, group):
        found = path.stat()
        assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o660, os.getegid())
    sockets.remove(path)
    with pytest.raises(sockets.SocketUnusable, match="no-such-group"):
        sockets.open_unix(path, "no-such-group")


# The token's file.


def test_the_token_is_made_once_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    before = os.umask(0)
    try:
        first = secret_files.token(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(first) >= 43
    assert secret_files.token(path) == first
    assert secret_files.token(tmp_path / "other") != first
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "token"]
    with pytest.raises(SecretUnusable, match="gone"):
        secret_files.token(tmp_path / "gone" / "token")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_credential_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    secret_files.token(path)
    path.chmod(0o440)
    os.chown(path, 12345, -1)
    with pytest.raises(SecretUnusable, match="0440"):
        secret_files.token(path, str(tmp_path))


# A line for each place, peer and secret.


def carry_out(folder: Path, row: str) -> None:
    line, _, follows = row.partition(" ->")
    expected = follows.strip()
    verb, words, _ = stories.split(line)
    if not verb:
        return
    try:
        found = FOUND[verb](folder, *words)
    except (SocketUnusable, SecretUnusable) as refused:
        assert expected in str(refused)
        assert "\n" not in str(refused)
        assert SECRET not in str(refused)
    else:
        assert found == expected, found


SECRET = "0123456789abcdef"


def unix(folder: Path, place: str) -> str:
    (folder / "file").write_text("precious", encoding="utf-8")
    try:
        sockets.open_unix(folder / place).close()
    finally:
        assert (folder / "file").read_text(encoding="utf-8") == "precious"
    return "taken"


def led_to(folder: Path, names: str) -> str:
    del folder
    with sockets.open_tcp("127.0.0.1", 0) as opened:
        found = sockets.url_for_browsers("http", "127.0.0.1", opened, ast.literal_eval(names))
        return found.replace(str(opened.getsockname()[1]), "PORT")


def written(folder: Path, mode: str, text: str) -> Path:
    """Write a file with these bytes and this mode, or what is none: a FIFO, or nothing."""
    path = folder / "written"
    path.unlink(missing_ok=True)
    if mode == "fifo":
        os.mkfifo(path, 0o600)
    elif mode != "gone":
        unescaped = text.encode("latin-1").decode("unicode_escape") if "\\" in text else text
        path.write_bytes(unescaped.encode("utf-8", "surrogateescape"))
        path.chmod(int(mode, 8))
    return path


def secret(folder: Path, mode: str, text: str) -> str:
    assert secret_files.shared_secret(written(folder, mode, text)) == SECRET.encode()
    return "taken"


def token(folder: Path, mode: str, credentials: str, text: str) -> str:
    path = written(folder, mode, text)
    assert secret_files.token(path, str(folder / credentials) if credentials else "") == text
    return "taken"


FOUND: dict[str, Callable[..., str]] = {
    "unix": unix,
    "peer": lambda _, peer: sockets.host_of(ast.literal_eval(peer or "''")),
    "led-to": led_to,
    "secret": secret,
    "token": token,
}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc and `lo` are Linux's")
@pytest.mark.parametrize("rows", stories.stories_beside(__file__, "sockets.txt"))
def test_what_is_no_place_or_secret_is_told_in_one_line(tmp_path: Path, rows: stories.Rows) -> None:
    assert stories.play("sockets.txt", rows, lambda row: carry_out(tmp_path, row))
