"""`reluformer init`: a recipe that suits two files of parallel text and this machine."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from reluformer.commands.parsing import Parser
from reluformer.configuration.errors import UserError
from reluformer.translating.readers import without_compression

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase


class Size(NamedTuple):
    """A model and its training, each as it was measured or published: docs/recipes.md."""

    width: int
    layers: int
    heads: int
    feed_forward: int
    batch: int  # tokens
    rate: float
    warmup: int
    updates: int


SMALL = Size(128, 3, 4, 512, 2_200, 0.003, 1_000, 10_000)  # our studies of sentences
MIDDLE = Size(512, 6, 4, 1_024, 8_192, 0.0005, 4_000, 100_000)  # IWSLT14 of the paper
LARGE = Size(512, 6, 8, 2_048, 8_192, 0.0007, 4_000, 100_000)  # WMT14 of the paper
# For fewer pairs: the size where there is a GPU, and the vocabulary.
SIZES = ((100_000, SMALL, 4_000), (1_000_000, MIDDLE, 10_000), (math.inf, LARGE, 32_000))
PASSES = 100
MEASURED_PAIRS = 20_000
LONGEST = 2_048
SIDES = ("source", "target")

# From a model that is there: a quarter of the rate with which those of the package began.
FINE_TUNING_RATE, FINE_TUNING_PASSES, FINE_TUNING_UPDATES = 0.0005, 20, (100, 5_000)
FINE_TUNING_BATCH = 4_096  # tokens

TEMPLATE = """\
# reluformer train --config {output}
# Written by `reluformer init` for {pairs:,} pairs of about {length:g} tokens a side; docs/{page} says by which rule.
name: {name}
data:
  source_language: "{languages[0]}"
  target_language: "{languages[1]}"
  text: {text}
  max_length: {max_length}
{files}
{model}
batching: {{tokens_per_batch: {batch}}}
evaluation: {{splits: {splits}, at_most: {at_most}, long_sources: split}}
training:
  seed: 1
  max_steps: {updates}
  learning_rate: {rate}
  lr_scheduler_type: {schedule}
  warmup_steps: {warmup}
  adam_beta2: 0.98
  logging_steps: 50
  eval_strategy: {watched}
  eval_steps: {every}
  save_steps: {every}
  save_total_limit: 2
  use_cpu: {on_cpu}
  bf16: {bf16}
