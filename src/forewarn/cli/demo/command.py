"""`forewarn demo`: the whole of it in under 90 seconds, with the real service and real guests."""

from pathlib import Path
from typing import Annotated

import typer

from forewarn.cli.demo import ground
from forewarn.cli.operator import JsonOption


def demo(
    *,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Leave it running afterwards, until Ctrl-C, to try things."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """See it whole: a fleet, its guests, maintenance.

    Runs the real service on a temporary database, with guests as processes of their own and a clock
    on which fifteen minutes last ten seconds. It ends by itself in under 90 seconds.
    """
    from forewarn.cli.demo.show import Show

    with ground.signals_interrupt(), ground.folder() as folder:
        show = Show(Path(folder), as_json=as_json)
        try:
            show.run()
            if keep:
                show.keep()
        finally:
            with ground.signals_wait():
                show.close()
