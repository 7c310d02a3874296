"""The operators' sockets: opened for this user alone, and never over somebody else's."""

import socket
import stat
import sys
from pathlib import Path

import pytest

from forewarn.server import sockets
from forewarn.server.sockets import SocketUnusable


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
