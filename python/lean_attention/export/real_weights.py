"""Real weights: a Llama from a GGUF file, written as the Phi-3 that computes the same."""

from pathlib import Path
from typing import TYPE_CHECKING

from lean_attention.errors import LeanAttentionError
from lean_attention.export.plan import ExportPlan

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

__all__ = ["check_same_tokens", "make_real_model", "stack_projections"]

CHECK_QUESTION = "Why is the sky blue?"
CHECK_TOKENS = 24


def make_real_model(
    plan: ExportPlan, gguf: Path
) -> tuple["PreTrainedModel", "PreTrainedTokenizerFast"]:
    """Reads the weights, restacks them for Phi-3 and checks that nothing changed.

    Args:
        plan: The Phi-3 configuration to fill.
        gguf: A GGUF file that holds a Llama of the same sizes and its tokenizer.

    Returns:
        The float32 Phi-3 in evaluation mode, and the file's tokenizer.

    Raises:
        LeanAttentionError: The Phi-3 does not continue a question as the Llama does.
    """
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The configuration is known: giving it spares transformers a second pass through the file.
    llama_keys = ("architectures", "model_type", "original_max_position_embeddings")
    shared = {key: value for key, value in plan.config.items() if key not in llama_keys}
    llama = transformers.LlamaForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, config=transformers.LlamaConfig(**shared)
    ).eval()
    phi3 = transformers.Phi3ForCausalLM.from_pretrained(
        None,
        config=transformers.Phi3Config(**plan.config),
        state_dict=stack_projections(llama.state_dict()),
    ).eval()
    check_same_tokens(llama, phi3, tokenizer)
    return phi3, tokenizer


def stack_projections(llama: dict[str, "torch.Tensor"]) -> dict[str, "torch.Tensor"]:
    """Renames a Llama's weights to Phi-3's, which stacks some of them along the output axis.

    Args:
        llama: The weights by name; ``q_proj`` is [num_heads * head_size, hidden_size], ``k_proj``
            and ``v_proj`` [kv_num_heads * head_size, hidden_size], ``gate_proj`` and ``up_proj``
            [intermediate_size, hidden_size].
    """
    import torch

    stacks = {
        "self_attn.q_proj": ("self_attn.qkv_proj", ("q_proj", "k_proj", "v_proj")),
        "mlp.gate_proj": ("mlp.gate_up_proj", ("gate_proj", "up_proj")),
    }
    parts = {part for _, names in stacks.values() for part in names}
    result = {}
    for name, weight in llama.items():
        module = ".".join(name.split(".")[-3:-1])
        if module in stacks:
            stacked, names = stacks[module]
            first = names[0]
            pieces = [llama[name.replace(first, part)] for part in names]
            result[name.replace(module, stacked)] = torch.cat(pieces)
        elif module.rpartition(".")[2] not in parts:
            result[name] = weight
    return result


def check_same_tokens(
    llama: "PreTrainedModel", phi3: "PreTrainedModel", tokenizer: "PreTrainedTokenizerFast"
) -> None:
    """Lets both models answer one question, greedily.

    Raises:
        LeanAttentionError: They differ; the message says at which new token.
    """
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": CHECK_QUESTION}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    said = [
        model.generate(**prompt, max_new_tokens=CHECK_TOKENS, do_sample=False)[0].tolist()
        for model in (llama, phi3)
    ]
    if said[0] != said[1]:
        at = next(i for i, pair in enumerate(zip(*said, strict=False)) if pair[0] != pair[1])
        start = prompt["input_ids"].shape[1]
        raise LeanAttentionError(
            f"the Phi-3 form of the weights differs from the original at new token {at - start}; "
            "this transformers version computes one of the two otherwise: try another version"
        )
