"""One training step in a process of its own, and by how much it raised the peak of resident memory. Started by memory.py.

    python -m benchmarks.memory.peak_step '{"what": "attention", "contender": "fused", "length": 1024, "seed": 0}'

The inputs are made, and the same step is done once with short ones, so that libraries are loaded and threads started. Freed
memory is given back (malloc_trim), Linux is told to forget the peak so far (/proc/self/clear_refs), and then the step runs:
its extra peak is VmHWM after it less VmRSS before it. Gradients of parameters exist before; those of inputs do not.
Prints one JSON object.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.speed.translation_models import INPUTS, MARIAN, OURS, SHAPES, build, padded_batch
from reluformer import (
    ReLUFormerConfig,
    ReLUFormerDecoderConfig,
    ReLUFormerForCausalLM,
    ReLUFormerForConditionalGeneration,
    relu_attention,
)
from reluformer.modeling_reluformer.attention_reluformer import DEFAULT_GAMMA, reference_attention
from reluformer.modeling_reluformer.loss_reluformer import DEFAULT_ENTROPY_MARGIN, module_sums

# long enough that the fused path takes its blocks and starts its threads
WARM_UP_LENGTH = 256
# The step is done a second time, after the measurement, to look at the tensors it makes; longer ones take too long.
LONGEST_INSPECTED = 2048
ATTENTION = {"batch": 1, "heads": 8, "head_dim": 64, "dtype": "float32"}
MODEL = {"vocab_size": 512, "d_model": 512, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 2048}
MODEL |= {"decoder_ffn_dim": 2048, "encoder_attention_heads": 8, "decoder_attention_heads": 8}
MODEL |= {"dropout": 0.1, "attention_dropout": 0.0}
MODEL_BATCH = 2
# contender → preset and attn_implementation of the model; alone, softmax is torch's own function
CONTENDERS = {"fused": ("reluformer", "fused"), "eager relu": ("reluformer", "eager"), "sdpa": ("vanilla", "sdpa")}
# One training step of short sentences: contender → model of `translation_models`, and what its forward pass is told
VOCABULARY_CONTENDERS: dict[str, tuple[str, dict[str, bool]]] = {
    "without logits": (OURS, {"skip_logits": True}),
    "with logits": (OURS, {"skip_logits": False}),
    MARIAN: (MARIAN, {}),
}
DECODER = {"preset": "gpt2", "vocab_size": 512, "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8}
DECODER |= {"max_position_embeddings": 16384, "skip_logits": True}
# contender → fields of the language model beside these; each with the attention that it takes by default
DECODER_CONTENDERS: dict[str, dict[str, Any]] = {
    "ReLU, L_reg": {"attention_activation": "relu", "regularization_weight": 0.01},
    "ReLU, λ = 0": {"attention_activation": "relu", "regularization_weight": 0.0},
    "softmax": {"attention_activation": "softmax"},
}
VOCABULARY_MODEL = {"model": "tiny", "sentences": "multi30k-like", "tokens": 2048, "attention_dropout": 0.0}


def main() -> int:
    cell = json.loads(sys.argv[1])
    if cell["what"] == "vocabulary":
        step = vocabulary_step(cell["contender"], cell["seed"], cell["vocabulary"])
    else:
        make_step = {"attention": attention_step, "model": model_step, "decoder": decoder_step}[cell["what"]]
        step = make_step(cell["contender"], cell["seed"])
    print(json.dumps(measure(step, cell["length"])))
    return 0


def measure(step: Callable[[int], Callable[[], None]], length: int) -> dict[str, Any]:
    """Extra peak of the step at this length in bytes, and what it stood on.

    Args:
        step: length → what does one training step, its inputs already made.
    """
    run, warm_up = step(length), step(min(length, WARM_UP_LENGTH))
    warm_up()
    del warm_up
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    run()
    peak = resident("VmHWM")
    result = {"extra_bytes": peak - before, "before_bytes": before}
    if length <= LONGEST_INSPECTED:
        with QueriesByKeys(length) as seen:
            run()
        result["queries_by_keys_tensors"] = sorted(seen.shapes)
    return result


def resident(field: str) -> int:
    """VmRSS (now) or VmHWM (peak) of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {field}.")