"""
NEW_MODEL = """\
tokenizer: {{vocab_size: {vocabulary}}}
model: {{{attention}, max_position_embeddings: {positions},
        d_model: {size.width}, encoder_layers: {size.layers}, decoder_layers: {size.layers},
        encoder_attention_heads: {size.heads}, decoder_attention_heads: {size.heads},
        encoder_ffn_dim: {size.feed_forward}, decoder_ffn_dim: {size.feed_forward}}}"""


class Model(NamedTuple):
    """The part of a recipe that says which model is trained, and how."""

    text: str
    lengths: list[int]  # tokens of both sides of some pairs, the shortest first
    max_length: int
    batch: int  # tokens
    rate: float
    schedule: str
    updates: int
    warmup: int
    page: str  # of docs/


def run(arguments: list[str]) -> int:
    """The verb, with the arguments after its name; returns the exit status."""
    description = "Writes a recipe for your own parallel text, for `reluformer train`."
    parser = Parser(prog="reluformer init", description=description)
    add = parser.add_argument
    add("--source", required=True, metavar="FILE", help="one sentence a line, such as train.de or train.de.gz")
    add("--target", required=True, metavar="FILE", help="its translations, such as train.en")
    for split in ("validation", "test"):
        add(f"--{split}", nargs=2, metavar=("SOURCE", "TARGET"), help=f"files of the {split} split")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--softmax", action="store_true", help="softmax attention instead of ReLU")
    which.add_argument(
        "--base",
        metavar="MODEL",
        help="start from its weights and tokenizer: tatoeba-de-en, a folder, or an id on the Hub",
    )
    add("--output", metavar="FILE", help="default: the languages, such as de_en.yaml")
    options = parser.parse_args(arguments)

    languages = _language("--source", options.source), _language("--target", options.target)
    if languages[0] == languages[1]:
        raise UserError(f"--target: {options.target!r} ends in the language of --source; give two, such as .de and .en")
    for split in ("validation", "test"):
        endings = [without_compression(Path(path)).suffix.removeprefix(".") for path in getattr(options, split) or ()]
        if set(endings) <= {*languages} and endings not in ([], [*languages]):
            raise UserError(
                f"--{split}: ends in {' and '.join(endings)}, not in {' and '.join(languages)}; source first"
            )
        if getattr(options, split) == [options.source, options.target]:
            raise UserError(f"--{split}: these are the training files, whose score says nothing; give other pairs")
    name = "_".join([*languages, *(["softmax"] if options.softmax else [])])
    output = options.output or f"{name}.yaml"
    if Path(output).exists():
        raise UserError(f"--output: {output!r} exists already; give another file, or remove it")

    from reluformer.training.data.corpus import read_parallel_files

    base = None if options.base is None else _base(options.base, languages)
    files = {"train": [options.source, options.target], "validation": options.validation, "test": options.test}
    files = {split: paths for split, paths in files.items() if paths}
    read = {}
    for split, paths in files.items():
        read[split], report = read_parallel_files(*paths, name=split)
        if report.skipped:
            print(report.summary())
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    text = _kind_of_text(read)
    model = _new_model(read["train"], languages, options.softmax) if base is None else _fine_tuned(read["train"], base)
    recipe = _recipe(name, output, languages, files, len(read["train"]), text, model)
    Path(output).write_text(recipe, encoding="utf-8")
    if "validation" not in files:
        print("no --validation: nothing will be watched during training but its own loss")
    if "test" not in files:
        print("no --test: " + ("the validation split is scored" if "validation" in files else "nothing will be scored"))
    print(f"wrote {output}; now: reluformer train --config {output}")
    return 0


def _language(option: str, path: str) -> str:
    suffix = without_compression(Path(path)).suffix.removeprefix(".")
    if not re.fullmatch("[a-z]{2,3}", suffix) or suffix == "txt":
        raise UserError(f"{option}: {path!r} does not end in a language; name it as train.de or train.de.gz")
    return suffix


def _kind_of_text(read: dict[str, datasets.Dataset]) -> str:
    """`data.text` by the training targets, which decide how scores are computed; says so where it is not plain text."""
    from reluformer.translating.moses import MosesTraces

    traces = {(split, side): MosesTraces.of_corpus(pairs, side) for split, pairs in read.items() for side in SIDES}
    of_target = traces["train", "target"]
    if of_target.are_tokenized:
        print(
            f"the text looks tokenised by Moses ({of_target}): wrote data.text: moses, and scores will be of the text "
            "detokenised; set it to plain if this is wrong"
        )
    for (split, side), others in traces.items():
        if others.are_tokenized != of_target.are_tokenized and others.marked:
            kinds = [("plain", "tokenised by Moses")[each.are_tokenized] for each in (others, of_target)]
            print(f"{split} {side}: looks {kinds[0]}, and train target {kinds[1]}; prepare all files alike")
    return "moses" if of_target.are_tokenized else "plain"


def _some(pairs: datasets.Dataset) -> datasets.Dataset:
    """As many pairs as are measured, from all over the corpus."""
    return pairs.select(range(0, len(pairs), 1 + len(pairs) // MEASURED_PAIRS))


def _new_model(pairs: datasets.Dataset, languages: Sequence[str], softmax: bool) -> Model:
    """A model with new weights, as large as its corpus allows."""
    from reluformer.training.data.tokenization import train_tokenizer

    _, size, vocabulary = next(row for row in SIZES if len(pairs) < row[0])
    size = SMALL if _on_cpu() else size
    some = _some(pairs)
    sides = {"source_language": languages[0], "target_language": languages[1]}
    tokenizer = train_tokenizer(some, vocab_size=vocabulary, lowercase=False, moses=False, max_length=LONGEST, **sides)
    lengths = _lengths(some, tokenizer)
    max_length = min(max(64, 2 ** math.ceil(math.log2(lengths[len(lengths) * 995 // 1000]))), LONGEST)
    updates = min(size.updates, max(200, _updates(len(pairs), lengths, PASSES, size.batch)))
    relu = "preset: reluformer, attention_gamma: 16.0, regularization_weight: 0.01"
    text = NEW_MODEL.format(
        vocabulary=len(tokenizer) if len(some) == len(pairs) else vocabulary,  # few pairs may not give all pieces
        attention="preset: vanilla" if softmax else relu,
        positions=max(1_024, 2 * max_length),
        size=size,
    )
    return Model(
        text=text,
        lengths=lengths,
        max_length=max_length,
        batch=size.batch,
        rate=size.rate,
        schedule="inverse_sqrt",
        updates=updates,
        warmup=min(size.warmup, updates // 4),
        page="recipes.md",
    )


def _fine_tuned(pairs: datasets.Dataset, base: Base) -> Model:
    """A model that goes on from the weights of another one, with its tokenizer."""
    lengths = _lengths(_some(pairs), base.tokenizer)
    updates = _fine_tuned_updates(len(pairs), lengths)
    return Model(
        text=f"initialize_from: {json.dumps(base.path, ensure_ascii=False)}",
        lengths=lengths,
        max_length=min(LONGEST, base.positions),
        batch=FINE_TUNING_BATCH,
        rate=FINE_TUNING_RATE,
        schedule="cosine",
        updates=updates,
        warmup=updates // 10,
        page="fine_tuning.md",
    )


def _fine_tuned_updates(pairs: int, lengths: list[int]) -> int:
    fewest, most = FINE_TUNING_UPDATES
    return min(most, max(fewest, _updates(pairs, lengths, FINE_TUNING_PASSES, FINE_TUNING_BATCH)))


class Base(NamedTuple):
    """A model to start from."""

    path: str
    positions: int
    tokenizer: PreTrainedTokenizerBase


def _base(path: str, languages: Sequence[str]) -> Base:
    from reluformer.training.run.model_building import keyed
    from reluformer.translating.loading import load_tokenizer, load_translation_config

    with keyed("--base"):
        config, tokenizer = load_translation_config(path), load_tokenizer(path)
    known = [tokenizer.init_kwargs.get(f"{side}_language") for side in SIDES]
    if None not in known and known != [*languages]:
        raise UserError(
            f"--base: {path!r} translates {known[0]} → {known[1]}, and the files end in {' and '.join(languages)}; "
            "give another model, or exchange --source and --target"
        )
    return Base(path, config.max_position_embeddings, tokenizer)


def _on_cpu() -> bool:
    import torch

    return not torch.accelerator.is_available()


def _lengths(pairs: datasets.Dataset, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens of both sides of each pair, the shortest first."""
    return sorted(map(len, tokenizer([*pairs["source"], *pairs["target"]], verbose=False)["input_ids"]))


