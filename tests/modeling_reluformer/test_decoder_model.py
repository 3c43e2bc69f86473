"""The decoder-only model: what it takes, refuses and returns, packed sequences, and its loss with the regulariser."""

import copy
import math
import re

import pytest
import torch

from reluformer import ReLUFormerDecoderConfig, ReLUFormerForCausalLM
from reluformer.modeling_reluformer.attention_reluformer import POINTWISE
from reluformer.modeling_reluformer.loss_reluformer import row_penalty

from .decoder_cases import VOCABULARY, decoder_config, decoder_model, token_ids
from .padded_batches import mask_of, padded

# Of the tests' few keys, gamma 8 would leave so little of the attention that a fault in it is hard to see.
RELU = {"attention_activation": "relu", "attention_gamma": 1.5, "regularization_weight": None}
KINDS = {
    "gpt2": RELU,
    "free": {"preset": "normalization_free", **RELU},
    "llama": {"preset": "llama_relu", "num_key_value_heads": 2, **RELU},
    "dglu-full": {
        "preset": "llama_relu",
        "ffn_type": "dglu",
        "num_key_value_heads": 1,
        "final_norm": False,
        "attention_gamma_learnable": True,
        "attention_gate": True,
        "attention_qk_norm": True,
        "attention_output_norm": "gated_rms",
        **RELU,
    },
    "softmax": {"preset": "gpt2"},
}


