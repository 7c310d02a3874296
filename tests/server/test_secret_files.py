"""The secrets that proxies share with the service: read with care."""

import os
from pathlib import Path

import pytest

from forewarn.server import secret_files
from forewarn.server.secret_files import SecretUnusable

SECRET = "0123456789abcdef"


def write(folder: Path, content: bytes, mode: int = 0o600) -> Path:
    path = folder / "proxy.secret"
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o400, 0o440, 0o600, 0o640])
def test_a_secret_is_its_files_text_without_the_blanks_around_it(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path, f" {SECRET}\n".encode(), mode)
    assert secret_files.shared_secret(path) == SECRET.encode()


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX's")
@pytest.mark.parametrize("mode", [0o644, 0o660, 0o604, 0o602, 0o777])
def test_a_file_that_others_may_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path, SECRET.encode(), mode)
    with pytest.raises(SecretUnusable, match=f"has mode {mode:04o}") as refused:
        secret_files.shared_secret(path)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"\n", b"short", b"0123456789abcde\n\n", b"\xff" * 20])
def test_what_is_no_secret_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(SecretUnusable, match="at least 16 bytes") as refused:
        secret_files.shared_secret(write(tmp_path, content))
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SecretUnusable, match=r"gone cannot be read: No such file"):
        secret_files.shared_secret(tmp_path / "gone")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs here")
def test_a_fifo_is_refused_at_once_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(SecretUnusable, match="ordinary file"):
        secret_files.shared_secret(tmp_path / "fifo")
