"""What a recipe says: typed dataclasses, one for each of its sections."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jsonargparse.typing import ClosedUnitInterval, NonNegativeInt, PositiveInt
from transformers import Seq2SeqTrainingArguments

from reluformer.configuration.scores import Headline

SPLITS = ("train", "validation", "test")


@dataclass(kw_only=True)
class ParallelFiles:
    """Two files of one sentence a line; line n of one translates line n of the other.

    Args:
        source: path of the source side, plain text, .gz or .zst; a relative path starts at the current directory.
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
    """A set that the `datasets` library loads: from the Hub, a folder, or tables with named columns.

    Args:
        path: id on the Hub; a local folder, of data files or written by `save_to_disk`; or the kind of `files`: `csv`,
            `json` or `parquet`.
        name: configuration of the set, for example a language pair.
        revision: branch, tag or commit on the Hub; name a commit to make a result reproducible.
        files: by split, the path of a table or several paths; compressed ones too.
        options: further arguments of `datasets.load_dataset`, such as `sep` for CSV.
        train: name of the training split; slices such as `train[:1%]` work.
        validation: name of the validation split.
        test: name of the test split.
        source_column: column of the source texts; `translation.de` is the field `de` of the column `translation`. null:
            the field `translation.<source_language>`, or the column that is named as the language.
        target_column: column of the target texts, likewise.
        document_column: column with the name or number of each pair's document; `data.packing` needs it.
    """

    path: str
    name: str | None = None
    revision: str | None = None
    files: dict[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    train: str = "train"
    validation: str = "validation"
    test: str = "test"
    source_column: str | None = None
    target_column: str | None = None
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

    train: PositiveInt = 40_000
    validation: NonNegativeInt = 1_000
    test: NonNegativeInt = 1_000
    seed: int = 0


@dataclass(kw_only=True)
class PackingConfig:
    """Packing of consecutive sentences of one document, in all splits: greedily, while both sides stay within
    `data.max_length` tokens, `</s>` included.

    A sentence that alone is longer: `skip` leaves it out, `keep` makes it a packed document of its own, which is
    learned from if `model.max_position_embeddings` has room for it. It is counted and reported.

    Args:
        too_long: what becomes of such a sentence of the training split.
        too_long_evaluated: of the other splits; what they leave out counts as not translated in scores over original
            documents.
        train_lengths: limits of the training split, at most `data.max_length` each, that get as many tokens each; a
            limit of 1 gives single sentences. null: `data.max_length` alone.
    """

    too_long: Literal["skip", "keep"] = "skip"
    too_long_evaluated: Literal["skip", "keep"] = "keep"
    train_lengths: list[PositiveInt] | None = None


@dataclass(kw_only=True)
class VariantsConfig:
    """Variants of the training pairs, as people write them: the source is changed, the target stays. Each is drawn for
    its share of the pairs, independently of the others but for the two cases; validation and test stay as they are.

    Args:
        passes: how many times the corpus is drawn, each time with other variants; all of them are one epoch.
        seed: of the draws.
        lower: share of sources in lower case.
        upper: share of sources in upper case.
        no_punctuation: share of sources without the punctuation at their end.
        joined: share of pairs with one to three others after them, drawn from the corpus; both sides are joined by a
            space.
        umlauts: share of sources with ae, oe, ue and ss for ä, ö, ü and ß.
        quotes: share of sources whose quotation marks become typographic ones, or plain ones.
        untranslated: share of pairs whose source is the target: text that is in the target language already stays as it
            is.
        foreign: share of pairs that are replaced by characters of other scripts or pictures, which stay as they are.
    """

    passes: PositiveInt = 1
    seed: NonNegativeInt = 0
    lower: ClosedUnitInterval = 0.0
    upper: ClosedUnitInterval = 0.0
    no_punctuation: ClosedUnitInterval = 0.0
    joined: ClosedUnitInterval = 0.0
    umlauts: ClosedUnitInterval = 0.0
    quotes: ClosedUnitInterval = 0.0
    untranslated: ClosedUnitInterval = 0.0
    foreign: ClosedUnitInterval = 0.0


@dataclass(kw_only=True)
class DataConfig:
    """Where the pairs come from: the three splits as files, or `dataset`, or `demo`; exactly one of them.

    Args:
        source_language: ISO 639-1 code of the source language, for example `en`.
        target_language: ISO 639-1 code of the target language.
        text: `plain`, or `moses` where Moses has tokenised both sides of all splits already; see
            `configuration.scores`.
        max_length: tokens, `</s>` included; a training pair with a longer side is skipped and counted. With `packing`,
            the limit L of a packed document.
        train: files of the training split.
        validation: files of the validation split.
        test: files of the test split.
        dataset: a set of the `datasets` library that gives all splits, or tables such as CSV.
        demo: the generated corpus.
        packing: train, translate and score packed documents; null: sentence by sentence.
        variants: of the training pairs, in lower case and so on; null: the pairs as they are.
        workers: processes that tokenise a split, each with threads of its own; changes no result.
        homepage: where the corpus is available, for the error if it is missing.
    """

    source_language: str
    target_language: str
    text: Literal["plain", "moses"] = "plain"
    max_length: PositiveInt = 256
    train: ParallelFiles | None = None
    validation: ParallelFiles | None = None
    test: ParallelFiles | None = None
    dataset: DatasetConfig | None = None
    demo: DemoConfig | None = None
    packing: PackingConfig | None = None
    variants: VariantsConfig | None = None
    workers: PositiveInt = 1
    homepage: str | None = None


@dataclass(kw_only=True)
class TokenizerConfig:
    """The joint BPE of both languages, trained on the training split.

    Args:
        vocab_size: size of the vocabulary, with 4 special tokens and 256 bytes.
        lowercase: lower-case both sides, inside the tokenizer.
        moses: tokenise the corpus with Moses (`sacremoses`) first, and undo it after translation.
        path: folder or Hub id of an existing tokenizer to take instead of training one.
    """

    vocab_size: PositiveInt = 8_000
    lowercase: bool = False
    moses: bool = False
    path: str | None = None


@dataclass(kw_only=True)
class BatchingConfig:
    """How pairs are put together into batches.

    Args:
        tokens_per_batch: what a batch's pairs times the length of its longest sentence, of either side, never exceed.
            An update holds `gradient_accumulation_steps` times the number of processes such batches.
    """

    tokens_per_batch: PositiveInt = 8_192


@dataclass(kw_only=True)
class EvaluationConfig:
    """How translations are decoded and scored.

    Args:
        num_beams: width of the beam.
        length_penalty: exponent of the length by which a hypothesis' log-probability is divided.
        batch_tokens: source tokens with padding decoded at once.
        long_sources: sources of an evaluated split with more tokens than the model has positions: `error` refuses the
            run before the first update, `split` translates them in pieces of whole sentences.
        samples: translations that are printed beside their references.
        splits: splits that are evaluated when training is over: `validation`, `test`, both or none.
        headline: the score that stands alone in the last line; `document_bleu` needs `data.packing`.
        at_most: validation pairs that are translated at each evaluation during training; 0 computes the loss alone.
    """

    num_beams: PositiveInt = 5
    length_penalty: float = 1.0
    batch_tokens: PositiveInt = 4_096
    long_sources: Literal["error", "split"] = "error"
    samples: NonNegativeInt = 5
    splits: list[Literal["validation", "test"]] = field(default_factory=lambda: ["test"])
    headline: Headline = "bleu"
    at_most: NonNegativeInt = 0


@dataclass(kw_only=True)
class AveragingConfig:
    """Averaging of weights over the last checkpoints.

    Args:
        last_checkpoints: how many; 0 and 1 both keep the last weights as they are.
    """

    last_checkpoints: NonNegativeInt = 0


@dataclass(kw_only=True)
class Recipe:
    """One experiment, complete: `reluformer train` needs nothing else.

    Args:
        name: of the run; its folder is `runs/<name>`, or `training.output_dir` of this recipe or one that overrides it.
        description: one sentence for the model card.
        data: where the pairs come from.
        initialize_from: folder or Hub id of a ReLUFormer to start from, with its tokenizer; null starts from new
            weights.
        tokenizer: the joint BPE.
        model: fields of `ReLUFormerConfig`, and `preset` (default `reluformer`), and `attn_implementation`. With
            `initialize_from`, what differs from the checkpoint's config, which is the default for all of it.
        batching: how pairs are put together into batches.
        evaluation: how translations are decoded and scored.
        averaging: of weights over the last checkpoints.
        on_divergence: when the loss becomes NaN or infinite, the cross-entropy more than twice that of guessing, or all
            rows of an attention module are dead: `stop` ends the run with an error that says what to change; `record`
            records it, and ends the run in the first case alone.
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
    training: Seq2SeqTrainingArguments

    @property
    def run_folder(self) -> Path:
        """Where everything of the run is written."""
        return Path(self.training.output_dir)