def packed_batch() -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Two rows of sequences side by side, the second one padded; their segments, and the sequences apart."""
    ids = token_ids(2, 10)
    segments = torch.tensor([[1] * 4 + [2] * 6, [1] * 5 + [2] * 3 + [0] * 2])
    return ids, segments, [ids[0, :4], ids[0, 4:], ids[1, :5], ids[1, 5:8]]


@pytest.mark.parametrize("fields", [*({"attention_activation": name} for name in POINTWISE), *KINDS.values()], ids=str)
def test_all_implementations_are_the_same_model(fields):
    fields = {"regularization_weight": 0.0, **fields}
    results = []
    softmax = fields.get("preset") == "gpt2"
    for implementation in ("sdpa" if softmax else "fused", "eager"):
        model = decoder_model(attn_implementation=implementation, **fields)
        output = model(
            padded(token_ids(), 2, "left"), attention_mask=mask_of(token_ids(), 2, "left"), labels=token_ids(3, 11)
        )
        output.loss.backward()
        results.append([output.logits[:, 2:], output.loss, *(p.grad for p in model.parameters())])
    torch.testing.assert_close(*results, atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("implementation", [None, "eager"])
@pytest.mark.parametrize("how", ["segment_ids", "position_ids"])
def test_packed_sequences_are_those_apart(how, implementation, kind):
    model = decoder_model(attn_implementation=implementation, **KINDS[kind])
    ids, segments, apart = packed_batch()
    if how == "segment_ids":
        found = model(ids, segment_ids=segments, labels=ids.masked_fill(segments == 0, -100))
        logits = [found.logits[0, :4], found.logits[0, 4:], found.logits[1, :5], found.logits[1, 5:8]]
    else:
        ids, apart = ids[:1], apart[:2]
        found = model(ids, position_ids=torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5]]), labels=ids)
        logits = [found.logits[0, :4], found.logits[0, 4:]]
    outputs = [model(sequence[None], labels=sequence[None]) for sequence in apart]
    for one, output in zip(logits, outputs, strict=True):
        torch.testing.assert_close(one, output.logits[0], atol=1e-5, rtol=1e-4)
    targets = [len(sequence) - 1 for sequence in apart]
    expected = sum(count * output.loss for count, output in zip(targets, outputs, strict=True)) / sum(targets)
    torch.testing.assert_close(found.loss, expected, atol=1e-5, rtol=1e-4)


def test_one_packed_row_beside_a_whole_one():
    model, ids = decoder_model(**RELU), token_ids(2, 10)
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5], [*range(10)]])
    found = model(ids, position_ids=positions).logits
    torch.testing.assert_close(found[0, 4:], model(ids[:1, 4:]).logits[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found[1], model(ids[1:]).logits[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row", [[1, 1, 2, 2, 1], [0, 1, 0, 1, 0], [1, 0, 0, 1, 0], [2, 1, 1, 3, 2]])
def test_a_number_that_returns_behind_another_one_is_refused(row, kind):
    """softmax took it: the second run saw the first, and its positions began anew all the same."""
    segments = torch.tensor([[1, 1, 2, 2, 0], row])
    model = decoder_model(**KINDS[kind])
    with pytest.raises(ValueError, match=rf"equal numbers side by side, .*; got {re.escape(str(row))}\. Number every"):
        model(token_ids(2, 5), segment_ids=segments)


@pytest.mark.parametrize("use_cache", [None, True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_labels_and_a_new_cache_do_not_change_what_packed_sequences_see(kind, use_cache):
    model, ids = decoder_model(**KINDS[kind]), token_ids(1, 10)
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5]])
    expected = model(ids, position_ids=positions, labels=ids).logits
    torch.testing.assert_close(model(ids, position_ids=positions, use_cache=use_cache).logits, expected)


@pytest.mark.parametrize("implementation", ["fused", "eager"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "free"])
def test_the_loss_is_cross_entropy_and_the_regulariser_of_the_weights(kind, implementation):
    """L_reg from the weights of attention themselves, by its formula: the mean over layers, heads and rows with a label."""
    model = decoder_model(attn_implementation="eager", **KINDS[kind] | {"regularization_weight": 0.5}).double()
    ids, labels = token_ids(), token_ids()
    labels[0, 5:] = -100
    counts = labels[:, 1:] != -100
    penalties = []
    for weights in model(ids, output_attentions=True).attentions:
        row_sum = weights.sum(-1)
        shares = weights / row_sum.clamp_min(1e-30).unsqueeze(-1)
        entropy = -(shares * shares.clamp_min(1e-30).log()).sum(-1)
        visible = torch.arange(1, 10).expand(3, -1)
        penalty = row_penalty(row_sum, entropy, visible, model.config.entropy_margin).mean(1)
        penalties.append(penalty[:, :-1][counts].mean())
    expected = torch.stack(penalties).mean()
    model.set_attn_implementation(implementation)
    output = model(ids, labels=labels)
    torch.testing.assert_close(output.regularization, expected, atol=1e-8, rtol=1e-6)
    cross_entropy = torch.nn.functional.cross_entropy(output.logits[:, :-1][counts], labels[:, 1:][counts])
    torch.testing.assert_close(output.cross_entropy, cross_entropy)
    torch.testing.assert_close(output.loss, cross_entropy + 0.5 * expected, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_without_logits_loss_and_gradients_are_the_same(kind):
    model = decoder_model(**KINDS[kind], label_smoothing=0.1)
    twin = copy.deepcopy(model)
    twin.config.skip_logits = True
    twin.train()
    labels = token_ids().index_fill(1, torch.tensor([3]), -100)
    expected, found = (each(token_ids(), labels=labels) for each in (model, twin))
    assert found.logits is None and expected.logits is not None
    torch.testing.assert_close(found.loss, expected.loss)
    expected.loss.backward()
    found.loss.backward()
    for (name, one), two in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(two.grad, one.grad, atol=1e-6, rtol=1e-4, msg=name)
    with pytest.raises(ValueError, match="needs labels; none were given"):
        twin(token_ids(), skip_logits=True)


def test_the_loss_does_not_depend_on_how_a_batch_is_cut():
    model = decoder_model(**KINDS["llama"] | {"regularization_weight": 0.5})
    ids = token_ids(4)
    labels = ids.clone()
    labels[1, 4:], labels[2, :7] = -100, -100
    whole = model(ids, labels=labels).loss
    items = (labels[:, 1:] != -100).sum()  # as the Trainer counts
    parts = [
        model(ids[part], labels=labels[part], num_items_in_batch=items).loss for part in (slice(0, 1), slice(1, 4))
    ]
    torch.testing.assert_close(sum(parts), whole)


def test_labels_that_are_shifted_already():
    model, ids = decoder_model(**RELU), token_ids()
    aligned = torch.cat([ids[:, 1:], torch.full((3, 1), -100)], dim=1)
    expected = model(ids, labels=ids)
    for labels in (None, token_ids(seed=5)):
        found = model(ids, labels=labels, shift_labels=aligned)
        torch.testing.assert_close((found.loss, found.regularization), (expected.loss, expected.regularization))


@pytest.mark.parametrize("kind", ["gpt2", "llama", "softmax"])
def test_a_whole_boolean_mask(kind):
    model = decoder_model(attn_implementation="eager", **KINDS[kind])
    ids = token_ids()
    mask = mask_of(ids, 2, "left").bool()
    whole = mask[:, None, None, :] & torch.ones(11, 11, dtype=torch.bool).tril()
    positions = (mask.long().cumsum(1) - 1).clamp_min(0)
    found = model(padded(ids, 2, "left"), attention_mask=whole, position_ids=positions)
    torch.testing.assert_close(found.logits[:, 2:], model(ids).logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("wide", [False, True], ids=["mask of what is seen", "mask of the cache"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_static_cache_with_padding_on_the_left(kind, wide):
    from transformers import StaticCache

    model = decoder_model(**KINDS[kind])
    ids = token_ids()
    expected = model(ids).logits
    cache = StaticCache(config=model.config, max_cache_len=20)
    inputs, mask, found = padded(ids, 3, "left"), mask_of(ids, 3, "left"), []
    for start, end in ((0, 7), (7, 8), (8, 12)):
        seen = torch.nn.functional.pad(mask[:, :end], (0, 20 - end if wide else 0))
        found.append(model(inputs[:, start:end], attention_mask=seen, past_key_values=cache).logits)
    torch.testing.assert_close(torch.cat(found, dim=1)[:, 3:], expected, atol=1e-5, rtol=1e-4)


def test_logits_of_some_positions():
    model = decoder_model(**RELU)
    whole = model(token_ids()).logits
    torch.testing.assert_close(model(token_ids(), logits_to_keep=2).logits, whole[:, -2:])
    torch.testing.assert_close(model(token_ids(), logits_to_keep=torch.tensor([0, 5])).logits, whole[:, [0, 5]])


@pytest.mark.parametrize(
    ("inputs", "error", "named"),
    [
        (
            {"input_ids": token_ids(1, 41)},
            ValueError,
            "41 tokens is longer than max_position_embeddings=40: shorten it, or take",
        ),
        ({"position_ids": torch.full((3, 9), 40)}, ValueError, "41 tokens is longer than max_position_embeddings=40"),
        ({"position_ids": torch.arange(9)[None] - 3}, ValueError, "holds the position -3; they count from 0"),
        ({"position_ids": torch.zeros(3, 8, dtype=torch.long)}, ValueError, r"\(batch, length\) = \(3, 9\)"),
        ({"position_ids": torch.zeros(3, 9)}, ValueError, "position_ids must be integers"),
        ({"input_ids": token_ids() + VOCABULARY}, IndexError, f"the vocabulary of {VOCABULARY} tokens"),
        ({"input_ids": token_ids().float()}, ValueError, "must be integers"),
        ({"input_ids": token_ids()[:, :0]}, ValueError, "are empty"),
        ({"inputs_embeds": torch.zeros(3, 9, 24)}, ValueError, "exactly one of input_ids and inputs_embeds"),
        ({"input_ids": None, "inputs_embeds": torch.zeros(3, 9, 23)}, ValueError, r"\(batch, length, 24\)"),
        ({"labels": token_ids(3, 8)}, ValueError, r"the input, \(3, 9\); got \(3, 8\)"),
        ({"labels": torch.full((3, 9), VOCABULARY)}, IndexError, "labels holds the id"),
        ({"labels": token_ids(), "logits_to_keep": 1}, ValueError, "labels need the logits of all positions"),
        (
            {"attention_mask": torch.ones(3, 8)},
            ValueError,
            r"cover the 0 tokens in the cache and the 9 given ones",
        ),
        ({"attention_mask": -torch.ones(3, 9)}, ValueError, "has other values"),
        ({"segment_ids": torch.ones(3, 8, dtype=torch.long)}, ValueError, "segment ids"),
        ({"segment_ids": torch.ones(3, 8, dtype=torch.long), "labels": token_ids()}, ValueError, r"labels, \(3, 9\)"),
        ({"segment_ids": torch.ones(3, 9)}, ValueError, r"must be integers .* got torch.float32"),
        (
            {"segment_ids": -torch.ones(3, 9, dtype=torch.long)},
            ValueError,
            "from 1, and 0 for padding; the lowest is -1",
        ),
        ({"output_attentions": True}, ValueError, "needs attn_implementation='eager'"),
        ({"token_type_ids": token_ids()}, TypeError, "takes no token_type_ids"),
    ],
)
def test_wrong_calls_say_what_is_wrong(inputs, error, named):
    with pytest.raises(error, match=named):
        decoder_model(**RELU)(**{"input_ids": token_ids(), **inputs})


def test_a_mask_without_the_tokens_in_the_cache_is_refused():
    model = decoder_model(**RELU)
    cache = model(token_ids(), use_cache=True).past_key_values
    with pytest.raises(ValueError, match=r"cover the 9 tokens in the cache and the 1 given ones, .* = \(3, 10\)"):
        model(token_ids(3, 1), attention_mask=torch.ones(3, 1), past_key_values=cache)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"normalization": "post"}, "normalization='post' is not supported; choose one of pre, none"),
        ({"norm_type": "batch"}, "choose one of layer_norm, rms_norm"),
        ({"position_embedding": "alibi"}, "choose one of learned, rotary"),
        ({"ffn_type": "moe"}, "choose one of mlp, glu, dglu"),
        ({"hidden_act": "swiglu"}, "hidden_act='swiglu' is not supported"),
        ({"hidden_size": 22}, "hidden_size=22 must be a multiple of num_attention_heads=4, or head_dim be given"),
        ({"num_key_value_heads": 3}, "num_attention_heads=4 must be a multiple of num_key_value_heads=3"),
        ({"num_key_value_heads": 0}, "num_key_value_heads=0 must be at least 1"),
        ({"hidden_size": 12, "position_embedding": "rotary"}, "head_dim=3 must be even"),
        ({"rope_parameters": {"rope_theta": 100.0}}, "need position_embedding='rotary'"),
        ({"rope_theta": 100.0}, "rope_theta=100.0 needs position_embedding='rotary'"),
        (
            {"position_embedding": "rotary", "rope_parameters": {"partial_rotary_factor": 0.5}},
            "partial_rotary_factor is not",
        ),
        (
            {"position_embedding": "rotary", "rope_parameters": {"rope_type": "spiral"}},
            "rope_type='spiral' is unknown; choose one of default, linear",
        ),
        (
            {"hidden_act": "relu", "activation_function": "gelu"},
            "another name of hidden_act, which is 'relu'; give one",
        ),
        ({"init_std": 0.0}, "init_std=0.0 must be a finite number above 0"),
        ({"initializer_range": -1.0}, "init_std=-1.0 must be a finite number above 0"),
        ({"embedding_dropout": 1.0}, r"embedding_dropout=1.0 must lie in \[0, 1\)"),
        ({"regularization_weight": 0.1}, "needs point-wise weights"),
        ({"n_layer": 3}, "'n_layer' is not a field of ReLUFormerDecoderConfig"),
    ],
)
def test_bad_fields_are_refused_by_name(fields, named):
    with pytest.raises(ValueError, match=named):
        decoder_config(**fields)


def test_another_name_of_a_field_replaces_that_of_the_preset():
    config = ReLUFormerDecoderConfig.from_preset("llama_relu", activation_function="silu")
    assert config.hidden_act == "silu" and config.activation_function == "silu"


def std_of(model: ReLUFormerForCausalLM, name: str) -> float:
    return float(model.get_parameter(f"model.{name}.weight").detach().std())


@pytest.mark.parametrize("preset", ReLUFormerDecoderConfig.presets)
def test_the_start(preset):
    torch.manual_seed(0)
    config = ReLUFormerDecoderConfig.from_preset(
        preset, hidden_size=128, num_attention_heads=4, num_hidden_layers=3, vocab_size=200
    )
    model = ReLUFormerForCausalLM(config)
    residual = 0.02 / math.sqrt(6) if preset == "gpt2" else 0.02
    last = "layers.1.mlp.down_proj" if preset == "llama_relu" else "layers.1.mlp.fc2"
    first = "layers.1.mlp.up_proj" if preset == "llama_relu" else "layers.1.mlp.fc1"
    for name, std in {"embed_tokens": 0.02, "layers.0.self_attn.v_proj": 0.02, first: 0.02}.items():
        assert std_of(model, name) == pytest.approx(std, rel=0.05), name
    for name in ("layers.2.self_attn.out_proj", last):
        assert std_of(model, name) == pytest.approx(residual, rel=0.05), name
    biases = {name for name, parameter in model.named_parameters() if name.endswith("_proj.bias") or ".fc" in name}
    assert all(
        float(parameter.detach().abs().max()) == 0
        for name, parameter in model.named_parameters()
        if name.endswith(".bias")
    )
    kept = {name.split(".")[-2] for name in biases if name.endswith(".bias")}
    assert (
        kept
        == {
            "gpt2": {"q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"},
            "normalization_free": {"q_proj", "k_proj"},
            "llama_relu": set(),
        }[preset]
    )
    norms = [name for name, module in model.named_modules() if "Norm" in type(module).__name__]
    assert ("model.norm" in norms) and len(norms) == (1 if preset == "normalization_free" else 7)


def test_every_parameter_takes_part():
    for kind in KINDS.values():
        model = decoder_model(**kind).train()
        model(token_ids(), labels=token_ids()).loss.backward()
        assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_each_dropout_acts_in_training_alone():
    for name in ("embedding_dropout", "dropout", "attention_dropout", "activation_dropout"):
        model = decoder_model(**RELU, **{name: 0.5})
        expected = model(token_ids()).logits
        torch.testing.assert_close(expected, decoder_model(**RELU)(token_ids()).logits)
        assert not torch.allclose(model.train()(token_ids()).logits, expected), name


@pytest.mark.parametrize("ffn_type", ["mlp", "glu", "dglu"])
def test_the_feed_forward_network_is_its_formula(ffn_type):
    mlp = decoder_model(preset="llama_relu", ffn_type=ffn_type, ffn_bias=True).model.layers[0].mlp
    states = torch.randn(2, 3, 24)
    if ffn_type == "mlp":
        expected = torch.relu(states @ mlp.fc1.weight.T + mlp.fc1.bias) @ mlp.fc2.weight.T + mlp.fc2.bias
    else:
        gate, up = (states @ part.weight.T + part.bias for part in (mlp.gate_proj, mlp.up_proj))
        up = up if ffn_type == "glu" else torch.relu(up)
        expected = (torch.relu(gate) * up) @ mlp.down_proj.weight.T + mlp.down_proj.bias
    torch.testing.assert_close(mlp(states), expected)


@pytest.mark.parametrize("final_norm", [True, False])
@pytest.mark.parametrize("normalization", ["pre", "none"])
def test_norms_stand_where_the_configuration_says(normalization, final_norm):
    model = decoder_model(normalization=normalization, final_norm=final_norm, num_hidden_layers=1).model
    layer, ids = model.layers[0], token_ids()
    hidden = model.embed_tokens(ids) + model.embed_positions(torch.arange(9))
    captured = {}
    layer.self_attn.register_forward_hook(lambda module, inputs, output: captured.update(attended=output[0]))
    layer.self_attn.register_forward_pre_hook(lambda module, inputs: captured.update(normed=inputs[0]))
    found = model(ids).last_hidden_state
    pre = normalization == "pre"
    torch.testing.assert_close(captured["normed"], layer.input_layernorm(hidden) if pre else hidden)
    hidden = hidden + captured["attended"]
    hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden) if pre else hidden)
    torch.testing.assert_close(found, model.norm(hidden) if final_norm else hidden)
    assert (model.norm is None) != final_norm and (layer.input_layernorm is None) != pre
