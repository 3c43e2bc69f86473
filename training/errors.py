"""The one exception that is meant to be read by a user."""


class UserError(ValueError):
    """A mistake in what the user gave: the message names what was given, what was expected and what to do.

    The command line prints it as one line and exits with status 2; from Python it is a `ValueError` like any other.
    """
