"""The name `reluformer` for other models: its settings, what is refused, and that nothing else changes."""

import logging

import pytest
import torch
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModel,
    AutoModelForSeq2SeqLM,
    BertConfig,
    EncoderDecoderConfig,
    EncoderDecoderModel,
)
from transformers.masking_utils import bidirectional_mask_function, sdpa_mask
from transformers.utils.logging import warning_once

from reluformer import use_relu_attention
from reluformer.modeling_reluformer.other_models import attention as attention_foreign
from reluformer.modeling_reluformer.other_models import settings as settings_foreign
from reluformer.modeling_reluformer.other_models.attention import relu_attention_forward
from reluformer.modeling_reluformer.other_models.masks import VisibilityMask, relu_attention_mask
from reluformer.modeling_reluformer.other_models.settings import ForeignSettings, settings_of

from ...conftest import tiny_config, tiny_model
from .foreign_cases import SMALL, STABLE, bert_config, build, llama_config, padding, tokens


class Kept(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def warnings():
    """What is logged by the files of this feature, as in a new process."""
    warning_once.cache_clear()
    handler = Kept()
    for module in (settings_foreign, attention_foreign):
        module.logger.addHandler(handler)
    yield handler.messages
    for module in (settings_foreign, attention_foreign):
        module.logger.removeHandler(handler)


def test_settings_survive_the_disk(tmp_path):
    settings = {"scaling": "length", "alpha": 0.5}
    model = build("bert", reluformer=settings)
    model.save_pretrained(tmp_path)
    again = AutoModel.from_pretrained(tmp_path, attn_implementation="reluformer")
    assert again.config.reluformer == settings == AutoConfig.from_pretrained(tmp_path).reluformer
    ids = tokens(2, 7)
    torch.testing.assert_close(again.double()(ids).last_hidden_state, model(ids).last_hidden_state)


def test_the_three_ways_to_ask_are_one():
    ids, results = tokens(2, 7), []
    for way in ("built", "set", "used"):
        model = build("bert", "reluformer" if way == "built" else "sdpa")
        if way == "set":
            model.set_attn_implementation("reluformer")
        elif way == "used":
            assert use_relu_attention(model, gamma=0.6) is model
            assert model.config.reluformer == {
                "activation": "relu",
                "scaling": "variance",
                "gamma": 0.6,
                "implementation": "auto",
            }
        results.append(model(ids).last_hidden_state)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    assert (build("bert", "sdpa")(ids).last_hidden_state - results[0]).abs().max() > 0.1


def test_the_defaults_are_said_once(warnings):
    without = BertConfig(**{**SMALL, **STABLE})
    model = AutoModel.from_config(without, attn_implementation="reluformer").eval()
    for _ in range(2):
        found = model(tokens(2, 7)).last_hidden_state
    assert len(warnings) == 1 and "BertConfig" in warnings[0] and "'gamma': 8.0" in warnings[0], warnings
    model.config.reluformer = {"activation": "relu", "scaling": "variance", "gamma": 8}
    assert torch.equal(model(tokens(2, 7)).last_hidden_state, found)


def test_the_reference_is_said_once(warnings):
    model = build("mistral")
    for _ in range(2):
        model(tokens(2, 7))
    assert len(warnings) == 1 and "sliding window" in warnings[0], warnings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gama": 8.0}, "'gama' is not a setting; did you mean gamma?"),
        ({"attention_gamma": 8.0}, "did you mean gamma?"),
        ({"temperature": 1}, "choose out of activation, scaling, gamma, alpha, implementation"),
        ({"activation": "swish"}, "activation='swish' is not supported; choose one of relu, relu2"),
        ({"activation": "softmax"}, "attn_implementation='sdpa'"),
        ({"scaling": None}, "scaling=None is not supported"),
        ({"implementation": "flash"}, "choose one of auto, fused, eager"),
        ({"gamma": 0}, "finite number above 0"),
        ({"gamma": float("nan")}, "finite number above 0"),
        ({"gamma": "8"}, "gamma='8' must be a number"),
        ({"gamma": True}, "must be a number"),
        ({"scaling": "length", "alpha": 2.5}, r"alpha=2.5 must lie in \[0, 2\]"),
        ({"regularization_weight": 0.1, "entropy_margin": 2}, r"entropy_margin=2 must lie in \[0, 1\]"),
        ({"scaling": "length", "gamma": 8.0}, "gamma belongs to scaling='variance'"),
        ({"alpha": 1.0}, "alpha belongs to scaling='length'"),
        ("relu", "must be a dictionary"),
        ({"activation": ["relu"]}, "not supported"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        build("bert", reluformer=settings)(tokens(1, 4))
    if isinstance(settings, dict):
        with pytest.raises(ValueError, match=message):
            use_relu_attention(build("bert", "sdpa"), **settings)


@pytest.mark.parametrize("scaling", ["variance", "length", "none"])
def test_settings_are_written_as_they_are_read(scaling):
    written = ForeignSettings(scaling=scaling).to_mapping()
    assert ForeignSettings.from_mapping(written) == ForeignSettings(scaling=scaling)


def test_parts_of_a_model_get_the_settings_too():
    parts = bert_config(), bert_config(is_decoder=True, add_cross_attention=True)
    model = EncoderDecoderModel(config=EncoderDecoderConfig.from_encoder_decoder_configs(*parts)).eval()
    use_relu_attention(model, gamma=0.6)
    assert model.config.encoder.reluformer["gamma"] == model.config.decoder.reluformer["gamma"] == 0.6
    assert settings_of(model.decoder.bert.encoder.layer[0].crossattention.self).gamma == 0.6
    output = model(input_ids=tokens(2, 5), attention_mask=None, decoder_input_ids=tokens(2, 4))
    assert output.logits.isfinite().all()


@pytest.mark.parametrize("family", ["bert", "vit", "llama", "marian"])
@pytest.mark.parametrize("implementation", ["auto", "eager"])
def test_weights_are_returned_on_demand(family, implementation):
    settings = {"gamma": 0.6, "implementation": implementation}
    model = build(family, reluformer=settings)
    inputs = {"pixel_values": torch.randn(2, 3, 8, 8).double()} if family == "vit" else {"input_ids": tokens(2, 5)}
    if family == "marian":
        inputs["decoder_input_ids"] = tokens(2, 4)
    output = model(**inputs, output_attentions=True)
    names = ["attentions"]
    if family == "marian":
        names = ["encoder_attentions", "decoder_attentions", "cross_attentions"]
    for name in names:
        weights = output[name]
        assert len(weights) == 2 and weights[0].shape[:2] == (2, 2 if family == "marian" else 4)
        assert weights[0].min() == 0 and weights[0].max() > 0
        assert (weights[0].sum(-1) - 1).abs().max() > 0.01, "rows that sum to one are softmax's"
    assert not model(**inputs).get(names[0])


def test_what_the_library_says_of_weights_in_the_config():
    with pytest.raises(ValueError, match="output_attentions"):
        build("bert").config.output_attentions = True
    with pytest.raises(ValueError, match=r"implementation='fused' keeps no queries × keys tensor.*the weights"):
        build("bert", reluformer={"implementation": "fused"})(tokens(1, 4), output_attentions=True)
    with pytest.raises(ValueError, match="sliding window"):
        build("mistral", reluformer={"implementation": "fused"})(tokens(1, 7))


def call(mask, **keywords):
    module = build("llama").model.layers[0].self_attn
    query, key = torch.ones(2, 4, 3, 4), torch.ones(2, 2, keywords.pop("keys", 3), 4)
    return relu_attention_forward(module, query, key, key, mask, **keywords)[0]


@pytest.mark.parametrize(
    ("mask", "keywords", "message"),
    [
        (torch.zeros(2, 1, 3, 3), {}, "needs a boolean mask.*float32"),
        (torch.ones(2, 3, dtype=torch.bool), {}, r"must broadcast to .*\(2, 4, 3, 3\); got \(2, 3\)"),
        (torch.ones(2, 1, 3, 5, dtype=torch.bool), {}, r"got \(2, 1, 3, 5\)"),
        (None, {"keys": 5}, "causal and gives no mask for 3 queries and 5 keys"),
        (None, {"sliding_window": 2}, "sliding window of 2 for 3 keys"),
        (None, {"cu_seq_lens_q": torch.tensor([0, 1, 3])}, "packs several sequences"),
        (None, {"cache": object()}, "paged cache"),
    ],
)
def test_masks_that_say_too_little_are_refused(mask, keywords, message):
    with pytest.raises(ValueError, match=message):
        call(mask, **keywords)


def test_without_a_mask_the_module_says_whether_it_is_causal():
    assert torch.equal(call(None), call(torch.ones(3, 3).tril().bool()[None, None]))
    assert torch.equal(call(None, is_causal=False), call(torch.ones(1, 1, 1, 3, dtype=torch.bool)))
    assert not torch.equal(call(None), call(None, is_causal=False))


def test_masks_of_single_heads_count_for_themselves():
    mask = torch.ones(2, 4, 3, 3, dtype=torch.bool)
    mask[:, 1, :, 1:] = False
    rows = call(mask)[0, 0, :, 0]  # of each head; 3 equal weights over sqrt(3), or 1 over sqrt(1)
    torch.testing.assert_close(rows[0] / rows[1], torch.tensor(3.0).sqrt())


def test_a_reluformer_keeps_its_own_names():
    with pytest.raises(ValueError, match='"reluformer"` is not supported by attention_activation'):
        tiny_model(attn_implementation="reluformer")
    with pytest.raises(ValueError, match="has ReLU attention already"):
        use_relu_attention(tiny_model())
    assert tiny_config().attention_gamma == 8.0


@pytest.mark.parametrize(
    ("given", "name"), [(None, "builtins.NoneType"), (torch.nn.Linear(2, 2), "torch.nn.modules.linear.Linear")]
)
def test_what_is_no_model_of_transformers_is_refused(given, name):
    with pytest.raises(TypeError, match=rf"takes a Transformers model \(a PreTrainedModel\); got {name}\."):
        use_relu_attention(given)


def test_nothing_else_is_registered():
    """Every other entry of the library's registries is the library's, and a model that asks for nothing calls none of ours."""
    for registry in (AttentionInterface, AttentionMaskInterface):
        registered = dict(registry._global_mapping)
        assert registered.pop("reluformer").__module__.startswith("reluformer.modeling_reluformer.other_models.")
        assert all(function.__module__.startswith("transformers.") for function in registered.values()), registered


def test_models_that_do_not_ask_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(attention_foreign, "settings_of", None)
    for implementation in ("sdpa", "eager"):
        model = AutoModelForSeq2SeqLM.from_config(build("marian").config, attn_implementation=implementation)
        model(input_ids=tokens(2, 5), decoder_input_ids=tokens(2, 4))
    assert AutoModel.from_config(llama_config()).config._attn_implementation == "sdpa"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_a_compact_mask_stands_for_a_whole_one(causal, side):
    keywords = {"batch_size": 3, "q_length": 3, "kv_length": 7, "q_offset": 4, "attention_mask": padding(side)}
    if keywords["attention_mask"] is not None:
        keywords["attention_mask"] = keywords["attention_mask"].bool()
    if not causal:
        keywords["mask_function"] = bidirectional_mask_function
    mask = relu_attention_mask(**keywords)
    whole = sdpa_mask(**keywords, allow_is_causal_skip=False)
    assert isinstance(mask, VisibilityMask) and mask.shape == whole.shape and mask.dtype == torch.bool
    assert torch.equal(mask.dense(), whole)
    assert torch.equal(mask.visible_keys, whole[:, 0].sum(-1).clamp_min(1).float())
    for moved in (mask.detach(), mask.to("meta"), mask.contiguous()):
        assert isinstance(moved, VisibilityMask) and moved.shape == whole.shape
    assert mask.to("meta").visible_keys.device.type == "meta"
    assert torch.equal(mask[:, :, :2, 1:], whole[:, :, :2, 1:]) and type(mask[:, :, :2]) is torch.Tensor
    assert torch.equal(mask & whole, whole) and torch.equal(mask.float(), whole.float()) and "Visibility" in repr(mask)
    with pytest.raises(RuntimeError, match="no elements"):
        mask.fill_(True)


def test_traced_masks_are_ordinary_tensors(monkeypatch):
    """`torch.compile` could not look into another kind."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    mask = relu_attention_mask(batch_size=2, q_length=3, kv_length=3)
    assert type(mask) is torch.Tensor and torch.equal(mask, torch.ones(3, 3).tril().bool().expand(2, 1, 3, 3))


def test_a_hub_repository_carries_nothing_of_it(tmp_path):
    """Its code would register the name in the process of whoever loads a ReLUFormer."""
    tiny_model().save_pretrained(tmp_path)
    carried = {path.name for path in tmp_path.glob("*.py")}
    assert "attention_reluformer.py" in carried and not any("foreign" in name for name in carried), carried
