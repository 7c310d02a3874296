"""Commands and groups on click, and commands that are one request of the API.

A `RequestCommand` is a row of a table: method and path, arguments, and how its answer is shown. Its
arguments are named as the API names them; those that are not in the path are the query of a GET
or a DELETE, or the body of a POST. What needs more than one request is a function, declared by
`command` or, if it asks the operator plane, by `asking`.
"""

import itertools
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import click

from forewarn.cli.exits import Failed
from forewarn.cli.operator_client import OperatorClient, Show, segment
from forewarn.cli.options import JSON, OPERATOR, PAGES
from forewarn.server.operator import fields

REFERENCE: Final = "https://github.com/forewarn/forewarn/blob/main/docs/reference/cli.md"
"""The page with examples and exit statuses, and a heading for each command."""

READ_ON: Final = f"\b\nExamples and exit statuses:\n{REFERENCE}"
"""After a backspace click breaks no lines. An anchor would not fit 80 columns."""

Function = Callable[..., object]


NEGATIVE: Final = re.compile(r"-[0-9.]")
"""The beginning of a number or a span, such as `-1h`: no option has it."""


class Command(click.Command):
    """A command that refuses an option given twice, unless the option takes several values.

    Without this the last value wins, and `--host h1 --host h2` patches one host of the two. A
    refusal of the service names the option, in the place of the body's field.
    """

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's
        """Run the command."""
        try:
            return super().invoke(ctx)
        except Failed as failed:
            failed.message = as_typed(
                failed.message, str(failed.facts.get("where", "")), self.params
            )
            raise

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; each error names this command."""
        try:
            if ctx.allow_interspersed_args and not ctx.resilient_parsing:  # it is no group
                args = _unambiguous(args, self.get_params(ctx))
            _, _, given = self.make_parser(ctx).parse_args(args=list(args))
            for option in given:
                single = isinstance(option, click.Option) and not (
                    option.multiple or option.is_flag
                )
                if single and given.count(option) > 1 and not ctx.resilient_parsing:
                    ctx.fail(f"option {option.opts[0]} can be given only once")
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # the parser leaves it out
            raise

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments; click calls them "Positional arguments"."""
        arguments = [param for param in self.params if isinstance(param, click.Argument)]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl([each.get_help_record(ctx) for each in arguments])


def _unambiguous(args: Sequence[str], params: Iterable[click.Parameter]) -> list[str]:
    """Return arguments with those like `-1h` behind `--`, and no option as the value of another.

    click would answer `postpone 2 -1h` with "No such option '-1'", and `--description --dry-run`
    would schedule what was only to be shown.
    """
    options = {name: one for one in params if isinstance(one, click.Option) for name in one.opts}
    others: list[str] = []
    negative: list[str] = []
    rest = iter(args)
    for each in rest:
        if each == "--":
            return [*others, each, *negative, *rest]
        if NEGATIVE.match(each):
            negative.append(each)
            continue
        others.append(each)
        takes_value = each in options and not options[each].is_flag
        for value in itertools.islice(rest, takes_value):
            if value in options:
                message = f"option {each} needs a value before {value}"
                raise click.BadOptionUsage(each, message)
            others.append(value)
    return [*others, "--", *negative] if negative else others


class CommandGroup(Command, click.Group):
    """Commands below one name, in the order in which they were written down."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return their names."""
        del ctx
        return list(self.commands)


class RequestCommand(Command):
    """A command that sends one request, and shows its answer.

    `show` prints the answer, `paged` names the list in it if that has pages, and `fixed` are values
    of the body that nobody types.
    """

    def __init__(
        self,
        text: str,
        request: str,
        *params: click.Parameter,
        show: Show,
        paged: str = "",
        **fixed: object,
    ) -> None:
        options = [*params, *(PAGES if paged else ()), JSON, OPERATOR]
        super().__init__(None, callback=self.ask, params=options, help=text, epilog=READ_ON)
        self.method, self.path = request.split()
        self.show = show
        self.paged = paged
        self.fixed = fixed

    def ask(self, **given: Any) -> None:  # noqa: ANN401 - whatever the command takes
        """Send the request with what was typed, and show the answer."""
        service = _service(given)
        in_path = {name for _, name, _, _ in string.Formatter().parse(self.path) if name}
        path = self.path.format(**{name: segment(str(given.pop(name))) for name in in_path})
        if self.paged:
            answer = service.pages(path, self.paged, **given)
        else:
            ask = {"GET": service.get, "POST": service.post, "DELETE": service.delete}[self.method]
            answer = ask(path, **given, **self.fixed)
        answer.show(self.show)


def as_typed(message: str, where: str, params: Sequence[click.Parameter]) -> str:
    """Return a refusal that names the option or argument in the place of the body's field."""
    place = where or message.removeprefix("at ").partition(": ")[0]
    for param in params:
        if param.name == fields.of_place(place):
            is_option = isinstance(param, click.Option)
            label = param.opts[0] if is_option else param.human_readable_name.strip("[.]")
            what = message.removeprefix(f"at {place}: ")
            return what if label in what else f"{label}: {what}"
    return message


def command(*params: click.Parameter) -> Callable[[Function], Command]:
    """Declare a function as a command; its docstring is the help."""

    def declare(function: Function) -> Command:
        return Command(
            None, callback=function, params=list(params), help=function.__doc__, epilog=READ_ON
        )

    return declare


def asking(*params: click.Parameter, paged: bool = False) -> Callable[[Function], Command]:
    """Declare a function as a command that asks the operator plane: its first argument."""

    def declare(function: Function) -> Command:
        def run(**given: Any) -> None:  # noqa: ANN401 - whatever the command takes
            function(_service(given), **given)

        run.__doc__ = function.__doc__
        return command(*params, *(PAGES if paged else ()), JSON, OPERATOR)(run)

    return declare


def group(
    text: str,
    commands: Mapping[str, click.Command],
    **more: Any,  # noqa: ANN401 - click's
) -> CommandGroup:
    """Return a group of commands."""
    return CommandGroup(None, commands=dict(commands), help=text, epilog=READ_ON, **more)


def orders(
    texts: Mapping[str, str], path: str, *params: click.Parameter, show: Show
) -> dict[str, click.Command]:
    """Return a command for each order that is sent to this path, by the help of each."""
    return {
        order: RequestCommand(text, f"POST {path}", *params, show=show, order=order)
        for order, text in texts.items()
    }


def _service(given: dict[str, Any]) -> OperatorClient:
    """Take what is the client's out of what was typed."""
    names = {param.name for param in (*PAGES, JSON, OPERATOR)} & given.keys()
    return OperatorClient(**{name: given.pop(name) for name in names})
