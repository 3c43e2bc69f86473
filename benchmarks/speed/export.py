"""An exported model beside PyTorch: which translations differ, what int8 costs, and sentences a second, MarianMTModel's too.

    python -m benchmarks.speed.export --model runs/multi30k_en_de_tiny             some minutes
    python -m benchmarks.speed.export --model runs/multi30k_en_de_tiny --quick     seconds; its figures mean nothing

Translations: every source of the test split, greedy and with five beams, by PyTorch, by onnxruntime in float32 and in int8. Each
greedy translation in float32 that differs is listed with the two scores at the first token that does; a tie is a difference that
rounding explains. BLEU is the headline of the Multi30k recipes (Moses tokens in lower case) where the tokenizer has a Moses step.

Speed: MarianMTModel has the shape of the model, random weights and no trained end, so every hypothesis of all contenders has
the same length. Both are exported by the same functions. Alternating rounds (see timing.py); torch and onnxruntime take turns and
have the same number of threads.
Writes `benchmarks/results/export-cpu.json`, from which `python -m benchmarks.speed.export_tables` makes the page.
"""

from __future__ import annotations

import copy
import gzip
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from onnxruntime import SessionOptions
from onnxruntime import __version__ as onnxruntime_version
from tqdm.auto import tqdm
from transformers import MarianConfig, MarianMTModel, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from benchmarks.measurement_file import ROOT, begin, benchmark_parser
from benchmarks.speed.timing import time_contenders
from benchmarks.speed.translation_models import generation_config
from reluformer.export.checking import difference
from reluformer.export.exporting import prepared, quantize, write_checked
from reluformer.export.names import GRAPHS
from reluformer.export.running import OnnxTranslationModel
from reluformer.training.data.moses import MosesStep
from reluformer.training.loading import load_model_and_tokenizer
from reluformer.training.run.records import write_json
from reluformer.training.scoring.long_sources import SourceEncoder
from reluformer.training.scoring.metrics import score_translations
from reluformer.training.translation import Translator

OURS, OURS_ONNX, OURS_INT8 = "ReLUFormer, PyTorch", "ReLUFormer, onnxruntime", "ReLUFormer, onnxruntime int8"
MARIAN, MARIAN_ONNX, MARIAN_INT8 = (
    name.replace("ReLUFormer", "MarianMTModel") for name in (OURS, OURS_ONNX, OURS_INT8)
)
BEAMS = (1, 5)
# sentences of a batch, new tokens of each hypothesis
BATCHES, NEW_TOKENS = (1, 32), 15
ROUNDS = 9


def main(arguments: list[str] | None = None) -> int:
    parser = benchmark_parser(__doc__, "export-cpu.json")
    data = ROOT / "data" / "multi30k"
    parser.add_argument("--model", required=True, help="folder of a ReLUFormer")
    parser.add_argument(
        "--source", type=Path, default=data / "test2016.en.gz", help="default: data/multi30k/test2016.en.gz"
    )
    parser.add_argument("--reference", type=Path, default=data / "test2016.de.gz", help="the same lines in German")
    parser.add_argument("--sentences", type=int, help="only so many of the first lines; --quick: 6")
    options = parser.parse_args(arguments)
    logging.set_verbosity_error()
    record = begin(options)
    record["versions"]["onnxruntime"] = onnxruntime_version
    count = options.sentences or (6 if options.quick else None)
    sources, references = (read(path)[:count] for path in (options.source, options.reference))
    model, tokenizer = load_model_and_tokenizer(options.model)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        models, exports = contenders(model, Path(folder))
        translations = compare(
            {name: models[name] for name in (OURS, OURS_ONNX, OURS_INT8)}, tokenizer, sources, references
        )
        cells = speeds(models, tokenizer, sources, options.quick)
    settings = {"new_tokens": NEW_TOKENS, "threads": torch.get_num_threads(), "sentences": len(sources)}
    settings |= {"parameters": model.num_parameters(), "source": options.source.name}
    result = {**record, "settings": settings, "seconds": time.perf_counter() - start, "exports": exports}
    print(write_json(options.output, {**result, "translations": translations, "cells": cells}))
    return 0


def read(path: Path) -> list[str]:
    """The lines of a file, which may be compressed by gzip."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as stream:
        return stream.read().splitlines()


def contenders(model: PreTrainedModel, folder: Path) -> tuple[dict[str, PreTrainedModel], dict[str, Any]]:
    """All models in evaluation mode, and of each export its bytes and its difference from PyTorch."""
    torch.manual_seed(0)
    marian = MarianMTModel(marian_config(model)).eval()
    models: dict[str, PreTrainedModel] = {OURS: model.eval(), MARIAN: marian}
    exports = {}
    for original, exact, int8 in ((model, OURS_ONNX, OURS_INT8), (marian, MARIAN_ONNX, MARIAN_INT8)):
        plain = prepared(copy.deepcopy(original))
        (folder / exact).mkdir()
        found = {exact: write_checked(plain, folder / exact)}
        shutil.copytree(folder / exact, folder / int8)
        quantize(folder / int8)
        found[int8] = difference(plain, OnnxTranslationModel.from_pretrained(folder / int8))
        for key, each in found.items():
            sizes = {name: (folder / key / name).stat().st_size for name in GRAPHS}
            exports[key] = {"bytes": sizes, "difference": each._asdict()}
    sessions = SessionOptions()
    sessions.intra_op_num_threads = torch.get_num_threads()
    for key in (OURS_ONNX, OURS_INT8, MARIAN_ONNX, MARIAN_INT8):
        models[key] = OnnxTranslationModel.from_pretrained(folder / key, session_options=sessions)
    return models, exports


def marian_config(model: PreTrainedModel) -> MarianConfig:
    """A Marian of the model's shape."""
    ours = model.config
    sides = ("layers", "attention_heads", "ffn_dim")
    names = [f"{part}_{side}" for part in ("encoder", "decoder") for side in sides]
    names += [
        "vocab_size",
        "d_model",
        "max_position_embeddings",
        "pad_token_id",
        "eos_token_id",
        "decoder_start_token_id",
    ]
    fields = {name: getattr(ours, name) for name in names}
    return MarianConfig(
        **fields, activation_function="relu", scale_embedding=True, forced_eos_token_id=None, attn_implementation="sdpa"
    )


