"""Generation by onnxruntime: the tokens of PyTorch, whatever is asked of `generate`."""

import pytest
import torch
from transformers import AutoTokenizer

from reluformer import ReLUFormerForConditionalGeneration
from reluformer.configuration.errors import UserError
from reluformer.training.translation import Translator

pytest.importorskip("onnxruntime", reason="needs the extra onnx: pip install 'reluformer[onnx]'")

from reluformer.export.running import OnnxTranslationModel

TEXTS = ["zwölf", "einundzwanzig", "neunhundertneunundneunzig", "eins"]


@pytest.fixture(scope="module")
def models(trained, exported):
    return ReLUFormerForConditionalGeneration.from_pretrained(trained).eval(), OnnxTranslationModel.from_pretrained(
        exported
    )


@pytest.fixture(scope="module")
def batch(trained):
    return AutoTokenizer.from_pretrained(trained)(TEXTS, padding=True, return_tensors="pt")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 3, "length_penalty": 0.4},
        {"num_beams": 4, "num_return_sequences": 2, "repetition_penalty": 1.5},
        {"use_cache": False},
        {"do_sample": True, "num_return_sequences": 3},
        {"decoder_input_ids": torch.full((len(TEXTS), 3), 7)},
    ],
    ids=lambda options: "-".join(options) or "greedy",
)
def test_generate_gives_the_tokens_of_pytorch(models, batch, options):
    found = []
    for model in models:
        torch.manual_seed(0)
        found.append(model.generate(**batch, **options))
    assert found[0].tolist() == found[1].tolist()
    assert found[0].shape[1] > 5


def test_without_a_mask_every_token_is_real(models, batch):
    ids = batch["input_ids"][:1, :4]
    wanted, found = (model(input_ids=ids, decoder_input_ids=ids).logits for model in models)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_the_translator_takes_it(models, trained):
    tokenizer = AutoTokenizer.from_pretrained(trained)
    wanted, found = (Translator(model, tokenizer, num_beams=2)([*TEXTS, "", TEXTS[0]]) for model in models)
    assert wanted == found


def test_what_a_graph_does_not_hold_is_refused(models, batch):
    model = models[1]
    for name in ("output_attentions", "output_hidden_states"):
        with pytest.raises(ValueError, match=f"{name}=True: an exported graph does not hold them"):
            model.generate(**batch, **{name: True}, return_dict_in_generate=True)
    with pytest.raises(ValueError, match=r"takes a DynamicCache; got StaticCache\. Leave out cache_implementation"):
        model.generate(**batch, cache_implementation="static")
    with pytest.raises(ValueError, match="decoder_attention_mask"):
        model.generate(**batch, decoder_attention_mask=torch.ones(len(TEXTS), 1))


IDS, TARGETS = torch.full((2, 4), 7), torch.full((2, 3), 7)


@pytest.mark.parametrize(
    "wrong",
    [
        {"input_ids": torch.full((2, 65), 7)},
        {"input_ids": IDS + 300},
        {"input_ids": -IDS},
        {"decoder_input_ids": -TARGETS},
    ],
)
def test_wrong_ids_are_refused_in_the_words_of_pytorch(models, wrong):
    """onnxruntime has errors of its own, and takes negative ids for those at the end of the vocabulary."""
    errors = []
    for model in models:
        with pytest.raises((ValueError, IndexError)) as caught:
            model(**{"input_ids": IDS, "decoder_input_ids": TARGETS, **wrong})
        errors.append((caught.type, str(caught.value)))
    assert errors[0] == errors[1]


def test_a_cache_counts_for_the_longest_sequence(models):
    targets = torch.full((2, 60), 7)
    held = models[1](input_ids=IDS, decoder_input_ids=targets)
    with pytest.raises(ValueError, match="A sequence of 65 tokens is longer than max_position_embeddings=64"):
        models[1](input_ids=IDS, decoder_input_ids=targets[:, :5], past_key_values=held.past_key_values)


def test_a_folder_that_is_none(tmp_path, trained, exported):
    for folder, missing in ((tmp_path / "nowhere", "config.json"), (trained, "encoder_model.onnx")):
        with pytest.raises(UserError, match=f"holds no {missing}; give a folder that `reluformer export` has written"):
            OnnxTranslationModel.from_pretrained(folder)
    for path in exported.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "encoder_model.onnx").write_bytes(b"no graph")
    with pytest.raises(UserError, match=r"its graphs cannot be loaded: .*encoder_model\.onnx"):
        OnnxTranslationModel.from_pretrained(tmp_path)
