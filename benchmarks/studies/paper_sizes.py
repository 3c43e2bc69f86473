"""The papers' own sizes, tried without a GPU: each model at its real width, two updates, and what one and eight GPUs would take.

    python -m benchmarks.studies.paper_sizes             a few minutes on two cores
    python -m benchmarks.studies.paper_sizes --quick     the smallest row alone

A row is the recipe that `python -m benchmarks.studies --size paper --only ROW` trains. Here its batches are made up and hold few
items; attention is fused, under autocast. Memory: weights, gradients and moments of AdamW in float32, and what autograd keeps
for the backward pass, which grows with the items. Hours: the products of all updates, counted in one step of eager attention, at
`UTILISATION` of the peak of an H100, but no less than `LAUNCH` for each of the step's operations, since small models wait for
their launches. Neither was ever measured on a GPU.
Writes `benchmarks/results/paper-sizes-cpu.json`.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from benchmarks.markdown import table
from benchmarks.measurement_file import begin, benchmark_parser
from benchmarks.studies import pictures, texts
from benchmarks.studies.parser import Row, load_rows, recipe_of
from reluformer import ReLUFormerForCausalLM, ReLUFormerForConditionalGeneration, ReLUFormerForImageClassification
from reluformer.configuration.recipe_parser import load_recipe
from reluformer.training.run.model_building import build_config
from reluformer.training.run.records import write_json

FILE = "paper-sizes-cpu.json"
SENTENCE = 32  # tokens of a made-up sentence
TRIED_TOKENS = 1024  # of the made-up batch, at least one item
PEAK = 989e12  # bfloat16 multiplications and additions a second of an H100 SXM, without sparsity
UTILISATION = 0.3  # an assumption
LAUNCH = 5e-6  # seconds of an operation at least, an assumption
STATE_BYTES = 16  # of a parameter
GPUS = (1, 8)
IMAGENET_PICTURES, IMAGENET_CLASSES = 1_281_167, 1000
CODE_PIECES = 50_000  # of the tokenizer that the recipe of CodeParrot names


@dataclass(frozen=True)
class Size:
    """A row of the size `paper`. what: in words. length: tokens of an item on each side; None: as the model has them."""

    row: str
    what: str
    length: int | None


SIZES = (
    Size("reluformer", "IWSLT14 De-En, sentences", SENTENCE),
    Size("documents_relu_2048", "Europarl7 En-De, documents of 2,048 tokens", 2048),
    Size("vit_relu_alpha_1.0_L49", "ImageNet-1k, S/32", None),
    Size("vit_relu_alpha_1.0_L196", "ImageNet-1k, S/16", None),
    Size("vit_relu_alpha_1.0_L784", "ImageNet-1k, S/8", None),
    Size("lm_free_relu", "CodeParrot, GPT-2 without norms", 128),
)


def main(arguments: list[str] | None = None) -> int:
    options = benchmark_parser(__doc__, FILE).parse_args(arguments)
    record = begin(options)
    start = time.perf_counter()
    rows = load_rows("paper").rows
    sizes = SIZES[:1] if options.quick else SIZES
    tried = [try_size(size, rows[size.row], options.seed) for size in tqdm(sizes, unit="row")]
    settings = {"peak": PEAK, "utilisation": UTILISATION, "launch": LAUNCH, "tokens": TRIED_TOKENS}
    result = {**record, "settings": settings, "seconds": time.perf_counter() - start, "rows": tried}
    print(write_json(options.output, result))
    return 0


def try_size(size: Size, row: Row, seed: int) -> dict[str, Any]:
    """Two updates of a row's model on a made-up batch, what they lost, and the estimates."""
    recipe = recipe_of(row, seed, Path("run"))
    recipe["training"] |= {"use_cpu": True, "bf16": False}  # this machine's; autocast is ours
    model = model_of(recipe)
    length = size.length or math.prod(model.config.patch_grid)
    items = max(1, TRIED_TOKENS // length)
    batch = made_up(model, items, length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe["training"]["learning_rate"], fused=True)
    kept = kept_bytes(model, batch)
    losses = [update(model, optimizer, batch) for _ in range(2)]
    model.set_attn_implementation("eager" if model.config.attention_activation != "softmax" else "sdpa")
    with FlopCounterMode(display=False) as counter, Operations() as operations:
        model(**batch).loss.backward()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    an_update, updates, on_a_device = amounts(recipe, length)
    states, flops = STATE_BYTES * parameters, counter.get_total_flops() / items * an_update
    seconds = {
        gpus: max(
            flops / (PEAK * UTILISATION * gpus), LAUNCH * operations.count * -(-an_update // (on_a_device * gpus))
        )
        for gpus in GPUS
    }
    return {
        "row": size.row,
        "what": size.what,
        "parameters": parameters,
        "losses": losses,
        "items": {"tried": items, "update": an_update, "updates": updates, "device": on_a_device},
        "memory": {str(gpus): states + kept / items * min(on_a_device, -(-an_update // gpus)) for gpus in GPUS},
        "flops": flops * updates,
        "operations": operations.count,
        "hours": {str(gpus): seconds[gpus] * updates / 3600 for gpus in GPUS},
    }


class Operations(TorchDispatchMode):
    """Counts what a GPU would have to launch."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not function.is_view
        return function(*args, **(kwargs or {}))


def model_of(recipe: Mapping[str, Any]) -> PreTrainedModel:
    """New weights in the shape of the recipe, in training."""
    task = recipe.get("task")
    if task == "image_classification":
        data = {"class_names": [str(number) for number in range(IMAGENET_CLASSES)]}
        return ReLUFormerForImageClassification(pictures.build_config({**recipe, "data": data})).train()
    if task == "language_modeling":
        pieces = {"tokenizer": {"vocab_size": CODE_PIECES}}
        return ReLUFormerForCausalLM(texts.build_config({**recipe, **pieces})).train()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"
        path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
        return ReLUFormerForConditionalGeneration(build_config(load_recipe(path))).train()


def made_up(model: PreTrainedModel, items: int, length: int) -> dict[str, Tensor]:
    config = model.config
    if isinstance(model, ReLUFormerForImageClassification):
        pictures = torch.randn(items, config.num_channels, config.image_size, config.image_size)
        return {"pixel_values": pictures, "labels": torch.rand(items, config.num_labels).round()}
    ids = torch.randint(4, config.vocab_size, (items, length))
    return {"input_ids": ids, "labels": ids}


def kept_bytes(model: PreTrainedModel, batch: Mapping[str, Tensor]) -> int:
    """What autograd holds of one forward pass beside the weights."""
    weights = {parameter.data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if tensor.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16):
        loss = model(**batch).loss
    del loss
    return sum(kept.values())


def update(model: PreTrainedModel, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]) -> float:
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if not torch.isfinite(loss):
        raise ValueError(f"the loss of a made-up batch is {float(loss)}; the row cannot be trained as it stands")
    return float(loss.detach())


def amounts(recipe: Mapping[str, Any], length: int) -> tuple[int, int, int]:
    """Items of an update, updates, and the most items that the recipe gives one device at a time."""
    training, task = recipe["training"], recipe.get("task")
    if task is None:
        an_update = recipe["batching"]["tokens_per_batch"] // length
        return an_update, training["max_steps"], an_update
    on_a_device = training["per_device_train_batch_size"]
    an_update = on_a_device * training.get("gradient_accumulation_steps", 1)
    if task == "language_modeling":
        return an_update, training["max_steps"], on_a_device
    an_update *= 8  # for eight GPUs
    return an_update, round(training["num_train_epochs"] * IMAGENET_PICTURES / an_update), on_a_device


def paper_sizes_table(result: Mapping[str, Any]) -> str:
    """The table of docs/reproducing.md."""
    rows = []
    for row in result["rows"]:
        memory = " / ".join(f"{each / 2**30:.1f}" for each in row["memory"].values())
        hours = " / ".join(f"{each:.1f}" for each in row["hours"].values())
        losses = " → ".join(f"{loss:.3f}" for loss in row["losses"])
        command = f"`python -m benchmarks.studies --size paper --only {row['row']}`"
        rows.append(
            [
                row["what"],
                command,
                f"{row['parameters'] / 1e6:.1f} M",
                f"{row['items']['updates']:,}",
                losses,
                memory,
                hours,
                "never run",
            ]
        )
    header = [
        "what",
        "command",
        "parameters",
        "updates",
        "loss of two updates",
        "GiB a GPU, 1 / 8",
        "hours, 1 / 8",
        "on a GPU",
    ]
    return "\n".join(table(header, rows)) + "\n"


if __name__ == "__main__":
    sys.exit(main())
