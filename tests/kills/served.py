"""The service as most rounds run it: children of a process that is warm, or broken on purpose.

A fresh process that is not broken is `forewarn serve` itself, unless it is to be killed while it
starts: then it is one of these, which mark how far they have come.

    python -m kills.served fresh CONFIG    serves until it is killed
    python -m kills.served nursery CONFIG  forks a service for each order on its standard input

The nursery has imported everything and never starts a thread or a loop, so that a fork of it is a
process as it would be after the imports.
"""

import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from kills import broken
from kills.phases import Start

LATE_IMPORTS = (
    "uvloop",
    "forewarn.connectors.command",
    "uvicorn.protocols.http.httptools_impl",
    "sqlalchemy.dialects.sqlite",
)
"""What the service imports only while it starts; a fork should not have to."""

MARKS = "start.log"
"""Beside the settings: how far each start has come, a JSON object a line."""


def mark_start(path: Path) -> None:
    """Write down when each phase of a start begins; nothing else of the service changes."""
    from forewarn.control import executor, service_clock
    from forewarn.server import service
    from forewarn.server.operator import requests
    from forewarn.store import migrations, sqlite

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

    def migrate(connection: Any) -> None:
        if migrations.revision(connection) != migrations.HEAD:
            note(Start.MIGRATING)
        whole_migrate(connection)

    before(sqlite, "open_store", Start.OPENING)
    whole_migrate, migrations.migrate = migrations.migrate, migrate
    before(service_clock.Heartbeat, "begin", Start.RECOVERING)
    before(requests.Backend, "read", Start.FILLING)
    before(service.Service, "_open_operators", Start.BINDING)
    before(executor.Executor, "run", Start.TAKING_UP)


def serve(config: Path) -> int:
    """Serve as the command line does, with whatever break was asked for."""
    from forewarn.server import run, settings

    broken.apply(os.environ.get(broken.VARIABLE, ""))
    mark_start(config.with_name(MARKS))
    return run.serve(settings.load(config, os.environ))


def nursery(config: Path) -> None:
    """Fork a service at each order, reap it at another; answer each with a line."""
    from forewarn.server import run

    assert run.serve
    for name in LATE_IMPORTS:
        importlib.import_module(name)
    gc.freeze()
    _say(ready=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "start" in order:
            child = os.fork()
            if child == 0:
                _be_service(config, order["start"])
            _say(pid=child)
        else:
            _, status = os.waitpid(order["reap"], 0)
            _say(status=os.waitstatus_to_exitcode(status))


def _be_service(config: Path, log: str) -> NoReturn:
    status = 1
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for source, target in ((nothing, 0), (said, 1), (said, 2)):
            os.dup2(source, target)
        status = serve(config)
    finally:
        os._exit(status)


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    place = Path(sys.argv[2])
    if sys.argv[1] == "fresh":
        sys.exit(serve(place))
    nursery(place)
