"""The decoder-only model in the library: files, dtypes, compilers, adapters, the Trainer, pipelines, decoding modes."""

import copy
import json
import shutil

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    DataCollatorWithFlattening,
    Trainer,
    TrainingArguments,
    pipeline,
)

from reluformer import ReLUFormerDecoderModel, ReLUFormerForCausalLM

from .decoder_cases import (
    VOCABULARY,
    Counting,
    decoder_config,
    decoder_model,
    padded_collator,
    token_ids,
    word_tokenizer,
)
from .padded_batches import mask_of, padded
from .test_decoder_model import KINDS
from .without_package import run_without_package

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")


@pytest.mark.parametrize("kind", KINDS)
def test_saved_equals_loaded(kind, tmp_path):
    model = decoder_model(**KINDS[kind])
    model.save_pretrained(tmp_path)
    expected = model(token_ids()).logits
    for loader in (ReLUFormerForCausalLM, AutoModelForCausalLM):
        loaded, info = loader.from_pretrained(tmp_path, output_loading_info=True)
        assert not any(info.values()), info
        torch.testing.assert_close(loaded(token_ids()).logits, expected, rtol=0, atol=0)
    base = AutoModel.from_pretrained(tmp_path)
    assert isinstance(base, ReLUFormerDecoderModel)
    torch.testing.assert_close(base(token_ids()).last_hidden_state, model.model(token_ids()).last_hidden_state)
    assert AutoConfig.from_pretrained(tmp_path).to_dict() == loaded.config.to_dict()


LOAD = """
    import torch
    from transformers import AutoModel, AutoModelForCausalLM

    ids = torch.tensor(json.loads(sys.argv[2]))
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
    base = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True)
    assert type(base).__module__.startswith("transformers_modules."), type(base)
    print(json.dumps([type(base).__name__, model.generate(ids, max_new_tokens=6, do_sample=False).tolist()]))
"""


def test_what_is_saved_loads_without_the_package(tmp_path):
    model = decoder_model(**KINDS["dglu-full"])
    model.save_pretrained(tmp_path / "model")
    carried = {path.name for path in (tmp_path / "model").glob("*.py")}
    assert {"modeling_decoder.py", "configuration_decoder.py"} <= carried and len(carried) == 6
    assert not carried & {"modeling_reluformer.py", "modeling_vision.py"}
    place, ids = str(tmp_path / "model"), json.dumps(token_ids().tolist())
    name, tokens = run_without_package(LOAD, place, ids, folder=tmp_path)
    assert name == "ReLUFormerDecoderModel"
    assert tokens == model.generate(token_ids(), max_new_tokens=6, do_sample=False).tolist()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_gradient_checkpointing_changes_nothing(kind, reentrant):
    model = decoder_model(**KINDS[kind]).train()
    twin = copy.deepcopy(model)
    twin.gradient_checkpointing_enable({"use_reentrant": reentrant})
    ids, segments = token_ids(2, 10), torch.tensor([[1] * 4 + [2] * 6] * 2)
    for each in (model, twin):
        each(ids, segment_ids=segments, labels=ids).loss.backward()
    for one, two in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad)


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_and_half_precision_are_near(kind):
    model = decoder_model(**KINDS[kind])
    expected = model(token_ids(), labels=token_ids())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model(token_ids(), labels=token_ids())
    half = copy.deepcopy(model).to(torch.bfloat16)(token_ids(), labels=token_ids())
    for each in (found, half):
        assert (each.logits.float() - expected.logits).abs().max() < 0.3
        assert each.loss.dtype == torch.float32 and abs(float((each.loss - expected.loss).detach())) < 0.1


@needs_compiler
@pytest.mark.parametrize("kind", ["gpt2", "llama", "softmax"])
def test_compiled_training_step_is_one_graph_and_equal(kind):
    model = decoder_model(**KINDS[kind]).train()
    twin = copy.deepcopy(model)
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    inputs = {"input_ids": padded(token_ids(), 2, "right"), "attention_mask": mask_of(token_ids(), 2, "right")}
    for each in (model, compiled):
        each(**inputs, labels=padded(token_ids(), 2, "right", -100)).loss.backward()
    for (name, one), two in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(two.grad, one.grad, rtol=1e-4, atol=1e-5, msg=name)


