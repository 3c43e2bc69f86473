"""The models and batches that end_to_end.py and generation.py time: ReLUFormer, its baselines, and MarianMTModel.

All have random weights, the same layers, widths, shared embeddings and dropout, and ours label smoothing of 0.1. MarianMTModel
has none inside; it is there as it is, which is less work, and with the smoothed loss of its logits. Ours train without logits, as
`reluformer train` does. ReLUFormer with λ = 0 is
there beside the one with its regulariser.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, MarianConfig, MarianMTModel, PreTrainedModel
from transformers.modeling_outputs import Seq2SeqLMOutput

from reluformer import ReLUFormerConfig, ReLUFormerForConditionalGeneration

MARIAN, MARIAN_SMOOTHED = "MarianMTModel sdpa", "MarianMTModel sdpa with label smoothing"
LABEL_SMOOTHING = 0.1
OURS, OURS_UNREGULARIZED = "ReLUFormer", "ReLUFormer, λ = 0"
BASELINES = {"vanilla": ("vanilla", "sdpa"), "sparsemax": ("sparsemax", "eager"), "entmax15": ("entmax15", "eager")}
TABLE_4 = {**BASELINES, "rela": ("rela", "fused")}  # beside ReLUFormer itself
PAD, BOS, EOS = 0, 1, 2
# Tokens of a batch, with padding, on either side.
BATCH_TOKENS = 2048
BEAMS = 5


def _shape(layers: int, width: int, heads: int, ffn: int, vocabulary: int) -> dict[str, int]:
    return {
        "vocab_size": vocabulary,
        "d_model": width,
        "encoder_layers": layers,
        "decoder_layers": layers,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": ffn,
        "decoder_ffn_dim": ffn,
        "max_position_embeddings": 2048,
    }


SHAPES = {
    "tiny": _shape(4, 128, 4, 256, 10350),  # of configuration/recipes/multi30k_en_de_tiny.yaml
    "wide": _shape(2, 512, 8, 2048, 8000),  # widths of the Transformer base model, fewer layers
    "wide, 32,000 pieces": _shape(2, 512, 8, 2048, 32000),
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
    dropout = {"dropout": 0.1, "attention_dropout": attention_dropout, "activation_dropout": 0.0}
    tokens = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "decoder_start_token_id": BOS}
    if name in (MARIAN, MARIAN_SMOOTHED):
        config = MarianConfig(
            **shape,
            **dropout,
            **tokens,
            activation_function="relu",
            scale_embedding=True,
            forced_eos_token_id=None,
            share_encoder_decoder_embeddings=True,
            attn_implementation="sdpa",
        )
        return (MarianMTModel if name == MARIAN else SmoothedMarian)(config).train()
    preset, implementation = TABLE_4.get(name, ("reluformer", "fused"))
    weight = {"regularization_weight": 0.0} if name == OURS_UNREGULARIZED else {}
    config = ReLUFormerConfig.from_preset(
        preset, **shape, **dropout, **tokens, **weight, label_smoothing=LABEL_SMOOTHING, skip_logits=True
    )
    config._attn_implementation = implementation
    return ReLUFormerForConditionalGeneration(config).train()


def padded_batch(lengths: Lengths, vocabulary: int, tokens: int, seed: int) -> dict[str, Tensor]:
    """As many random pairs as stay within `tokens` with padding on the longer side: input_ids, attention_mask, labels."""
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


def generation_config(new_tokens: int, beams: int = BEAMS) -> GenerationConfig:
    """Every hypothesis has exactly `new_tokens` tokens, since random weights decide nothing about the end."""
    return GenerationConfig(
        num_beams=beams,
        min_new_tokens=new_tokens,
        max_new_tokens=new_tokens,
        early_stopping=False,
        do_sample=False,
        use_cache=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
    )


def batch_facts(batch: dict[str, Tensor]) -> dict[str, Any]:
    """For the result file: sizes of a batch and how much of it is padding."""
    source, target = batch["attention_mask"], batch["labels"] != -100
    return {
        "sentences": len(source),
        "source_length": source.shape[1],
        "target_length": target.shape[1],
        "source_tokens": int(source.sum()),
        "target_tokens": int(target.sum()),
    }
