"""Whole translation models: ReLUFormer beside MarianMTModel (sdpa) and softmax attention, of the same shape.

All have random weights, the same layers, widths, shared embeddings and dropout, and ours label smoothing of 0.1.
MarianMTModel has none inside; it is there as it is, which is less work, and with the smoothed loss of its logits. Ours
train without logits, as `reluformer train` does, with their regulariser and with λ = 0.

Training is forward, backward and AdamW; bfloat16 is autocast. Dropout is 0.1, on the attention weights 0.1 or 0, since
torch's SDPA takes its slow path on a CPU where weights are dropped. Generation has five beams, every hypothesis of the
same length.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, MarianConfig, MarianMTModel, PreTrainedModel
from transformers.modeling_outputs import Seq2SeqLMOutput

from benchmarks.measurement_file import Benchmark, Names, effort
from benchmarks.timing import time_contenders
from reluformer import ReLUFormerConfig, ReLUFormerForConditionalGeneration

MARIAN, MARIAN_SMOOTHED = "MarianMTModel sdpa", "MarianMTModel sdpa with label smoothing"
LABEL_SMOOTHING = 0.1
OURS, OURS_UNREGULARIZED, VANILLA = "ReLUFormer", "ReLUFormer, λ = 0", "vanilla"
# The systems of the paper's Table 4 beside ReLUFormer: preset, and how attention is computed.
TABLE_4 = {VANILLA: ("vanilla", "sdpa"), "sparsemax": ("sparsemax", "eager"), "entmax15": ("entmax15", "eager")}
TABLE_4 |= {"rela": ("rela", "fused")}
PAD, BOS, EOS = 0, 1, 2
BATCH_TOKENS, BEAMS = 2048, 5  # tokens with padding, on either side
SECONDS, ROUNDS = 8.0, 15
LARGE = "wide, 32,000 pieces"  # where the loss is most of a step


def _shape(layers: int, width: int, heads: int, ffn: int, vocabulary: int) -> dict[str, int]:
    sizes = {"layers": layers, "attention_heads": heads, "ffn_dim": ffn}
    both = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sizes.items()}
    return {"vocab_size": vocabulary, "d_model": width, **both, "max_position_embeddings": 2048}


SHAPES = {
    "tiny": _shape(4, 128, 4, 256, 10350),  # of configuration/recipes/multi30k_en_de_tiny.yaml
    "wide": _shape(2, 512, 8, 2048, 8000),  # widths of the Transformer base model, fewer layers
    LARGE: _shape(2, 512, 8, 2048, 32000),
    # the paper's, of benchmarks/gpu
    "iwslt14": _shape(6, 512, 4, 1024, 10000),
    "wmt14 base": _shape(6, 512, 8, 2048, 32000),
    "quick": _shape(1, 32, 2, 32, 60),
}


@dataclass(frozen=True)
class Lengths:
    """Lengths of sources and targets, drawn apart from a normal distribution, rounded, within [shortest, longest].

    longest_first: the first pair of a batch has the longest length, so that the batch is that long.
    """

    mean: float
    deviation: float
    shortest: int
    longest: int
    longest_first: bool = False

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        lengths = torch.normal(self.mean, self.deviation, (count,), generator=generator).round()
        lengths = lengths.clamp(self.shortest, self.longest).long()
        if self.longest_first:
            lengths[0] = self.longest
        return lengths


INPUTS = {
    # sentences of about 15 pieces with the end mark
    "multi30k-like": Lengths(15.0, 4.5, 5, 40),
    "1,024 tokens": Lengths(900.0, 60.0, 700, 1024, longest_first=True),
    "quick": Lengths(5.0, 1.0, 3, 8),
}
# sources of a generation batch, new tokens of each hypothesis
GENERATION = {"multi30k-like": (16, 15), "1,024 tokens": (2, 32), "quick": (2, 3)}


class SmoothedMarian(MarianMTModel):
    """MarianMTModel whose loss is the label-smoothed cross-entropy of its logits; its own loss is not computed."""

    def forward(self, labels: Tensor | None = None, **inputs: Any) -> Seq2SeqLMOutput:
        if labels is None:
            return super().forward(**inputs)
        output = super().forward(decoder_input_ids=self.prepare_decoder_input_ids_from_labels(labels), **inputs)
        output.loss = nn.functional.cross_entropy(
            output.logits.flatten(0, 1), labels.flatten(), label_smoothing=LABEL_SMOOTHING
        )
        return output


def build(name: str, shape: dict[str, int], attention_dropout: float, seed: int) -> PreTrainedModel:
    """A model of this name, in training mode, with dropout 0.1 on activations and `attention_dropout` on weights."""
    torch.manual_seed(seed)
    fields = {**shape, "dropout": 0.1, "attention_dropout": attention_dropout, "activation_dropout": 0.0}
    fields |= {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "decoder_start_token_id": BOS}
    if name in (MARIAN, MARIAN_SMOOTHED):
        fields |= {"activation_function": "relu", "scale_embedding": True, "forced_eos_token_id": None}
        config = MarianConfig(**fields, share_encoder_decoder_embeddings=True, attn_implementation="sdpa")
        return (MarianMTModel if name == MARIAN else SmoothedMarian)(config).train()
    preset, implementation = TABLE_4.get(name, ("reluformer", "fused"))
    if name == OURS_UNREGULARIZED:
        fields["regularization_weight"] = 0.0
    config = ReLUFormerConfig.from_preset(preset, **fields, label_smoothing=LABEL_SMOOTHING, skip_logits=True)
    config._attn_implementation = implementation
    return ReLUFormerForConditionalGeneration(config).train()


def padded_batch(lengths: Lengths, vocabulary: int, tokens: int, seed: int) -> dict[str, Tensor]:
    """As many random pairs as stay within `tokens` with padding on the longer side: input_ids, attention_mask,
    labels."""
    generator = torch.Generator().manual_seed(seed)
    source, target = lengths.draw(tokens, generator), lengths.draw(tokens, generator)
    padded = torch.maximum(source, target).cummax(0).values * torch.arange(1, tokens + 1)
    count = max(1, int((padded <= tokens).sum()))
    sides = []
    for drawn in (source[:count], target[:count]):
        real = torch.arange(int(drawn.max())) < drawn.unsqueeze(1)
        ids = torch.randint(4, vocabulary, real.shape, generator=generator)
        ids.scatter_(1, drawn.unsqueeze(1) - 1, EOS)
        sides.append((ids, real))
    (inputs, source_real), (labels, target_real) = sides
    return {
        "input_ids": inputs.masked_fill(~source_real, PAD),
        "attention_mask": source_real.long(),
        "labels": labels.masked_fill(~target_real, -100),
    }


def batch_facts(batch: dict[str, Tensor]) -> dict[str, int]:
    """For the result file: sizes of a batch and how much of it is padding."""
    source, target = batch["attention_mask"], batch["labels"] != -100
    sizes = {"sentences": len(source), "source_length": source.shape[1], "target_length": target.shape[1]}
    return {**sizes, "source_tokens": int(source.sum()), "target_tokens": int(target.sum())}


def parameters_of(models: Mapping[str, PreTrainedModel]) -> dict[str, int]:
    """Parameters that are trained, without Marian's table of positions, which is a buffer here."""
    return {name: model.num_parameters(only_trainable=True) for name, model in models.items()}


