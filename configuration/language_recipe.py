"""What a recipe of `task: language_modeling` says: typed dataclasses, one for each of its sections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from reluformer.configuration.language_recipe_checks import check_language_recipe
from reluformer.configuration.recipe_base import RowBatches
from reluformer.configuration.splits import SPLITS


@dataclass(kw_only=True)
class PackageSources:
    """The Python sources of installed packages, as the running environment has them; each file is a document.

    Args:
        names: of the packages, as pip knows them.
        exclude: folders that are left out wherever they stand, for example `tests`.
        listed: a list of files with a checksum, as `reluformer.training.data.package_sources` writes it: a path, or the name of
            one beside the recipes of the package. A corpus that differs from it says so in one line. null: not compared.
    """

    names: list[str]
    exclude: list[str] = field(default_factory=list)
    listed: str | None = None


@dataclass(kw_only=True)
class TextDataset:
    """A split of a set that the `datasets` library loads, with a column of text; each row is a document.

    Args:
        path: id on the Hub, or a local folder.
        name: configuration of the set.
        revision: branch, tag or commit on the Hub; name a commit to make a result reproducible.
        split: name of the split; slices such as `train[:90%]` work.
        column: that holds the texts.
    """

    path: str
    name: str | None = None
    revision: str | None = None
    split: str = "train"
    column: str = "text"


@dataclass(kw_only=True)
class TextSource:
    """Where texts come from: `paths`, `packages` or `dataset`; exactly one of them.

    Args:
        paths: a file (plain text, .gz or .zst, in UTF-8), a folder of such files, or several.
        pattern: which files of a folder are read, at any depth below it.
        documents: path of a file whose line n names the document that line n of the one file in `paths` is from; the lines of a
            document stand together. null: each file is a document.
        only: names of the documents to take, of `documents`; null takes all.
        packages: Python sources of installed packages.
        dataset: a set of the `datasets` library.
    """

    paths: list[str] | str | None = None
    pattern: str = "*"
    documents: str | None = None
    only: list[str] | None = None
    packages: PackageSources | None = None
    dataset: TextDataset | None = None

    def all_paths(self) -> list[str]:
        """The files and folders, none where the texts come from elsewhere."""
        return [self.paths] if isinstance(self.paths, str) else self.paths or []


@dataclass(kw_only=True)
class SplitConfig:
    """Which documents of a corpus are held out. The name of a document and the seed decide, so that a document stays in its split
    where others come or go.

    Args:
        validation: share of the documents in the validation split.
        test: share in the test split.
        seed: of the choice.
    """

    validation: float = 0.02
    test: float = 0.02
    seed: int = 0


@dataclass(kw_only=True)
class TextDataConfig:
    """Where the texts come from: `corpus`, of which documents are held out, or the splits themselves.

    The documents of a split, each followed by the tokenizer's end token, are one stream, which is cut into contexts.

    Args:
        max_length: tokens of a context.
        corpus: all documents.
        split: which of them are held out; null: the defaults.
        train: documents of the training split.
        validation: of the validation split.
        test: of the test split.
        homepage: where the texts are to be had, for the error if they are missing.
    """

    max_length: int = 128
    corpus: TextSource | None = None
    split: SplitConfig | None = None
    train: TextSource | None = None
    validation: TextSource | None = None
    test: TextSource | None = None
    homepage: str | None = None

    def source(self, split: str) -> TextSource | None:
        """What holds the documents of a split; None where it has none."""
        if self.corpus is None:
            return getattr(self, split)
        return self.corpus if split == "train" or getattr(self.shares, split) > 0 else None

    @property
    def shares(self) -> SplitConfig:
        """Which documents of `corpus` are held out."""
        return SplitConfig() if self.split is None else self.split


@dataclass(kw_only=True)
class ByteTokenizerConfig:
    """A byte-level BPE as GPT-2 has it, trained on the training split: it writes any text, and decodes it exactly.

    Args:
        vocab_size: size of the vocabulary, with 2 special tokens and 256 bytes.
        path: folder or Hub id of an existing tokenizer to take instead of training one.
    """

    vocab_size: int = 8_000
    path: str | None = None


@dataclass(kw_only=True)
class LanguageEvaluationConfig:
    """How the trained model is evaluated: perplexity per token and per byte, and the loss of every document.

    Args:
        splits: splits that are evaluated when training is over: `validation`, `test`, both or none.
        batch_size: contexts that are computed at once.
        attn_implementation: how attention is computed (`eager`, `fused`, `sdpa`, …); null takes the model's default.
    """

    splits: list[str] = field(default_factory=lambda: ["test"])
    batch_size: int = 32
    attn_implementation: str | None = None


@dataclass(kw_only=True)
class LanguageSections:
    """What a recipe of language modelling says before the settings of its run.

    Args:
        task: `language_modeling`, which makes the file a recipe of this kind.
        name: of the run; its folder is `runs/<name>` unless `training.output_dir` says otherwise.
        description: one sentence for the model card.
        data: where the texts come from.
        initialize_from: folder or Hub id of a model of this kind to start from, with its tokenizer; null starts from new weights.
        tokenizer: the byte-level BPE.
        model: fields of `ReLUFormerDecoderConfig`, and `preset` (default `gpt2`), and `attn_implementation`. With
            `initialize_from`, what differs from the checkpoint's config, which is the default for all of it.
        evaluation: how the trained model is evaluated.
    """

    task: Literal["language_modeling"] = "language_modeling"
    name: str
    description: str = ""
    data: TextDataConfig
    initialize_from: str | None = None
    tokenizer: ByteTokenizerConfig = field(default_factory=ByteTokenizerConfig)
    model: dict[str, Any] = field(default_factory=dict)
    evaluation: LanguageEvaluationConfig = field(default_factory=LanguageEvaluationConfig)


@dataclass(kw_only=True)
class LanguageRecipe(RowBatches, LanguageSections):
    """One experiment of language modelling, complete: `reluformer train` needs nothing else."""

    batch_unit: ClassVar[str] = "contexts"
    always_written: ClassVar[frozenset[str]] = frozenset({"task", "data", "tokenizer", "model", "evaluation"})

    def inputs(self) -> list[tuple[str, str | None]]:
        """What the run begins with: key and path or id."""
        found = [("initialize_from", self.initialize_from), ("tokenizer.path", self.tokenizer.path)]
        for name in ("corpus", *SPLITS):
            source = getattr(self.data, name)
            if source is not None:
                found += [(f"data.{name}.paths", path) for path in source.all_paths()]
                found.append((f"data.{name}.documents", source.documents))
                found.append((f"data.{name}.dataset.path", getattr(source.dataset, "path", None)))
        return found

    def check(self) -> None:
        """Raises `UserError` for values that are well typed yet cannot be trained, before anything is loaded."""
        check_language_recipe(self)
