"""A Hugging Face model of the planned sizes with random weights."""

import copy
from typing import TYPE_CHECKING, Any

from lean_attention.export.plan import ExportPlan
from lean_attention.export.tokenizer import byte_tokenizer

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

__all__ = ["make_random_model"]


def make_random_model(plan: ExportPlan) -> tuple["PreTrainedModel", "PreTrainedTokenizerFast"]:
    """Makes the model and its tokenizer; the same plan gives the same weights.

    Returns:
        The float32 model in evaluation mode, and a byte tokenizer of its vocabulary's size.
    """
    import transformers

    tokenizer = byte_tokenizer(plan.config["vocab_size"])
    # transformers adds keys to the table of LongRoPE factors that it is given.
    published = copy.deepcopy(plan.config)
    model_class = getattr(transformers, plan.config["architectures"][0])
    extra: dict[str, Any] = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if "layer_norm_eps" in plan.config:
        # The model builder looks for this name only, and takes 1e-6 where it is missing.
        extra["rms_norm_eps"] = plan.config["layer_norm_eps"]
    if plan.config.get("sliding_window"):
        # The builder writes the window of layers so marked only; all of Phi-3's slide.
        extra["layer_types"] = ["sliding_attention"] * plan.num_layers
    config = model_class.config_class(**published | extra)
    weights = _random_weights(model_class, config, plan.seed)
    model = model_class.from_pretrained(None, config=config, state_dict=weights)
    return model.eval(), tokenizer


def _random_weights(
    model_class: type["PreTrainedModel"], config: "PreTrainedConfig", seed: int
) -> dict[str, "torch.Tensor"]:
    """Draws every weight of a model, with the standard deviation that training starts at.

    Uniform, because normal numbers take several times as long to draw, and a model of billions of
    weights takes minutes to initialise in transformers' own way.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    bound = 3**0.5 * config.initializer_range
    with torch.device("meta"):
        shapes = model_class(config).state_dict()
    weights = {}
    for name, shape in shapes.items():
        weight = torch.empty(shape.shape)
        is_norm = weight.dim() == 1 and name.endswith("weight")
        # Biases too: the model builder leaves out the node of a bias that is zero.
        weights[name] = (
            weight.fill_(1.0) if is_norm else weight.uniform_(-bound, bound, generator=generator)
        )
    if config.tie_word_embeddings:
        del weights["lm_head.weight"]
    return weights