@needs_compiler
@pytest.mark.parametrize("kind", ["gpt2", "llama", "softmax"])
def test_a_compiled_step_with_a_static_cache_is_one_graph_and_equal(kind):
    from transformers import StaticCache

    model = decoder_model(**KINDS[kind])
    expected = model(token_ids()).logits
    cache = StaticCache(config=model.config, max_cache_len=16)
    mask, found = torch.ones(3, 16, dtype=torch.long), []
    step = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        found.append(model(token_ids()[:, :6], attention_mask=mask, past_key_values=cache).logits)
        for place in range(6, 9):
            found.append(step(token_ids()[:, place : place + 1], attention_mask=mask, past_key_values=cache).logits)
    torch.testing.assert_close(torch.cat(found, dim=1), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "settings", [{"num_beams": 3}, {"do_sample": True, "num_return_sequences": 2}, {"use_cache": False}], ids=str
)
@pytest.mark.parametrize("kind", KINDS)
def test_generation_without_a_cache_and_from_padded_prompts_is_the_same(kind, settings):
    model, outcomes = decoder_model(**KINDS[kind]), []
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(8)  # else one token follows all others
    for change in ({"use_cache": False}, {}, {"cache_implementation": "static", "disable_compile": True}):
        for padding in (0, 3):
            torch.manual_seed(0)
            inputs = {
                "input_ids": padded(token_ids(2), padding, "left"),
                "attention_mask": mask_of(token_ids(2), padding, "left"),
            }
            options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, **change, **settings}
            if options.get("use_cache") is False:
                options.pop("cache_implementation", None)
            outcomes.append(model.generate(**inputs, **options)[:, padding:])
    assert len({tuple(row) for row in outcomes[0][:, 9:].tolist()}) > 1, "one constant would show nothing"
    for outcome in outcomes[1:]:
        assert torch.equal(outcome, outcomes[0])


def test_lora_has_the_loss_of_the_model_and_merges_into_one(tmp_path):
    peft = pytest.importorskip("peft", reason="LoRA is peft's, which is not installed")
    model, ids = decoder_model(**KINDS["llama"]), token_ids()
    plain = model(ids, labels=ids)
    targets = ["q_proj", "v_proj", "gate_proj", "down_proj"]
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", target_modules=targets, r=4)).eval()
    found = adapted(input_ids=ids, labels=ids)
    torch.testing.assert_close((found.loss, found.regularization), (plain.loss, plain.regularization))
    found.loss.backward()
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            assert (parameter.grad is not None) == ("lora_" in name), name
            if "lora_B" in name:  # 0 before the first update
                parameter += 0.1
        expected = adapted(input_ids=ids).logits
        assert adapted.generate(input_ids=ids, max_new_tokens=2).shape == (3, 11)
        adapted.merge_and_unload().save_pretrained(tmp_path)
        merged = AutoModelForCausalLM.from_pretrained(tmp_path)
        torch.testing.assert_close(merged(ids).logits, expected, atol=1e-5, rtol=1e-4)
    assert (expected - plain.logits).abs().max() > 1e-3


@pytest.mark.parametrize("tied", [True, False])
def test_resizing_the_vocabulary(tied, tmp_path):
    model = decoder_model(**KINDS["gpt2"], tie_word_embeddings=tied)
    expected = model(token_ids()).logits
    model.resize_token_embeddings(VOCABULARY + 4)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.vocab_size == VOCABULARY + 4 and loaded(token_ids()).logits.shape[-1] == VOCABULARY + 4
    torch.testing.assert_close(loaded(token_ids()).logits[..., :VOCABULARY], expected)
    found = loaded(token_ids(), labels=token_ids(), skip_logits=True)
    torch.testing.assert_close(found.loss, loaded(token_ids(), labels=token_ids()).loss)


def trained(tmp_path, collator=None, batch_size: int = 16, **options):
    torch.manual_seed(0)
    options = {
        "learning_rate": 1e-2,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
        **options,
    }
    arguments = TrainingArguments(str(tmp_path), max_steps=40, per_device_train_batch_size=batch_size, **options)
    model = ReLUFormerForCausalLM(decoder_config(**KINDS["gpt2"]))
    trainer = Trainer(
        model, arguments, train_dataset=Counting(), eval_dataset=Counting(), data_collator=collator or padded_collator
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    return trainer, before


def test_a_plain_trainer_learns_and_generates(tmp_path):
    trainer, before = trained(tmp_path)
    assert trainer.evaluate()["eval_loss"] < before - 1.5
    found = trainer.model.generate(torch.tensor([[5, 6, 7, 8]]), max_new_tokens=4, do_sample=False)
    assert found[0].tolist() == [5, 6, 7, 8, 9, 10, 11, 12]


@pytest.mark.parametrize(
    ("collator", "options"),
    [
        (DataCollatorWithFlattening(), {}),
        (None, {"batch_size": 4, "gradient_accumulation_steps": 4}),
        (None, {"gradient_checkpointing": True}),
    ],
    ids=["padding-free", "accumulation", "checkpointing"],
)
def test_other_ways_to_batch_train_the_same_model(tmp_path, collator, options):
    """A row packed from 16 sequences, whose first labels the collator has taken out, is the batch of the 16."""
    (expected, _), (found, _) = trained(tmp_path), trained(tmp_path, collator, **options)
    for one, two in zip(expected.model.parameters(), found.model.parameters(), strict=True):
        torch.testing.assert_close(two, one, atol=1e-3, rtol=1e-2)


def test_a_pipeline_continues_text(tmp_path):
    tokenizer = word_tokenizer()
    model = decoder_model(**KINDS["llama"])
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    continue_text = pipeline("text-generation", model=str(tmp_path))
    prompts = ["w5 w6 w7", "w9"]
    expected = [continue_text(prompt, max_new_tokens=5, do_sample=False) for prompt in prompts]
    found = continue_text(prompts, max_new_tokens=5, do_sample=False, batch_size=2)
    assert found == expected and found[0][0]["generated_text"].startswith("w5 w6 w7w")
