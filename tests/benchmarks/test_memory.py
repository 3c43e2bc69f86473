"""Peak memory: one real measurement in a process of its own, and no tensor of queries by keys in a training step."""

import argparse
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import memory
from reluformer import ReLUFormerDecoderConfig, ReLUFormerForCausalLM

OPTIONS = argparse.Namespace(seed=0)
LINUX = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are read from Linux's /proc")


@LINUX
@pytest.mark.slow
def test_a_process_finds_the_memory_of_the_weights():
    measured = memory.measure({"what": "attention", "contender": "eager relu", "length": 1024}, OPTIONS)
    weights = 8 * 1024 * 1024 * 4
    assert 3 * weights < measured["extra_bytes"] < 12 * weights


class QueriesByKeys(TorchDispatchMode):
    """Notes the shape of every tensor (…, 400, 400) that an operator returns: long enough that no plain products are taken."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.shape[-2:] == (400, 400):
                self.shapes.add((*tensor.shape, tensor.dtype))
        return result


@pytest.mark.parametrize("contender", memory.CONTENDERS)
def test_a_training_step_makes_no_tensor_of_queries_by_keys(contender):
    run = memory.model_step({"contender": contender, "length": 400, "seed": 0})(400)
    with QueriesByKeys() as seen:
        run()
    assert bool(seen.shapes) == (contender == "eager relu")


def test_nor_does_that_of_a_language_model():
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"max_position_embeddings": 400, "attention_activation": "relu", "regularization_weight": 0.01}
    config = ReLUFormerDecoderConfig.from_preset("gpt2", **sizes, skip_logits=True)
    ids = torch.randint(3, 64, (1, 400))
    with QueriesByKeys() as seen:
        ReLUFormerForCausalLM(config).train()(ids, labels=ids).loss.backward()
    assert not seen.shapes
