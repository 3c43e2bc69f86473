"""The exceptions that are meant to be read by a user, and what makes one line of others."""

from __future__ import annotations

import errno
import os


class UserError(ValueError):
    """A mistake in what the user gave: the message names what was given, what was expected and what to do. Exit status
    2."""


_NO_MORE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
# How torch ends when a file takes no more; its writer does not say why.
_OF_TORCH = ("inline_container.cc", "iostream error")


def write_failure(error: BaseException | None) -> str | None:
    """What the system says of a file that takes no more, anywhere among the causes of an error; None of any other
    error."""
    while error is not None:
        text = one_line(error)
        if isinstance(error, OSError) and error.errno in _NO_MORE:
            return os.strerror(error.errno)
        for number in _NO_MORE:  # libraries in Rust raise kinds of their own
            if os.strerror(number) in text:
                return os.strerror(number)
        if isinstance(error, RuntimeError) and any(name in text for name in _OF_TORCH):
            return f"torch could not write a file ({text})"
        error = error.__cause__ or error.__context__
    return None


class TrainingStopped(Exception):
    """SIGTERM has ended a training after a checkpoint; the message says where it goes on. Exit status 143."""


def one_line(error: BaseException | str) -> str:
    """The message of an error without line breaks: libraries wrap theirs, a `UserError` has one line."""
    return " ".join(str(error).split())
