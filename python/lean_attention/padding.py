"""On which side a batch of prompts is padded."""

from typing import Any, Literal

import numpy as np

from lean_attention.errors import LeanAttentionError

__all__ = ["check_padding"]


def check_padding(attention_mask: Any, *, allowed: Literal["right", "none"] = "right") -> None:
    """Refuses a batch of prompts that is padded elsewhere than on the right.

    GroupQueryAttention, ours as the stock one, is told how many tokens a row has and takes the
    first ones. With padding before them it computes wrong tokens, and cannot know.

    Args:
        attention_mask: [B, S] of the prompts, a tensor on the CPU, an array or lists: 0 where there
            is padding. In later steps padding may lie between a prompt and its answer.
        allowed: "none" refuses padding on the right as well, for clients that look for the next
            token in the last column, as transformers' ``generate`` does.

    Raises:
        LeanAttentionError: A row has padding where it must not, or no token; or this is no mask.
    """
    if allowed not in ("right", "none"):
        raise LeanAttentionError(f"allowed is {allowed!r}; expected 'right' or 'none'")
    try:
        mask = np.asarray(attention_mask) != 0
    except (TypeError, ValueError, RuntimeError) as error:
        raise LeanAttentionError(f"attention_mask is no array: {error}") from error
    if mask.ndim != 2:
        raise LeanAttentionError(f"attention_mask has the shape {mask.shape}; expected [B, S]")
    for row, is_token in enumerate(mask):
        if not is_token.any():
            raise LeanAttentionError(f"row {row} of attention_mask has no token")
        if not is_token[: is_token.sum()].all():
            raise LeanAttentionError(
                f"row {row} of attention_mask has padding before a token, which "
                "GroupQueryAttention does not know; pad on the right, as with "
                "tokenizer.padding_side = 'right'"
            )
        if allowed == "none" and not is_token.all():
            raise LeanAttentionError(
                f"row {row} of attention_mask has padding after its tokens, where this client "
                "looks for the next one; give it prompts of one length at a time"
            )
