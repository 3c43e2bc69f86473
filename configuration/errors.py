"""The exceptions that are meant to be read by a user."""


class UserError(ValueError):
    """A mistake in what the user gave: the message names what was given, what was expected and what to do. Exit status 2."""


class TrainingStopped(Exception):
    """SIGTERM has ended a training after a checkpoint; the message says where it goes on. Exit status 143."""


def one_line(error: BaseException | str) -> str:
    """The message of an error without line breaks: libraries wrap theirs, a `UserError` has one line."""
    return " ".join(str(error).split())
