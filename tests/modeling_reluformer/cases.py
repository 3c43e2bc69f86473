"""Models and inputs that several tests share, and a process without the package."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    ViTConfig,
    ViTForImageClassification,
)

from reluformer import (
    ReLUFormerDecoderConfig,
    ReLUFormerForCausalLM,
    ReLUFormerForImageClassification,
    ReLUFormerVisionConfig,
    use_relu_attention,
)
from reluformer.modeling_reluformer.compiled import library as compiled_library
from reluformer.modeling_reluformer.configuration_reluformer import valid_attention_implementations
from reluformer.modeling_reluformer.loss_reluformer import row_penalty
from reluformer.training.conversion import FOREIGN_MODELS, convert_model

from ..conftest import tiny_config

PADDING = 0


def python_loop():
    """Within the block, nothing compiled computes in this process: the Python loop does, and torch."""
    return mock.patch.multiple(compiled_library, _stage=compiled_library._SETTLED, _operators=None)


def needs_compiled_library():
    if compiled_library.library(large=True) is None:
        pytest.skip("the compiled library cannot be built here")


def implementations(fields: dict) -> list[str]:
    names = valid_attention_implementations(tiny_config(**fields).attention_activation)
    return [name for name in names if not name.startswith("flash")]


def padded(tokens: torch.Tensor, count: int, side: str, value: int = PADDING) -> torch.Tensor:
    padding = tokens.new_full((tokens.shape[0], count), value)
    return torch.cat([padding, tokens] if side == "left" else [tokens, padding], dim=1)


def mask_of(tokens: torch.Tensor, count: int, side: str) -> torch.Tensor:
    return padded(torch.ones_like(tokens), count, side, 0)


VOCABULARY = 53
SIZES = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 40,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def decoder_config(**fields) -> ReLUFormerDecoderConfig:
    fields = {"preset": "gpt2", **SIZES, **fields}
    return ReLUFormerDecoderConfig.from_preset(fields.pop("preset"), **fields)


def decoder_model(seed: int = 0, attn_implementation: str | None = None, **fields) -> ReLUFormerForCausalLM:
    return moved(ReLUFormerForCausalLM, decoder_config(**fields), seed, attn_implementation)


def gpt2_model(seed: int = 0, **fields) -> GPT2LMHeadModel:
    sizes = {name: value for name, value in SIZES.items() if name != "intermediate_size"}
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return moved(GPT2LMHeadModel, GPT2Config(**{**sizes, "n_inner": 40, **no_dropout, **SPECIAL, **fields}), seed)


def llama_model(seed: int = 0, **fields) -> LlamaForCausalLM:
    return moved(LlamaForCausalLM, LlamaConfig(**{**SIZES, "num_key_value_heads": 2, **SPECIAL, **fields}), seed)


def token_ids(batch: int = 3, length: int = 9, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def row_penalties(weights: torch.Tensor, visible: torch.Tensor, margin: float) -> torch.Tensor:
    """Eq. 7 of the weights of attention themselves, (batch, queries): the mean over the heads."""
    row_sum = weights.sum(-1)
    shares = weights / row_sum.clamp_min(1e-30).unsqueeze(-1)
    entropy = -(shares * shares.clamp_min(1e-30).log()).sum(-1)
    return row_penalty(row_sum, entropy, visible, margin).mean(1)


class Counting(torch.utils.data.Dataset):
    """Sequences of unequal lengths in which each token is the last one plus one."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict:
        ids = [3 + (index + place) % 20 for place in range(6 + index % 4)]
        return {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": ids}


def word_tokenizer() -> PreTrainedTokenizerFast:
    """Its words are w3, w4, …, each one token."""
    words = {"<pad>": 0, "<s>": 1, "</s>": 2, **{f"w{index}": index for index in range(3, VOCABULARY)}}
    backend = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>", padding_side="left"
    )


CASES_SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 8,
    "patch_size": 4,
    "num_channels": 3,
}
CLASSES = 5


def vision_config(**fields) -> ReLUFormerVisionConfig:
    fields = {"preset": "relu_vit", "num_labels": CLASSES, **CASES_SIZES, **fields}
    return ReLUFormerVisionConfig.from_preset(fields.pop("preset"), **fields)


def moved(model_class, config, seed: int, attn_implementation: str | None = None):
    """A new model whose biases, at first zero, and norms, at first one, are moved: a test sees a term that is
    forgotten."""
    torch.manual_seed(seed)
    config._attn_implementation = attn_implementation
    model = model_class(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def vision_model(seed: int = 0, attn_implementation: str | None = None, **fields) -> ReLUFormerForImageClassification:
    return moved(ReLUFormerForImageClassification, vision_config(**fields), seed, attn_implementation)


def vit_model(seed: int = 0, **fields) -> ViTForImageClassification:
    return moved(ViTForImageClassification, ViTConfig(num_labels=CLASSES, **{**CASES_SIZES, **fields}), seed)


def pictures(count: int = 3, size: tuple[int, int] = (8, 8), channels: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, channels, *size, generator=torch.Generator().manual_seed(seed))


def classes(count: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randint(CLASSES, (count,), generator=torch.Generator().manual_seed(seed))


def pair_of_models(foreign, settings: dict | None):
    """A model of the library with this attention, softmax if it is None, and ours with the same weights."""
    changes = settings and {f"attention_{name}": value for name, value in settings.items()}
    model, new = convert_model(foreign, changes and {**changes, "regularization_weight": 0.0})
    assert new == []
    return foreign if settings is None else use_relu_attention(foreign, **settings), model


def assert_same_logits_loss_and_gradients(foreign, model, **inputs) -> None:
    expected, found = (each(**inputs) for each in (foreign, model))
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.loss, expected.loss, atol=1e-5, rtol=0)
    expected.loss.backward()
    found.loss.backward()
    theirs, ours = ({name: part.grad for name, part in each.named_parameters()} for each in (foreign, model))
    theirs = FOREIGN_MODELS[foreign.config.model_type].weights(theirs)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def with_shares_for_dropout(monkeypatch) -> None:
    """Dropout keeps the share 1 - p of every number in place of some numbers, so that a rate can be seen in one
    pass."""

    def share(states, p=0.5, training=True, inplace=False):
        return states * (1 - p) if training else states

    monkeypatch.setattr(torch.nn.functional, "dropout", share)


@torch.no_grad()
def scaled(parameters: Iterable[torch.nn.Parameter], factor: float) -> None:
    for parameter in parameters:
        parameter.mul_(factor)


MISSING = """
import json, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("reluformer", "triton", "entmax"):
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Missing())
"""


def run_without_package(code: str, *arguments: str, folder: Path, **environment: str) -> Any:
    """What the code prints last, as JSON; it finds the arguments in `sys.argv`, and `json` and `sys` imported.

    Args:
        folder: where it works and has its home.
        environment: variables beside the few that it needs.
    """
    result = subprocess.run(
        [sys.executable, "-c", MISSING + textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home"), **environment},
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])
