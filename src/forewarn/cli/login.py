"""The login that a user's commands remember: an address of the operator plane, and its token.

Both are in one file that the user alone may read, `$XDG_CONFIG_HOME/forewarn/login`.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from forewarn.cli.exits import ExitStatus, Failed, system_can

NAME: Final = "login"


class Login(NamedTuple):
    """An address of the operator plane, and the token for it."""

    address: str
    token: str


def place(environment: Mapping[str, str]) -> Path | None:
    """Return the file of the login; None for a user without a home folder."""
    from forewarn.settings import own_folder

    folder = own_folder(environment)
    return None if folder is None else folder / NAME


def read(environment: Mapping[str, str]) -> Login | None:
    """Return the remembered login; None without one."""
    path = place(environment)
    if path is None or not os.path.lexists(path):
        return None
    from forewarn.server import secret_files

    try:
        lines = secret_files.kept(path, "the login in").split()
    except secret_files.SecretUnusable as error:
        raise Failed(ExitStatus.UNAUTHORIZED, str(error)) from error
    if len(lines) != len(Login._fields):
        message = f"the login in {path} is damaged: run 'forewarn login ADDRESS' again"
        raise Failed(ExitStatus.UNAUTHORIZED, message)
    return Login(*lines)


def remember(login: Login, environment: Mapping[str, str]) -> Path:
    """Write a login to its file; return the file."""
    from forewarn.server import secret_files

    path = place(environment)
    if path is None:
        raise Failed(ExitStatus.USAGE, "this user has no home folder: set XDG_CONFIG_HOME")
    with system_can(f"write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        secret_files.keep(path, "\n".join(login))
    return path


def forget(environment: Mapping[str, str]) -> bool:
    """Remove the login; return True if there was one."""
    path = place(environment)
    if path is None or not os.path.lexists(path):
        return False
    with system_can(f"remove {path}"):
        path.unlink()
    return True
