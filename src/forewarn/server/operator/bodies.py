"""A request's body and query, read strictly: what is not known is refused with its place."""

from collections import Counter
from collections.abc import Generator
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec
from litestar import Request
from litestar._openapi.schema_generation import SchemaCreator
from litestar.dto import AbstractDTO
from litestar.dto.data_structures import DTOFieldDefinition
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Reference, Schema
from litestar.typing import FieldDefinition

from forewarn.maintenance.model import Refused
from forewarn.server.operator import mistakes, schemas
from forewarn.vocabulary import ErrorCode

T = TypeVar("T")

MAX_BODY: Final = 1024 * 1024
"""The most bytes of a body that is no fleet: ten thousand names fit."""

MAX_FLEET_BODY: Final = 64 * 1024 * 1024
"""The most bytes of a fleet: 200,000 machines with all that can be said of them, mostly."""


REFUSALS: Final = {
    status: ResponseSpec(schemas.Failure, generate_examples=False, description=description)
    for status, description in (
        (400, "The input is not what was expected."),
        (401, "On TCP, without the token."),
        (404, "What the input names does not exist."),
        (409, "Something live is in the way, or it is too late."),
        (413, "The body is too long."),
        (415, "The body is not declared as JSON."),
        (422, "The rules do not allow it."),
        (500, "Forewarn's own fault."),
        (503, "The store is away; nothing was changed."),
    )
}
"""What any route may answer instead of its own, for the schema."""


class Strict(AbstractDTO[T]):
    """Decodes a body straight into its struct: one pass, and errors that say where."""

    def decode_bytes(self, value: bytes) -> T:
        """Return the body as the type that the handler wants.

        Raises:
            Refused: INVALID: it is JSON of another shape, no JSON, or no UTF-8.
        """
        try:
            return msgspec.json.decode(value, type=self.model_type)
        except msgspec.ValidationError as error:
            raise mistakes.refusal(error, value, self.model_type) from error
        except msgspec.DecodeError as error:
            raise mistakes.no_json(error) from error
        except UnicodeDecodeError as error:
            message = "the body is no UTF-8 text, which JSON must be"
            raise Refused(ErrorCode.INVALID, message) from error

    @classmethod
    def create_for_field_definition(cls, *_: object, **__: object) -> None:
        """Prepare nothing: there is no copy of the type to make."""

    @classmethod
    def create_openapi_schema(
        cls, field_definition: FieldDefinition, handler_id: str, schema_creator: SchemaCreator
    ) -> Reference | Schema:
        """Return the struct's own schema."""
        del handler_id
        return schema_creator.for_field_definition(field_definition)

    @classmethod
    def generate_field_definitions(
        cls, model_type: type[Any]
    ) -> Generator[DTOFieldDefinition, None, None]:
        """Yield nothing: msgspec knows the fields."""
        del model_type
        yield from ()

    @classmethod
    def detect_nested_field(cls, field_definition: FieldDefinition) -> bool:
        """Return False: msgspec knows what is nested."""
        del field_definition
        return False


def judge_query(request: Request[Any, Any, Any]) -> None:
    """Refuse a parameter that the route does not know, or that is named twice.

    A mistyped `dry_run` must not do in earnest what it was meant to try.

    Raises:
        Refused: INVALID.
    """
    known = _parameters(request)
    given = Counter(name for name, _ in request.query_params.multi_items())
    for name, times in given.items():
        if name not in known:
            near = mistakes.nearest(name, list(known))
            message = f"there is no parameter {name!r} here{near or ';'} " + (
                f"{'Known' if near else 'known'} are {', '.join(known)}"
                if known
                else "this takes none"
            )
            raise Refused(ErrorCode.INVALID, message, parameter=name)
        if times > 1 and not known[name].is_non_string_sequence:
            message = f"the parameter {name!r} is given {times} times: give it once"
            raise Refused(ErrorCode.INVALID, message, parameter=name)


def judged(request: Request[Any, Any, Any], name: str, what: str) -> str:
    """Return what is said of a parameter that is not what it should be.

    Args:
        request: Whose query or path it is in.
        name: The parameter's.
        what: What the framework said.
    """
    known = request.route_handler.parsed_fn_signature.parameters | _parameters(request)
    if name not in known:
        return what
    in_path = str(request.path_params.get(name, ""))
    given = request.query_params.getall(name, [in_path])
    return mistakes.of_parameter(what, given, known[name].annotation)


def _parameters(request: Request[Any, Any, Any]) -> dict[str, FieldDefinition]:
    """Return what the route takes in its query, by name."""
    handler = request.route_handler
    inner = {"request", "data", *handler.resolve_dependencies(), *request.path_params}
    return {
        getattr(parameter.kwarg_definition, "name", None) or name: parameter
        for name, parameter in handler.parsed_fn_signature.parameters.items()
        if name not in inner
    }


def judge_text(text: str, where: str) -> str:
    """Return a text that people will read, if it is one printable line.

    Raises:
        Refused: INVALID.
    """
    if not text.isprintable():
        message = f"at {where}: {text[:80]!r} holds characters that cannot be printed"
        raise Refused(ErrorCode.INVALID, message, where=where)
    return text


def judge_moment(moment: datetime, where: str) -> datetime:
    """Return an aware time in UTC, if UTC has a date for it.

    Raises:
        Refused: INVALID.
    """
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        message = f"at {where}: {moment.isoformat()} is before the year 1 or after 9999 in UTC"
        raise Refused(ErrorCode.INVALID, message, where=where) from error
