"""A relay as a process of its own."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from programs import Program


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


class Relay(Program):
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
        super().__init__(folder / "relay.log")
        self.host = host
        self.within = within
        self._program = program
        self._config = folder / "relay.toml"
        self._config.write_text(settings)

    def start(self, files: Collection[int] = ()) -> None:
        """Begin to start it, with open files; `wait_until_ready` returns when it answers guests."""
        arguments = [*self._program, "--config", str(self._config)]
        self.begin(arguments, self.within, pass_fds=files)

    def wait_until_ready(self) -> None:
        """Return when its log says that it answers guests."""
        self.wait_for(b'"event": "ready"')
