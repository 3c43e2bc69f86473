"""Feed-forward blocks: found by structure, what is seen of them, their zeros, value slots and variances."""

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

from reluformer import ReLUFormerForImageClassification, ReLUFormerVisionConfig
from reluformer.analysis.collection import Batch, BlockRows, block_rows, pair_batch, text_batch
from reluformer.analysis.feed_forward import FeedForward, feed_forward_blocks
from reluformer.analysis.memories import anisotropy_table, mean_cosine, ratio_table, sparsity_table
from reluformer.configuration.errors import UserError

from .small_models import FFN, LAYERS, TOKENS, make_model

VOCABULARY = 60
SHAPE = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 16}
CAUSAL = {"vocab_size": VOCABULARY, "max_position_embeddings": 24, **SHAPE}
PICTURE = {**SHAPE, "intermediate_size": FFN, "image_size": 8, "patch_size": 4, "num_labels": 3, "hidden_act": "relu"}
IDS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
T5 = {"vocab_size": VOCABULARY, "d_model": 16, "d_kv": 4, "d_ff": FFN, "num_layers": 2, "num_heads": 4, **TOKENS}
# Kind → model, and the names of the projections that read the activations.
MODELS = {
    "opt": lambda: (OPTForCausalLM(OPTConfig(**CAUSAL, ffn_dim=FFN, word_embed_proj_dim=16, **IDS)), "fc2"),
    "llama": lambda: (
        LlamaForCausalLM(LlamaConfig(**CAUSAL, intermediate_size=FFN, hidden_act="silu", **IDS)),
        "down_proj",
    ),
    "t5": lambda: (make_model("t5", VOCABULARY), "wo"),
    "t5_gated": lambda: (T5ForConditionalGeneration(T5Config(**T5, feed_forward_proj="gated-gelu")), "wo"),
    "reluformer": lambda: (make_model("reluformer", VOCABULARY), "fc2"),
    "vit": lambda: (ViTForImageClassification(ViTConfig(**PICTURE)), "fc2"),
    "ours_vision": lambda: (ReLUFormerForImageClassification(ReLUFormerVisionConfig(**PICTURE)), "fc2"),
}


def make(kind):
    torch.manual_seed(1)
    model, name = MODELS[kind]()
    with torch.no_grad():  # away from the start, where all is about equal
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval(), name


def batch_for(model):
    torch.manual_seed(2)
    if model.main_input_name == "pixel_values":
        return Batch({"pixel_values": torch.randn(5, 3, 8, 8)})
    if model.config.is_encoder_decoder:
        pairs = [([5, 6, 7, 8, 9, 2], [9, 8, 2]), ([11, 2], [4, 5, 6, 7, 2]), ([3, 4, 2], [21, 22, 2])]
        return pair_batch(model, pairs)
    return text_batch(torch.randint(2, VOCABULARY, (3, 11)))


@pytest.mark.parametrize("kind", MODELS)
def test_zeros_are_those_of_the_activations(kind):
    model, name = make(kind)
    batch, seen = batch_for(model), []
    for path, module in model.named_modules():
        if path.endswith(f".{name}") and "attn" not in path.lower():
            module.register_forward_pre_hook(lambda _, inputs, path=path: seen.append((path, inputs[0])))
    rows = [row for row in sparsity_table(block_rows(model, [batch])) if row["layer"] != "all"]
    assert len(rows) == len(seen) == (4 if model.config.is_encoder_decoder else 2)
    for row, (path, found) in zip(rows, seen, strict=True):
        real = batch.real.get(row["module"].removesuffix("_ffn"))
        found = found.flatten(0, -2) if real is None or found.ndim == 2 else found[real]
        nonzero = (found != 0).double()
        assert row["tokens"] == len(found) and row["neurons"] == found.shape[1], path
        assert row["nonzero_fraction"] == pytest.approx(float(nonzero.mean()))
        assert row["dead_fraction"] == pytest.approx(float((nonzero.sum(dim=0) == 0).double().mean()))
        assert row["always_on_fraction"] == pytest.approx(float(nonzero.prod(dim=0).mean()))