class QueriesByKeys(TorchDispatchMode):
    """Notes the shape of every tensor (…, length, length) that an operator returns: weights, scores, masks."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length, self.shapes = length, set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, Tensor) and tuple(tensor.shape[-2:]) == (self.length, self.length):
                dtype = str(tensor.dtype).removeprefix("torch.")
                self.shapes.add(f"{' × '.join(map(str, tensor.shape))} {dtype}")
        return result


def attention_step(contender: str, seed: int) -> Callable[[int], Callable[[], None]]:
    """Attention alone with the regulariser (softmax without): forward, L_reg of its rows, backward to q, k and v."""

    def step(length: int) -> Callable[[], None]:
        generator = torch.Generator().manual_seed(seed)
        shape = (ATTENTION["batch"], ATTENTION["heads"], length, ATTENTION["head_dim"])
        query, key, value, gradient = (torch.randn(shape, generator=generator) for _ in range(4))
        visible_keys = torch.full((1, length), float(length))
        row_scale = torch.rsqrt(visible_keys / 2).unsqueeze(1) / DEFAULT_GAMMA
        leaves = [tensor.requires_grad_() for tensor in (query, key, value)]

        def run() -> None:
            if contender == "sdpa":
                output = torch.nn.functional.scaled_dot_product_attention(*leaves)
                torch.autograd.grad(output, leaves, gradient)
                return
            if contender == "fused":
                output, *sums = relu_attention(*leaves, row_scale=row_scale, statistics="sum+entropy")
            else:
                result = reference_attention(*leaves, activation="relu", row_scale=row_scale, statistics="sum+entropy")
                output, sums = result.output, (result.row_sum, result.row_sum_log)
                del result  # with the weights that it holds
            row_weight = torch.full_like(visible_keys, 1 / length)
            penalty = module_sums(*sums, visible_keys, row_weight, entropy_margin=DEFAULT_ENTROPY_MARGIN)[0]
            torch.autograd.grad([output, penalty], leaves, [gradient, torch.ones(())])

        return run

    return step


def model_step(contender: str, seed: int) -> Callable[[int], Callable[[], None]]:
    """A model with its loss: forward and backward of two padded sequences; the second is three quarters as long."""
    torch.manual_seed(seed)
    preset, attn_implementation = CONTENDERS[contender]
    model: Any = None

    def step(length: int) -> Callable[[], None]:
        nonlocal model
        if model is None:
            config = ReLUFormerConfig.from_preset(preset, **MODEL, max_position_embeddings=length)
            config._attn_implementation = attn_implementation
            model = ReLUFormerForConditionalGeneration(config).train()
        real = torch.arange(length) < torch.tensor([[length], [max(1, 3 * length // 4)]])
        tokens = torch.randint(4, MODEL["vocab_size"], (2, MODEL_BATCH, length))
        batch = {
            "input_ids": tokens[0].masked_fill(~real, model.config.pad_token_id),
            "attention_mask": real.long(),
            "labels": tokens[1].masked_fill(~real, -100),
        }

        def run() -> None:
            model(**batch).loss.backward()

        return run

    return step


def decoder_step(contender: str, seed: int) -> Callable[[int], Callable[[], None]]:
    """A language model with its loss: forward and backward of one sequence."""
    torch.manual_seed(seed)
    config = ReLUFormerDecoderConfig.from_preset(**DECODER, **DECODER_CONTENDERS[contender])
    model = ReLUFormerForCausalLM(config).train()

    def step(length: int) -> Callable[[], None]:
        ids = torch.randint(3, DECODER["vocab_size"], (1, length))

        def run() -> None:
            model(ids, labels=ids).loss.backward()

        return run

    return step


def vocabulary_step(contender: str, seed: int, vocabulary: int) -> Callable[[int], Callable[[], None]]:
    """A model with so many pieces and its loss: forward and backward of short padded sentences of `length` tokens together."""
    name, arguments = VOCABULARY_CONTENDERS[contender]
    shape = {**SHAPES[VOCABULARY_MODEL["model"]], "vocab_size": vocabulary}
    model = build(name, shape, VOCABULARY_MODEL["attention_dropout"], seed)

    def step(length: int) -> Callable[[], None]:
        batch = padded_batch(INPUTS[VOCABULARY_MODEL["sentences"]], vocabulary, length, seed)

        def run() -> None:
            model(**batch, **arguments).loss.backward()

        return run

    return step


if __name__ == "__main__":
    sys.exit(main())
