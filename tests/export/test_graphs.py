"""The graphs: what is in them, and that every size is dynamic."""

import copy

import pytest

from reluformer import ReLUFormerForConditionalGeneration

from ..conftest import tiny_model

pytest.importorskip("onnxruntime", reason="needs the extra onnx: pip install 'reluformer[onnx]'")

import onnx

from reluformer.export.exporting import difference, prepared, write_checked
from reluformer.export.graphs import GRAPHS
from reluformer.export.running import OnnxTranslationModel

# Of attention, layers and shapes: no operator of a vendor, no loop, no branch, nothing whose shape depends on a value.
FORBIDDEN = {"If", "Loop", "Scan", "NonZero", "Unique", "Compress", "Resize", "StringNormalizer"}


def test_the_graphs_are_of_plain_operators(exported):
    for name in GRAPHS:
        graph = onnx.load(exported / name)
        onnx.checker.check_model(graph)
        kinds = [node.op_type for node in graph.graph.node]
        assert {node.domain for node in graph.graph.node} <= {"", "ai.onnx"}
        assert {"Relu", "MatMul", "Mul"} <= set(kinds)
        assert not {"Softmax", "Attention", *FORBIDDEN} & set(kinds)
        assert [(item.domain, item.version) for item in graph.opset_import] == [("", 18)]


def test_the_encoder_computes_nothing_of_the_decoder_but_keys_and_values(exported):
    """One layer on each side. The encoder's has six matrices and two products of attention."""
    graph = onnx.load(exported / GRAPHS[0]).graph
    assert sum(node.op_type in ("MatMul", "Gemm") for node in graph.node) == (6 + 2) + 2


def test_every_size_is_dynamic_and_named_as_by_optimum(exported):
    encoder, decoder = (onnx.load(exported / name).graph for name in GRAPHS)

    def shapes(values):
        return {
            value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
            for value in values
        }

    assert shapes(encoder.input) == {"input_ids": ["batch", "source"], "attention_mask": ["batch", "source"]}
    inputs = shapes(decoder.input)
    assert inputs["input_ids"] == ["batch", "target"]
    assert inputs["encoder_attention_mask"] == ["sources", "source"]
    assert inputs["past_key_values.0.decoder.value"] == ["batch", 2, "past", 8]
    assert inputs["past_key_values.0.encoder.key"] == ["sources", 2, "source", 8]
    assert "present.0.encoder.value" in shapes(encoder.output)
    assert list(shapes(decoder.output))[:2] == ["logits", "present.0.decoder.key"]


def test_a_difference_is_seen(trained, exported):
    model = prepared(ReLUFormerForConditionalGeneration.from_pretrained(trained))
    found = difference(model, OnnxTranslationModel.from_pretrained(exported))
    assert found.largest <= found.allowed < 1e-4 * found.scale
    # n_i of one row among many: the smallest mistake of attention that is worth the name
    other = copy.deepcopy(model)
    other.model.decoder.config = copy.deepcopy(other.config)
    other.model.decoder.config.attention_gamma *= 1.001
    found = difference(other, OnnxTranslationModel.from_pretrained(exported))
    assert found.largest > found.allowed


@pytest.mark.slow
def test_every_kind_of_model(variant, tmp_path):
    if variant["preset"] in ("sparsemax", "entmax15"):
        pytest.skip("they are refused: test_exporting.py")
    found = write_checked(prepared(tiny_model(**variant)), tmp_path)
    assert found.largest <= found.allowed
