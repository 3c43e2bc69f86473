"""As a program: the runs of several processes that the tests of this folder look at, all forked from one that has
imported.

python -m tests.distributed.jobs FOLDER            the jobs that one process and two do alike, and those of two alone
python -m tests.distributed.jobs FOLDER train 4    one job, here in four processes
"""

import faulthandler
import json
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest
import torch
import torch.distributed as dist
import transformers
from accelerate import PartialState
from packaging.version import Version
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import set_seed

from reluformer import ReLUFormerForConditionalGeneration
from reluformer.configuration.recipe import DataConfig, EvaluationConfig
from reluformer.training.data.demo_corpus import demo_pairs
from reluformer.training.data.tokenization import train_tokenizer
from reluformer.training.run.interruptions import orderly_end
from reluformer.training.scoring.evaluation import ValidationTranslation
from reluformer.training.trainer import ReLUFormerTrainer
from reluformer.translating.translation import Translator

from ..conftest import tiny_config
from ..training.tiny_run import collate, tiny_model, tiny_pairs, tiny_trainer

PAIRS, UPDATES, BATCHES_PER_UPDATE = 31, 12, 4
SAVED_AT = 7  # within an epoch
LONGER_THAN_ANY_JOB = 240.0  # seconds; what hangs says where
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
# fields of the model, and skip_logits
SHARDED = (({}, False), ({}, True), ({"tie_word_embeddings": False}, True))
NORMS_AND_GATE = {"attention_gate": True, "attention_qk_norm": True, "ffn_output_norm": "layer_norm"}
TWO_VOCABULARIES = {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}
TENSOR_PARALLEL = ({}, {**NORMS_AND_GATE, **TWO_VOCABULARIES})
HAS_TENSOR_PARALLELISM = Version(transformers.__version__) >= Version("5.23")


def train(folder: Path, rank: int, world: int) -> None:
    """Updates of four batches each, however many processes there are; then an evaluation of 12 pairs in batches of
    5."""
    trainer = _trainer(folder / f"train-{world}", world)
    trainer.train()
    metrics = trainer.evaluate()
    torch.save(dict(trainer.model.named_parameters()), folder / f"parameters-{world}-{rank}.pt")
    if rank == 0:
        _write(folder / f"train-{world}.json", {"log": trainer.state.log_history, "evaluation": metrics})


def _trainer(folder: Path, world: int) -> ReLUFormerTrainer:
    return tiny_trainer(
        folder,
        tiny_model(**NO_DROPOUT, regularization_weight=0.1),
        tiny_pairs(PAIRS),
        max_steps=UPDATES,
        gradient_accumulation_steps=BATCHES_PER_UPDATE // world,
        per_device_eval_batch_size=5,
        save_strategy="steps",
        save_steps=SAVED_AT,
    )


def go_on(folder: Path, rank: int, world: int) -> None:
    """The second half of the updates, from a checkpoint that twice or half as many processes have written."""
    trainer = _trainer(folder / f"go-on-{world}", world)
    before = folder / f"train-{3 - world}" / f"checkpoint-{SAVED_AT}"
    trainer.train(resume_from_checkpoint=str(before))
    torch.save(dict(trainer.model.named_parameters()), folder / f"parameters-go-on-{world}-{rank}.pt")


def translate(folder: Path, rank: int, world: int) -> None:
    """Scores during training, of five sentences and of one; the first is translated as its reference says."""
    PartialState(cpu=True)  # through which the scores are gathered
    pairs = demo_pairs(60, split="train", seed=0)
    options = {"lowercase": False, "moses": False, "source_language": "de", "target_language": "en", "max_length": 64}
    tokenizer = train_tokenizer(pairs, vocab_size=330, **options)
    set_seed(0)
    config = tiny_config(vocab_size=len(tokenizer), max_position_embeddings=160)
    model = ReLUFormerForConditionalGeneration(config).eval()
    options = {"num_beams": 2, "length_penalty": 1.0, "batch_tokens": 64}
    reference = Translator(model, tokenizer, **options)(pairs["source"][0])
    # without training arguments, which would end the connection of the processes
    data = DataConfig(source_language="de", target_language="en")
    recipe = SimpleNamespace(evaluation=EvaluationConfig(**options), data=data)
    scores = []
    for count in (5, 1):
        some = {"source": pairs["source"][:count], "target": [reference, *pairs["target"][1:count]]}
        scorer = ValidationTranslation(recipe, tokenizer, datasets.Dataset.from_dict(some))
        scores.append(scorer(model, rank, world))
    if rank == 0:
        _write(folder / f"translate-{world}.json", {"scores": scores})


def shard(folder: Path, rank: int, world: int) -> None:
    """FSDP2: a sharded model, of which each process sees half of the pairs, has the loss and the gradients of a whole
    one.

    The output layer is sharded by itself where it is not tied, so that only its own forward gathers its matrix.
    """
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (world,))
    rows = tiny_pairs(12).to_list()
    parts = [collate(rows[part::world]) for part in range(world)]
    targets = sum(part["labels"].ne(-100).sum() for part in parts)
    for fields, skip_logits in SHARDED:
        whole, sharded = (tiny_model(**NO_DROPOUT, **fields).train() for _ in range(2))
        losses = [whole(**part, num_items_in_batch=targets).loss for part in parts]
        sum(losses).backward()
        separate_head = [sharded.lm_head] if fields else []
        for module in (*sharded.model.encoder.layers, *sharded.model.decoder.layers, *separate_head, sharded):
            fully_shard(module, mesh=mesh)
        loss = sharded(**parts[rank], num_items_in_batch=targets, skip_logits=skip_logits).loss
        torch.testing.assert_close(loss, losses[rank])
        (loss * world).backward()  # gradients are means over the processes
        parameters = list(sharded.parameters())
        assert all(isinstance(each, DTensor) and each.placements[0].is_shard(0) for each in parameters)
        held = torch.tensor(sum(parameter.to_local().numel() for parameter in parameters))
        dist.all_reduce(held)
        assert held == whole.num_parameters()
        _assert_same_gradients(sharded, whole, 1e-6)


