"""The routes of rollouts: plan and start one, look at it, and say how it goes on."""

from collections import Counter
from collections.abc import Iterable
from typing import Annotated

import msgspec
import structlog
from litestar.params import FromQuery, JSONBody, PathParameter

from forewarn.control import rollouts
from forewarn.control.rollouts import RolloutTargets
from forewarn.maintenance import model
from forewarn.maintenance.rollout import RolloutOrderKind
from forewarn.maintenance.rollout_forecast import RolloutForecast
from forewarn.maintenance.rollout_model import Rollout, RolloutPolicy, RolloutTask
from forewarn.maintenance.time_windows import Span
from forewarn.server.operator import requests, rollout_schemas, routing, schemas, views
from forewarn.server.operator.requests import Backend, TheBackend, TheCaller, one_line
from forewarn.store.port import Reading
from forewarn.vocabulary import ErrorCode, EventType

ByNumber = Annotated[int, PathParameter(le=schemas.MAX_NUMBER)]

OF_A_UNIT = frozenset({RolloutOrderKind.SKIP, RolloutOrderKind.RETRY})
"""The orders that name a unit."""

_log = structlog.get_logger(__name__)


@routing.post("/v1/rollouts", rollout_schemas.RolloutRequest, routing.ROLLOUTS, status=201)
async def start_rollout(
    backend: TheBackend,
    caller: TheCaller,
    *,
    data: JSONBody[rollout_schemas.RolloutRequest],
    dry_run: FromQuery[bool] = False,
) -> rollout_schemas.RolloutPlan:
    """Start a rollout; the answer is how it will go, and in a dry run nothing more."""
    one_line(data.description or "", "description")
    drained: frozenset[str] = frozenset()
    if data.drain and data.event_type is EventType.REBOOT and (data.hosts or data.all_hosts):
        survey = await backend.hosts.survey()
        drained = frozenset(host for host, facts in survey.hosts.items() if facts.can_reboot)
    blackouts = tuple(
        Span(requests.in_utc(one.opens, "blackouts"), requests.in_utc(one.closes, "blackouts"))
        for one in data.policy.blackouts
    )
    targets = model.mapped(RolloutTargets, data, tags=tuple(sorted(data.tags.items())))
    task = model.mapped(RolloutTask, data)
    until = data.policy.approval_until
    policy = model.mapped(
        RolloutPolicy,
        data.policy,
        blackouts=blackouts,
        approval_until=until and requests.in_utc(until, "approval_until"),
    )
    if policy.check and policy.check not in backend.rollouts.checks.names:
        message = f"no check named {policy.check!r} in the service's settings"
        raise model.Refused(ErrorCode.NOT_FOUND, message, what="check", name=policy.check)
    now = backend.now()
    rollout, forecast = await backend.read(
        lambda reading: rollouts.prepared(
            reading, targets, task, policy, drained=drained, by=caller.by, now=now
        )
    )
    if not dry_run:
        rollout = msgspec.structs.replace(rollout, idempotency_key=data.idempotency_key)
        plane = backend.changing(caller, told=views.rollout_in_one_line)
        rollout = await backend.done(plane.order(rollouts.start, rollout))
    return rollout_schemas.RolloutPlan(dry_run=dry_run, rollout=view(rollout), forecast=forecast)


@routing.get("/v1/rollouts", routing.ROLLOUTS)
async def list_rollouts(
    backend: TheBackend, cursor: FromQuery[str] = "", limit: routing.Limit = schemas.DEFAULT_LIMIT
) -> rollout_schemas.RolloutPage:
    """List rollouts, newest first."""
    before = requests.key_before("rollouts", cursor)
    numbers = sorted(backend.rollouts.rollouts, reverse=True)
    after = [number for number in numbers if not before or number < int(before)]
    found, following = requests.page("rollouts", after, limit, str)
    shown = tuple(view(backend.rollouts.rollouts[number]) for number in found)
    return rollout_schemas.RolloutPage(rollouts=shown, next=following)


@routing.get("/v1/rollouts/{number:int}", routing.ROLLOUTS)
async def show_rollout(backend: TheBackend, number: ByNumber) -> rollout_schemas.RolloutDetail:
    """Show a rollout with its units, and how it will go on if nothing fails."""
    return await _detail(backend, number)


@routing.post(
    "/v1/rollouts/{number:int}/orders", rollout_schemas.RolloutOrderBody, routing.ROLLOUTS
)
async def order_rollout(
    backend: TheBackend,
    caller: TheCaller,
    number: ByNumber,
    data: JSONBody[rollout_schemas.RolloutOrderBody],
) -> rollout_schemas.RolloutDetail:
    """Say how a rollout goes on; the answer is the rollout after it."""
    if (data.order in OF_A_UNIT) != bool(data.unit):
        message = f"at unit: '{data.order}' " + (
            "takes no unit" if data.unit else "needs the name of a unit"
        )
        raise model.Refused(ErrorCode.INVALID, message, where="unit")
    _log.info("an operator orders", rollout=number, order=data.order, by=caller.by)
    plane = backend.changing(caller, f"{data.order} {data.unit}".rstrip())
    steered = plane.order(rollouts.steer, number, data.order, data.unit, by=caller.by)
    await backend.done(steered)
    return await _detail(backend, number)


async def _detail(backend: Backend, number: int) -> rollout_schemas.RolloutDetail:
    now = backend.now()

    def question(reading: Reading) -> rollout_schemas.RolloutDetail | None:
        rollout = reading.rollouts([number]).get(number)
        if rollout is None:
            return None
        return detail(rollout, rollouts.forecast(reading, rollout, now))

    found = await backend.read(question)
    if found is None:
        raise unknown(number)
    return found


def unknown(number: int) -> model.Refused:
    """Return the refusal of a number that no rollout has."""
    message = f"no rollout {number}: see 'forewarn rollout list'"
    return model.Refused(ErrorCode.NOT_FOUND, message, rollout=number)


def detail(rollout: Rollout, forecast: RolloutForecast | None) -> rollout_schemas.RolloutDetail:
    """Return a rollout with all of its units."""
    return rollout_schemas.RolloutDetail(
        rollout=view(rollout),
        task=rollout.task,
        policy=rollout.policy,
        units=tuple(
            model.mapped(rollout_schemas.RolloutUnitView, unit, wave=unit.wave + 1)
            for unit in rollout.units
        ),
        forecast=forecast,
    )


def view(rollout: Rollout) -> rollout_schemas.RolloutView:
    """Return a rollout as lists show it."""
    counts = Counter(unit.state.value for unit in rollout.units)
    return model.mapped(
        rollout_schemas.RolloutView,
        rollout,
        event_type=rollout.task.event_type,
        wave=rollout.wave + 1,
        unconfirmed=rollout.unconfirmed,
        waves=_waves(unit.wave for unit in rollout.units),
        units=rollout_schemas.RolloutUnits(**counts),
    )


def _waves(waves: Iterable[int]) -> int:
    return max(waves, default=0) + 1
