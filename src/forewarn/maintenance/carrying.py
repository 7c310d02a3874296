"""What follows from what executors say, and from an operator's word about what none of them knows.

A claim is a lease with a fencing number. Whoever holds an older number is refused. An operation in
doubt stays Started, and nobody may claim it, until an operator has resolved it.
"""

from typing import assert_never

import msgspec

from forewarn.maintenance.bench import EXEMPT, MAX_OUTCOME, Bench
from forewarn.maintenance.causes import Claimed, Doubted, Finished, Released, Renewed, Resolved
from forewarn.maintenance.errors import Refused
from forewarn.maintenance.lifecycle import Trigger
from forewarn.maintenance.model import Deed, Lost, Operation, Verdict, key
from forewarn.vocabulary import ErrorCode, EventStatus, EventType

MAX_STRANGERS = 10
"""How many names are quoted of what an outcome speaks of and the operation does not have."""

NO_REASON = "nobody knows whether it was carried out"
"""A doubt whose reason was not given: `Operation.doubt` is never empty where there is one."""

replace = msgspec.structs.replace


def follow(
    bench: Bench, cause: Claimed | Renewed | Released | Finished | Doubted | Resolved
) -> list[str]:
    """Let a cause take its effect on the bench; return the operations that it is about.

    Raises:
        Refused: The attempt is stale, the operation cannot be claimed, or there is no doubt.
    """
    match cause:
        case Claimed():
            return _claim(bench, cause)
        case Renewed():
            operation = bench.claimed(cause.operation, cause.attempt)
            bench.put(replace(operation, lease_until=bench.now + cause.lease))
            return [operation.id]
        case Released():
            for operation_id in cause.operations:
                bench.put(replace(bench.named(operation_id), lease_until=None))
            return list(cause.operations)
        case Finished():
            return _finish(bench, cause)
        case Doubted():
            operation = bench.claimed(cause.operation, cause.attempt)
            doubt = cause.message[-MAX_OUTCOME:] or NO_REASON
            bench.put(replace(operation, doubt=doubt, lease_until=None))
            return [operation.id]
        case Resolved():
            return _resolve(bench, cause)
        case _:
            assert_never(cause)


def _claim(bench: Bench, cause: Claimed) -> list[str]:
    for operation_id in cause.operations:
        operation = bench.named(operation_id)
        held = operation.lease_until is not None and operation.lease_until > bench.now
        if operation.status is not EventStatus.STARTED or held or operation.doubt:
            message = (
                f"operation {operation_id} is {operation.status}"
                + (f" and held by {operation.executor}" if held else "")
                + (" and in doubt" if operation.doubt else "")
                + ": only a Started one that nobody holds can be claimed"
            )
            raise Refused(ErrorCode.CONFLICT, message, operation=operation_id)
        bench.put(
            replace(
                operation,
                attempt=operation.attempt + 1,
                executor=cause.executor,
                lease_until=bench.now + cause.lease,
            )
        )
    return list(cause.operations)


def _finish(bench: Bench, cause: Finished) -> list[str]:
    operation = bench.claimed(cause.operation, cause.attempt)
    own = {key(name) for name in operation.machines}
    strangers = [name for name in cause.hosts if key(name) not in own]
    message = cause.message
    if strangers:
        named = ", ".join(strangers[:MAX_STRANGERS]) + ", ..." * (len(strangers) > MAX_STRANGERS)
        message = f"{message}\nhosts were named for {named}: no machine of this operation".strip()
    _settle(bench, operation, cause.hosts, succeeded=cause.succeeded)
    bench.end(operation, Trigger.SUCCEED if cause.succeeded else Trigger.FAIL, message)
    _lose(bench, operation, succeeded=cause.succeeded)
    return [operation.id]


def _resolve(bench: Bench, cause: Resolved) -> list[str]:
    operation = bench.named(cause.operation)
    if not operation.doubt:
        message = (
            f"there is no doubt about operation {operation.id}, which is {operation.status}: "
            "only one in doubt can be resolved"
        )
        raise Refused(ErrorCode.CONFLICT, message, operation=operation.id)
    if cause.verdict is Verdict.REPEAT:
        repeated = replace(operation, doubt="", lease_until=None, repeat_after=operation.attempt)
        bench.intervene(repeated, Deed.REPEAT, cause.by, operation.doubt)
        return [operation.id]
    succeeded = cause.verdict is Verdict.SUCCEEDED
    outcome = f"{cause.verdict}, says {cause.by or 'an operator'}; before that: {operation.doubt}"
    _settle(bench, operation, {}, succeeded=succeeded)
    bench.end(operation, Trigger.SUCCEED if succeeded else Trigger.FAIL, outcome[:MAX_OUTCOME])
    _lose(bench, operation, succeeded=succeeded)
    return [operation.id]


def _settle(bench: Bench, operation: Operation, hosts: dict[str, str], *, succeeded: bool) -> None:
    """Let an operation's machines be on the hosts where it left them.

    A host that is named is taken even from a failure: some machines may have moved before it. After
    a Redeploy that succeeded a machine whose host is not named is on an unknown one.
    """
    if succeeded and operation.event_type in EXEMPT:
        return
    named = {key(name): host for name, host in hosts.items()}
    moved = succeeded and operation.event_type is EventType.REDEPLOY
    for name in {key(name) for name in operation.machines} & bench.machines.keys():
        machine = bench.machines[name]
        host = named.get(name, "" if moved else machine.host)
        if host != machine.host:
            bench.machines[name] = replace(machine, host=host)


def _lose(bench: Bench, operation: Operation, *, succeeded: bool) -> None:
    """Take the machines that an operation deleted out of the fleet."""
    if succeeded and operation.event_type in EXEMPT:
        bench.lost.extend(
            Lost(name=name, event_type=operation.event_type, operation=operation.id, at=bench.now)
            for name in operation.machines
        )
