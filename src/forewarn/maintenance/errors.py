"""How a rule says no."""

from forewarn.vocabulary import ErrorCode


class Refused(Exception):  # noqa: N818 - it is a refusal, the field's word, and no fault of ours
    """A request that the rules do not allow; nothing was changed.

    Args:
        code: The reason, from the closed list.
        message: What is wrong, what was expected, and what to do, for people.
        facts: What the message speaks of, by name, for programs.
    """

    def __init__(self, code: ErrorCode, message: str, **facts: str | int) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.facts = facts
