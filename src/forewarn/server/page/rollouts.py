"""The pages of rollouts: all of them, one with its waves and units, and the form."""

from collections import Counter
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, Response
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter

from forewarn.control import rollouts as preparing
from forewarn.maintenance.rollout_forecast import PlannedWave
from forewarn.maintenance.rollout_model import UnitState
from forewarn.server.operator import api, requests, rollout_routes, rollout_schemas, routing
from forewarn.server.operator.requests import TheBackend, TheCaller
from forewarn.server.page import forms, orders, sending, standing
from forewarn.server.page.routes import ThePage, get, post
from forewarn.server.page.standing import Standing

LISTED: Final = 50
"""Rollouts of one page of the list."""

SHOWN_UNITS: Final = 200
"""The most units of a rollout's page at once."""

FORECAST_LASTS: Final = timedelta(seconds=15)
"""How old a forecast may be that windows show."""

PLANNED_NAMES: Final = 6
"""Names of units in a wave's line of a plan."""

FIRST: Final = ("failed", "blocked", "running")
"""The units that are shown before all others."""

UnitFilter = Annotated[str, QueryParameter(name="units", max_length=20)]
Offset = Annotated[int, QueryParameter(name="from", ge=0, le=100_000)]


class ListedRollout(msgspec.Struct, frozen=True):
    """A rollout as the list shows it."""

    view: rollout_schemas.RolloutView
    standing: Standing


class ListedUnit(msgspec.Struct, frozen=True):
    """A unit as its rollout's page shows it."""

    view: rollout_schemas.RolloutUnitView
    standing: Standing
    orders: tuple[str, ...]


class ListedWave(msgspec.Struct, frozen=True):
    """A wave of a rollout: how far its units are, and when it ends."""

    number: int
    units: rollout_schemas.RolloutUnits
    count: int
    is_current: bool
    forecast: PlannedWave | None


@get("/rollouts")
async def list_rollouts(
    request: "Request[Any, Any, Any]", backend: TheBackend, page: ThePage, cursor: routing.Name = ""
) -> Response[str]:
    """List rollouts, the newest first."""
    before = requests.key_before("rollouts", cursor)
    known = dict(backend.rollouts.rollouts)

    def make() -> Mapping[str, Any]:
        numbers = sorted((n for n in known if not before or n < int(before)), reverse=True)
        found, following = requests.page("rollouts", numbers, LISTED, str)
        shown = [rollout_routes.view(known[number]) for number in found]
        return {
            "rollouts": [ListedRollout(view, standing.of_rollout(view)) for view in shown],
            "next": following,
            "cursor": cursor,
        }

    return await page.show(request, "rollouts.html", make)


@get("/rollouts/{number:int}")
async def show_rollout(
    request: "Request[Any, Any, Any]",
    backend: TheBackend,
    page: ThePage,
    *,
    number: api.ByNumber,
    units: UnitFilter = "",
    offset: Offset = 0,
) -> Response[str]:
    """Show a rollout: its waves, its units, what is blocked and why, and what can be done."""
    rollout = backend.rollouts.rollouts.get(number)
    if rollout is None:
        raise rollout_routes.unknown(number)
    now = backend.now()
    aged = now.timestamp() // FORECAST_LASTS.total_seconds()
    # What it costs grows with the fleet, and it changes little: not made for each change.
    forecast = await page.shared.get(
        ("forecast", number),
        (rollout.state, rollout.wave, rollout.awaits_operator, aged),
        lambda: backend.read(lambda reading: preparing.forecast(reading, rollout, now)),
    )

    def make() -> Mapping[str, Any]:
        detail = rollout_routes.detail(rollout, forecast)
        listed = [_unit(each) for each in detail.units]
        counts = Counter(each.standing.word for each in listed)
        fitting = [each for each in listed if not units or each.standing.word == units]
        if not units:
            fitting.sort(key=_precedence)
        return {
            "one": detail.rollout,
            "task": detail.task,
            "policy": detail.policy,
            "forecast": detail.forecast,
            "standing": standing.of_rollout(detail.rollout),
            "waves": _waves(detail),
            "counts": counts,
            "filter": units,
            "units": fitting[offset : offset + SHOWN_UNITS],
            "fitting": len(fitting),
            "offset": offset,
            "following": offset + SHOWN_UNITS if offset + SHOWN_UNITS < len(fitting) else 0,
            "orders": orders.of_rollout(detail.rollout),
            "consequences": {
                name: orders.ORDERS[name].consequence(
                    orders.Subject(
                        reference=str(number),
                        address=f"/rollouts/{number}",
                        rollout=detail.rollout,
                    )
                )
                for name in orders.of_rollout(detail.rollout)
            },
            "key": backend.make_token(),
        }

    return await page.show(request, "rollout.html", make)


def _unit(unit: rollout_schemas.RolloutUnitView) -> ListedUnit:
    possible: tuple[str, ...] = ()
    if unit.state in {UnitState.FAILED, UnitState.SKIPPED}:
        possible = ("retry-unit",)
    if unit.state in {UnitState.FAILED, UnitState.WAITING}:
        possible = (*possible, "skip-unit")
    return ListedUnit(unit, standing.of_unit(unit), possible)


def _precedence(unit: ListedUnit) -> tuple[int, int]:
    word = unit.standing.word
    return FIRST.index(word) if word in FIRST else len(FIRST), unit.view.wave


def _waves(detail: rollout_schemas.RolloutDetail) -> list[ListedWave]:
    states: dict[int, Counter[str]] = {}
    for unit in detail.units:
        states.setdefault(unit.wave, Counter())[unit.state.value] += 1
    planned = {wave.number: wave for wave in detail.forecast.waves} if detail.forecast else {}
    return [
        ListedWave(
            number=number,
            units=rollout_schemas.RolloutUnits(**counts),
            count=counts.total(),
            is_current=number == detail.rollout.wave and not detail.rollout.state.over,
            forecast=planned.get(number),
        )
        for number, counts in sorted(states.items())
    ]


def _plan(
    asked: rollout_schemas.RolloutRequest, planned: rollout_schemas.RolloutPlan
) -> dict[str, Any]:
    forecast = planned.forecast
    units = f"{forecast.units} unit" if forecast.units == 1 else f"{forecast.units} units"
    done = orders.VERBS[asked.event_type][2]
    return {
        "forecast": forecast,
        "waves": [(wave, _names(wave)) for wave in forecast.waves],
        "button": f"Start: {units}, {orders.machines(forecast.machines)} {done}",
    }


def _names(wave: PlannedWave) -> tuple[Collection[str], int]:
    names = [unit.name for unit in wave.units[:PLANNED_NAMES]]
    return names, len(wave.units) - len(names)


FORM: Final = sending.PlannedForm(
    template="rollout",
    groups=forms.ROLLOUT,
    read=forms.rollout,
    route=rollout_routes.start_rollout,
    address=lambda made: f"/rollouts/{made.rollout.number}",
    plan=_plan,
)


@get("/rollouts/new")
async def begin(request: "Request[Any, Any, Any]", page: ThePage) -> Response[str]:
    """Show the form that starts a rollout."""
    return await sending.begin(request, page, FORM)


@post("/page/rollouts")
async def plan_or_start(
    request: "Request[Any, Any, Any]", caller: TheCaller, page: ThePage
) -> sending.Answer:
    """Show the form again, how the rollout would go, or start it."""
    return await sending.plan_or_start(request, caller, page, FORM)


ROUTES: Final = tuple(each for each in vars().values() if isinstance(each, HTTPRouteHandler))
