"""On which side a batch of prompts is padded."""

from typing import Any

import numpy as np

from lean_attention.errors import LeanAttentionError

__all__ = ["check_padding"]


def check_padding(attention_mask: Any) -> None:
    """Refuses a batch of prompts that is not padded on the right alone.

    GroupQueryAttention, ours as the stock one, is told how many tokens a row has and takes the
    first ones. With padding before them it computes wrong tokens, and cannot know.

    Args:
        attention_mask: [B, S] of the prompts, a tensor on the CPU, an array or lists: 0 where there
            is padding. In later steps padding may lie between a prompt and its answer.

    Raises:
        LeanAttentionError: A row has padding before a token, or no token; or this is no mask.
    """
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
