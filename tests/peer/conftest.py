"""What the library's own tests expect of the place they run in, and why some of them may skip themselves."""

import re

import pytest
from transformers.models.auto import modeling_auto

from .library_tests import CHECKOUT_VARIABLE

# what the library's test says (a regular expression, matched at its beginning) → why it may be skipped
EXPECTED_SKIPS = {
    r"the source package of transformers==\S+ could not be downloaded": "no network, or no such package",
    r"test requires ": "hardware or a package that this machine lacks",
    r"test is slow": "RUN_SLOW=1 runs it",
    r"Model is not a composite model|This model is not composite|No subconfigs": "one configuration, without parts",
    r"\w+ does not support SDPA": "given for a composite model only; sdpa itself is tested on softmax attention",
    r"\w+ does not propagate hidden states correctly or uses another name": "encoder_… and decoder_hidden_states, as "
    "Marian's",
    r"No conversion found for": "checkpoints hold the model's own parameter names",
    r"No decoder-only": "encoder and decoder",
    r"\w+ does not support grouped_mm|This model has no sparse experts": "no mixture of experts",
    r".*`output_router_logits`": "no mixture of experts",
    r"Model does not support output_attentions": "compares weights of eager with those of sdpa, which returns none",
    r"\w+ (class )?has no _keep_in_fp32_modules|No `_keep_in_fp32_modules_strict`": "every module works in half "
    "precision",
    r"Do not take a cache": "pictures are seen whole",
    r".*RoPE": "sinusoidal or learned positions",
    r"This model does not have partial rope": "whole heads are turned, as in Llama",
    r"gives an additive mask": "point-wise attention takes none; boolean ones are tested in tests/modeling_reluformer",
    r"Model does not have position embeddings": "positions are not trained",
    r"Model does not support sliding window mask": "every query sees all keys",
    r"Model does not have a TP plan": "no tensor parallelism",
    r"GenerationTesterMixin is not in the source package": f"{CHECKOUT_VARIABLE} says where to find it",
    r"Pictures have no embeddings of tokens|This model doesn't use `inputs_embeds`": "pixel_values alone, as ViT's",
    r"test_resize_embeddings is set to `False`": "pictures have no vocabulary",
    r"No sequence-to-sequence language modeling head": "a classifier",
    r"No model with a differentiable loss was available": "wants embeddings of tokens that get a gradient",
    # of GenerationTesterMixin
    r"No MTP keys registered": "no multi-token prediction",
    r"\w+ declares no recurrent layer types": "no recurrent layer",
    r"\w+ does not support new attention mask API": "runs padding-free batches by position_ids; here they are "
    "segment_ids",
    r"This model does not support `logits_to_keep`": "logits of every position, as Marian",
    r"This model doesn't use `position_ids`": "positions come from the mask or the segments",
    r"This model is encoder-decoder": "for decoder-only models; the caches are tested in tests/modeling_reluformer",
    # of this folder: see RefusesSdpa
    r"(sets|wants) sdpa": "its rows sum to one, so that point-wise and sparse attention refuse it",
}


def pytest_configure(config):
    flash, exports = "flash_attn flash_attn_3 flash_attn_4", "executorch_export onnx_export torch_compile torch_export"
    for marker in (
        "accelerate_tests",
        "generate",
        *(f"{name}_test" for name in f"is_training {flash} {exports}".split()),
    ):
        config.addinivalue_line("markers", f"{marker}: used by the library's own tests")


@pytest.fixture(autouse=True)
def listed_among_the_models(monkeypatch):
    """The mixins find labels and heads by class name in the library's static tables of models."""
    monkeypatch.setitem(modeling_auto.MODEL_MAPPING_NAMES, "reluformer", "ReLUFormerModel")
    monkeypatch.setitem(modeling_auto.MODEL_MAPPING_NAMES, "reluformer_vision", "ReLUFormerVisionModel")
    monkeypatch.setitem(modeling_auto.MODEL_MAPPING_NAMES, "reluformer_decoder", "ReLUFormerDecoderModel")
    monkeypatch.setitem(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "reluformer_decoder", "ReLUFormerForCausalLM")
    vision = modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    monkeypatch.setitem(vision, "reluformer_vision", "ReLUFormerForImageClassification")
    translation = modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    monkeypatch.setitem(translation, "reluformer", "ReLUFormerForConditionalGeneration")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    reason = report.longrepr[2].removeprefix("Skipped: ") if report.skipped else ""
    if report.skipped and not any(re.match(pattern, reason) for pattern in EXPECTED_SKIPS):
        report.outcome = "failed"
        report.longrepr = f"skipped for a reason that conftest.py does not list: {reason}"
    return report