def training_step(model: PreTrainedModel, batch: dict[str, Tensor], dtype: str) -> Callable[[], None]:
    """Forward, backward, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        with torch.autocast(model.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def inference_step(model: PreTrainedModel, inputs: Mapping[str, Any], dtype: str) -> Callable[[], Tensor]:
    """The logits of the inputs, without gradients and dropout."""
    model.eval()

    @torch.no_grad()
    def step() -> Tensor:
        with torch.autocast(model.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
            return model(**inputs).logits

    return step


def generation_step(
    model: PreTrainedModel, batch: Mapping[str, Any], new_tokens: int, dtype: str, beams: int = BEAMS
) -> Callable[[], Tensor]:
    """Beam search over the batch, or with one beam greedy search: the sequences, those of a decoder alone with their
    prompts.

    Every hypothesis has exactly `new_tokens` tokens, since random weights decide nothing about the end.
    """
    length = {"min_new_tokens": new_tokens, "max_new_tokens": new_tokens, "early_stopping": False}
    tokens = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "decoder_start_token_id": BOS}
    config = GenerationConfig(num_beams=beams, do_sample=False, use_cache=True, **length, **tokens)
    model.eval()

    def step() -> Tensor:
        with torch.autocast(model.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
            return model.generate(**batch, generation_config=config)

    return step


def cells(quick: bool) -> Iterator[Names]:
    """Training with both dropouts and generation, by shape, inputs and dtype; and training with a large vocabulary."""

    def cell(*values: Any) -> Names:
        return dict(zip(("task", "shape", "inputs", "dtype", "attention_dropout"), values, strict=True))

    if quick:
        yield cell("training", "quick", "quick", "bfloat16", 0.1)
        yield cell("generation", "quick", "quick", "float32", 0.0)
        return
    for kind in itertools.product(("tiny", "wide"), ("multi30k-like", "1,024 tokens"), ("float32", "bfloat16")):
        yield cell("training", *kind, 0.1)
        yield cell("training", *kind, 0.0)
        yield cell("generation", *kind, 0.0)
    for dtype in ("float32", "bfloat16"):
        yield cell("training", LARGE, "multi30k-like", dtype, 0.1)


def contenders_of(cell: Names) -> tuple[str, ...]:
    if cell["task"] == "generation":
        return (OURS, MARIAN, VANILLA)
    with_vanilla = cell["attention_dropout"] > 0 and cell["shape"] != LARGE
    return (OURS, OURS_UNREGULARIZED, MARIAN, MARIAN_SMOOTHED, *([VANILLA] if with_vanilla else []))


def measure(cell: Names, options: argparse.Namespace) -> Names:
    """Target tokens or sentences a second, and how ReLUFormer's speed compares with each of the others."""
    batch = _batch(cell, options)
    facts = batch_facts(batch)
    shape = SHAPES[cell["shape"]]
    models = {name: build(name, shape, cell["attention_dropout"], options.seed) for name in contenders_of(cell)}
    if cell["task"] == "training":
        steps = {name: training_step(model, batch, cell["dtype"]) for name, model in models.items()}
        unit, amount = "target tokens a second", facts["target_tokens"]
    else:
        facts, steps = _generating(cell, batch, models)
        unit, amount = "sentences a second", facts["sentences"]
    timing = time_contenders(steps, **effort(options, budget=SECONDS))
    compared = {ours: [name for name in models if name != ours] for ours in (OURS, OURS_UNREGULARIZED)}
    return {"batch": facts, "parameters": parameters_of(models), **timing.record(compared, amount, unit)}


