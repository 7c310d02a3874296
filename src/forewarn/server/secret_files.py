"""Secrets that are kept in files of their own, never in the settings."""

import errno
import os
import stat
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 4096
"""The most bytes of a secret's file: four times what any secret has."""

MIN_SECRET_BYTES: Final = 16
"""A shorter shared secret can be guessed, away from here and at leisure, by whoever has seen one
signature."""

TOO_OPEN: Final = 0o037
"""What the mode of a shared secret's file must not allow: its group may read it, as a proxy of the
same machine does, and as systemd hands credentials on."""


class SecretUnusable(Exception):  # noqa: N818 - a state of the file, not a mistake of the caller's
    """A secret's file cannot be used; the message is one line for the operator."""


def read(path: Path) -> tuple[int, str]:
    """Return the mode of a file and its text without the blanks around it.

    Raises:
        OSError: It cannot be read, or is no ordinary file: a FIFO would hold the service up.
    """
    with open(path, "rb", opener=_at_once) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not an ordinary file")
        mode = stat.S_IMODE(status.st_mode)
        text = file.read(MAX_BYTES).decode("utf-8", "replace").strip()
    return mode, text


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def shared_secret(path: Path) -> bytes:
    """Return the secret that proxies share with the service.

    Raises:
        SecretUnusable: Others may read the file, it is too short, or cannot be read.
    """
    try:
        mode, text = read(path)
    except OSError as error:
        message = (
            f"the proxies' secret {path} cannot be read: {error.strerror}: give the service's "
            "user the right to, or name another file in proxy_secret_files"
        )
        raise SecretUnusable(message) from error
    if os.name == "posix" and mode & TOO_OPEN:
        message = (
            f"the proxies' secret {path} has mode {mode:04o}, so others may read or change it: "
            "give it mode 0640 or 0600, and a new secret if anybody has seen it"
        )
        raise SecretUnusable(message)
    secret = text.encode()
    if len(secret) < MIN_SECRET_BYTES or "\ufffd" in text:
        message = (
            f"the proxies' secret {path} holds no text of at least {MIN_SECRET_BYTES} bytes: "
            "write one there, such as 'openssl rand -hex 32' prints"
        )
        raise SecretUnusable(message)
    return secret
