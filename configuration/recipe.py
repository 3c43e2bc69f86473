"""What a recipe says: typed dataclasses, one for each of its sections, and the checks across sections."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from transformers import Seq2SeqTrainingArguments

from reluformer.configuration.errors import UserError
from reluformer.configuration.scores import SCORES, Headline

SPLITS = ("train", "validation", "test")


@dataclass(kw_only=True)
class ParallelFiles:
    """Two files of one sentence a line; line n of one translates line n of the other.

    Args:
        source: path of the source side, plain text or .gz; a relative path starts at the current directory.
        target: path of the target side.
        documents: path of a file whose line n names the document that pair n is from; the pairs of a document stand
            together. `data.packing` needs it.
        only: names of the documents to take; null takes all.
    """

    source: str
    target: str
    documents: str | None = None
    only: list[str] | None = None


@dataclass(kw_only=True)
class DatasetConfig:
    """A set that the `datasets` library loads, with a column of translations ({"de": …, "en": …}).

    Args:
        path: id on the Hub, or a local folder.
        name: configuration of the set, for example a language pair.
        revision: branch, tag or commit on the Hub; name a commit to make a result reproducible.
        translation_column: column that holds the translations; null where each language is a column of its own.
        train: name of the training split; slices such as `train[:1%]` work.
        validation: name of the validation split.
        test: name of the test split.
        document_column: column with the name or number of each pair's document; `data.packing` needs it.
    """

    path: str
    name: str | None = None
    revision: str | None = None
    translation_column: str | None = "translation"
    train: str = "train"
    validation: str = "validation"
    test: str = "test"
    document_column: str | None = None


@dataclass(kw_only=True)
class DemoConfig:
    """The generated corpus of German and English number words.

    Args:
        train: pairs of the training split.
        validation: pairs of the validation split.
        test: pairs of the test split; no number occurs in two splits.
        seed: of the generator.
    """

    train: int = 40_000
    validation: int = 1_000
    test: int = 1_000
    seed: int = 0


@dataclass(kw_only=True)
class PackingConfig:
    """Packing of consecutive sentences of one document, in all splits: greedily, while both sides stay within
    `data.max_length` tokens, `</s>` included.

    A sentence that alone is longer: `error` refuses the corpus, `skip` leaves the sentence out, `keep` makes it a packed
    document of its own, for which `model.max_position_embeddings` must have room. It is counted and reported.

    Args:
        too_long: what becomes of such a sentence of the training split.
        too_long_evaluated: of the validation and test splits. What is left out of them counts as not translated in the
            scores over original documents.
    """

    too_long: Literal["error", "skip", "keep"] = "skip"
    too_long_evaluated: Literal["error", "skip", "keep"] = "keep"


@dataclass(kw_only=True)
class DataConfig:
    """Where the pairs come from: the three splits as files, or `dataset`, or `demo`; exactly one of them.

    Args:
        source_language: ISO 639-1 code of the source language, for example `en`.
        target_language: ISO 639-1 code of the target language.
        max_length: tokens, `</s>` included; a training pair with a longer side is skipped and counted. With `packing`,
            the limit L of a packed document.
        train: files of the training split.
        validation: files of the validation split.
        test: files of the test split.
        dataset: a set of the `datasets` library that gives all splits.
        demo: the generated corpus.
        packing: train, translate and score packed documents; null: sentence by sentence.
        workers: processes that tokenise a split, in the one process that does it for all; null: 1 for fewer than 200,000
            pairs, otherwise as many as there are cores, at most 8. Changes no result. Packing tokenises in one.
    """

    source_language: str
    target_language: str
    max_length: int = 256
    train: ParallelFiles | None = None
    validation: ParallelFiles | None = None
    test: ParallelFiles | None = None
    dataset: DatasetConfig | None = None
    demo: DemoConfig | None = None
    packing: PackingConfig | None = None
    workers: int | None = None


@dataclass(kw_only=True)
class TokenizerConfig:
    """The joint BPE of both languages, trained on the training split.

    Args:
        vocab_size: size of the vocabulary, with 4 special tokens and 256 bytes.
        lowercase: lower-case both sides, inside the tokenizer.
        moses: tokenise the corpus with Moses (`sacremoses`) first, and undo it after translation.
        path: folder or Hub id of an existing tokenizer to take instead of training one.
    """

    vocab_size: int = 8_000
    lowercase: bool = False
    moses: bool = False
    path: str | None = None


@dataclass(kw_only=True)
class BatchingConfig:
    """How pairs are put together to batches.

    Args:
        tokens_per_batch: budget of a batch in tokens with padding: its pairs times the length of its longest sentence,
            of either side, never exceed it. The target tokens that are learned from are fewer. An update holds
            `gradient_accumulation_steps` times the number of processes such batches.
    """

    tokens_per_batch: int = 8_192


@dataclass(kw_only=True)
class EvaluationConfig:
    """How translations are decoded and scored.

    Args:
        num_beams: width of the beam.
        length_penalty: exponent of the length by which a hypothesis' log-probability is divided.
        batch_tokens: source tokens with padding decoded at once.
        long_sources: sources of an evaluated split with more tokens than the model has positions: `error` refuses the run
            before the first update, `truncate` leaves out their ends, `split` translates them in pieces of whole sentences.
        samples: translations that are printed beside their references.
        splits: splits that are evaluated when training is over: `validation`, `test`, both or none.
        headline: the score that stands alone in the last line; `document_bleu` needs `data.packing`.
        at_most: validation pairs that are translated at each evaluation during training; 0 computes the loss alone.
        attn_implementation: how attention is computed (`eager`, `fused`, `sdpa`, …); null takes the model's default.
    """

    num_beams: int = 5
    length_penalty: float = 1.0
    batch_tokens: int = 4_096
    long_sources: Literal["error", "truncate", "split"] = "error"
    samples: int = 5
    splits: list[str] = field(default_factory=lambda: ["test"])
    headline: Headline = "bleu"
    at_most: int = 0
    attn_implementation: str | None = None


@dataclass(kw_only=True)
class AveragingConfig:
    """Averaging of weights over the last checkpoints.

    Args:
        last_checkpoints: how many; 0 and 1 both keep the last weights as they are.
    """

    last_checkpoints: int = 0


@dataclass(kw_only=True)
class Recipe:
    """One experiment, complete: `reluformer train` needs nothing else.

    Args:
        name: of the run; its folder is `runs/<name>` unless `training.output_dir` says otherwise.
        description: one sentence for the model card.
        data: where the pairs come from.
        initialize_from: folder or Hub id of a ReLUFormer to start from, with its tokenizer; null starts from new weights.
        tokenizer: the joint BPE.
        model: fields of `ReLUFormerConfig`, and `preset` (default `reluformer`), and `attn_implementation`. With
            `initialize_from`, what differs from the checkpoint's config, which is the default for all of it.
        batching: how pairs are put together to batches.
        evaluation: how translations are decoded and scored.
        averaging: of weights over the last checkpoints.
        on_divergence: what happens when the loss becomes NaN or infinite, the cross-entropy more than twice that of guessing, or
            all rows of an attention module are dead: `stop` ends the run with an error that says what to change; `record` ends
            it at a loss that is not finite as a result that does not converge, and goes on with the others and records them.
        expected_world_size: number of processes that the recipe is meant for; a run of any other number is refused, since an
            update would hold another number of tokens. null: any.
        training: `transformers.Seq2SeqTrainingArguments`.
    """

    name: str
    description: str = ""
    data: DataConfig
    initialize_from: str | None = None
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: dict[str, Any] = field(default_factory=dict)
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    averaging: AveragingConfig = field(default_factory=AveragingConfig)
    on_divergence: Literal["stop", "record"] = "stop"
    expected_world_size: int | None = None
    training: Seq2SeqTrainingArguments

    @property
    def run_folder(self) -> Path:
        """Where everything of the run is written."""
        return Path(self.training.output_dir)

    def check(self) -> None:
        """Raises `UserError` for values that are well typed yet cannot be trained, before anything is loaded."""
        _check_name(self.name)
        _check_data(self.data)
        _check_documents(self)
        _check_initialization(self)
        _check_counts(self)
        _check_training(self.training)
        _check_averaging(self.averaging, self.training)


def _check_name(name: str) -> None:
    if not name or Path(name).name != name or name in (".", ".."):
        raise UserError(f"name: {name!r} cannot name a folder; give a word such as 'multi30k_en_de'")


def _check_data(data: DataConfig) -> None:
    origins = {
        "train/validation/test": any((data.train, data.validation, data.test)),
        "dataset": data.dataset is not None,
        "demo": data.demo is not None,
    }
    given = [name for name, is_given in origins.items() if is_given]
    if len(given) != 1:
        raise UserError(
            f"data: give exactly one of {', '.join(origins)}; given: {' and '.join(given) if given else 'none of them'}"
        )
    if given == ["train/validation/test"] and data.train is None:
        raise UserError("data: the files of `train` are missing; give data.train.source and data.train.target")
    if data.max_length < 2:
        raise UserError(f"data.max_length: {data.max_length} leaves no room for a token and </s>; give at least 2")
    if data.workers is not None and data.workers < 1:
        raise UserError(f"data.workers: {data.workers} processes cannot tokenise; give at least 1, or null")
    if data.workers is not None and data.packing is not None:
        raise UserError(
            "data.workers: would have no effect on packed documents, which one process tokenises; leave it out"
        )


def _check_documents(recipe: Recipe) -> None:
    data = recipe.data
    files = {split: given for split in SPLITS if (given := getattr(data, split)) is not None}
    for split, given in files.items():
        if given.only is None:
            continue
        if given.documents is None:
            raise UserError(f"data.{split}.only: chooses documents, but data.{split}.documents names no file of them")
        if not given.only:
            raise UserError(f"data.{split}.only: chooses no document; name at least one, or leave it out to take all")
    if data.packing is None:
        name = recipe.evaluation.headline
        if SCORES[name].of_documents:
            raise UserError(f"evaluation.headline: {name} is a score of packed documents; set data.packing")
        return
    if data.demo is not None:
        raise UserError("data.packing: the generated corpus has no documents; give files or a data set that has them")
    if data.dataset is not None and data.dataset.document_column is None:
        raise UserError("data.packing: needs data.dataset.document_column, the column that names each pair's document")
    for split, given in files.items():
        if given.documents is None:
            raise UserError(f"data.packing: needs data.{split}.documents, the file that names each pair's document")
    if recipe.tokenizer.moses:
        raise UserError(
            "tokenizer.moses: does not go with data.packing, since Moses splits the full stop at the end of a text alone; "
            "tokenise the corpus beforehand, or set it to false"
        )


def _check_initialization(recipe: Recipe) -> None:
    if recipe.initialize_from is not None and recipe.tokenizer != TokenizerConfig():
        raise UserError(
            "tokenizer: comes with the model of initialize_from, whose embeddings were made for it; leave the section out"
        )


def _check_counts(recipe: Recipe) -> None:
    evaluation = recipe.evaluation
    at_least_one = {
        "batching.tokens_per_batch": recipe.batching.tokens_per_batch,
        "evaluation.num_beams": evaluation.num_beams,
        "evaluation.batch_tokens": evaluation.batch_tokens,
        "tokenizer.vocab_size": recipe.tokenizer.vocab_size,
    }
    for name, value in at_least_one.items():
        if value < 1:
            raise UserError(f"{name}: {value} must be at least 1")
    at_least_zero = {
        "evaluation.samples": evaluation.samples,
        "evaluation.at_most": evaluation.at_most,
        "averaging.last_checkpoints": recipe.averaging.last_checkpoints,
    }
    for name, value in at_least_zero.items():
        if value < 0:
            raise UserError(f"{name}: {value} must be at least 0")
    if recipe.expected_world_size is not None and recipe.expected_world_size < 1:
        raise UserError(f"expected_world_size: {recipe.expected_world_size} must be at least 1; null allows any number")
    if recipe.batching.tokens_per_batch < recipe.data.max_length:
        raise UserError(
            f"batching.tokens_per_batch: {recipe.batching.tokens_per_batch} cannot hold one pair of "
            f"data.max_length {recipe.data.max_length}; raise the first or lower the second"
        )
    for split in evaluation.splits:
        if split not in SPLITS[1:]:
            raise UserError(f"evaluation.splits: {split!r} is not a split to evaluate; choose of validation, test")


# Arguments that the token batches, the model's own loss or our evaluation would make void: refused, never ignored.
_REPLACED_ARGUMENTS = {
    "label_smoothing_factor": "set model.label_smoothing: smoothing in the trainer would drop the model's regulariser",
    "per_device_train_batch_size": "set batching.tokens_per_batch: training batches are filled by tokens",
    "auto_find_batch_size": "set batching.tokens_per_batch: training batches are filled by tokens",
    "train_sampling_strategy": "pairs are bucketed by length and reshuffled every epoch already",
    "sortish_sampler": "pairs are bucketed by length and reshuffled every epoch already",
    "average_tokens_across_devices": "the loss is a mean over the target tokens of all processes, however they are dealt out",
    "dataloader_drop_last": "no batch is incomplete: batches are filled by tokens",
    "predict_with_generate": "set evaluation.at_most to translate validation pairs during training",
    "generation_max_length": "decoding stops by itself at a length that follows the source's",
    "generation_num_beams": "set evaluation.num_beams",
    "generation_config": "set evaluation.num_beams and evaluation.length_penalty",
}
# What Transformers writes for a token, and so stands in the recipes of earlier runs.
_HIDDEN_TOKEN = "<HUB_TOKEN>"


def _check_training(training: Seq2SeqTrainingArguments) -> None:
    defaults = {name: f.default for name, f in Seq2SeqTrainingArguments.__dataclass_fields__.items()}
    for name, instead in _REPLACED_ARGUMENTS.items():
        value = getattr(training, name, defaults.get(name))
        if value != defaults.get(name):
            raise UserError(f"training.{name}: {value!r} would have no effect here; {instead}")
    if training.fp16 and training.device.type == "cpu":
        raise UserError(
            "training.fp16: true, but the device is a CPU, on which it would have no effect; leave it out, or set training.bf16"
        )
    if training.hub_token not in (None, _HIDDEN_TOKEN):
        raise UserError(
            "training.hub_token: would stand in the files of the run, and is not needed; leave it out, and set HF_TOKEN or run "
            "`hf auth login`"
        )
    accelerator = training.accelerator_config
    if accelerator.split_batches or accelerator.dispatch_batches or not accelerator.even_batches:
        raise UserError(
            "training.accelerator_config: split_batches, dispatch_batches and even_batches=False cannot be used with "
            "batches of unequal numbers of pairs; leave them out"
        )


def checkpoints_of(training: Seq2SeqTrainingArguments) -> int | None:
    """Number of checkpoints a run writes, before `save_total_limit`; None where only the data can tell."""
    if training.save_strategy == "no":
        return 0
    if training.save_strategy != "steps" or training.max_steps < 0:
        return None
    every = training.save_steps if training.save_steps >= 1 else math.ceil(training.save_steps * training.max_steps)
    return math.ceil(training.max_steps / every)  # the last update is always saved


def _check_averaging(averaging: AveragingConfig, training: Seq2SeqTrainingArguments) -> None:
    wanted = averaging.last_checkpoints
    if wanted < 2:
        return
    written, limit = checkpoints_of(training), training.save_total_limit
    if written is not None and written < wanted:
        raise UserError(
            f"averaging.last_checkpoints: {wanted}, but the run writes {written} (training.max_steps "
            f"{training.max_steps}, training.save_steps {training.save_steps}); save more often or average fewer"
        )
    if limit is not None and limit < wanted:
        raise UserError(f"averaging.last_checkpoints: {wanted}, but training.save_total_limit keeps {limit}; raise it")
    if training.load_best_model_at_end:
        raise UserError(
            "averaging.last_checkpoints and training.load_best_model_at_end exclude each other; "
            "set averaging.last_checkpoints to 0 to keep the best checkpoint"
        )
