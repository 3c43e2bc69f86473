"""Translating on a CPU: ours in each type, MarianMTModel's `generate`, and CTranslate2 with a converted MarianMTModel.

All have random weights, the same layers and widths, and translate token ids to as many new tokens in every hypothesis.
CTranslate2 is given the same thread count as torch; its converter takes one piece, the padding, from the vocabulary.

`translating-avx2` takes some of these cells with AVX2 alone, which is all that many processors have. `make bench-avx2`
sets the variables that hold torch, oneDNN, MKL and CTranslate2 to it; our own loops are told here. Its result has a
file of its own.

What the types cost in quality is measured with the models that come with the package, on the test split of
data/multi30k.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import sacrebleu
import torch
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from benchmarks.avx2 import AVX2_SETTINGS, held_to_avx2
from benchmarks.measurement_file import Benchmark, Names, effort
from benchmarks.timing import time_contenders
from benchmarks.translation import BEAMS, BOS, EOS, INPUTS, MARIAN, OURS, SHAPES, build, generation_step, padded_batch
from reluformer.translating.fast_translation import COMPUTE, FastTranslationModel, Search
from reluformer.translating.translation import Translator

OURS_BY_TYPE = {compute: f"{OURS} {compute}" for compute in COMPUTE}
CTRANSLATE2 = {compute: f"CTranslate2 {compute}" for compute in ("float32", "int8")}
SECONDS = 6.0
# new tokens of each hypothesis
NEW_TOKENS = {"multi30k-like": 15, "1,024 tokens": 32, "quick": 3}
FACTS = ("shape", "inputs", "beams", "sentences", "threads")


def cells(quick: bool) -> Iterator[Names]:
    """Sentences, greedily and by beams, alone and in batches; and two documents."""
    if quick:
        yield dict(zip(FACTS, ("quick", "quick", 2, 2, 1), strict=True))
        return
    shapes = ("tiny", "wide", "iwslt14")
    for values in itertools.product(shapes, ("multi30k-like",), (1, BEAMS), (1, 16, 64), (1, 2)):
        yield dict(zip(FACTS, values, strict=True))
    for values in itertools.product(shapes, ("1,024 tokens",), (BEAMS,), (2,), (1, 2)):
        yield dict(zip(FACTS, values, strict=True))


def avx2_cells(quick: bool) -> Iterator[Names]:
    """Both cores: sentences, greedily and by beams, alone and in a batch, of three shapes; and two documents."""
    wanted = {"sentences": (1, 2, 16), "threads": (2,)}
    for cell in cells(quick):
        chosen = all(cell[name] in values for name, values in wanted.items())
        documents = cell["inputs"] == "1,024 tokens"
        if quick or (chosen and (not documents or cell["shape"] == "wide")):
            yield cell


def measure_with_avx2(cell: Names, options: argparse.Namespace) -> Names:
    """As `measure`, where everything is held to AVX2."""
    with held_to_avx2("translating-avx2"):
        return measure(cell, options)


def measure(cell: Names, options: argparse.Namespace) -> Names:
    """Milliseconds of a batch."""
    shape, new_tokens = SHAPES[cell["shape"]], NEW_TOKENS[cell["inputs"]]
    batch, sources = texts_of(shape, cell["inputs"], cell["sentences"], options.seed)
    search = Search(cell["beams"], new_tokens)
    ours = build(OURS, shape, 0.0, options.seed).eval()
    steps: dict[str, Callable[[], Any]] = {
        name: our_step(without_end(ours, compute), sources, search) for compute, name in OURS_BY_TYPE.items()
    }
    marian = build(MARIAN, shape, 0.0, options.seed).eval()
    steps[MARIAN] = generation_step(marian, batch, new_tokens, "float32", cell["beams"])
    with tempfile.TemporaryDirectory() as folder:
        _convert(marian, Path(folder))
        for compute, name in CTRANSLATE2.items():
            steps[name] = _ctranslate2_step(Path(folder), compute, sources, search, cell["threads"])
    timing = time_contenders(steps, **effort(options, budget=SECONDS))
    rivals = (MARIAN, *CTRANSLATE2.values())
    record = timing.record(dict.fromkeys(OURS_BY_TYPE.values(), rivals))
    return {"source_tokens": sum(map(len, sources)), "new_tokens": new_tokens, **record}


def texts_of(shape: Names, inputs: str, sentences: int, seed: int) -> tuple[dict[str, Tensor], list[list[int]]]:
    """So many texts of random ids: as a padded batch for `generate`, and each without its padding."""
    lengths = INPUTS[inputs]
    batch = padded_batch(lengths, shape["vocab_size"] - 1, 4 * lengths.longest * sentences, seed)
    batch = {name: batch[name][:sentences] for name in ("input_ids", "attention_mask")}
    return batch, [ids[real.bool()].tolist() for ids, real in zip(*batch.values(), strict=True)]


def without_end(model: Any, compute: str) -> FastTranslationModel:
    """Translations of it are as long as they may be."""
    fast = FastTranslationModel(model, compute)
    fast.end = -1
    return fast


def our_step(model: FastTranslationModel, sources: list[list[int]], search: Search) -> Callable[[], Any]:
    return torch.inference_mode()(lambda: _checked([each.ids for each in model.translate(sources, search)], search))


def _convert(marian: Any, folder: Path) -> None:
    """A MarianMTModel as CTranslate2 reads it, in the folder `converted`; a piece is named by its id."""
    from ctranslate2.converters import TransformersConverter

    size = marian.config.vocab_size
    names = {**{str(number): number for number in range(size - 1)}, "<pad>": size - 1}
    special = {"bos_token": str(BOS), "eos_token": str(EOS), "unk_token": "3", "pad_token": "<pad>"}
    tokenizer = Tokenizer(models.WordLevel(names, unk_token=special["unk_token"]))
    marian.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    TransformersConverter(str(folder)).convert(str(folder / "converted"))


def _ctranslate2_step(
    folder: Path, compute: str, sources: list[list[int]], search: Search, threads: int
) -> Callable[[], Any]:
    import ctranslate2

    translator = ctranslate2.Translator(
        str(folder / "converted"), device="cpu", compute_type=compute, inter_threads=1, intra_threads=threads
    )
    texts = [[str(number) for number in source] for source in sources]
    length = {"min_decoding_length": search.max_new_tokens, "max_decoding_length": search.max_new_tokens}

    def step() -> list[list[str]]:
        results = translator.translate_batch(texts, beam_size=search.num_beams, max_input_length=0, **length)
        return _checked([each.hypotheses[0] for each in results], search)

    return step


def _checked(translations: list[list[Any]], search: Search) -> list[list[Any]]:
    """Raises a `RuntimeError` for translations that have not the length which makes the contenders comparable."""
    if lengths := {len(translation) for translation in translations} - {search.max_new_tokens}:
        raise RuntimeError(f"translations of {lengths} tokens, not {search.max_new_tokens}")
    return translations


def models_and_beams(quick: bool) -> Iterator[Names]:
    for (source, target), beams in itertools.product((("de", "en"), ("en", "de")), (1, BEAMS)):
        yield {"model": f"tatoeba-{source}-{target}", "source": source, "target": target, "beams": beams, "threads": 1}


def measure_types(cell: Names, options: argparse.Namespace) -> Names:
    """Of `generate` in float32 and of each of our types: BLEU, translations equal to those of `generate`, and CPU
    seconds."""
    sources, references = (_multi30k_test(cell[side])[: 3 if options.quick else None] for side in ("source", "target"))
    translator = Translator.from_pretrained(cell["model"], split="none")
    model, tokenizer = translator.model, translator.tokenizer

    def generated(texts: list[str]) -> list[str]:
        translations = []
        for start in range(0, len(texts), 50):
            batch = tokenizer(texts[start : start + 50], return_tensors="pt", padding=True)
            ids = model.generate(**batch, num_beams=cell["beams"])
            translations += tokenizer.batch_decode(ids, skip_special_tokens=True)
        return translations

    ways: dict[str, Callable[[list[str]], list[str]]] = {"generate": generated}
    ways |= {kind: partial(translator, num_beams=cell["beams"], compute=kind) for kind in COMPUTE}
    translated, types = {}, {}
    for name, translate in ways.items():
        translate(sources[:1])  # which packs the weights
        start = time.process_time()
        texts = translated[name] = translate(sources)
        seconds = time.process_time() - start
        equal = sum(ours == theirs for ours, theirs in zip(texts, translated["generate"], strict=True))
        types[name] = {"bleu": sacrebleu.corpus_bleu(texts, [references]).score, "equal": equal, "cpu_seconds": seconds}
    return {"sentences": len(sources), "types": types}


def _multi30k_test(language: str) -> list[str]:
    with gzip.open(f"data/multi30k/test2016.{language}.gz", "rt", encoding="utf-8", newline="\n") as stream:
        return stream.read().splitlines()


SETTINGS = {"budget": SECONDS, "shapes": SHAPES, "new_tokens": NEW_TOKENS}
BENCHMARK = Benchmark("translating", cells, measure, SETTINGS)
AVX2_BENCHMARK = Benchmark("translating-avx2", avx2_cells, measure_with_avx2, SETTINGS | AVX2_SETTINGS)
TYPES_BENCHMARK = Benchmark("translating-types", models_and_beams, measure_types, {"corpus": "data/multi30k, test2016"})
