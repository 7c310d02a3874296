"""A certificate authority by `openssl`, as operators have one: for hosts' certificates."""

import subprocess
from pathlib import Path

SETTINGS = """
[ca]
default_ca = own
[own]
dir = {folder}
database = $dir/index.txt
crlnumber = $dir/crlnumber
certificate = $dir/ca.pem
private_key = $dir/ca.key
default_md = sha256
default_crl_days = 30
"""
EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Authority:
    """Signs certificates of hosts, and revokes them.

    Args:
        folder: Of its own; its certificate is there as `ca.pem`.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.certificate = folder / "ca.pem"
        self.revocations = folder / "crl.pem"
        self._key = folder / "ca.key"
        self._settings = folder / "openssl.cnf"
        self._settings.write_text(SETTINGS.format(folder=folder))
        (folder / "index.txt").touch()
        (folder / "crlnumber").write_text("01\n")
        extensions = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
        self._run("req", "-x509", *EC, "-days", "30", "-subj", "/CN=authority", *extensions,
                  "-keyout", self._key, "-out", self.certificate)  # fmt: skip
        self.list_revoked()

    def sign(self, name: str, *alternatives: str, common_name: str = "") -> Path:
        """Return a file with a certificate and its key.

        Args:
            name: Of the file.
            alternatives: Its alternative names, such as `DNS:h1`.
            common_name: Its CN; none by default.
        """
        key, request, signed = (self.folder / f"{name}.{kind}" for kind in ("key", "csr", "crt"))
        subject = f"/O=hosts/CN={common_name}" if common_name else "/O=hosts"
        named = ("-addext", f"subjectAltName={','.join(alternatives)}") if alternatives else ()
        self._run("req", "-new", *EC, "-subj", subject, *named, "-keyout", key, "-out", request)
        self._run("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key,
                  "-CAcreateserial", "-days", "30", "-copy_extensions", "copy",
                  "-out", signed)  # fmt: skip
        both = self.folder / f"{name}.pem"
        both.touch(mode=0o600)
        both.write_text(signed.read_text() + key.read_text())
        return both

    def revoke(self, certificate: Path) -> None:
        """Revoke a certificate, and write the list of those that are."""
        self._run("ca", "-config", self._settings, "-revoke", certificate)
        self.list_revoked()

    def list_revoked(self) -> None:
        """Write the list of revoked certificates."""
        self._run("ca", "-config", self._settings, "-gencrl", "-out", self.revocations)

    @staticmethod
    def _run(*words: str | Path) -> None:
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
