"""A certificate authority by `openssl`, as operators have one."""

import subprocess
from pathlib import Path

EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Authority:
    """Signs certificates.

    Args:
        folder: Of its own; its certificate is there as `ca.pem`.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.certificate = folder / "ca.pem"
        self._key = folder / "ca.key"
        extensions = ("-addext", "keyUsage=critical,keyCertSign")
        self._run("req", "-x509", *EC, "-days", "30", "-subj", "/CN=authority", *extensions,
                  "-keyout", self._key, "-out", self.certificate)  # fmt: skip

    def sign(self, name: str, alternative: str) -> Path:
        """Return a file with a certificate and its key.

        Args:
            name: Of the file.
            alternative: Its alternative name, such as `DNS:h1`.
        """
        key, request, signed = (self.folder / f"{name}.{kind}" for kind in ("key", "csr", "crt"))
        named = ("-addext", f"subjectAltName={alternative}")
        self._run("req", "-new", *EC, "-subj", "/O=hosts", *named, "-keyout", key, "-out", request)
        self._run("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key,
                  "-CAcreateserial", "-days", "30", "-copy_extensions", "copy",
                  "-out", signed)  # fmt: skip
        both = self.folder / f"{name}.pem"
        both.touch(mode=0o600)
        both.write_text(signed.read_text() + key.read_text())
        return both

    @staticmethod
    def _run(*words: str | Path) -> None:
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
