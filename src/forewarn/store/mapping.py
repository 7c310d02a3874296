"""Values to rows and back: a struct's fields are the columns of its table, by the same names.

The type of a field says what its column holds, so a new field of a struct is a migration, and
nothing here or in `tables`. A round trip is exact.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from types import NoneType
from typing import Any, Generic, TypeVar, get_args

import msgspec
from sqlalchemy import BigInteger, Boolean, Column, LargeBinary, Select, Table, Text, select
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

from forewarn.store.port import EPOCH, micros

MAX_SHARED = 4096
"""How many JSON texts stay decoded where rows share them: a few hundred bytes each."""

Row = dict[str, Any]
"""A row to write, by column."""

Processor = Callable[[Any], Any]
"""Converts one value of a column. SQLAlchemy calls it for each row, so C functions pay off."""

ColumnType = TypeEngine[Any] | type[TypeEngine[Any]]

V = TypeVar("V", bound=msgspec.Struct)


class Instant(TypeDecorator[datetime]):
    """An aware time, stored as microseconds since 1970 in UTC; exact for every `datetime`."""

    impl = BigInteger
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Processor:
        return lambda value: None if value is None else micros(value)

    def result_processor(self, dialect: Dialect, coltype: object) -> Processor:
        return lambda value: None if value is None else EPOCH + timedelta(0, 0, value)


class Enumerated(TypeDecorator[StrEnum]):
    """A member of an enumeration, stored as its value."""

    impl = Text
    cache_ok = True

    def __init__(self, kind: type[StrEnum]) -> None:
        super().__init__()
        self.kind = kind

    def bind_processor(self, dialect: Dialect) -> Processor:
        texts: dict[str | None, str | None] = {member: member.value for member in self.kind}
        return (texts | {None: None}).__getitem__

    def result_processor(self, dialect: Dialect, coltype: object) -> Processor:
        members: dict[str | None, StrEnum | None] = {member.value: member for member in self.kind}
        return (members | {None: None}).__getitem__


class Shared(TypeDecorator[str]):
    """A text that many rows share, such as a host: 100,000 machines hold one copy of it."""

    impl = Text
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Processor:
        return sys.intern


class Json(TypeDecorator[Any]):
    """A value that is never searched for, stored as one JSON text.

    `shared` is for values of which many rows have equal ones: they share the one that is read.
    """

    impl = Text
    cache_ok = True

    def __init__(
        self,
        kind: Any,  # noqa: ANN401 - a type, or what stands for one, such as `tuple[str, ...]`
        *,
        shared: bool = False,
        encode: Callable[[Any], bytes] = msgspec.json.encode,
        decode: Callable[[str], Any] | None = None,
    ) -> None:
        super().__init__()
        self.kind = kind
        self.shared = shared
        self.encode = encode
        self.decode = decode
        decoded = decode or msgspec.json.Decoder(kind).decode

        def read(text: str | None) -> Any:  # noqa: ANN401 - of any kind
            return None if text is None else decoded(text)

        self._read = functools.lru_cache(MAX_SHARED)(read) if shared else read

    def bind_processor(self, dialect: Dialect) -> Processor:
        encode = self.encode
        return lambda value: None if value is None else encode(value).decode()

    def result_processor(self, dialect: Dialect, coltype: object) -> Processor:
        return self._read


_SIMPLE: dict[Any, ColumnType] = {
    str: Text,
    int: BigInteger,
    bool: Boolean,
    bytes: LargeBinary,
    datetime: Instant,
}


def columns(kind: type[V], **given: ColumnType | Column[Any]) -> Iterator[Column[Any]]:
    """Yield a column for each field of a struct; what may be None is nullable.

    `given` is what a field's type does not say: its column, or the column's type.
    """
    for field in msgspec.structs.fields(kind):
        choices = get_args(field.type)
        nullable = NoneType in choices
        special = given.get(field.name, choices[0] if nullable else field.type)
        if isinstance(special, Column):
            yield special
        else:
            yield Column(field.name, _column_type(special), nullable=nullable)


def _column_type(kind: Any) -> ColumnType:  # noqa: ANN401 - a column's type, or a field's
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return Enumerated(kind)
    if isinstance(kind, TypeEngine) or (isinstance(kind, type) and issubclass(kind, TypeEngine)):
        return kind
    return _SIMPLE.get(kind) or Json(kind)


class Mapping(Generic[V]):
    """One type of struct and its table.

    `derived` is what further columns hold of a value: the keys and the indexes.
    """

    def __init__(self, kind: type[V], table: Table, **derived: Callable[[V], Any]) -> None:
        self.table = table
        self._select = select(*(table.c[name] for name in kind.__struct_fields__))
        self._derived = derived
        # Compiled, as dataclasses do: a dictionary for each row would cost a start with 100,000
        # machines a tenth of a second.
        values = [f"{name}=row[{place}]" for place, name in enumerate(kind.__struct_fields__)]
        source = f"lambda row: kind({', '.join(values)})"
        self.value: Callable[[Any], V] = eval(source, {"kind": kind})  # noqa: S307 - names of ours
        """Returns the value of a row that `select` found."""

    def select(self, *more: Any) -> Select[Any]:  # noqa: ANN401 - columns of any type
        """Return a query for what `value` needs, and after that for more columns."""
        return self._select.add_columns(*more) if more else self._select

    def row(self, value: V) -> Row:
        """Return the row of a value."""
        row = msgspec.structs.asdict(value)
        for name, derive in self._derived.items():
            row[name] = derive(value)
        return row