@pytest.mark.parametrize("kind", ["reluformer", "memory", "marian"])
def test_update_and_residual_are_what_the_final_norm_sums(kind, small_tokenizer, encoded):
    model, sums = make_model(kind, len(small_tokenizer)), {}
    batch = pair_batch(model, encoded)
    for stack, real in batch.real.items():
        for number, layer in enumerate(getattr(model.model, stack).layers):

            def remember(module, inputs, place=(stack, number), real=real):
                sums[place] = inputs[0][real]

            layer.final_layer_norm.register_forward_pre_hook(remember)
    rows = list(block_rows(model, [batch]))
    assert len(rows) == len(sums) == 2 * LAYERS
    for block, _, update, residual in rows:
        torch.testing.assert_close(update + residual, sums[block.stack, block.layer])


def test_a_model_is_not_measured_in_part():
    with pytest.raises(UserError, match="mamba, decoder: no feed-forward blocks found"):
        feed_forward_blocks(MambaForCausalLM(MambaConfig(hidden_size=16, num_hidden_layers=1, vocab_size=60)))
    sizes = {"intermediate_size": 33, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 12}
    experts = Qwen2MoeConfig(**CAUSAL, **sizes, num_key_value_heads=2, num_experts=4, num_experts_per_tok=2)
    with pytest.raises(UserError, match=r"qwen2_moe, decoder: layers\.0\.mlp\.experts is a mixture of experts"):
        feed_forward_blocks(Qwen2MoeForCausalLM(experts))


# anisotropy


def by_definition(slots):
    slots = slots.detach().double()
    cosines = torch.nn.functional.cosine_similarity(slots.unsqueeze(0), slots.unsqueeze(1), dim=-1)
    return float(cosines.fill_diagonal_(0).sum() / (len(slots) * (len(slots) - 1)))


def test_anisotropy_is_equation_4():
    torch.manual_seed(0)
    assert mean_cosine(torch.diag(torch.tensor([1.0, 5.0, 0.2]))) == pytest.approx(0, abs=1e-12)
    assert mean_cosine(torch.tensor([[3.0, 0.0], [-1.0, 0.0]])) == pytest.approx(-1)
    slots = torch.randn(40, 6) + 0.5
    assert mean_cosine(slots) == pytest.approx(by_definition(slots), abs=1e-12)


@pytest.mark.parametrize(
    ("kind", "last"),
    [("reluformer", "model.decoder.layers.1.fc2"), ("t5", "decoder.block.1.layer.2.DenseReluDense.wo")],
)
def test_the_slots_of_a_model_are_the_rows_of_w2(kind, last):
    model = make_model(kind, 300)
    table = anisotropy_table(model)
    assert [(row["module"], row["layer"]) for row in table[3:]] == [
        (stack, layer) for stack in ("encoder", "decoder") for layer in range(1, LAYERS + 1)
    ]
    assert table[-1]["anisotropy"] == pytest.approx(by_definition(model.get_submodule(last).weight.T), abs=1e-12)
    assert table[0]["anisotropy"] == pytest.approx(sum(row["anisotropy"] for row in table[3:]) / (2 * LAYERS))


# variance


def rows_of(stack, layer, update, residual):
    return BlockRows(FeedForward(stack, layer, None, None, None), torch.empty(0), update, residual)


def test_variances_of_batches_sum_to_the_direct_computation():
    torch.manual_seed(0)
    update, residual = 0.5 * torch.randn(50, 8) + torch.arange(8.0), 2 * torch.randn(50, 8) + 3
    parts = zip(update.split(11), residual.split(11), strict=True)
    row = ratio_table(rows_of("encoder", 0, *part) for part in parts)[-1]
    within = [float(states.double().var(dim=-1, correction=0).mean()) for states in (update, residual)]
    assert (row["module"], row["layer"]) == ("encoder", 1)
    assert row["output_variance"] == pytest.approx(within[0])
    assert row["variance_ratio"] == pytest.approx(within[0] / within[1])


def test_means_of_variance_ratios_are_over_layers():
    unit = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    places = (("encoder", 0, 3.0), ("encoder", 1, 1.0), ("decoder", 0, 4.0))
    table = ratio_table(rows_of(stack, layer, factor * unit, unit) for stack, layer, factor in places)
    assert [(row["module"], row["layer"], row["variance_ratio"]) for row in table[:4]] == [
        ("all", "all", pytest.approx(26 / 3)),
        ("encoder", "all", pytest.approx(5)),
        ("decoder", "all", pytest.approx(16)),
        ("encoder", 1, pytest.approx(9)),
    ]
