"""How the operators' API answers what fails: one body, a status for each code, where and why."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.openapi.datastructures import ResponseSpec

from forewarn import settings
from forewarn.maintenance.model import Refused
from forewarn.server.operator.auth import ClientLeftError, request_of
from forewarn.server.operator.schemas import ErrorBody, ErrorDetail
from forewarn.store.port import OutcomeUnknown, StoreError
from forewarn.vocabulary import ErrorCode

STATUS: Final[Mapping[ErrorCode, int]] = MappingProxyType(
    {
        ErrorCode.INVALID: 400,
        ErrorCode.UNAUTHORIZED: 401,
        ErrorCode.FORBIDDEN: 403,
        ErrorCode.NOT_FOUND: 404,
        ErrorCode.CONFLICT: 409,
        ErrorCode.TOO_LATE: 409,
        ErrorCode.STALE: 409,
        ErrorCode.LIMIT: 422,
        ErrorCode.NOTICE_TOO_SHORT: 422,
        ErrorCode.NOT_ELIGIBLE: 422,
        ErrorCode.UNAVAILABLE: 503,
        ErrorCode.UNKNOWN_OUTCOME: 503,
        ErrorCode.INTERNAL: 500,
    }
)
"""The status of each code's answer. HTTP's own refusals are `invalid` with a status of their own:
405 a method, 413 a body (`limit`), 415 a content type, 421 a host, 403 an origin."""

RESPONSES: Final = {
    status: ResponseSpec(ErrorBody, generate_examples=False, description=description)
    for status, description in (
        (400, "The input is invalid."),
        (401, "On TCP, the token is missing, unknown or expired."),
        (403, "The account's role does not allow it."),
        (404, "What the input names does not exist."),
        (409, "Something live is in the way, or it is too late."),
        (413, "The body is too long."),
        (415, "The content type is not application/json."),
        (422, "The rules do not allow it."),
        (500, "An error of Forewarn's own."),
        (503, "The store is unavailable: nothing was changed, unless the code is unknown-outcome."),
    )
}
"""The errors of every route, for the OpenAPI schema."""

RETRY_SECONDS: Final = 1
"""When to retry after the store was unavailable: most disk troubles end soon, or not at all."""

MAX_SHOWN: Final = 300
"""The most characters of a message or a path that are shown: they repeat unknown keys whole."""

_log = structlog.get_logger(__name__)


def answer(request: Request[Any, Any, Any], error: Exception) -> Response[ErrorBody]:
    """Answer an exception, with the status of its code."""
    headers: dict[str, str] = {}
    asked = request_of(request.scope)
    match error:
        case Refused():
            status = STATUS[error.code]
            detail = ErrorDetail(code=error.code, message=error.message, facts=error.facts)
        case StoreError():
            code = code_of(error)
            status = STATUS[code]
            detail = ErrorDetail(code=code, message=str(error))
            headers["Retry-After"] = str(RETRY_SECONDS)
        case ClientLeftError():  # no fault of ours: not logged, and nobody reads this
            status = 400
            detail = ErrorDetail(code=ErrorCode.INVALID, message="the body is incomplete")
        case HTTPException() if error.status_code < 500:
            status = error.status_code
            headers.update(error.headers or {})
            code = {404: ErrorCode.NOT_FOUND, 413: ErrorCode.LIMIT}.get(status, ErrorCode.INVALID)
            detail = ErrorDetail(code=code, message=_message(request, error))
        case _:
            status = 500
            message = "internal error: see the service's log"
            detail = ErrorDetail(code=ErrorCode.INTERNAL, message=message)
            _log.error(
                "a request failed",
                method=request.method,
                path=request.url.path,
                request=asked.request,
                exc_info=error,
            )
    asked.outcome = detail.code
    return Response(ErrorBody(error=detail), status_code=status, headers=headers)


def code_of(error: Refused | StoreError) -> ErrorCode:
    """Return the code that tells of what was refused, or of a store that is away."""
    if isinstance(error, Refused):
        return error.code
    unknown = isinstance(error, OutcomeUnknown)
    return ErrorCode.UNKNOWN_OUTCOME if unknown else ErrorCode.UNAVAILABLE


def invalid_body(error: Exception, shape: type) -> Refused:
    """Return the refusal of a body, by what msgspec raised.

    Where the JSON has another shape, the fact `where` is the path from the top
    (`machine[0].host`; `""` is the body itself).
    """
    if isinstance(error, UnicodeDecodeError):
        return Refused(ErrorCode.INVALID, "the body is not UTF-8")
    if not isinstance(error, msgspec.ValidationError):
        what = str(error).removeprefix("JSON is malformed: ")
        return Refused(ErrorCode.INVALID, f"the body is not JSON: {what}")
    mistake = settings.explain(error, shape)
    where, what = mistake.where[:MAX_SHOWN], mistake.what[:MAX_SHOWN]
    place = f"at {where}" if where else "the body"
    return Refused(ErrorCode.INVALID, f"{place}: {what}", where=where)


def _message(request: Request[Any, Any, Any], error: HTTPException) -> str:
    path = request.url.path
    if isinstance(error, ValidationException) and isinstance(error.extra, list):
        if any(one.get("key") == "data" for one in error.extra):
            return "the body is empty: expected JSON; /v1/schema describes it"
        return "; ".join(_of_parameter(request, **one) for one in error.extra)
    if error.status_code == 404:
        return f"no such path {path}: /v1/schema lists them"
    if error.status_code == 405:
        return f"{path} does not support {request.method}: /v1/schema lists the methods"
    if error.status_code == 413:
        most = request.route_handler.resolve_request_max_body_size()
        return f"the body is longer than {most} bytes"
    return error.detail


def _of_parameter(
    request: Request[Any, Any, Any], message: str, key: str = "the query", **_: object
) -> str:
    parameters = request.route_handler.parsed_fn_signature.parameters
    if key in parameters:
        field = parameters[key]
        shape = field.inner_types[0] if field.is_non_string_sequence else field
        message = settings.explain(msgspec.ValidationError(message), shape.annotation).what
    given = request.query_params.getall(key, [str(request.path_params.get(key, ""))])
    return f"at {key}: {message}, got {', '.join(map(repr, given))[:MAX_SHOWN]}"
