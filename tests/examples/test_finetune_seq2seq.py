"""The example runs as a user would run it, and what users add to it: LoRA, quantised loading."""

import ast
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from examples import finetune_seq2seq
from reluformer.training.data.demo_corpus import demo_pairs

from ..conftest import demo_tokenizer, random_tokens, tiny_model


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory) -> Path:
    """A tiny ReLUFormer with its tokenizer, and the text files train.de and train.en."""
    folder = tmp_path_factory.mktemp("model")
    pairs = demo_pairs(150, split="train", seed=0)
    for side, language in (("source", "de"), ("target", "en")):
        (folder / f"train.{language}").write_text("\n".join(pairs[side]) + "\n", encoding="utf-8")
    tokenizer = demo_tokenizer(150)
    tokenizer.save_pretrained(folder)
    model = tiny_model(vocab_size=len(tokenizer), encoder_layers=1, decoder_layers=1)
    model.generation_config.max_new_tokens = 64  # as recipes leave it
    model.save_pretrained(folder)
    return folder


@pytest.mark.filterwarnings("error::FutureWarning")
def test_the_example_trains_generates_and_saves(model_folder, tmp_path):
    given = ["--model", model_folder, "--max_steps", "4", "--held_out", "8", "--output_dir", tmp_path / "finetuned"]
    given += ["--source", model_folder / "train.de", "--target", model_folder / "train.en"]
    scores = finetune_seq2seq.main([*map(str, given), "--max_length", "24", "--learning_rate", "0.01"])
    assert scores["eval_exact_match"] >= 0 and 0 <= scores["eval_bleu"] <= 100
    assert scores["eval_loss"] > 0
    start = AutoModelForSeq2SeqLM.from_pretrained(model_folder)
    tuned = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "finetuned")
    assert not torch.equal(start.lm_head.weight, tuned.lm_head.weight)
    assert (tuned.generation_config.max_length, tuned.generation_config.max_new_tokens) == (24, None)
    assert (tmp_path / "finetuned" / "tokenizer.json").is_file()


def test_the_example_imports_nothing_of_ours_but_the_model_and_the_metric():
    tree = ast.parse(Path(finetune_seq2seq.__file__).read_text(encoding="utf-8"))
    imported = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    imported += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = {"reluformer", "reluformer.training.scoring.translation_metric"}
    assert set(imported) == {"argparse", "datasets", "transformers", *ours}


def _pairs_batch() -> dict[str, torch.Tensor]:
    source, target = random_tokens(4, 7), random_tokens(4, 7, seed=1)
    return {"input_ids": source, "attention_mask": torch.ones_like(source), "labels": target}


def test_lora_on_the_attention_projections_trains_saves_and_merges(model_folder, tmp_path):
    peft = pytest.importorskip("peft", reason="LoRA is peft's, which is not installed")
    targets = ["q_proj", "k_proj", "v_proj", "out_proj"]
    settings = peft.LoraConfig(task_type="SEQ_2_SEQ_LM", r=4, lora_dropout=0.0, target_modules=targets)
    model = peft.get_peft_model(AutoModelForSeq2SeqLM.from_pretrained(model_folder), settings)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len(trainable) == 2 * 4 * 3, "two matrices for each of four projections of three attentions"
    batch, losses = _pairs_batch(), []
    optimizer = torch.optim.Adam(trainable, lr=0.01)
    for _ in range(20):
        optimizer.zero_grad()
        output = model(**batch)
        output.loss.backward()
        losses.append(output.loss.item())
        optimizer.step()
    assert losses[-1] < losses[0] - 0.02 and output.regularization > 0
    model.eval().save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(AutoModelForSeq2SeqLM.from_pretrained(model_folder), tmp_path).eval()
    with torch.no_grad():
        expected = model(**batch).logits
        assert torch.equal(again(**batch).logits, expected)
        torch.testing.assert_close(model.merge_and_unload()(**batch).logits, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_lora_trains_with_gradient_checkpointing(model_folder):
    peft = pytest.importorskip("peft", reason="LoRA is peft's, which is not installed")
    model = AutoModelForSeq2SeqLM.from_pretrained(model_folder)
    model.enable_input_require_grads()
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_2_SEQ_LM", r=2, target_modules=["q_proj"]))
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model(**_pairs_batch()).loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    assert all(gradient is not None for gradient in gradients.values())
    assert any(gradient.abs().max() > 0 for gradient in gradients.values())
