"""`python -m forewarn.agent`: the process that `forewarn agent run` turns into.

It takes the options that the command line has judged, and loads nothing of the command line: that
would be a third of the agent's memory, on every machine, for as long as it runs.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from forewarn import logs
from forewarn.agent import settings
from forewarn.agent.daemon import LOGGER, Daemon
from forewarn.agent.journal import Journal, JournalError
from forewarn.agent.rules import Rule
from forewarn.client.event import Misuse
from forewarn.settings import SettingsError, prepare_types

FAILED: Final = 1
USAGE: Final = 2
UNAVAILABLE: Final = 6
"""Exit statuses, as the command line counts them."""


def main(arguments: Sequence[str]) -> int:
    """Run an agent until a signal ends it; return the exit status.

    The arguments are `--dry-run`, `--once` and, last, `--config FILE`.
    """
    config = Path(arguments[-1]) if "--config" in arguments else None
    try:
        loaded = settings.load(config, os.environ)
    except SettingsError as error:
        return _failed(USAGE, str(error))
    own = loaded.settings
    logs.set_up(own.log)
    if not loaded.files:
        LOGGER.warning("no settings file: the agent has no rules until a reload finds one")
    prepare_types()

    def reload() -> tuple[Rule, ...]:
        nonlocal loaded
        loaded = settings.load_again(loaded, os.environ)
        return loaded.settings.rule

    with contextlib.ExitStack() as open_:
        try:
            journal = None
            if "--dry-run" not in arguments[:2]:
                journal = open_.enter_context(contextlib.closing(Journal(Path(own.state.folder))))
            daemon = Daemon(own, journal, reload, once="--once" in arguments[:2])
            for name in ("SIGTERM", "SIGINT", "SIGHUP"):
                number = getattr(signal, name, None)  # Windows has the first two only
                if number is not None:
                    signal.signal(number, lambda got, _: daemon.signal(got))
            if os.name == "posix":  # the command line blocked it until here
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            daemon.listen()
            daemon.run()
        except JournalError as error:
            return _failed(FAILED if error.for_now else UNAVAILABLE, str(error))
        except Misuse as error:
            return _failed(USAGE, str(error))
    return 0


def _failed(status: int, message: str) -> int:
    for line in message.splitlines():
        sys.stderr.write(f"forewarn: {line}\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
