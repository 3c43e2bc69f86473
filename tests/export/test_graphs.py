"""The graphs: what is in them, and that every size is dynamic."""

import copy

import pytest
import torch
from torch.export import Dim

from reluformer import ReLUFormerForConditionalGeneration

from ..conftest import random_tokens, tiny_model

pytest.importorskip("onnxruntime", reason="needs the extra onnx: pip install 'reluformer[onnx]'")

import onnx

from reluformer.export.checking import difference
from reluformer.export.exporting import prepared, write_checked
from reluformer.export.names import GRAPHS
from reluformer.export.running import OnnxTranslationModel

# Of attention, layers and shapes: no operator of a vendor, no loop, no branch, nothing whose shape depends on a value.
FORBIDDEN = {"If", "Loop", "Scan", "NonZero", "Unique", "Compress", "Resize", "StringNormalizer"}


def test_the_whole_model_goes_through_torch_export():
    model = tiny_model(attn_implementation="eager")
    batch, source, target = Dim("batch"), Dim("source", max=64), Dim("target", max=64)
    inputs = {"input_ids": random_tokens(2, 5), "attention_mask": torch.ones(2, 5, dtype=torch.long)}
    inputs["decoder_input_ids"] = random_tokens(2, 4)
    sizes = {"input_ids": {0: batch, 1: source}, "attention_mask": {0: batch, 1: source}}
    sizes["decoder_input_ids"] = {0: batch, 1: target}
    program = torch.export.export(
        model, (), {**inputs, "use_cache": False}, dynamic_shapes={**sizes, "use_cache": None}
    )
    called = {node.target.namespace for node in program.graph.nodes if isinstance(node.target, torch._ops.OpOverload)}
    assert called <= {"aten", "prim"}
    mask = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 0, 0]])
    others = {"input_ids": random_tokens(3, 3, seed=1), "attention_mask": mask}
    others |= {"decoder_input_ids": random_tokens(3, 6, seed=2), "use_cache": False}
    torch.testing.assert_close(program.module()(**others).logits, model(**others).logits)


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


@pytest.mark.slow
@pytest.mark.parametrize("opset", [20, 23])
def test_other_opsets(opset, tmp_path):
    write_checked(prepared(tiny_model()), tmp_path, opset)
    assert onnx.load(tmp_path / GRAPHS[1]).opset_import[0].version == opset


@pytest.mark.slow
def test_two_vocabularies(tmp_path):
    fields = {"decoder_vocab_size": 30, "share_encoder_decoder_embeddings": False}
    write_checked(prepared(tiny_model(**fields)), tmp_path)