def _updates(pairs: int, lengths: list[int], passes: int, batch: int) -> int:
    """Updates with `batch` tokens of one side each that read `pairs` pairs `passes` times."""
    return round(passes * pairs * sum(lengths) / len(lengths) / batch)


def _recipe(
    name: str, output: str, languages: Sequence[str], files: dict[str, list[str]], pairs: int, text: str, model: Model
) -> str:
    """The text of the recipe for `files`, {split: [source, target]}, of which training has `pairs` pairs."""
    import torch

    from reluformer.training.run.precision import has_bfloat16

    on_cpu = _on_cpu()
    bf16 = has_bfloat16() if on_cpu else torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    paths = {split: [json.dumps(path, ensure_ascii=False) for path in pair] for split, pair in files.items()}
    lines = [f"  {split}: {{source: {source}, target: {target}}}" for split, (source, target) in paths.items()]
    splits = [split for split in ("test", "validation") if split in files][:1]
    return TEMPLATE.format(
        output=output,
        page=model.page,
        name=name,
        languages=languages,
        pairs=pairs,
        length=model.lengths[len(model.lengths) // 2],
        text=text,
        max_length=model.max_length,
        files="\n".join(lines),
        model=model.text,
        batch=model.batch,
        splits=f"[{', '.join(splits)}]",
        at_most=200 if "validation" in files else 0,
        updates=model.updates,
        rate=model.rate,
        schedule=model.schedule,
        warmup=model.warmup,
        watched="steps" if "validation" in files else '"no"',
        every=model.updates // 10,
        on_cpu=str(on_cpu).lower(),
        bf16=str(bf16).lower(),
    )
