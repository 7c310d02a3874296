"""Secrets in files of their own, never in the settings: operators' tokens, keys, the proxies'."""

import base64
import contextlib
import hashlib
import os
import secrets  # noqa: TID251 - the one file that makes a secret
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from forewarn import settings

MAX_BYTES: Final = 4096
"""The most bytes of a secret's file: four times what any secret has."""

MIN_SECRET_BYTES: Final = 16
"""A shorter shared secret can be guessed, offline and at leisure, by anybody who has seen one
signature."""

TOKEN_PREFIX: Final = "fw_"  # noqa: S105 - what tokens begin with
"""With it, tools that search for leaked secrets know a token."""

WEBHOOK_PREFIX: Final = "whsec_"

TOKEN_BYTES: Final = 32
"""256 bits: nobody guesses it."""


class SecretUnusable(Exception):  # noqa: N818 - a state of the file, not a mistake of the caller's
    """A secret's file cannot be used; the message is one line for the operator."""


def token(path: Path, credentials: str = "") -> str:
    """Return the operators' token; the first call makes it, in a file of mode 0600.

    SecretUnusable if others may read the file, it has no token, or it cannot be read or made.

    `credentials` is the folder of those that systemd hands on, if there is one. By an access list
    systemd lets this service read them; that shows as a right of the group.
    """
    what = f"the token file {path}"
    renew = "remove it for a new token at the next start"
    with _told(what, "set operator.token_file to a path that the service's user can use"):
        if not path.exists():
            keep(path, new_token())
        mode, text = _read(path)
        handed_on = bool(credentials) and path.resolve().parent == Path(credentials).resolve()
        trusted = handed_on and path.stat().st_uid in {0, os.geteuid()}
    if os.name == "posix" and mode & (0o037 if trusted else 0o077):
        raise SecretUnusable(
            f"{what} has mode {mode:04o}, so others may have read it: {renew}, or set mode 0600 "
            "if nobody has"
        )
    if len(text) < MIN_SECRET_BYTES or not text.isascii() or not text.isprintable():
        raise SecretUnusable(
            f"{what} has no token of at least {MIN_SECRET_BYTES} printable characters: {renew}"
        )
    return text


def new_webhook_secret() -> str:
    """Return a new random secret, as Standard Webhooks writes it."""
    return WEBHOOK_PREFIX + base64.b64encode(secrets.token_bytes(TOKEN_BYTES)).decode()


def new_token() -> str:
    """Return a new random token."""
    return TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


def digest(token: bytes) -> str:
    """Return the stored form of a token, from which it cannot be told: 256 bits need no salt."""
    return hashlib.sha256(token).hexdigest()


def link_digest(token: str) -> str:
    """Return the stored form of a link's token: no cookie, and so no request, has the same."""
    return digest(b"link " + token.encode())


def tls_context(
    certificate: Path, key: Path | None, setting: str = "operator.tls_certificate"
) -> ssl.SSLContext:
    """Return the context that encrypts connections; `key` is None for one in `certificate`.

    SecretUnusable if the files cannot be read, or do not fit each other.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    named = f"the certificate {certificate}" + (f" and its key {key}" if key else "")

    def no_password() -> str:
        raise SecretUnusable(f"the key of {named} has a password: write it without one")

    try:
        for path in filter(None, (certificate, key)):
            settings.open_file(path).close()  # a FIFO would stop the event loop for ever
        context.load_cert_chain(certificate, key, no_password)
    except OSError as error:  # TLS's own errors are of this kind, too
        why = error.strerror or error
        raise SecretUnusable(f"cannot use {named} ({setting}): {why}") from error
    return context


class Certificate:
    """The certificate of a socket, as its files were when they were last read.

    `key` is `""` for one in the certificate's file; without either there is no encryption.
    """

    def __init__(self, certificate: str, key: str, setting: str) -> None:
        self._certificate, self._key, self._setting = certificate, key, setting
        self._context: ssl.SSLContext | None = None

    def read(self) -> None:
        """Read the files again; if they are of no use, what was read before counts.

        Raises:
            SecretUnusable: They cannot be read, or do not fit each other.
        """
        if self._certificate:
            key = Path(self._key) if self._key else None
            self._context = tls_context(Path(self._certificate), key, self._setting)

    @property
    def scheme(self) -> str:
        """The scheme of URLs of the socket."""
        return "https" if self._certificate else "http"

    def context(self) -> ssl.SSLContext:
        """Return the context of the next connection."""
        assert self._context is not None
        return self._context


def shared_secret(path: Path) -> bytes:
    """Return the secret that proxies share with the service.

    SecretUnusable if others may read the file, it is too short, or cannot be read.
    """
    made = "write one there, such as 'openssl rand -hex 32' prints"
    what = f"the proxies' secret {path}"
    return _of_group(
        path, what, "let the service's user read it, or change proxy_secret_files", made
    )


def host_token(path: Path) -> str:
    """Return the token that identifies a relay's host to the service.

    SecretUnusable if others may read the file, it has no token, or it cannot be read.
    """
    made = "write there what 'forewarn relay token HOST' prints"
    what = f"the host's token {path}"
    remedy = "let the relay's user read it, or change upstream.token_file"
    text = _of_group(path, what, remedy, made).decode()
    if not text.isascii() or not text.isprintable():
        raise SecretUnusable(f"{what} has characters that no token has: {made}")
    return text


def _of_group(path: Path, what: str, remedy: str, made: str) -> bytes:
    """Return a secret that the file's group may read: a neighbour's, which systemd may hand on."""
    with _told(what, remedy):
        mode, text = _read(path)
    if os.name == "posix" and mode & 0o037:
        raise SecretUnusable(
            f"{what} has mode {mode:04o}, so others may read or change it: give it mode 0640 or "
            "0600, and a new secret if anybody has seen it"
        )
    secret = text.encode()
    if len(secret) < MIN_SECRET_BYTES or "\ufffd" in text:
        raise SecretUnusable(f"{what} holds no text of at least {MIN_SECRET_BYTES} bytes: {made}")
    return secret


def kept(path: Path, what: str) -> str:
    """Return the secret in a file that `keep` wrote; `""` without the file.

    SecretUnusable if others may read the file, or it cannot be read.
    """
    try:
        mode, text = _read(path)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise SecretUnusable(f"{what} {path} cannot be read: {error.strerror}") from error
    if os.name == "posix" and mode & 0o077:
        raise SecretUnusable(
            f"{what} {path} has mode {mode:04o}, so others may read it: run 'chmod 600 {path}', "
            "and revoke the token if anybody has seen it"
        )
    return text


@contextlib.contextmanager
def _told(what: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SecretUnusable(f"{what} cannot be read: {error.strerror}: {remedy}") from error


def _read(path: Path) -> tuple[int, str]:
    with settings.open_file(path) as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        return mode, file.read(MAX_BYTES).decode("utf-8-sig", "replace").strip()


def keep(path: Path, text: str) -> None:
    """Write a secret to a file that its owner alone may read."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
