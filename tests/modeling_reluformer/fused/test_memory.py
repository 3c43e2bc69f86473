"""No tensor of queries by keys: neither among the results of a training step's operators, nor inside the compiled
one."""

import subprocess
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from reluformer import (
    ReLUFormerConfig,
    ReLUFormerDecoderConfig,
    ReLUFormerForCausalLM,
    ReLUFormerForConditionalGeneration,
)

from ..cases import needs_compiled_library

LENGTH = 400  # long enough that no plain products are taken
PEAK = """
import torch
from reluformer import relu_attention
from reluformer.records.records import peak_memory

def peak_after_a_step(length):
    inputs = [torch.randn(1, 2, length, 16, requires_grad=True) for _ in range(3)]
    scale = torch.ones(1, 1, length)
    sum(part.sum() for part in relu_attention(*inputs, row_scale=scale, statistics="sum+entropy")).backward()
    return peak_memory(torch.device("cpu"))

before = peak_after_a_step(256)
print(peak_after_a_step(8192) - before)
"""


class QueriesByKeys(TorchDispatchMode):
    """Notes the shape of every tensor (…, LENGTH, LENGTH) that an operator returns."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.shape[-2:] == (LENGTH, LENGTH):
                self.shapes.add((*tensor.shape, tensor.dtype))
        return result


@pytest.mark.parametrize("implementation", ["fused", "eager"])
def test_translation_with_padding_makes_none_but_in_the_eager_reference(implementation):
    widths = dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim", "vocab_size"), 32)
    layers = {"encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": LENGTH, "pad_token_id": 0}
    config = ReLUFormerConfig.from_preset("reluformer", **widths, **layers, attention_dropout=0.0)
    config._attn_implementation = implementation
    model = ReLUFormerForConditionalGeneration(config).train()
    tokens = torch.randint(4, 32, (2, LENGTH))
    real = torch.arange(LENGTH) < torch.tensor([[LENGTH], [LENGTH - 100]])
    with QueriesByKeys() as seen:
        labels = tokens.masked_fill(~real, -100)
        model(tokens.masked_fill(~real, 0), attention_mask=real.long(), labels=labels).loss.backward()
    assert bool(seen.shapes) == (implementation == "eager")


def test_nor_does_a_language_model():
    needs_compiled_library()  # without it, plain products compute so few scores
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"max_position_embeddings": LENGTH, "attention_activation": "relu", "regularization_weight": 0.01}
    config = ReLUFormerDecoderConfig.from_preset("gpt2", **sizes, skip_logits=True)
    ids = torch.randint(3, 64, (1, LENGTH))
    with QueriesByKeys() as seen:
        ReLUFormerForCausalLM(config).train()(ids, labels=ids).loss.backward()
    assert not seen.shapes


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from Linux's /proc")
def test_nor_is_there_one_inside_the_operator():
    run = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    one_head = 8192 * 8192 * 4
    assert int(run.stdout) < one_head / 4
