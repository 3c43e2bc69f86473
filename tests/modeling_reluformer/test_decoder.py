"""The decoder-only language model: its loss and packing, GPT-2 and Llama as oracles, trainers."""

import copy
import math

import pytest
import torch
from datasets import Dataset
from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments

from reluformer import ReLUFormerDecoderConfig, ReLUFormerForCausalLM
from reluformer.modeling_reluformer.modeling_decoder import next_token_labels

from ..training.tiny_run import collate
from .cases import (
    Counting,
    assert_same_logits_loss_and_gradients,
    decoder_config,
    decoder_model,
    gpt2_model,
    llama_model,
    mask_of,
    padded,
    pair_of_models,
    row_penalties,
    scaled,
    token_ids,
    with_shares_for_dropout,
    word_tokenizer,
)

# Of the tests' few keys, the default gamma would leave so little of the attention that a fault in it is hard to see.
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
        found = model(ids, position_ids=torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5]]), labels=ids)
        apart = [part for row in ids for part in (row[:4], row[4:])]
        logits = [part for row in found.logits for part in (row[:4], row[4:])]
    outputs = [model(sequence[None], labels=sequence[None]) for sequence in apart]
    for one, output in zip(logits, outputs, strict=True):
        torch.testing.assert_close(one, output.logits[0], atol=1e-5, rtol=1e-4)
    targets = [len(sequence) - 1 for sequence in apart]
    expected = sum(count * output.loss for count, output in zip(targets, outputs, strict=True)) / sum(targets)
    torch.testing.assert_close(found.loss, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "dglu-full"])
def test_each_dropout_falls_at_its_place_with_its_rate(kind, monkeypatch):
    """What is dropped on average, taken into the weights behind or before it, gives the model in evaluation."""
    rates = {"embedding_dropout": 0.1, "dropout": 0.2, "attention_dropout": 0.3, "activation_dropout": 0.4}
    fields = {
        **KINDS[kind],
        "attention_output_norm": "none",
        "attn_implementation": "eager",
        "tie_word_embeddings": False,
    }
    dropping, plain = decoder_model(**fields, **rates), decoder_model(**fields)
    with_shares_for_dropout(monkeypatch)
    torch.testing.assert_close(dropping(token_ids()).logits, plain(token_ids()).logits)
    scaled([embedding.weight for embedding in plain.modules() if isinstance(embedding, torch.nn.Embedding)], 0.9)
    for layer in plain.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        scaled([attention.out_proj.weight], 0.7)
        scaled(attention.out_proj.parameters(), 0.8)
        last = mlp.down_proj if mlp.gated else mlp.fc2
        scaled([last.weight], 0.6)
        scaled(last.parameters(), 0.8)
    torch.testing.assert_close(dropping.train()(token_ids()).logits, plain(token_ids()).logits)


@pytest.mark.parametrize("implementation", ["fused", "eager"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "free"])
def test_the_loss_is_cross_entropy_and_the_regulariser_of_the_weights(kind, implementation):
    """L_reg from the weights of attention themselves, by its formula: the mean over layers, heads and rows with a
    label."""
    model = decoder_model(attn_implementation="eager", **KINDS[kind] | {"regularization_weight": 0.5}).double()
    ids, labels = token_ids(), token_ids()
    labels[0, 5:] = -100
    counts = labels[:, 1:] != -100
    penalties = []
    for weights in model(ids, output_attentions=True).attentions:
        penalty = row_penalties(weights, torch.arange(1, 10), model.config.entropy_margin)
        penalties.append(penalty[:, :-1][counts].mean())
    expected = torch.stack(penalties).mean()
    model.set_attn_implementation(implementation)
    output = model(ids, labels=labels)
    torch.testing.assert_close(output.regularization, expected, atol=1e-8, rtol=1e-6)
    cross_entropy = torch.nn.functional.cross_entropy(output.logits[:, :-1][counts], labels[:, 1:][counts])
    torch.testing.assert_close(output.cross_entropy, cross_entropy)
    torch.testing.assert_close(output.loss, cross_entropy + 0.5 * expected, atol=1e-8, rtol=1e-6)


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


def test_the_first_layers_can_draft_for_all():
    model, ids = decoder_model(), token_ids(1, 5)
    greedy, drafted = (model.generate(ids, max_new_tokens=8, assistant_early_exit=layers) for layers in (None, 1))
    assert torch.equal(drafted, greedy) and model.config.num_hidden_layers == len(model.model.layers) > 1


