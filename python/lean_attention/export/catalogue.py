"""The models that can be exported: each ``models/NAME.toml`` is a published ``config.json``."""

import difflib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from typing import Any

from lean_attention.errors import LeanAttentionError

__all__ = ["ModelSpec", "WeightsSource", "load_model", "model_names"]

# The standard library's reader, or before Python 3.11 the package that it came from.
toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")


@dataclass(frozen=True)
class WeightsSource:
    """Where real weights lie: one file of one wheel.

    Attributes:
        package: The wheel's name, as package registries know it.
        version: Its only version that fits.
        sha256: The hash of the wheel.
        member: The path of the GGUF file inside the wheel, and inside an installation of it.
    """

    package: str
    version: str
    sha256: str
    member: str


@dataclass(frozen=True)
class ModelSpec:
    """One model's published configuration.

    Attributes:
        name: The name by which it is exported.
        source: The Hugging Face repository whose ``config.json`` this is.
        config: That ``config.json``, key for key.
        weights: Real weights, or None where the export makes random ones.
    """

    name: str
    source: str
    config: Mapping[str, Any]
    weights: WeightsSource | None

    @property
    def num_layers(self) -> int:
        """The number of decoder layers of the real model."""
        return int(self.config["num_hidden_layers"])

    @property
    def num_heads(self) -> int:
        """The number of query heads."""
        return int(self.config["num_attention_heads"])

    @property
    def kv_num_heads(self) -> int:
        """The number of key and value heads."""
        return int(self.config["num_key_value_heads"])

    @property
    def head_size(self) -> int:
        """The size of one head; every model here has hidden_size = num_heads * head_size."""
        return int(self.config["hidden_size"]) // self.num_heads

    @property
    def rotary_pairs(self) -> int:
        """The width of the cos and sin tables: half of the rotating part of a head."""
        return int(self.head_size * float(self.config.get("partial_rotary_factor", 1.0))) // 2

    @property
    def window(self) -> int | None:
        """The sliding window in tokens, the current one included; None for full attention."""
        return self.config.get("sliding_window")

    @property
    def is_longrope(self) -> bool:
        """Whether the tables change once a sequence passes the original context length."""
        return "rope_scaling" in self.config


def model_names() -> list[str]:
    """Returns the names of all models, sorted."""
    folder = files("lean_attention") / "models"
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    )


def load_model(name: str) -> ModelSpec:
    """Reads one model of the catalogue.

    Raises:
        LeanAttentionError: There is no model of that name; the message lists all and the nearest.
    """
    names = model_names()
    if name not in names:
        nearest = difflib.get_close_matches(name.lower(), names, n=1)
        hint = f"did you mean {nearest[0]}? " if nearest else ""
        raise LeanAttentionError(
            f"there is no model named {name!r}; {hint}The models are {', '.join(names)}"
        )
    text = (files("lean_attention") / "models" / f"{name}.toml").read_text(encoding="utf-8")
    data = toml.loads(text)
    weights = WeightsSource(**data["weights"]) if "weights" in data else None
    return ModelSpec(name=name, source=data["source"], config=data["config"], weights=weights)
