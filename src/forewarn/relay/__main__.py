"""`python -m forewarn.relay`: the process that `forewarn relay` turns into.

It takes the options that the command line has judged, and loads nothing of the command line: that
would be a third of the relay's memory, on every hypervisor.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from forewarn.relay import run, settings
from forewarn.settings import SettingsError


def main(arguments: Sequence[str]) -> int:
    """Run a relay until a signal ends it, or check its settings; return the exit status.

    The arguments are `--check` and, last, `--config FILE`.
    """
    config = Path(arguments[-1]) if "--config" in arguments else None
    try:
        own = settings.load(config, os.environ)
    except SettingsError as error:
        for line in str(error).splitlines():
            sys.stderr.write(f"forewarn: {line}\n")
        return run.BAD_SETTINGS
    return run.check(own) if "--check" in arguments[:1] else run.serve(own)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