def test_labels_that_are_shifted_already():
    model, ids = decoder_model(**RELU), token_ids()
    aligned = torch.cat([ids[:, 1:], torch.full((3, 1), -100)], dim=1)
    expected = model(ids, labels=ids)
    for labels in (None, token_ids(seed=5)):
        found = model(ids, labels=labels, shift_labels=aligned)
        torch.testing.assert_close((found.loss, found.regularization), (expected.loss, expected.regularization))


def test_padding_between_packed_sequences_predicts_nothing():
    segments = torch.tensor([[0, 0, 1, 1, 1, 2, 2, 0, 0, 0]])
    labels = torch.arange(1, 11)[None]  # of the padding, too
    expected = [[-100, -100, 4, 5, -100, 7, -100, -100, -100, -100]]
    assert next_token_labels(labels, segments).tolist() == expected


def test_positions_that_jump_behind_a_cache_pack_nothing():
    model, ids, positions = decoder_model(**RELU), token_ids(2, 9), torch.tensor([[0, 1, 2, 3, 4, 7, 8, 5, 6]])
    expected = model(ids, attention_mask=torch.ones_like(ids), position_ids=positions).logits
    first = model(ids[:, :4], use_cache=True)
    found = model(ids[:, 4:], past_key_values=first.past_key_values, position_ids=positions[:, 4:])
    torch.testing.assert_close(found.logits, expected[:, 4:], atol=1e-5, rtol=0)


def test_a_training_with_labels_keeps_no_keys_and_values():
    model, ids = decoder_model(**RELU), token_ids()
    assert model(ids, labels=ids).past_key_values is not None
    assert model.train()(ids, labels=ids, use_cache=True).past_key_values is None


@pytest.mark.parametrize(
    ("inputs", "error", "named"),
    [
        (
            {"input_ids": token_ids(1, 41)},
            ValueError,
            "41 tokens is longer than max_position_embeddings=40: shorten it, or take",
        ),
        ({"input_ids": token_ids().float()}, ValueError, "must be integers"),
        ({"inputs_embeds": torch.zeros(3, 9, 24)}, ValueError, "exactly one of input_ids and inputs_embeds"),
        ({"input_ids": None, "inputs_embeds": torch.zeros(3, 9, 23)}, ValueError, r"\(batch, length, 24\)"),
        ({"labels": token_ids(), "logits_to_keep": 1}, ValueError, r"for \(3, 1\) tokens that get logits; got \(3, 9"),
        ({"labels": token_ids(), "logits_to_keep": 1, "skip_logits": True}, ValueError, "one label for each token"),
        ({"labels": token_ids(1)}, ValueError, r"int64 of the shape \(3, 9\), one for each token; got .* \(1, 9\)"),
        ({"labels": token_ids().int()}, ValueError, r"labels must be int64 .* got torch.int32 \(3, 9\)"),
        ({"shift_labels": token_ids()[0]}, ValueError, r"labels must be int64 .* got torch.int64 \(9,\)"),
        ({"position_ids": torch.arange(35, 44)[None]}, IndexError, "from 35 to 43; max_position_embeddings=40 has 0"),
        ({"attention_mask": torch.ones(3, 8)}, ValueError, r"\(batch, keys\) = \(3, 9\) or"),
        ({"attention_mask": -torch.ones(3, 9)}, ValueError, "has other values"),
        ({"segment_ids": torch.ones(3, 8, dtype=torch.long)}, ValueError, "segment ids"),
        ({"output_attentions": True}, ValueError, "needs attn_implementation='eager'"),
    ],
)
def test_wrong_calls_say_what_is_wrong(inputs, error, named):
    with pytest.raises(error, match=named):
        decoder_model(**RELU)(**{"input_ids": token_ids(), **inputs})


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"normalization": "post"}, "normalization='post' is not supported; choose one of pre, none"),
        ({"norm_type": "batch"}, "choose one of layer_norm, rms_norm"),
        ({"position_embedding": "alibi"}, "choose one of learned, rotary"),
        ({"ffn_type": "moe"}, "choose one of mlp, glu, dglu"),
        ({"hidden_act": "swiglu"}, "hidden_act='swiglu' is not supported"),
        ({"hidden_size": 22}, "hidden_size=22 must be a multiple of num_attention_heads=4, or head_dim be given"),
        ({"hidden_size": 22, "num_key_value_heads": 2}, "hidden_size=22 must be a multiple of num_attention_heads=4"),
        ({"num_key_value_heads": 3}, "num_attention_heads=4 must be a multiple of num_key_value_heads=3"),
        ({"hidden_size": 12, "position_embedding": "rotary"}, "head_dim=3 must be even"),
        ({"rope_parameters": {"rope_theta": 100.0}}, "needs position_embedding='rotary'"),
        ({"rope_theta": 100.0}, "rope_theta=100.0 needs position_embedding='rotary'"),
        (
            {"position_embedding": "rotary", "rope_parameters": {"partial_rotary_factor": 0.5}},
            "partial_rotary_factor is not",
        ),
        ({"initializer_range": -1.0}, "init_std=-1.0 must be a finite number above 0"),
        ({"n_layer": 3}, "'n_layer' is not a field of ReLUFormerDecoderConfig"),
    ],
)
def test_bad_fields_are_refused_by_name(fields, named):
    with pytest.raises(ValueError, match=named):
        decoder_config(**fields)


