"""The settings of the `command` connector, apart from it.

The command line reads the settings to find the operators' socket, also where the server extra,
which the connector needs, is not installed.
"""

from typing import Annotated, Literal

import msgspec


class CommandConnectorSettings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """The operator's program, and how it is run."""

    program: tuple[str, ...] = ()
    """The program and its arguments, as `["/usr/local/bin/maintain", "--quiet"]`: a full path, or a
    bare name that PATH finds; no shell reads it. Empty by default: nobody can choose it but you."""
    per: Literal["machine", "operation"] = "machine"
    """Whether it is run for each machine of an operation, all at once as far as `at_once` allows,
    or once for all of them. By default each machine: the simplest programs take one name."""
    time_limit_seconds: Annotated[float, msgspec.Meta(gt=0, le=7 * 24 * 3600)] = 1800.0
    """When a run gets SIGTERM, with all of its process group, and has failed. By default half an
    hour: longer than a large machine's live migration, and not for ever."""
    grace_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 10.0
    """How long after that SIGTERM it gets SIGKILL: 10 s to put things in order."""
    at_once: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 16
    """How many runs are under way at once; the others wait in the order in which they came. 16
    spare the hosts; what a restart finds under way is not counted."""
    check_command: tuple[str, ...] = ()
    """Asked where nobody knows whether a run did its work, with the same input and variables: exit
    status 0 says done, 1 not done, any other that it cannot tell either. Empty, the default, is
    none: `on_unknown` decides then."""
    state: str = ""
    """The folder for the runs' files, on a local disk. `""` is `commands` beside the database."""
