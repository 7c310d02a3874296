"""Tools for tests of handlers.

`emulator` is a server of Scheduled Events in the process of a test: `harness` has the rules, store
and documents, `emulated_service` the guest plane in front of them, `wire` the connections of
handlers, `faults` the faults on them. `plugin` makes it a pytest fixture, and `operators` gives it
the operator plane for other languages. `record` has the lines of a recording of a real endpoint,
which the emulator replays.

`certify` runs a handler through `HandlerScenario`s and judges it: `handler_process` is the handler,
and `namespace` a network of its own for it.

Nothing here decides what is right: the rules do. Time stands still until it is moved. Used by `cli`
and by tests; the names below are public.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forewarn.maintenance.model import Refused
    from forewarn.testing.emulator import (
        EmulatedApproval,
        EmulatedEvent,
        EmulatedMachine,
        Emulator,
        NotIdle,
    )
    from forewarn.testing.wire import Exchange

__all__ = [
    "EmulatedApproval",
    "EmulatedEvent",
    "EmulatedMachine",
    "Emulator",
    "Exchange",
    "NotIdle",
    "Refused",
]

_ELSEWHERE = {
    "Exchange": "forewarn.testing.wire",
    "Refused": "forewarn.maintenance.model",
}
_EXTRA = ("httptools", "prometheus_client", "structlog")

if not TYPE_CHECKING:  # a type checker sees every name above, and that there is no other

    def __getattr__(name: str) -> object:
        """Load a public name at its first use."""
        if name not in __all__:
            raise AttributeError(f"module 'forewarn.testing' has no attribute {name!r}")
        try:
            found = importlib.import_module(_ELSEWHERE.get(name, "forewarn.testing.emulator"))
        except ModuleNotFoundError as error:
            if error.name not in _EXTRA:
                raise
            needs = f"the emulator needs {error.name}, from Forewarn's extra 'testing'"
            raise ImportError(f"{needs}: pip install '.[testing]' in a clone") from error
        return getattr(found, name)


def __dir__() -> list[str]:
    """Return every public name, loaded or not."""
    return sorted({*globals(), *__all__})
