"""The service broken on purpose, so that the judge can be seen to see it.

Each break is what a plausible mistake would do; `make kill BREAK=NAME` runs the rounds with one.
"""

from typing import Final

VARIABLE: Final = "FOREWARN_KILLS_BREAK"


def apply(name: str) -> None:
    """Break the service in this process; `""` leaves it whole."""
