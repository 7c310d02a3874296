"""`python -m forewarn.agent`: the process that `forewarn agent run` turns into.

It takes the options that the command line has judged, and loads nothing of the command line: that
would be a third of the agent's memory, on every machine, for as long as it runs.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from forewarn.agent import daemon, logs, settings
from forewarn.agent.journal import JournalError
from forewarn.agent.rules import Rule
from forewarn.client.errors import Misuse
from forewarn.settings import SettingsError

USAGE: Final = 2
UNAVAILABLE: Final = 6
SOCKET_UNUSABLE: Final = 10
"""Exit statuses, as the command line counts them."""


def main(arguments: Sequence[str]) -> int:
    """Run an agent until it is told to end.

    Args:
        arguments: `--dry-run` and `--once`, and `--config` with a file, last.

    Returns:
        The exit status; what went wrong has been said on stderr, each thing in one line.
    """
    config = Path(arguments[-1]) if "--config" in arguments else None
    try:
        loaded = settings.load(config, os.environ)
    except SettingsError as error:
        return _failed(USAGE, str(error))
    logs.set_up(loaded.settings.log)

    def reload() -> tuple[Rule, ...]:
        return settings.load(config, os.environ).settings.rule

    try:
        daemon.serve(
            loaded.settings,
            reload,
            dry_run="--dry-run" in arguments[:2],
            once="--once" in arguments[:2],
        )
    except JournalError as error:
        return _failed(UNAVAILABLE, str(error))
    except Misuse as error:
        return _failed(USAGE, str(error))
    except OSError as error:
        listen = loaded.settings.status.listen
        return _failed(SOCKET_UNUSABLE, f"status.listen {listen} cannot be used: {error.strerror}")
    return 0


def _failed(status: int, message: str) -> int:
    for line in message.splitlines():
        sys.stderr.write(f"forewarn: {line}\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
