"""A judge of JSON values by the keywords of JSON Schema that OpenAPI documents of ours have."""

from collections.abc import Callable, Iterator
from typing import Any

TYPES = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}
NOTES = {"title", "description", "format", "default", "examples", "deprecated", "pattern"}


class Judge:
    """Tells what a schema refuses of a value.

    Args:
        components: The schemas that references name.
    """

    def __init__(self, components: dict[str, Any]) -> None:
        self._components = components

    def faults(self, value: Any, schema: dict[str, Any], at: str = "$") -> list[str]:
        """Return what is refused, with its place; fail for a keyword that is not known."""
        found: list[str] = []
        for word, rule in schema.items():
            if word not in NOTES:
                found += getattr(self, f"_{word.removeprefix('$')}")(value, rule, schema, at)
        return found

    def _ref(self, value: Any, rule: str, _: Any, at: str) -> list[str]:
        return self.faults(value, self._components[rule.rpartition("/")[2]], at)

    def _type(self, value: Any, rule: Any, _: Any, at: str) -> list[str]:
        kinds = [rule] if isinstance(rule, str) else rule
        fits = any(isinstance(value, TYPES[kind]) for kind in kinds)
        return [] if fits else [f"{at} is not {rule}"]

    def _anyOf(self, value: Any, rule: Any, _: Any, at: str) -> list[str]:  # noqa: N802
        fits = any(not self.faults(value, each) for each in rule)
        return [] if fits else [f"{at} fits none of anyOf"]

    def _properties(self, value: Any, rule: Any, _: Any, at: str) -> list[str]:
        named = value if isinstance(value, dict) else {}
        return [
            fault
            for name in rule.keys() & named.keys()
            for fault in self.faults(value[name], rule[name], f"{at}.{name}")
        ]

    def _additionalProperties(  # noqa: N802
        self, value: Any, rule: Any, schema: Any, at: str
    ) -> Iterator[str]:
        known = schema.get("properties", {}).keys()
        for name in value.keys() - known if isinstance(value, dict) else ():
            if rule is False:
                yield f"{at}.{name} is unknown"
            elif isinstance(rule, dict):
                yield from self.faults(value[name], rule, f"{at}.{name}")

    def _propertyNames(  # noqa: N802
        self, value: Any, rule: Any, _: Any, at: str
    ) -> list[str]:
        named = value if isinstance(value, dict) else {}
        return [fault for name in named for fault in self.faults(name, rule, f"{at}.{name}")]

    def _required(self, value: Any, rule: Any, _: Any, at: str) -> list[str]:
        missing = set(rule) - value.keys() if isinstance(value, dict) else set()
        return [f"{at}.{name} is missing" for name in missing]

    def _items(self, value: Any, rule: Any, _: Any, at: str) -> list[str]:
        entries = value if isinstance(value, list) else ()
        return [
            fault
            for number, each in enumerate(entries)
            for fault in self.faults(each, rule, f"{at}[{number}]")
        ]

    def _enum(self, value: Any, rule: Any, _: Any, at: str) -> list[str]:
        return [] if value in rule else [f"{at} is none of {rule}"]

    def _const(self, value: Any, rule: Any, _: Any, at: str) -> list[str]:
        return [] if value == rule else [f"{at} is not {rule}"]

    @staticmethod
    def _bound(fits: Callable[[Any, Any], bool], measure: Any = None) -> Any:
        def judge(self: "Judge", value: Any, rule: Any, _: Any, at: str) -> list[str]:
            del self
            kinds = (list, str) if measure else (int, float)
            if not isinstance(value, kinds) or fits(measure(value) if measure else value, rule):
                return []
            return [f"{at} is out of bounds: {rule}"]

        return judge

    _minItems = _minLength = _bound(lambda size, least: size >= least, len)  # noqa: N815
    _maxItems = _maxLength = _bound(lambda size, most: size <= most, len)  # noqa: N815
    _minimum = _bound(lambda number, least: number >= least)
    _maximum = _bound(lambda number, most: number <= most)
    _exclusiveMaximum = _bound(lambda number, most: number < most)  # noqa: N815