def sample(folder: Path, rank: int, world: int) -> None:
    """A share of the regulariser: processes that each see a part of the pairs, and draw with the same seed, have
    together the gradients of one process that sees all."""
    dist.init_process_group("gloo")
    rows = tiny_pairs(12).to_list()
    parts = [collate(rows[part::world]) for part in range(world)]
    targets = sum(part["labels"].ne(-100).sum() for part in parts)
    fields = {**NO_DROPOUT, "encoder_layers": 2, "regularization_weight": 0.1, "regularization_share": 0.25}
    whole, cut = (tiny_model(**fields).train() for _ in range(2))
    taken = set()
    for update in range(4):
        set_seed(update)
        taken.add(drawn := whole.draw_modules())
        for part in parts:
            whole(**part, num_items_in_batch=targets, module_sample=drawn).loss.backward()
        set_seed(update)
        cut(**parts[rank], num_items_in_batch=targets).loss.backward()
    assert len(taken) > 1
    for parameter in cut.parameters():
        dist.all_reduce(parameter.grad)
    _assert_same_gradients(cut, whole, 1e-5)


def tensor_parallel(folder: Path, rank: int, world: int) -> None:
    """A model that is cut into heads, columns and rows has the translations, the loss and the gradients of a whole
    one."""
    from transformers.distributed import DistributedConfig  # not in Transformers 5.17

    dist.init_process_group("gloo")
    for number, fields in enumerate(TENSOR_PARALLEL):
        saved = folder / f"whole-{number}"
        model = tiny_model(**NO_DROPOUT, **fields, regularization_weight=0.0)
        model.save_pretrained(saved)  # on the first process alone
        dist.barrier()
        options = ({}, {"distributed_config": DistributedConfig(tp_size=world)})
        whole, cut = (ReLUFormerForConditionalGeneration.from_pretrained(saved, **given) for given in options)
        rows = [cut.model.decoder.layers[0].encoder_attn.q_proj, cut.get_input_embeddings()]
        for layer in (*rows, cut.model.decoder.embed_tokens, cut.lm_head):
            assert layer.weight.to_local().shape[0] * world == layer.weight.shape[0]
        batch = collate(tiny_pairs(6).to_list())
        source = {key: batch[key] for key in ("input_ids", "attention_mask")}
        beams = [model.generate(**source, num_beams=3, max_new_tokens=8) for model in (whole, cut)]
        assert torch.equal(*beams)
        losses = [model(**batch, skip_logits=model is cut).loss for model in (whole, cut)]
        torch.testing.assert_close(losses[1], losses[0])
        sum(losses).backward()
        _assert_same_gradients(cut, whole, 1e-5)
        cut.config.regularization_weight = 0.1
        with pytest.raises(ValueError, match=r"regularization_weight=0.1 needs all heads and neurons"):
            cut(**batch)


def _assert_same_gradients(model: nn.Module, whole: nn.Module, tolerance: float) -> None:
    expected = {name: parameter.grad for name, parameter in whole.named_parameters()}
    found = {name: _full(parameter.grad) for name, parameter in model.named_parameters()}
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=0)
    assert max(gradient.abs().max() for gradient in expected.values()) > 1e-3


def _full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _write(path: Path, values: dict) -> None:
    path.write_text(json.dumps(values), encoding="utf-8")


def _process(job: Callable[[Path, int, int], None], folder: Path, rank: int, world: int, port: int) -> None:
    if world > 1:
        numbers = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": world,
            "LOCAL_WORLD_SIZE": world,
            "MASTER_PORT": port,
        }
        os.environ.update({name: str(value) for name, value in numbers.items()}, MASTER_ADDR="127.0.0.1")
    torch.set_num_threads(1)
    with orderly_end(folder):
        job(folder, rank, world)


def run(job: Callable[[Path, int, int], None], folder: Path, world: int) -> None:
    """Runs a job in `world` processes and waits for them; exits if one of them failed, whose traceback is on stderr.

    Leaves a file JOB-WORLD.done in the folder."""
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        port = any_port.getsockname()[1]
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_process, args=(job, folder, rank, world, port)) for rank in range(world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        sys.exit(f"{job.__name__} in {world} processes failed")
    (folder / f"{job.__name__}-{world}.done").touch()


if __name__ == "__main__":
    target = Path(sys.argv[1])
    faulthandler.dump_traceback_later(LONGER_THAN_ANY_JOB, exit=True)
    if len(sys.argv) > 2:
        named, world = sys.argv[2:]
        sys.exit(run(globals()[named], target, int(world)))
    for job in (train, go_on, translate):
        for world in (1, 2):
            run(job, target, world)
    for job in (sample, shard, *[tensor_parallel] * HAS_TENSOR_PARALLELISM):
        run(job, target, 2)
