"""The tree of commands as it is walked by tests."""

import click

from forewarn.cli import main


def every_command() -> dict[str, click.Command]:
    """Return each command and each group by its path, such as `forewarn fleet apply`."""
    found: dict[str, click.Command] = {}
    waiting: list[tuple[str, click.Command]] = [("forewarn", main.FOREWARN)]
    while waiting:
        path, command = waiting.pop()
        found[path] = command
        if isinstance(command, click.Group):
            waiting += [(f"{path} {name}", sub) for name, sub in command.commands.items()]
    return found
