"""A relay as a process of its own."""

import json
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import patience
from patience import until


def certify(folder: Path, address: str) -> tuple[Path, Path]:
    """Make a certificate for an address, which signs itself, and its key; return both files."""
    certificate, key = folder / "relay.crt", folder / "relay.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"),
            *("-pkeyopt", "ec_paramgen_curve:P-256", "-subj", "/CN=forewarn"),
            *("-addext", f"subjectAltName=IP:{address}"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    key.chmod(0o600)
    return certificate, key


def settings(folder: Path, *urls: str, trusts: Path | None = None, listener: str = "") -> str:
    """Return the settings of a relay that has its token and its state in a folder.

    Args:
        folder: Of its own, with a file `token`.
        urls: Where it asks.
        trusts: The certificate that it trusts.
        listener: Where it answers guests, other than 169.254.169.254: lines of the setting.
    """
    trust = f'ca_file = "{trusts}"\n' if trusts else ""
    guests = f"[[guest.listener]]\n{listener}\n" if listener else ""
    return (
        f'[upstream]\nurls = {json.dumps(urls)}\ntoken_file = "{folder}/token"\n{trust}'
        f'[state]\nfolder = "{folder}"\n[status]\nlisten = "off"\n'
        f'{guests}[log]\nformat = "json"\n'
    )


class Relay:
    """`forewarn relay`, killed and started as a test likes.

    Args:
        folder: Of its own.
        host: The host that it is on.
        settings: Its whole settings.
        within: What stands before its command.
        program: What Python runs.
    """

    def __init__(
        self,
        folder: Path,
        host: str,
        settings: str,
        within: Sequence[str] = (),
        program: Sequence[str] = ("-m", "forewarn.relay.run"),
    ) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.host = host
        self.log = folder / "relay.log"
        self._from = 0
        self.within = within
        self._program = program
        self._config = folder / "relay.toml"
        self._config.write_text(settings)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, files: Collection[int] = ()) -> None:
        """Begin to start it, with open files; `wait_until_ready` returns when it answers guests."""
        self._from = self.log.stat().st_size if self.log.exists() else 0
        command = [*self.within, sys.executable, *self._program, "--config", str(self._config)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, pass_fds=files)

    def wait_until_ready(self) -> None:
        """Return when its log says that it answers guests."""

        def ready() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self.said()
            return b'"event": "ready"' in self.log.read_bytes()[self._from :]

        until(ready, self.said)

    def said(self) -> str:
        """Return the end of its log."""
        return self.log.read_text()[-4000:]

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """Take its process away, or what is left of it."""
        assert self.end(signal.SIGKILL) == -signal.SIGKILL, self.said()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it by a signal, and return its status."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        process.send_signal(number)
        try:
            return process.wait(patience.SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