def _batch(cell: Names, options: argparse.Namespace) -> dict[str, Tensor]:
    tokens = 64 if options.quick else BATCH_TOKENS
    return padded_batch(INPUTS[cell["inputs"]], SHAPES[cell["shape"]]["vocab_size"], tokens, options.seed)


def _generating(
    cell: Names, batch: dict[str, Tensor], models: Mapping[str, PreTrainedModel]
) -> tuple[dict[str, int], dict[str, Callable[[], Tensor]]]:
    """Beam search over the first sentences of the batch: what they are, and the steps."""
    sentences, new_tokens = GENERATION[cell["inputs"]]
    batch = {name: part[:sentences] for name, part in batch.items()}
    facts = {**batch_facts(batch), "new_tokens": new_tokens}
    del batch["labels"]
    dtype = cell.get("dtype", "float32")
    return facts, {name: generation_step(model, batch, new_tokens, dtype) for name, model in models.items()}


def generation_cells(quick: bool) -> Iterator[Names]:
    """Short sentences in both shapes."""
    for shape in ("quick",) if quick else ("tiny", "wide"):
        yield {"shape": shape, "inputs": "quick" if quick else "multi30k-like"}


def measure_generation(cell: Names, options: argparse.Namespace) -> Names:
    """All systems of the paper's Table 4 against the softmax model; docs/reproduction.md takes the speeds from this
    file."""
    models = {name: build(name, SHAPES[cell["shape"]], 0.0, options.seed) for name in (OURS, *TABLE_4)}
    facts, steps = _generating(cell, _batch(cell, options), models)
    # each takes part in every round, since a ratio is of one round, and a machine that others use needs many of them
    timing = time_contenders(steps, **effort(options, rounds=ROUNDS))
    return {"batch": facts, **timing.record(dict.fromkeys(models, (VANILLA,)))}


SETTINGS = {"budget": SECONDS, "batch_tokens": BATCH_TOKENS, "label_smoothing": LABEL_SMOOTHING}
SETTINGS |= {"shapes": SHAPES, "inputs": {name: asdict(lengths) for name, lengths in INPUTS.items()}}
SETTINGS |= {"optimizer": "AdamW, fused", "beams": BEAMS}
BENCHMARK = Benchmark("end-to-end", cells, measure, SETTINGS)
TABLE_4_SETTINGS = {"rounds": ROUNDS, "dtype": "float32", "beams": BEAMS}
TABLE_4_BENCHMARK = Benchmark("generation", generation_cells, measure_generation, TABLE_4_SETTINGS)
