"""Token batches under the Trainer: epochs, exact resume, several processes, figures in the logs."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from accelerate.data_loader import BatchSamplerShard, SkipBatchSampler
from packaging import version
from safetensors.torch import load_file
from torch._dynamo.utils import counters
from transformers import Seq2SeqTrainingArguments, TrainerState

from reluformer.configuration.errors import UserError
from reluformer.training.data.token_batches import TokenBatchSampler
from reluformer.training.trainer import ReLUFormerTrainer, _StartOfTraining

from .tiny_run import TOKENS_PER_BATCH, collate, tiny_model, tiny_pairs, tiny_trainer

NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}


def recording(trainer: ReLUFormerTrainer) -> list[list[tuple[int, ...]]]:
    """What the trainer is given from now on: the source ids of each batch, without padding."""
    seen = []

    def collate_and_record(rows):
        seen.append([tuple(row["input_ids"]) for row in rows])
        return collate(rows)

    trainer.data_collator = collate_and_record
    return seen


def planned(epoch: int, count: int = 30, batches_per_update: int = 1) -> list[list[tuple[int, ...]]]:
    """The batches of an epoch by the sampler alone."""
    pairs = tiny_pairs(count)
    lengths = [[len(ids) for ids in pairs[column]] for column in ("input_ids", "labels")]
    options = {"tokens_per_batch": TOKENS_PER_BATCH, "seed": 3, "batches_per_update": batches_per_update}
    sampler = TokenBatchSampler(*lengths, **options)
    sampler.set_epoch(epoch)
    return [[tuple(pairs[index]["input_ids"]) for index in batch] for batch in sampler]


def test_every_epoch_has_its_own_plan_and_every_pair_once(tmp_path):
    trainer = tiny_trainer(tmp_path, num_train_epochs=2, seed=8, data_seed=3)  # `planned` has the seed of the data
    seen = recording(trainer)
    trainer.train()
    first, second = planned(0), planned(1)
    assert first != second
    assert seen == first + second
    assert trainer.state.global_step == len(seen)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_run_that_is_killed_in_an_epoch_and_resumed_equals_one_that_is_not(tmp_path, accumulation):
    updates_per_epoch, rest = divmod(len(planned(0, batches_per_update=accumulation)), accumulation)
    assert rest == 0
    killed_at, steps = updates_per_epoch + 1, 3 * updates_per_epoch - 1
    assert killed_at % updates_per_epoch > 0
    settings = {"max_steps": steps, "gradient_accumulation_steps": accumulation, "lr_scheduler_type": "inverse_sqrt"}
    whole = tiny_trainer(tmp_path / "whole", save_strategy="steps", save_steps=killed_at, **settings)
    seen_whole = recording(whole)
    whole.train()
    resumed = tiny_trainer(tmp_path / "resumed", **settings)
    seen_resumed = recording(resumed)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{killed_at}"))

    epochs = [planned(epoch, batches_per_update=accumulation) for epoch in range(3)]
    in_epoch = (killed_at - updates_per_epoch) * accumulation
    expected = [*epochs[1][in_epoch:], *epochs[2]]
    assert seen_resumed[: len(expected) - accumulation] == expected[: len(expected) - accumulation]
    assert seen_whole[: len(epochs[0])] == epochs[0]
    assert resumed.state.global_step == whole.state.global_step == steps
    final = [dict(trainer.model.named_parameters()) for trainer in (whole, resumed)]
    assert all(torch.equal(final[0][name], final[1][name]) for name in final[0])
    losses = [
        {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
        for trainer in (whole, resumed)
    ]
    assert losses[0] == losses[1]


def test_the_epoch_reaches_the_batches_where_the_trainer_does_not_set_it():
    """Two processes that resume in the middle of an epoch: the sampler lies in a shard in a skip."""
    sampler = TokenBatchSampler([5] * 40, [5] * 40, tokens_per_batch=10, seed=0)
    loader = SkipBatchSampler(BatchSamplerShard(sampler, num_processes=2, process_index=0), skip_batches=3)

    class Arguments:
        gradient_accumulation_steps = 2

    callback = _StartOfTraining(SimpleNamespace(batches=sampler))
    # the last update of an epoch whose last update is of one batch
    callback.on_epoch_begin(Arguments(), TrainerState(global_step=14), None, train_dataloader=range(9))
    assert sampler.epoch == 2
    assert not hasattr(loader, "set_epoch")


def test_the_logged_figures_are_means_over_target_tokens(tmp_path):
    model = tiny_model(**NO_DROPOUT)
    trainer = tiny_trainer(
        tmp_path, model, learning_rate=0.0, max_steps=4, gradient_accumulation_steps=3, logging_steps=2
    )
    seen = recording(trainer)
    trainer.train()
    _, log = (entry for entry in trainer.state.log_history if "loss" in entry)  # of the third and the fourth update
    by_source = {tuple(row["input_ids"]): row for row in tiny_pairs()}
    sums, tokens = {"cross_entropy": 0.0, "regularization": 0.0, "attention_entropy": 0.0, "dead_row_fraction": 0.0}, 0
    for sources in seen[6:12]:
        batch = collate([by_source[source] for source in sources])
        targets = batch["labels"].ne(-100).sum().item()
        with torch.no_grad():
            output = model(**batch)
        tokens += targets
        for name in sums:
            sums[name] += output[name].item() * targets
    for name, total in sums.items():
        assert log[name] == pytest.approx(total / tokens, rel=1e-5), name
    assert log["target_tokens_per_update"] == tokens / 2
    assert log["target_tokens_per_second"] > 0
    assert log["regularization"] > 0


def test_evaluation_is_an_exact_mean_over_target_tokens_and_carries_the_scores(tmp_path):
    model = tiny_model(**NO_DROPOUT)
    calls = []

    def scorer(scored, process_index, processes):
        calls.append((scored is model, process_index, processes))
        return {"bleu": 12.5}

    trainer = tiny_trainer(
        tmp_path, model, scorer=scorer, max_steps=2, eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=5
    )
    trainer.train()
    log = next(entry for entry in trainer.state.log_history if "eval_loss" in entry)
    with torch.no_grad():
        output = model.eval()(**collate(list(trainer.eval_dataset)))
    assert log["eval_loss"] == pytest.approx(output.loss.item(), rel=1e-5)
    assert log["eval_cross_entropy"] == pytest.approx(output.cross_entropy.item(), rel=1e-5)
    assert log["eval_bleu"] == 12.5
    assert calls == [(True, 0, 1)]


def test_it_evaluates_without_a_training_set(tmp_path):
    arguments = Seq2SeqTrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    trainer = ReLUFormerTrainer(tiny_model(), arguments, collate, eval_dataset=tiny_pairs(12), tokens_per_batch=90)
    assert trainer.evaluate()["eval_cross_entropy"] > 0
    with pytest.raises(ValueError, match="needs a train_dataset"):
        trainer.train()


def test_a_training_log_does_not_hold_figures_of_the_evaluation(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=3, eval_strategy="steps", eval_steps=1)
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logs) == 3
    assert all(log["target_tokens_per_update"] <= TOKENS_PER_BATCH for log in logs)


def test_an_update_has_the_pairs_of_all_processes(tmp_path):
    trainer = tiny_trainer(tmp_path)
    pairs_per_batch = len(trainer.train_dataset) / len(trainer.batches)
    for processes, accumulated in ((1, 1), (3, 1), (2, 4)):
        arguments = SimpleNamespace(world_size=processes, gradient_accumulation_steps=accumulated)
        pairs = trainer.get_total_train_batch_size(arguments)
        assert pairs == pytest.approx(pairs_per_batch * processes * accumulated, abs=0.5)


def test_several_gpus_in_one_process_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Seq2SeqTrainingArguments, "n_gpu", 2)
    with pytest.raises(UserError, match="torchrun --nproc_per_node 2"):
        tiny_trainer(tmp_path)


def torchrun(folder: Path, processes: int, **options) -> list[dict]:
    """Trains under torchrun; the log."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(processes), "--standalone"]
    program = [str(Path(__file__).with_name("tiny_run.py")), str(folder), json.dumps(options)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    result = subprocess.run([*command, *program], capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr[-12000:]
    return TrainerState.load_from_json(str(folder / "trainer_state.json")).log_history


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """The folder of a run of two processes over two epochs, its options, its log, and a checkpoint amid the second."""
    # An even number of batches in each epoch: else accelerate repeats one.
    pairs = next(count for count in range(30, 40) if len(planned(0, count)) % 2 == 0)
    updates_per_epoch = len(planned(0, pairs)) // 2
    options = {
        "model": NO_DROPOUT,
        "pairs": pairs,
        "max_steps": 2 * updates_per_epoch,
        "save_strategy": "steps",
        "save_steps": updates_per_epoch + 1,
    }
    folder = tmp_path_factory.mktemp("two")
    log = torchrun(folder, 2, resume=None, **options)
    return folder, options, log, folder / f"checkpoint-{updates_per_epoch + 1}"


@pytest.mark.slow
@pytest.mark.skipif(
    version.parse(transformers.__version__) < version.parse("5.23"),
    reason="the Trainer of older versions (5.17) cannot load an optimizer in several processes on a CPU",
)
def test_two_processes_resume_exactly_in_the_middle_of_an_epoch(two_processes, tmp_path):
    folder, options, _, checkpoint = two_processes
    torchrun(tmp_path, 2, resume=str(checkpoint), **options)
    final, expected = (load_file(path / "model.safetensors") for path in (tmp_path, folder))
    assert [name for name in expected if not torch.equal(final[name], expected[name])] == []


def test_random_numbers_of_other_processes_are_not_taken_and_those_of_the_start_do_not_return(tmp_path):
    for process in range(2):
        (tmp_path / f"rng_state_{process}.pth").touch()
    trainer = tiny_trainer(tmp_path / "run", seed=3)
    trainer.state.global_step = 5
    trainer._load_rng_state(str(tmp_path))
    assert torch.initial_seed() == 8


def skipped(trainer: ReLUFormerTrainer, monkeypatch) -> list[bool]:
    """Whether the output of each pass of the model from now on lacks logits."""
    seen, forward = [], trainer.model.forward

    @functools.wraps(forward)  # the Trainer reads its signature
    def noting(*args, **kwargs):
        output = forward(*args, **kwargs)
        seen.append(output.logits is None)
        return output

    monkeypatch.setattr(trainer.model, "forward", noting)
    return seen


def test_training_and_evaluation_skip_the_logits(tmp_path, monkeypatch):
    trainer = tiny_trainer(tmp_path, max_steps=2)
    seen = skipped(trainer, monkeypatch)
    trainer.train()
    trainer.evaluate()
    assert seen == [True] * len(seen) and len(seen) > 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_compiled_training_is_one_graph_for_each_draw_and_ends_with_the_same_weights(tmp_path, monkeypatch):
    for name in ("BACKEND", "MODE", "USE_FULLGRAPH"):  # the Trainer's arguments set them for the whole process
        monkeypatch.setenv(f"ACCELERATE_DYNAMO_{name}", "no")
        monkeypatch.delenv(f"ACCELERATE_DYNAMO_{name}")
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "regularization_share": 0.5, "regularization_weight": 0.1}
    weights, losses, limits = [], [], []
    for options in ({}, {"torch_compile": True, "torch_compile_backend": "aot_eager"}):
        with torch._dynamo.config.patch(recompile_limit=8):
            trainer = tiny_trainer(tmp_path, tiny_model(**NO_DROPOUT, **sizes), max_steps=4, **options)
            limits.append(torch._dynamo.config.recompile_limit)
            counters.clear()
            trainer.train()
        weights.append(dict(trainer.accelerator.unwrap_model(trainer.model).named_parameters()))
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert counters["stats"]["unique_graphs"] >= 2 and not counters["graph_break"]
    assert limits == [8, 8 + 7]  # room for the samples of six modules
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-3, atol=1e-4)


def test_the_logits_are_there_for_who_reads_them(tmp_path, monkeypatch):
    trainer = tiny_trainer(tmp_path, max_steps=1)
    shapes = []
    trainer.compute_metrics = lambda prediction: shapes.append(prediction.predictions[0].shape) or {}
    seen = skipped(trainer, monkeypatch)
    trainer.evaluate()
    assert shapes[0][0] == 12 and shapes[0][2] == 24
    assert seen == [False] * len(seen) and seen
    monkeypatch.setattr(trainer, "label_smoother", lambda outputs, labels: 0)  # another loss, from the logits
    assert trainer.inputs_of_the_loss({}) == {}
