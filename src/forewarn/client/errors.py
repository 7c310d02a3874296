"""The client's errors; each says whose fault it is."""


class ClientError(Exception):
    """The base of the client's errors; the text says what is wrong and what to do."""


class Unreachable(ClientError):  # noqa: N818 - named for what is the matter
    """The server's fault: no connection, no answer in time, or one that was cut off."""


class BadAnswer(ClientError):  # noqa: N818 - named for what is the matter
    """The server's fault: its answer is not a document, a name or a confirmation."""


class Misuse(ClientError):  # noqa: N818 - named for what is the matter
    """The caller's fault: an invalid argument, or a client that is closed."""


class Refused(ClientError):  # noqa: N818 - named for what is the matter
    """The server refuses the request (400, 401 or 403): sending it again would not help.

    Args:
        message: What was refused, and the likely cause.
        status: The answer's status.
        text: What the server said; `""` for nothing.
    """

    def __init__(self, message: str, *, status: int, text: str) -> None:
        super().__init__(message)
        self.status = status
        self.text = text
