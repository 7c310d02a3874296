"""The error answers of the operators' API: one body, and a status for each code."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from forewarn import settings
from forewarn.maintenance.model import Refused
from forewarn.server.operator.auth import ClientLeftError, request_of
from forewarn.server.operator.schemas import ErrorBody, ErrorDetail
from forewarn.store.port import StoreError
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
"""The status of each code's answer. HTTP's own refusals have another: 405 a method and 415 a
content type (`invalid`), 413 a body (`limit`), 421 a host and 403 an origin (`unauthorized`)."""

RESPONSES: Final = {
    status: (description, ErrorBody)
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


class RefusedRequest(msgspec.Struct, frozen=True):
    """The answer to an exception."""

    status: int
    detail: ErrorDetail
    headers: dict[str, str]

    def response(self) -> Response:
        """Return it in JSON."""
        return as_json(ErrorBody(error=self.detail), self.status, self.headers)


def as_json(
    value: msgspec.Struct, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an answer with a value."""
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


def refusal(request: Request, error: Exception) -> RefusedRequest:
    """Return the answer to an exception, with the status of its code."""
    headers: dict[str, str] = {}
    status = 0
    asked = request_of(request.scope)
    match error:
        case Refused():
            detail = ErrorDetail(code=error.code, message=error.message, facts=error.facts)
        case StoreError():
            detail = ErrorDetail(code=error.code, message=str(error))
            headers["Retry-After"] = str(RETRY_SECONDS)
        case ClientLeftError():  # no fault of ours: not logged, and nobody reads this
            detail = ErrorDetail(code=ErrorCode.INVALID, message="the body is incomplete")
        case HTTPException() if error.status_code < 500:
            status = error.status_code
            headers.update(error.headers or {})
            code = {404: ErrorCode.NOT_FOUND, 413: ErrorCode.LIMIT}.get(status, ErrorCode.INVALID)
            detail = ErrorDetail(code=code, message=error.detail)
        case _:
            message = "internal error: see the service's log"
            detail = ErrorDetail(code=ErrorCode.INTERNAL, message=message)
            _log.error(
                "a request failed",
                method=request.method,
                path=request.scope["path"],
                request=asked.request,
                exc_info=error,
            )
    asked.outcome = detail.code
    return RefusedRequest(status or STATUS[detail.code], detail, headers)


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
