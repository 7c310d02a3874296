"""The service as most rounds run it: it marks how far its start has come, or is broken on purpose.

A fresh process that is not broken is `forewarn serve` itself, unless it is to be killed while it
starts: then it is one of these, as all are that are forked.

    python -m kills.served CONFIG    serves until it is killed
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kills import broken
from kills.phases import Start

MARKS = "start.log"
"""Beside the settings: how far each start has come, a JSON object a line."""


def mark_start(path: Path) -> None:
    """Write down when each phase of a start begins; nothing else of the service changes."""
    from forewarn.control import executor, heartbeat
    from forewarn.server.operator import plane, routing
    from forewarn.store import sqlite

    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(phase: Start) -> None:
        entry = {"pid": os.getpid(), "phase": phase, "at": time.time()}
        os.write(file, json.dumps(entry).encode() + b"\n")

    begun: set[Start] = set()

    def before(owner: Any, name: str, phase: Start) -> None:
        whole: Callable[..., Any] = getattr(owner, name)

        def marked(*args: Any, **kwargs: Any) -> Any:
            if phase not in begun:  # operators read too, once the service is up
                begun.add(phase)
                note(phase)
            return whole(*args, **kwargs)

        setattr(owner, name, marked)

    before(sqlite, "open_store", Start.OPENING)
    before(sqlite, "_create", Start.MIGRATING)
    before(heartbeat.Heartbeat, "begin", Start.RECOVERING)
    before(routing.Backend, "read", Start.FILLING)
    before(plane.OperatorPlane, "open", Start.BINDING)
    before(executor.Executor, "run", Start.TAKING_UP)


def serve(config: Path) -> int:
    """Serve as the command line does, with whatever break was asked for."""
    from forewarn.server import run, settings

    broken.apply(os.environ.get(broken.VARIABLE, ""))
    mark_start(config.with_name(MARKS))
    return run.serve(settings.load(config, os.environ))


if __name__ == "__main__":
    sys.exit(serve(Path(sys.argv[1])))