def compare(
    models: dict[str, PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    references: Sequence[str],
) -> list[dict[str, Any]]:
    """For each width of the beam: BLEU of each model, how many translations are PyTorch's, and every greedy one that is not."""
    found = []
    for beams in BEAMS:
        texts = {
            name: Translator(model, tokenizer, num_beams=beams)(sources)
            for name, model in tqdm(models.items(), f"{beams} beams")
        }
        row: dict[str, Any] = {"beams": beams, "scores": {}, "equal": {}}
        for name, translations in texts.items():
            moses = tokenizer.init_kwargs.get("moses") or {}
            scores = score_translations(translations, references, language=moses.get("target_language"))
            row["scores"][name] = {key: value for key, value in scores.items() if "bleu" in key}
            row["equal"][name] = sum(map(str.__eq__, translations, texts[OURS]))
        if beams == 1:
            row["different"] = [
                first_difference(models, tokenizer, number, sources[number])
                for number, (mine, theirs) in enumerate(zip(texts[OURS], texts[OURS_ONNX], strict=True))
                if mine != theirs
            ]
        found.append(row)
    return found


@torch.no_grad()
def first_difference(
    models: dict[str, PreTrainedModel], tokenizer: PreTrainedTokenizerBase, number: int, source: str
) -> dict[str, Any]:
    """The first token that differs, and for both candidates the logit that each runtime gives them behind the same tokens."""
    ids = {name: Translator(models[name], tokenizer, num_beams=1).target_ids(source) for name in (OURS, OURS_ONNX)}
    same = next((at for at, pair in enumerate(zip(*ids.values(), strict=False)) if len(set(pair)) == 2), None)
    if same is None:
        return {"sentence": number + 1, "alone": "the same: the two differ only beside other sentences of the batch"}
    candidates = [tokens[same] for tokens in ids.values()]
    start = models[OURS].generation_config.decoder_start_token_id
    behind = torch.tensor([[start, *ids[OURS][:same]]])
    given = {"input_ids": torch.tensor(encode(models[OURS], tokenizer, [source])), "decoder_input_ids": behind}
    return {
        "sentence": number + 1,
        "token": same + 1,
        "candidates": tokenizer.convert_ids_to_tokens(candidates),
        "logits": {name: models[name](**given).logits[0, -1, candidates].tolist() for name in ids},
    }


def speeds(
    models: dict[str, PreTrainedModel], tokenizer: PreTrainedTokenizerBase, sources: Sequence[str], quick: bool
) -> list[dict[str, Any]]:
    """Sentences a second of each contender, and how they compare with PyTorch's and with Marian's of the same kind."""
    encoded = encode(models[OURS], tokenizer, sources[: max(BATCHES)])
    cells = []
    for beams in BEAMS:
        for size in (1, 2) if quick else BATCHES:
            batch = tokenizer.pad({"input_ids": encoded[:size]}, return_tensors="pt")
            batch = {name: batch[name] for name in ("input_ids", "attention_mask")}
            steps = {name: step(model, batch, beams) for name, model in models.items()}
            effort = {"rounds": 3, "round_seconds": 1e-3} if quick else {"rounds": ROUNDS, "round_seconds": 0.2}
            timing = time_contenders(steps, **effort)
            times = {name: timing.summary(name) for name in steps}
            pairs = (
                (OURS_ONNX, OURS),
                (OURS_INT8, OURS),
                (OURS_ONNX, MARIAN_ONNX),
                (OURS_INT8, MARIAN_INT8),
                (OURS, MARIAN),
            )
            cells.append(
                {
                    "beams": beams,
                    "sentences": size,
                    "source_length": batch["input_ids"].shape[1],
                    "times": times,
                    "sentences_a_second": {name: 1e3 * size / found["median_ms"] for name, found in times.items()},
                    "speedups": [{"of": of, "over": over, **timing.speedup(of, over)} for of, over in pairs],
                }
            )
    return cells


def encode(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Token ids as the translator makes them."""
    positions = model.config.max_position_embeddings
    encoder = SourceEncoder(tokenizer, positions, "error", MosesStep.from_tokenizer(tokenizer))
    return [pieces[0] for pieces in encoder.encode(texts)[0]]


def step(model: PreTrainedModel, batch: dict[str, torch.Tensor], beams: int) -> Callable[[], Any]:
    """A call of `generate` in which every hypothesis gets as many tokens."""
    config = generation_config(NEW_TOKENS)
    config.num_beams = beams
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        setattr(config, name, getattr(model.config, name))

    def generate() -> None:
        with torch.inference_mode():
            sequences = model.generate(**batch, generation_config=config)
        if sequences.shape[1] != 1 + NEW_TOKENS:
            raise RuntimeError(f"{type(model).__name__} generated {sequences.shape[1] - 1} tokens, not {NEW_TOKENS}.")

    return generate


if __name__ == "__main__":
    sys.exit(main())
