"""How far converted models are from their Marian: logits, loss and all five sequences of beam 5, on checkpoints written to disk.

    python -m benchmarks.text.marian_parity                                     randomly initialised models of several shapes
    python -m benchmarks.text.marian_parity Helsinki-NLP/opus-mt-en-de          checkpoints in folders or on the Hub, too

Writes `benchmarks/results/marian_parity.json` and prints its table. Ends with status 1 where a model is out of bounds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import AutoModelForSeq2SeqLM, MarianConfig, MarianMTModel
from transformers.utils import logging

from benchmarks.markdown import table
from benchmarks.measurement_file import RESULTS
from reluformer.configuration.errors import UserError
from reluformer.training.conversion import convert
from reluformer.training.run.progress import library_bars
from reluformer.training.run.records import run_record, write_json

RESULT = RESULTS / "marian_parity.json"
LOGIT_BOUND = 1e-5
NUM_BEAMS, NEW_TOKENS, SENTENCES, LONGEST = 5, 24, 6, 12
SEEDS = (0, 1, 2)

SMALL = {"vocab_size": 300, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 128}
SMALL |= {"decoder_ffn_dim": 96, "encoder_attention_heads": 4, "decoder_attention_heads": 2}
TWO_VOCABULARIES = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 250}
OPUS_MT = {"vocab_size": 58101, "d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 2048}
OPUS_MT |= {"decoder_ffn_dim": 2048, "encoder_attention_heads": 8, "decoder_attention_heads": 8}
SHAPES: dict[str, dict[str, Any]] = {
    "one vocabulary, tied": SMALL,
    "one vocabulary, untied": {**SMALL, "tie_word_embeddings": False},
    "two vocabularies, tied": {**SMALL, **TWO_VOCABULARIES},
    "two vocabularies, untied": {**SMALL, **TWO_VOCABULARIES, "tie_word_embeddings": False},
    "swish, scaled embedding": {**SMALL, "activation_function": "swish", "scale_embedding": True},
    "relu, scaled embedding": {**SMALL, "activation_function": "relu", "scale_embedding": True},
    "size of opus-mt": {**OPUS_MT, "activation_function": "swish", "scale_embedding": True},
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="*", help="MarianMT checkpoints to measure beside the random ones")
    parser.add_argument("--output", type=Path, default=RESULT, help="default: benchmarks/results/marian_parity.json")
    parser.add_argument("--only", choices=SHAPES, action="append", help="of the random ones, these alone")
    options = parser.parse_args(arguments)
    logging.set_verbosity_error()
    wanted = options.only or list(SHAPES)
    cases = [(name, seed) for name in wanted for seed in (SEEDS if SHAPES[name]["vocab_size"] < 1000 else SEEDS[:1])]
    cases += [(checkpoint, None) for checkpoint in options.checkpoints]
    try:
        with library_bars(shown=False):
            rows = [measure(name, seed) for name, seed in tqdm(cases, desc="converting", unit="model")]
    except UserError as error:
        print(f"marian_parity: error: {error}", file=sys.stderr)
        return 2
    bounds = {"logits": LOGIT_BOUND, "beam output": "identical"}
    settings = {"num_beams": NUM_BEAMS, "max_new_tokens": NEW_TOKENS, "sentences": SENTENCES}
    write_json(options.output, {**run_record(None, None, None), "bounds": bounds, "decoding": settings, "models": rows})
    print(render(rows))
    return 0 if all(row["largest_logit_difference"] <= LOGIT_BOUND and row["beams_identical"] for row in rows) else 1


def measure(name: str, seed: int | None) -> dict[str, Any]:
    """One checkpoint: random if there is a seed, else that of this name."""
    with tempfile.TemporaryDirectory() as folder:
        source = name
        if seed is not None:
            source = str(Path(folder) / "marian")
            random_marian(SHAPES[name], seed).save_pretrained(source)
        convert(source, Path(folder) / "reluformer")
        marian = MarianMTModel.from_pretrained(source).eval()
        model = AutoModelForSeq2SeqLM.from_pretrained(Path(folder) / "reluformer").eval()
    inputs, targets = random_batch(marian.config, seed or 0)
    with torch.inference_mode():
        ours, theirs = (m(**inputs, labels=targets) for m in (model, marian))
        decoding = {"num_beams": NUM_BEAMS, "num_return_sequences": NUM_BEAMS, "max_new_tokens": NEW_TOKENS}
        beams = [m.generate(**inputs, **decoding) for m in (model, marian)]
    return {
        "model": name,
        "seed": seed,
        "parameters": model.num_parameters(),
        "largest_logit": theirs.logits.abs().max().item(),
        "largest_logit_difference": (ours.logits - theirs.logits).abs().max().item(),
        "loss_difference": abs(ours.loss - theirs.loss).item(),
        "beams_identical": torch.equal(*beams),
        "different_sequences_in_beams": len(beams[1].unique(dim=0)),
    }


def random_marian(fields: dict[str, Any], seed: int) -> MarianMTModel:
    """A model whose padding token is the last one and starts the decoder, as those of Helsinki-NLP."""
    pad = min(fields["vocab_size"], fields.get("decoder_vocab_size", fields["vocab_size"])) - 1
    torch.manual_seed(seed)
    model = MarianMTModel(
        MarianConfig(pad_token_id=pad, decoder_start_token_id=pad, max_position_embeddings=512, **fields)
    )
    # initial biases are zero, norms one and weights small: a term that is forgotten would not be seen
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(2 * parameter.shape[-1] ** -0.5 * torch.randn_like(parameter))
        model.final_logits_bias.normal_()
    model.generation_config.bad_words_ids = [[pad]]
    return model


def random_batch(config: MarianConfig, seed: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Sources of 1 to `LONGEST` random tokens with padding on the right, and targets."""
    generator = torch.Generator().manual_seed(seed)
    tokens = min(config.vocab_size, config.decoder_vocab_size) - 1
    input_ids, targets = (torch.randint(1, tokens, (SENTENCES, LONGEST), generator=generator) for _ in range(2))
    lengths = torch.linspace(1, LONGEST, SENTENCES).long().unsqueeze(1)
    mask = (torch.arange(LONGEST) < lengths).long()
    return {"input_ids": torch.where(mask == 1, input_ids, config.pad_token_id), "attention_mask": mask}, targets


def render(rows: list[dict[str, Any]]) -> str:
    header = (
        "Marian",
        "seed",
        "parameters",
        "largest logit",
        "logits differ by at most",
        "loss differs by",
        "all 5 beams",
    )
    return "\n".join(table(header, map(_cells, rows)))


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["model"],
        "–" if row["seed"] is None else str(row["seed"]),
        f"{row['parameters']:,}",
        f"{row['largest_logit']:.1f}",
        f"{row['largest_logit_difference']:.1e}",
        f"{row['loss_difference']:.1e}",
        "identical" if row["beams_identical"] else "DIFFERENT",
    )


if __name__ == "__main__":
    sys.exit(main())
