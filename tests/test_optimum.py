"""optimum's ORTModelForCausalLM as a client.

It needs an older transformers than the exporter does, so it has an environment of its own, and
finds the model that the other one exported: see the Makefile.
"""

from pathlib import Path

import pytest

pytest.importorskip("optimum.onnxruntime", reason="runs in the environment of `make test-optimum`")

import onnxruntime
import torch
from optimum.onnxruntime import ORTModelForCausalLM

import lean_attention
from lean_attention import LeanAttentionError
from readme import run_blocks

pytestmark = pytest.mark.optimum

STOCK = Path(__file__).resolve().parent.parent / ".cache" / "models" / "phi-3-mini-128k-small"


@pytest.fixture(scope="module")
def lean_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A phi-3-mini of two layers (32 query and 32 KV heads of 96), rewritten."""
    folder = tmp_path_factory.mktemp("lean") / "model"
    result = lean_attention.rewrite(STOCK, folder)
    assert len(result.replaced) == 2
    return folder


def load(folder: Path) -> ORTModelForCausalLM:
    """Loads a folder, rewritten or not."""
    options = onnxruntime.SessionOptions()
    lean_attention.register_custom_ops(options)
    return ORTModelForCausalLM.from_pretrained(
        folder, session_options=options, local_files_only=True
    )


def test_generate_gives_stocks_tokens(lean_folder: Path) -> None:
    prompt = torch.randint(3, 300, (1, 40), generator=torch.Generator().manual_seed(1))
    settings = {"max_new_tokens": 60, "min_new_tokens": 60, "do_sample": False}
    expected = load(STOCK).generate(prompt, **settings)
    found = load(lean_folder).generate(prompt, **settings)
    assert expected.shape == (1, 100)
    assert found.tolist() == expected.tolist()
    assert len(set(found[0, 40:].tolist())) > 3


def test_logits_of_a_step_are_stocks_within_rounding(lean_folder: Path) -> None:
    prompt = torch.randint(3, 300, (1, 40), generator=torch.Generator().manual_seed(2))
    logits = []
    for folder in (STOCK, lean_folder):
        model = load(folder)
        past = model(prompt, attention_mask=torch.ones_like(prompt), use_cache=True)
        token = prompt[:, :1]
        mask = torch.ones(1, 41, dtype=torch.int64)
        logits.append(
            model(token, attention_mask=mask, past_key_values=past.past_key_values).logits
        )
    scale = logits[0].abs().max()
    assert (logits[0] - logits[1]).abs().max() < 1e-5 * scale


def test_the_readme_gives_stocks_tokens(
    lean_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for name, folder in (("stock", STOCK), ("lean", lean_folder)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "phi3-lean").symlink_to(folder)
        (names,) = run_blocks("optimum", tmp_path / name, monkeypatch)
        found.append(names["answers"].tolist())
    assert found[0] == found[1]
    assert len(found[0][0]) == names["prompts"].input_ids.shape[1] + 16


def test_prompts_of_one_length_get_the_tokens_they_get_alone(lean_folder: Path) -> None:
    prompts = torch.randint(3, 300, (3, 20), generator=torch.Generator().manual_seed(3))
    settings = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    model = load(lean_folder)
    together = model.generate(prompts, **settings)
    alone = [load(STOCK).generate(prompt[None], **settings)[0] for prompt in prompts]
    assert together.tolist() == torch.stack(alone).tolist()


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_goes_wrong_with_both_and_is_refused_beforehand(
    lean_folder: Path, side: str
) -> None:
    prompt = torch.randint(3, 300, (1, 12), generator=torch.Generator().manual_seed(4))
    padding = torch.full((1, 5), 300)
    parts = [padding, prompt] if side == "left" else [prompt, padding]
    mask = torch.cat([(part is prompt) * torch.ones_like(part) for part in parts], 1)
    settings = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    stock, lean = (
        load(folder).generate(torch.cat(parts, 1), attention_mask=mask, **settings)
        for folder in (STOCK, lean_folder)
    )
    with pytest.raises(LeanAttentionError, match="row 0 of attention_mask has padding"):
        lean_attention.check_padding(mask, allowed="none")
    right = load(STOCK).generate(prompt, **settings)
    for wrong in (stock, lean):
        assert wrong[0, 17:].tolist() != right[0, 12:].tolist()
