"""The one line of a foreign exception that goes into a message of ours."""

__all__ = ["first_line"]


def first_line(error: BaseException) -> str:
    """Returns the first line of an exception's message, or its name where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