def test_generation_in_pages_is_refused_rather_than_empty():
    model = decoder_model(attention_activation="softmax")
    with pytest.raises(NotImplementedError, match="no paged attention, which generate_batch needs; use generate"):
        model.generate_batch([[5, 6, 7], [8, 9]])


def std_of(model: ReLUFormerForCausalLM, name: str) -> float:
    return float(model.get_parameter(f"model.{name}.weight").detach().std())


# preset → the last projection of an FFN, the deviation of what writes to the residual stream, and where biases are
STARTS = {
    "gpt2": ("fc2", 0.02 / math.sqrt(6), {"q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"}),
    "normalization_free": ("fc2", 0.02, {"q_proj", "k_proj"}),
    "llama_relu": ("down_proj", 0.02, set()),
}


@pytest.mark.parametrize("preset", STARTS)
def test_the_start(preset):
    last, residual, biased = STARTS[preset]
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": 200}
    model = ReLUFormerForCausalLM(ReLUFormerDecoderConfig.from_preset(preset, **sizes))
    stds = {"embed_tokens": 0.02, "layers.0.self_attn.v_proj": 0.02}
    stds |= {"layers.2.self_attn.out_proj": residual, f"layers.1.mlp.{last}": residual}
    for name, std in stds.items():
        assert std_of(model, name) == pytest.approx(std, rel=0.05), name
        mean = model.get_parameter(f"model.{name}.weight").detach().mean()
        assert float(mean) == pytest.approx(0, abs=std / 10), name
    biases = {name: parameter for name, parameter in model.named_parameters() if name.endswith(".bias")}
    assert not any(bias.any() for bias in biases.values())
    assert {name.split(".")[-2] for name in biases if "norm" not in name} == biased
    norms = [name for name, module in model.named_modules() if type(module).__name__.endswith("Norm")]
    assert ("model.norm" in norms) and len(norms) == (1 if preset == "normalization_free" else 7)


def test_the_double_gate_is_its_formula():
    """The other networks are those of GPT-2 and Llama, below."""
    mlp = decoder_model(preset="llama_relu", ffn_type="dglu", ffn_bias=True).model.layers[0].mlp
    states = torch.randn(2, 3, 24)
    gate, up = (torch.relu(states @ part.weight.T + part.bias) for part in (mlp.gate_proj, mlp.up_proj))
    torch.testing.assert_close(mlp(states), (gate * up) @ mlp.down_proj.weight.T + mlp.down_proj.bias)


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
MODELS = {
    "gpt2": gpt2_model,
    "gpt2-relu-untied": lambda: gpt2_model(activation_function="relu", tie_word_embeddings=False),
    "llama": llama_model,
    "llama-one-key-head": lambda: llama_model(num_key_value_heads=1, tie_word_embeddings=True),
    "llama-biases-wide-heads": lambda: llama_model(attention_bias=True, mlp_bias=True, head_dim=10),
    "llama-rope": lambda: llama_model(rope_parameters=LLAMA3_ROPE),
}
ATTENTIONS = {
    "softmax": None,
    "relu": {"activation": "relu", "scaling": "variance", "gamma": 2.0},
    "relu2-length": {"activation": "relu2", "scaling": "length", "alpha": 0.5},
}


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_logits_loss_and_gradients(name, attention):
    foreign, model = pair_of_models(MODELS[name](), ATTENTIONS[attention])
    assert model.config._attn_implementation == ("sdpa" if attention == "softmax" else "fused")
    ids = token_ids()
    labels = ids.clone()
    labels[0, 3:5] = -100
    assert_same_logits_loss_and_gradients(foreign, model, input_ids=ids, labels=labels)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "llama-rope"])
