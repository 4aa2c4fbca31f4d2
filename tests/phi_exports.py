"""Tiny Phi models with random weights, and what exports them to ONNX."""

import contextlib
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lean_attention.export.tokenizer import byte_tokenizer

VOCABULARY = 320
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    # The usual 0.02 makes tokens that hardly depend on attention.
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def _long_rope(pairs: int, **more: object) -> dict[str, Any]:
    factors = {"short_factor": [1.0] * pairs, "long_factor": [2.0 + i for i in range(pairs)]}
    scaling = {"type": "longrope", **factors, **more}
    return {"original_max_position_embeddings": 32, "rope_scaling": scaling}


CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "phi-2": ("Phi", {"num_key_value_heads": 4, "partial_rotary_factor": 0.5}),
    "phi-3": ("Phi3", {"original_max_position_embeddings": 256, "sliding_window": 10}),
    "phi-3.5": ("Phi3", _long_rope(16)),
    "phi-4": ("Phi3", {"original_max_position_embeddings": 256, "sliding_window": None}),
    "phi-4-mini": (
        "Phi3",
        {"partial_rotary_factor": 0.5, "tie_word_embeddings": True, **_long_rope(8)},
    ),
    "phi-moe": (
        "Phimoe",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": None,
            **_long_rope(
                16, short_mscale=1.2, long_mscale=1.3, original_max_position_embeddings=32
            ),
        },
    ),
}
"""By name: the family's prefix in transformers, and what differs from ``SIZES``."""


def phi_model(name: str) -> Any:
    """A Phi of two layers: 4 query heads of 32, and 4 (phi-2) or 2 KV heads."""
    import torch
    import transformers

    family, changes = CONFIGS[name]
    config = getattr(transformers, f"{family}Config")(**SIZES | changes)
    if getattr(config, "sliding_window", None):
        config.layer_types = ["sliding_attention"] * config.num_hidden_layers
    torch.manual_seed(20)
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


def build(name: str, precision: str, provider: str, folder: Path, *options: str) -> Path:
    """Exports a Phi through onnxruntime-genai's builder, and returns the folder it writes."""
    from onnxruntime_genai.models import builder

    source = folder / "source"
    phi_model(name).save_pretrained(source)
    byte_tokenizer(VOCABULARY).save_pretrained(source)
    place = ("tiny", str(source), str(folder / "model"), precision, provider, str(folder / "cache"))
    with contextlib.redirect_stdout(io.StringIO()), pytest.MonkeyPatch.context() as patch:
        if name == "phi-moe":
            _let_the_builder_read_phi_moe(source, patch)
        builder.create_model(*place, **builder.parse_extra_options(*place, list(options)))
    return folder / "model"


def _let_the_builder_read_phi_moe(source: Path, patch: pytest.MonkeyPatch) -> None:
    """Bridges what keeps onnxruntime-genai 0.18 from exporting the PhiMoE of transformers 5.

    The builder knows the published architecture's name, forgets PhiMoE where it reads LongRoPE, and
    expects experts one by one in ``block_sparse_moe``, as transformers 4 kept them.
    """
    import torch
    from onnxruntime_genai.models import builder
    from transformers.models.phimoe.modeling_phimoe import PhimoeDecoderLayer

    def linear(weight: torch.Tensor) -> torch.nn.Linear:
        made = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        made.weight = torch.nn.Parameter(weight.detach().clone(), requires_grad=False)
        return made

    def experts(layer: Any) -> SimpleNamespace:
        both, down = layer.mlp.experts.gate_up_proj, layer.mlp.experts.down_proj
        gates, ups = both.chunk(2, dim=1)
        return SimpleNamespace(
            gate=linear(layer.mlp.router.weight),
            experts=[
                SimpleNamespace(w1=linear(gate), w3=linear(up), w2=linear(out))
                for gate, up, out in zip(gates, ups, down, strict=True)
            ],
        )

    config = source / "config.json"
    config.write_text(config.read_text().replace("PhimoeForCausalLM", "PhiMoEForCausalLM"))
    reads_long_rope = builder.Phi3MiniLongRoPEModel.make_rope_init
    patch.setattr(builder.Phi3MoELongRoPEModel, "make_rope_init", reads_long_rope)
    patch.setattr(PhimoeDecoderLayer, "block_sparse_moe", property(experts), raising=False)


def export_with_torch(name: str, opset: int, path: Path) -> Path:
    """Exports a Phi through ``torch.onnx.export``, its caches as inputs and outputs."""
    import torch
    import transformers

    class WithCaches(torch.nn.Module):
        """The model over a flat list of caches: keys and values of each layer in turn."""

        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, caches: list[Any]) -> Any:
            pairs = list(zip(caches[::2], caches[1::2], strict=True))
            past = transformers.DynamicCache(ddp_cache_data=pairs, config=self.model.config)
            result = self.model(input_ids, attention_mask, past_key_values=past, use_cache=True)
            layers = result.past_key_values.layers
            return result.logits, [t for layer in layers for t in (layer.keys, layer.values)]

    model = phi_model(name)
    heads, size = model.config.num_key_value_heads, model.config.hidden_size // 4
    caches = [torch.randn(2, heads, 5, size) for _ in range(4)]
    pasts = [f"past_key_values.{layer}.{part}" for layer in (0, 1) for part in ("key", "value")]
    any_size = torch.export.Dim.DYNAMIC
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        program = torch.onnx.export(
            WithCaches(model),
            (torch.randint(3, 300, (2, 3)), torch.ones(2, 8, dtype=torch.int64), caches),
            dynamo=True,
            opset_version=opset,
            input_names=["input_ids", "attention_mask", *pasts],
            output_names=["logits", *(p.replace("past_key_values", "present") for p in pasts)],
            dynamic_shapes=(
                {0: any_size, 1: any_size},
                {0: any_size, 1: any_size},
                [{0: any_size, 2: any_size}] * 4,
            ),
        )
    assert program is not None
    program.save(path)
    return path
