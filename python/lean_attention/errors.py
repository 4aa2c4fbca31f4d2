"""The package's exceptions: each message is one line that says what to do."""

__all__ = ["LeanAttentionError"]


class LeanAttentionError(Exception):
    """Something the user can mend; the message says what was found and what to do."""