def test_padding_changes_nothing(name, side, implementation):
    foreign, model = pair_of_models(MODELS[name](), None)
    model.set_attn_implementation(implementation)
    ids = token_ids()
    expected = foreign(ids).logits
    mask = mask_of(ids, 4, side)
    found = model(padded(ids, 4, side), attention_mask=mask)
    torch.testing.assert_close(found.logits[mask.bool()], expected.flatten(0, 1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("attention", ["softmax", "relu"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "llama-rope"])
def test_steps_with_a_cache(name, attention):
    foreign, model = pair_of_models(MODELS[name](), ATTENTIONS[attention])
    ids = token_ids()
    expected = foreign(ids).logits
    first = model(ids[:, :4], use_cache=True)
    second = model(ids[:, 4:7], past_key_values=first.past_key_values)
    last = model(ids[:, 7:8], past_key_values=second.past_key_values)
    final = model(ids[:, 8:], past_key_values=last.past_key_values)
    found = torch.cat([output.logits for output in (first, second, last, final)], dim=1)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    if name.startswith("llama"):
        assert final.past_key_values.layers[0].keys.shape[1] == 2, "the keys of a group are held once"


OPTIONS = {"learning_rate": 1e-2, "report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}


def trained(folder, collator=collate, batch_size: int = 16, **options) -> ReLUFormerForCausalLM:
    torch.manual_seed(0)
    arguments = TrainingArguments(
        str(folder), max_steps=10, per_device_train_batch_size=batch_size, **OPTIONS, **options
    )
    model = ReLUFormerForCausalLM(decoder_config(**KINDS["gpt2"]))
    Trainer(model, arguments, train_dataset=Counting(), data_collator=collator).train()
    return model


@pytest.fixture(scope="module")
def plainly_trained(tmp_path_factory) -> ReLUFormerForCausalLM:
    return trained(tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize(
    "options",
    [
        {"collator": DataCollatorWithFlattening()},
        {"batch_size": 4, "gradient_accumulation_steps": 4},
        {"gradient_checkpointing": True},
    ],
    ids=["padding-free", "accumulation", "checkpointing"],
)
def test_other_ways_to_batch_train_the_same_model(options, plainly_trained, tmp_path):
    """A row packed from 16 sequences, whose first labels the collator has taken out, is the batch of the 16."""
    found = trained(tmp_path, **options)
    for one, two in zip(plainly_trained.parameters(), found.parameters(), strict=True):
        torch.testing.assert_close(two, one, atol=1e-3, rtol=1e-2)


ROWS = len(Counting())


def test_trl_packs_and_trains_with_the_models_own_loss_as_the_plain_trainer_does(tmp_path):
    """By the subclass of SFTTrainer that docs/decoder.md has."""
    trl = pytest.importorskip("trl", reason="needs the extra trl: pip install 'reluformer[trl]'")

    class WithOwnLoss(trl.SFTTrainer):
        compute_loss = Trainer.compute_loss

    torch.manual_seed(0)
    fields = {"attention_activation": "relu", "attention_gamma": 4, "regularization_weight": 0.1}
    model, rows = ReLUFormerForCausalLM(decoder_config(**fields)), Counting()
    models = [model, copy.deepcopy(model)]
    arguments = TrainingArguments(str(tmp_path), max_steps=4, **OPTIONS, per_device_train_batch_size=ROWS)
    Trainer(models[0], arguments, train_dataset=rows, data_collator=collate).train()
    packed = {"per_device_train_batch_size": 1, "packing": True, "max_length": 1024}
    arguments = trl.SFTConfig(str(tmp_path), max_steps=4, bf16=False, gradient_checkpointing=False, **OPTIONS, **packed)
    data = Dataset.from_list([{"input_ids": rows[index]["input_ids"]} for index in range(ROWS)])
    WithOwnLoss(models[1], arguments, train_dataset=data, processing_class=word_tokenizer()).train()
    for plain, tuned in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(tuned, plain, atol=1e-3, rtol=0)


def test_smoothing_by_the_trainer_shifts_the_labels(tmp_path):
    model, ids = decoder_model(**RELU | {"regularization_weight": 0.0}), token_ids()
    arguments = TrainingArguments(tmp_path, label_smoothing_factor=0.1, use_cpu=True, report_to="none")
    loss = Trainer(model, arguments).compute_loss(model, {"input_ids": ids, "labels": ids})
    logits = model(ids).logits[:, :-1].flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten(), label_smoothing=0.1)
    torch.testing.assert_close(loss, expected)
