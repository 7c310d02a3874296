"""What goes wrong, by whose fault it is."""


class ClientError(Exception):
    """Whatever the client raises of its own; the text says what is wrong and what to do."""


class Unreachable(ClientError):  # noqa: N818 - named for what is the matter
    """No answer: no connection, no answer in time, or one that was cut off."""


class BadAnswer(ClientError):  # noqa: N818 - named for what is the matter
    """Theirs: an answer came, and it is no answer of this protocol or says that it has none."""


class Misuse(ClientError):  # noqa: N818 - named for what is the matter
    """Ours: the caller asked for what cannot be, or a client that is closed."""


class Refused(ClientError):  # noqa: N818 - named for what is the matter
    """The server understood and refused (400, 401 or 403): the same again would fare no better.

    Args:
        message: What was refused, and the likely cause.
        status: The answer's.
        text: What the server said; `""` where it said nothing.
    """

    def __init__(self, message: str, *, status: int, text: str) -> None:
        super().__init__(message)
        self.status = status
        self.text = text
