"""Which connector the settings choose."""

import os
import shutil
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from forewarn.clock import Clock
from forewarn.connectors.command import CommandConnector, CommandUnusable
from forewarn.connectors.port import Connector
from forewarn.connectors.simulated import SimulatedConnector
from forewarn.server.settings import Settings
from forewarn.vocabulary import EventType


def chosen(settings: Settings, clock: Clock, environment: Mapping[str, str]) -> Connector:
    """Return the connector that carries maintenance out.

    Args:
        settings: Judged, with absolute places.
        clock: Whose time simulated acts take.
        environment: The service's own variables, of which programs get what is not its own.

    Raises:
        CommandUnusable: The operator's program cannot be used; one line says why.
    """
    connector = settings.connector
    if connector.kind == "command":
        for name in ("program", "check_command"):
            _judge_there(f"connector.command.{name}", getattr(connector.command, name))
        state = Path(connector.command.state)
        return CommandConnector(connector.command, state, environment, os.name)
    return SimulatedConnector(clock, _durations(settings))


def _judge_there(where: str, argv: tuple[str, ...]) -> None:
    """Refuse at start-up what would only fail when the first machine is waiting for it."""
    if argv and shutil.which(argv[0]) is None:
        message = f"{where}: there is no program {argv[0]}, or it may not be executed"
        raise CommandUnusable(message)


def _durations(settings: Settings) -> dict[EventType, timedelta]:
    simulated = settings.connector.simulated
    return {
        EventType.FREEZE: timedelta(seconds=simulated.freeze_seconds),
        EventType.REBOOT: timedelta(seconds=simulated.reboot_seconds),
        EventType.REDEPLOY: timedelta(seconds=simulated.redeploy_seconds),
        EventType.PREEMPT: timedelta(seconds=simulated.preempt_seconds),
        EventType.TERMINATE: timedelta(seconds=simulated.terminate_seconds),
    }
