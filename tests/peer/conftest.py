"""What the library's own tests expect of the place they run in."""

import pytest
from transformers.models.auto import modeling_auto

from .expected_skips import is_expected

LIBRARY_MARKERS = (
    "accelerate_tests",
    "executorch_export_test",
    "flash_attn_test",
    "flash_attn_3_test",
    "flash_attn_4_test",
    "generate",
    "is_training_test",
    "onnx_export_test",
    "torch_compile_test",
    "torch_export_test",
)


def pytest_configure(config):
    for marker in LIBRARY_MARKERS:
        config.addinivalue_line("markers", f"{marker}: used by the library's own tests")


@pytest.fixture(autouse=True)
def listed_among_the_models(monkeypatch):
    """The mixins find labels and heads by class name in the library's static tables of models."""
    monkeypatch.setitem(modeling_auto.MODEL_MAPPING_NAMES, "reluformer", "ReLUFormerModel")
    monkeypatch.setitem(modeling_auto.MODEL_MAPPING_NAMES, "reluformer_vision", "ReLUFormerVisionModel")
    monkeypatch.setitem(modeling_auto.MODEL_MAPPING_NAMES, "reluformer_decoder", "ReLUFormerDecoderModel")
    monkeypatch.setitem(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "reluformer_decoder", "ReLUFormerForCausalLM")
    classifier = "ReLUFormerForImageClassification"
    monkeypatch.setitem(modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES, "reluformer_vision", classifier)
    head = "ReLUFormerForConditionalGeneration"
    monkeypatch.setitem(modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, "reluformer", head)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and not is_expected(report.longrepr[2]):
        report.outcome = "failed"
        report.longrepr = f"skipped for a reason that expected_skips.py does not list: {report.longrepr[2]}"
    return report
