"""Small models and batches shared by the tests. Nothing here touches the network."""

import atexit
import os
import shutil
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# What is read and encoded is kept in the cache of `datasets`: none of a user's is taken, none is left.
os.environ["HF_DATASETS_CACHE"] = tempfile.mkdtemp(prefix="reluformer-tests-")

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import PreTrainedTokenizerBase

from reluformer import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformer.modeling_reluformer.attention_reluformer import POINTWISE
from reluformer.modeling_reluformer.compiled.library import library
from reluformer.training.data.demo_corpus import demo_pairs
from reluformer.training.data.tokenization import train_tokenizer

atexit.register(shutil.rmtree, os.environ["HF_DATASETS_CACHE"], ignore_errors=True)
VOCABULARY = 40

# One of each kind of model: every activation, scaling, norm, gate and preset is in here at least once. Activations that
# none of these combines with another option follow below.
VARIANTS = {
    "reluformer": {"preset": "reluformer"},
    "relu-learnable-gamma": {"preset": "reluformer", "attention_gamma_learnable": True},
    "relu6-length": {"preset": "relu_vit", "attention_activation": "relu6", "attention_alpha": 0.5},
    "sigmoid-gate": {"preset": "reluformer", "attention_activation": "sigmoid", "attention_gate": True},
    "gelu-layer-norm": {"preset": "reluformer", "attention_activation": "gelu", "attention_output_norm": "layer_norm"},
    "rela": {"preset": "rela"},
    "relu_vit": {"preset": "relu_vit"},
    "vanilla": {"preset": "vanilla"},
    "vanilla-qk-norm-memory": {
        "preset": "vanilla",
        "attention_qk_norm": True,
        "activation_function": "softmax",
        "ffn_output_norm": "layer_norm",
        "ffn_temperature": 2,
    },
    "sparsemax": {"preset": "sparsemax"},
    "entmax15": {"preset": "entmax15"},
}
_combined = {fields.get("attention_activation", "relu") for fields in VARIANTS.values()}
VARIANTS |= {
    name: {"preset": "reluformer", "attention_activation": name} for name in POINTWISE if name not in _combined
}
TINY = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
}


def demo_tokenizer(count: int) -> PreTrainedTokenizerBase:
    """Trained on so many pairs of the demo corpus."""
    return train_tokenizer(
        demo_pairs(count, split="train", seed=0),
        vocab_size=300,
        lowercase=False,
        moses=False,
        source_language="de",
        target_language="en",
        max_length=32,
    )


@pytest.fixture(autouse=True)
def no_compiled_code_of_other_tests():
    """torch.compile keeps what it decided for each function of Python, which is one for all models: after too many
    variants in this process it compiles that function no more."""
    yield
    convert_frame = sys.modules.get("torch._dynamo.convert_frame")
    if convert_frame is not None and convert_frame.input_codes.seen:
        torch._dynamo.reset()


def tiny_config(**fields) -> ReLUFormerConfig:
    fields = {"preset": "reluformer", **TINY, **fields}
    return ReLUFormerConfig.from_preset(fields.pop("preset"), **fields)


def tiny_model(seed: int = 0, attn_implementation: str | None = None, **fields) -> ReLUFormerForConditionalGeneration:
    torch.manual_seed(seed)
    config = tiny_config(**fields)
    if attn_implementation is not None:
        config._attn_implementation = attn_implementation
    model = ReLUFormerForConditionalGeneration(config).eval()
    # Initial biases are zero and norms one: move them, so that a test sees a term that is forgotten.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def random_tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    """Token ids without the special ones."""
    return torch.randint(4, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def skip_without_entmax(fields: dict) -> None:
    if fields.get("preset") in ("sparsemax", "entmax15"):
        pytest.importorskip("entmax", reason="sparsemax and entmax15 need the optional package entmax")


def skip_beams_of_two_vocabularies() -> None:
    if Version(transformers.__version__) < Version("5.18"):
        pytest.skip("beam search with a decoder vocabulary of another size, Marian's too, needs transformers 5.18")


# In make test-slow alone: what they add to the others is their activation, of which the tests of attention see every
# one.
SLOW_VARIANTS = {"relu2", "softplus", "identity", "relu_vit", "vanilla", "sparsemax"}


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.slow if name in SLOW_VARIANTS else ()) for name in VARIANTS], ids=str
)
def variant(request) -> dict:
    """The configuration fields of each variant in turn, without dropout."""
    fields = {**VARIANTS[request.param], "dropout": 0.0, "attention_dropout": 0.0}
    skip_without_entmax(fields)
    return fields


@pytest.fixture
def set_threads():
    """`torch.set_num_threads`, undone at the end."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def choose_instruction_set():
    """The compiled library's function of this name, with its first choice back at the end."""
    operators = library(large=True)

    def choose(name: str) -> None:
        if operators is None or name not in operators.instruction_sets():
            pytest.skip(f"the compiled library cannot be built here, or the processor has no {name}")
        assert operators.choose_instruction_set(name) == name

    yield choose
    if operators is not None:
        operators.choose_instruction_set(operators.instruction_sets()[0])
