"""The command line: all commands, and how their errors are printed."""

import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from forewarn import times
from forewarn.cli import (
    accounts,
    agent,
    demo,
    events,
    fleet,
    follow,
    guest,
    host,
    maintenance,
    output,
    relay,
    rollout,
    serve,
    store,
    testing,
    unit,
    webhook,
)
from forewarn.cli.exits import ExitStatus, Failed
from forewarn.cli.options import argument

NAME: Final = "forewarn"

MAX_LINE: Final = 74
"""What fits in 80 columns of a name and what it does, beside the blanks around them."""

COMPLETE: Final = "_FOREWARN_COMPLETE"
"""The variable by which the script of `completion` asks for what may follow."""

TRACEBACK_VARIABLE: Final = "FOREWARN_TRACEBACK"
"""If set, an internal error shows its traceback."""

COMMANDS: Final[dict[str, Callable[..., None] | typer.Typer]] = {
    "serve": serve.serve,
    "fleet": fleet.app,
    "host": host.app,
    "relay": relay.app,
    "schedule": maintenance.schedule,
    "maintenance": maintenance.app,
    "rollout": rollout.app,
    "events": events.events,
    "approve": events.approve,
    "cancel": events.cancel,
    "postpone": events.postpone,
    "hold": events.hold,
    "release": events.release,
    "alerts": events.alerts,
    "acknowledge": events.acknowledge,
    "resolve": events.resolve,
    "history": events.history,
    "follow": follow.follow,
    "watch": guest.watch,
    "page": accounts.page,
    "token": accounts.token,
    "audit": accounts.audit,
    "webhook": webhook.app,
    "replicas": serve.replicas,
    "restore-check": store.restore_check,
    "store": store.app,
    "unit": unit.unit,
    "agent": agent.app,
    "emulator": testing.emulator,
    "record": testing.record,
    "certify": testing.certify,
    "demo": demo.demo,
}
"""The commands and groups in the order of --help."""

SECTIONS: Final[dict[str, tuple[str, ...]]] = {
    "Service, such as 'forewarn serve'": (
        *("serve", "relay", "replicas", "page", "token", "audit", "webhook"),
        *("restore-check", "store", "unit"),
    ),
    "Maintenance, such as 'forewarn schedule reboot web-0 --dry-run'": (
        *("fleet", "host", "schedule", "rollout", "maintenance", "events", "approve", "cancel"),
        *("postpone", "hold", "release", "alerts", "acknowledge", "resolve", "history", "follow"),
    ),
    "Guests, such as 'forewarn watch --mine'": ("watch", "record"),
    "Agent, such as 'forewarn agent run'": ("agent",),
    "Tools, such as 'forewarn completion bash'": ("emulator", "certify", "demo", "completion"),
}
"""How --help groups the commands, each group with an example."""

REFERENCE: Final = "https://github.com/forewarn/forewarn/blob/main/docs/reference/cli.md"
"""The page with examples and exit statuses, and a heading for each command."""

_READ_ON: Final = f"\b\nExamples and exit statuses:\n{REFERENCE}"
"""After a backspace Typer breaks no lines. An anchor would not fit 80 columns."""

_TYPE: Final = re.compile(r" <[^>|]+>$")
"""The Python type that Typer puts behind the name of an argument, if it is not a choice."""

_BOUNDS: Final = (
    (re.compile(r"(\d+)<=x<=(\d+)"), r"\1 to \2"),
    (re.compile(r"  \[x>=\d+\]|; x>=\d+|x>=\d+; "), ""),
)
"""How Typer writes the bounds of a number, and what the help has instead."""


_UNPROTECTED: Final = ("--no-", "--without-", "--again", "--insecure", "--prune")
"""How options begin that remove a protection. They are not suggested to whoever typed another."""


ABSENT: Final = {
    "forewarn host drain --notice": "a drain has no notice of its own, each move has the least "
    "notice of its type"
}
"""Why a command lacks an option that one like it has."""


class SingleValueCommand(TyperCommand):
    """A command that refuses an option given twice, unless the option takes several values.

    Without this the last value wins, and `--host h1 --host h2` patches one host of the two. Its
    help is without the types and bounds that Typer writes as Python does.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - not public
        """Parse the arguments; fail where an option with one value is repeated."""
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option in given:
            single = isinstance(option, TyperOption) and not (option.multiple or option.is_flag)
            if single and given.count(option) > 1:
                ctx.fail(f"option {option.opts[0]} can be given only once")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - not public
        """Run it; an invalid value names its option, if it is known, and this command's help."""
        try:
            return super().invoke(ctx)
        except (times.InvalidTime, typer.BadParameter) as error:
            said = str(error)
            for param in self.params:
                given = ctx.params.get(param.name)
                values = given if isinstance(given, (list, tuple)) else (given,)
                if any(isinstance(each, str) and f" {each!r}: " in said for each in values):
                    raise typer.BadParameter(said, ctx, param) from error
            ctx.fail(said)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401 - not public
        """Return what follows the name of the command, such as `[OPTIONS] REF... TIME`."""
        return [str(self.options_metavar), *self.arguments(ctx)]

    def arguments(self, ctx: Any) -> list[str]:  # noqa: ANN401 - not public
        """Return the arguments as the usage has them: `...` behind one that takes several."""
        return [
            piece.strip("{}") + ("..." if param.nargs == -1 and "..." not in piece else "")
            for param in self.get_params(ctx)
            for piece in param.get_usage_pieces(ctx)
        ]

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - not public
        """Write the arguments and options."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            name, text = param.get_help_record(ctx) or ("", "")
            for bounds, plain in _BOUNDS:
                text = bounds.sub(plain, text)
            if isinstance(param, TyperOption):
                sections.setdefault("Options", []).append((name, text))
            else:
                sections.setdefault("Arguments", []).append((_TYPE.sub("", name), text))
        for title in sorted(sections):
            with formatter.section(title):
                formatter.write_dl(sections[title])


class GroupedCommands(TyperGroup):
    """The whole command line: its help has the commands in groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - not public
        """Write the commands."""
        del ctx
        width = max(map(len, self.commands))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (
                            name.ljust(width),
                            self.commands[name].get_short_help_str(MAX_LINE - width),
                        )
                        for name in names
                    ]
                )


app = typer.Typer(
    cls=GroupedCommands,
    name=NAME,
    help="Notice of maintenance for virtual machines, and their approval.",
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"], argument("SHELL", "The shell: bash, zsh or fish.")
    ],
) -> None:
    """Print a script that completes commands and options."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined] # Typer's

    output.say(get_completion_script(prog_name=NAME, complete_var=COMPLETE, shell=shell))


COMMANDS["completion"] = completion
for _name, _command in COMMANDS.items():
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_name)
    else:
        app.command(_name)(_command)


def _version(given: bool) -> None:  # noqa: FBT001 - Typer calls it with the flag
    if given:
        from forewarn.version import __version__

        typer.echo(f"{NAME} {__version__}")
        raise typer.Exit


@app.callback()
def _forewarn(
    *,
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Notice of maintenance for virtual machines, and their approval."""


def command() -> TyperGroup:
    """Return the whole command line."""
    _prepare(app)
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    group.commands = {name: group.commands[name] for name in COMMANDS}  # Typer puts groups last
    return group


def _prepare(group: typer.Typer) -> None:
    """Make each command of a group a `SingleValueCommand` whose help names the reference."""
    group.info.epilog = _READ_ON
    for registered in group.registered_commands:
        registered.cls = SingleValueCommand
        registered.epilog = _READ_ON
    for below in group.registered_groups:
        assert below.typer_instance is not None
        _prepare(below.typer_instance)


def execute(arguments: Sequence[str]) -> int:
    """Run one command line; return its exit status. Errors are printed on stderr, a line each."""
    if COMPLETE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined] # Typer's

        completion_init()
    try:
        status = command().main(args=list(arguments), prog_name=NAME, standalone_mode=False)
        sys.stdout.flush()
    except Failed as failed:
        for line in failed.message.splitlines():
            output.note(f"{NAME}: {line}")
        return failed.status
    except typer.TyperException as error:
        output.note(_usage(error))
        return ExitStatus.USAGE
    except (KeyboardInterrupt, typer.Abort):
        return ExitStatus.INTERRUPTED
    except SystemExit as ended:
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        return ExitStatus.BROKEN_PIPE  # Typer ends so in every mode
    except BrokenPipeError:
        # The buffered rest has no reader: without this Python reports it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitStatus.BROKEN_PIPE
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        output.note(
            f"{NAME}: internal error: {type(error).__name__}: {error}; "
            f"{TRACEBACK_VARIABLE}=1 shows where"
        )
        return ExitStatus.INTERNAL
    return status if isinstance(status, int) else ExitStatus.OK


def run() -> None:
    """Run the command line of this process, and end the process."""
    sys.exit(execute(sys.argv[1:]))


def _usage(error: typer.TyperException) -> str:
    """Return what is wrong with the command line in one line, and where to read on."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else NAME
    similar = getattr(error, "possibilities", None)  # for an unknown option
    given = getattr(error, "option_name", "")
    why = ABSENT.get(f"{path} {given}", "")
    if similar:
        vars(error)["possibilities"] = [
            name
            for name in similar
            if not why
            if given.startswith(_UNPROTECTED) or not name.startswith(_UNPROTECTED)
        ]
    said = error.format_message()
    if said.startswith("Usage:"):
        return said  # there was no command: the error is the help itself
    line = " ".join(said.split()).replace("Value error, ", "").rstrip(".")
    line += f": {why}" if why else ""
    command = getattr(context, "command", None)
    if line.startswith("Missing argument") and isinstance(command, SingleValueCommand):
        line += f"; expected '{path} {' '.join(command.arguments(context))}'"
    stop = "" if line.endswith("?") else "."
    return f"{NAME}: {line}{stop} See '{path} --help'."
