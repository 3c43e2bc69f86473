"""`reluformer analyze`: which figures to take of a model on a text, one pass for all of them, and their files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from reluformer.analysis import anisotropy, model_maps, row_statistics, statistics_plots, top_p, variance_ratio
from reluformer.analysis import variance_simulation as simulation
from reluformer.analysis.collection import observe
from reluformer.analysis.feed_forward import feed_forward_blocks, require_post_norm
from reluformer.analysis.result_files import model_facts, write_csv, write_result
from reluformer.analysis.texts import AnalysisText, batches, encode_text, read_lines, require_sizes
from reluformer.configuration.errors import UserError
from reluformer.configuration_reluformer import DEFAULT_ENTROPY_MARGIN
from reluformer.training.loading import device_of, load_model_and_tokenizer

ON_TEXT = ("entropy", "variance-ratio", "top-p", "attention-maps")
ON_MODEL = (*ON_TEXT, "anisotropy")
ANALYSES = (*ON_MODEL, "variance-simulation")


@dataclass
class AnalysisOptions:
    """What `analyze` is asked for.

    what: names out of `ANALYSES`. model: folder or Hub id. text: file of source lines. target_text: file of their
    translations; None: the model's own. output: folder; None: `analysis` in the model's folder. batch_tokens: see
    `batches`. num_beams: of the model's own translation. top_p: percentages. maps: how many pairs attention-maps draws,
    map_tokens: how many tokens of each side. lengths, samples, seed: of variance-simulation. device: None: a GPU if
    there is one.
    """

    what: Sequence[str]
    model: str | None = None
    text: str | None = None
    target_text: str | None = None
    output: str | None = None
    batch_tokens: int = 2_048
    num_beams: int = 5
    top_p: Sequence[float] = top_p.DEFAULT_PERCENTAGES
    maps: int = 1
    map_tokens: int = 40
    lengths: Sequence[int] = simulation.DEFAULT_LENGTHS
    samples: int = simulation.DEFAULT_SAMPLES
    seed: int = 0
    device: str | None = None

    def check(self) -> None:
        """Raises a `UserError` for what is missing, unknown or out of range."""
        unknown = [name for name in self.what if name not in ANALYSES]
        if unknown or not self.what:
            raise UserError(f"--what: {', '.join(unknown) or 'nothing'} is unknown; choose of {', '.join(ANALYSES)}")
        if self.model is None and (needed := [name for name in self.what if name in ON_MODEL]):
            raise UserError(f"--model: missing; {needed[0]} needs a model")
        if self.text is None and (needed := [name for name in self.what if name in ON_TEXT]):
            raise UserError(f"--text: missing; {needed[0]} needs a file of source lines")
        if self.text is None and self.target_text is not None:
            raise UserError("--target_text: given without --text; give the source lines too")
        names = ("batch_tokens", "num_beams", "maps", "map_tokens")
        require_sizes(**{name: getattr(self, name) for name in names})
        if not self.top_p or not all(0 < percentage <= 100 for percentage in self.top_p):
            raise UserError(f"--top_p: {list(self.top_p)} must be percentages above 0 and up to 100")
        if self.output is not None and Path(self.output).is_file():
            raise UserError(f"--output: {self.output!r} is a file; give a folder")

    @property
    def folder(self) -> Path:
        """Where the files go.

        Raises:
            UserError: neither an output nor a model's folder to write into.
        """
        if self.output is not None:
            return Path(self.output)
        if self.model is not None and Path(self.model).is_dir():
            return Path(self.model) / "analysis"
        raise UserError("--output: missing; without a model's folder, say where to write the results")


@dataclass
class Analysed:
    """What was written, and what a reader should know. summaries: one line for each analysis."""

    files: list[Path] = field(default_factory=list)
    summaries: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def analyze(options: AnalysisOptions) -> Analysed:
    """Takes the figures that `options.what` names and writes `<what>.json`, `<what>.csv` and pictures of each.

    Raises:
        UserError: options that do not fit together, files or a model that cannot be read, a model of which a figure
            cannot be taken.
    """
    options.check()
    session = _Session(options)
    if "variance-simulation" in options.what:
        session.simulate()
    if any(name in ON_MODEL for name in options.what):
        session.on_model()
    return session.done


class _Session:
    """One call of `analyze`: the order of the steps, and what every file says."""

    def __init__(self, options: AnalysisOptions) -> None:
        self.options, self.done = options, Analysed()
        self.folder = Path()
        self.facts: dict[str, Any] = {}

    def simulate(self) -> None:
        options = self.options
        self.folder = options.folder
        table = simulation.simulate_variance(options.lengths, samples=options.samples, seed=options.seed)
        worst = max(abs(row["variance"] / row["expected_variance"] - 1) for row in table)
        title = f"Theorem 4.1: y = sum of ReLU(x) v over n pairs, {options.samples:,} samples"
        self._write(
            "variance-simulation",
            simulation.DEFINITIONS,
            table,
            statistics_plots.plot_variance_simulation,
            f"variance within {worst:.1%} of n/2",
            title=title,
            seed=options.seed,
        )

    def on_model(self) -> None:
        options = self.options
        on_text = [name for name in ON_TEXT if name in options.what]
        lines, skipped = read_lines(options.text, options.target_text) if on_text else (None, {})
        if options.text is not None and not on_text:
            self.done.notes.append("anisotropy is a property of the weights alone; --text is not read")
        model, tokenizer = load_model_and_tokenizer(options.model, attn_implementation="eager")
        self.folder = options.folder  # not before: a model that does not exist is the first thing to say
        model.to(device_of(options.device)).eval()
        self.facts = {"model": model_facts(options.model, model.config), "device": str(model.device)}
        if "variance-ratio" in on_text:
            require_post_norm(model)
        if "anisotropy" in options.what:
            self._anisotropy(model)
        if on_text:
            if on_text == ["attention-maps"]:  # no need to translate what is not drawn
                lines = lines.select(range(min(options.maps, len(lines))))
            text = encode_text(lines, model, tokenizer, num_beams=options.num_beams)
            self._note_text(text, skipped)
            self._statistics(on_text, model, text)
            if "attention-maps" in on_text:
                self._maps(model, tokenizer, text)

    def _note_text(self, text: AnalysisText, skipped: dict[str, int]) -> None:
        files = {"source_file": self.options.text, "target_file": self.options.target_text}
        self.facts["text"] = {**files, **text.facts, "skipped": {**skipped, **text.facts["skipped"]}}
        if self.options.target_text is None:
            self.done.notes.append("no --target_text: the decoder reads the model's own translation")

    def _anisotropy(self, model: PreTrainedModel) -> None:
        table = anisotropy.anisotropy_table(model)
        self._write(
            "anisotropy",
            anisotropy.DEFINITIONS,
            table,
            statistics_plots.plot_anisotropy,
            f"{table[0]['anisotropy']:.4f}, mean over {len(feed_forward_blocks(model))} layers",
        )

    def _statistics(self, on_text: list[str], model: PreTrainedModel, text: AnalysisText) -> None:
        """One pass over the text for every figure but the maps."""
        entropy = row_statistics.RowStatistics(getattr(model.config, "entropy_margin", DEFAULT_ENTROPY_MARGIN))
        sums, ratios = top_p.TopPSums(self.options.top_p), variance_ratio.VarianceRatios()
        wanted = {"entropy": entropy, "top-p": sums}
        attention = [statistic for name, statistic in wanted.items() if name in on_text]
        memory, no_memory = self._memory_scores(model, sums) if "top-p" in on_text else (None, None)
        if attention or "variance-ratio" in on_text:
            # Closed at once where a figure cannot be taken, so that the error stands below the progress bar.
            with closing(batches(text.pairs, model.device, batch_tokens=self.options.batch_tokens)) as stream:
                on_update = ratios.update if "variance-ratio" in on_text else None
                observe(model, stream, attention=attention, on_scores=memory, on_update=on_update)
        if "entropy" in on_text:
            self._entropy(entropy)
        if "top-p" in on_text:
            self._top_p(sums, no_memory)
        if "variance-ratio" in on_text:
            table = ratios.table()
            summary = f"{table[0]['variance_ratio']:.4f}, mean over layers"
            plot = statistics_plots.plot_variance_ratio
            self._write("variance-ratio", variance_ratio.DEFINITIONS, table, plot, summary)

    def _memory_scores(
        self, model: PreTrainedModel, sums: top_p.TopPSums
    ) -> tuple[Callable[..., None] | None, str | None]:
        """What takes the scores of feed-forward memories, or None and why: attention alone is worth having too."""
        try:
            feed_forward_blocks(model)
        except UserError as error:
            return None, str(error)
        return lambda stack, layer, scores: sums.update(f"{stack}_ffn", layer, scores.unsqueeze(1)), None

    def _entropy(self, entropy: row_statistics.RowStatistics) -> None:
        table = entropy.table()
        means = [row for row in table if row["layer"] == "all"]
        parts = [
            f"{row['module']} H {row['entropy']:.3f}, dead rows {row['dead_row_fraction']:.1%}, "
            f"zeros {row['zero_fraction']:.1%}"
            for row in means
        ]
        margin = {"entropy_margin": entropy.entropy_margin}
        plot = statistics_plots.plot_entropy
        self._write("entropy", row_statistics.DEFINITIONS, table, plot, "; ".join(parts), **margin)

    def _top_p(self, sums: top_p.TopPSums, no_memory: str | None) -> None:
        table = sums.table()
        if not table:
            raise UserError("top-p: every module of this model has negative scores, which are no distributions")
        left_out = {name: f"negative scores, first in layer {layer + 1}" for name, layer in sums.negative.items()}
        if no_memory is not None:
            left_out["encoder_ffn, decoder_ffn"] = no_memory
        self.done.notes += [f"top-p leaves out {name}: {reason}" for name, reason in left_out.items()]
        p = 1.5 if 1.5 in self.options.top_p else self.options.top_p[0]
        means = [row for row in table if row["layer"] == "all" and row["p_percent"] == p and row["rows"]]
        summary = f"the top {p:g}% hold " + "; ".join(f"{row['module']} {row['score_sum']:.1%}" for row in means)
        plot = statistics_plots.plot_top_p
        self._write("top-p", top_p.DEFINITIONS, table, plot, summary, left_out=left_out or None)

    def _maps(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: AnalysisText) -> None:
        what, options = "attention-maps", self.options
        folder, pictures, described = self.folder / what, [], []
        tables = []
        for number, row in enumerate(text.pairs.select(range(min(options.maps, len(text.pairs)))), start=1):
            maps = model_maps.pair_maps(
                model, tokenizer, row["input_ids"], row["labels"], sentence=number, most_tokens=options.map_tokens
            )
            paths = model_maps.plot_pair_maps(maps, folder)
            pictures += paths
            tables.append(model_maps.maps_table(maps))
            lengths = {"source_tokens": maps.lengths[0], "target_tokens": maps.lengths[1]}
            described.append(
                {"sentence": number, **lengths, "tokens": maps.tokens, "pictures": [p.name for p in paths]}
            )
        table = write_csv(self.folder / f"{what}.csv", chain.from_iterable(tables))
        facts = {**self.facts, "map_tokens": options.map_tokens, "maps": described}
        result = write_result(
            self.folder / f"{what}.json", what, definitions=model_maps.DEFINITIONS, table=None, **facts
        )
        self.done.files += [result, table, *pictures]
        self.done.summaries.append(f"{what}: {len(pictures)} pictures in {folder}")

    def _write(
        self,
        what: str,
        definitions: dict[str, str],
        table: list[dict[str, Any]],
        plot: Callable[[list[dict[str, Any]], Path, str], Path],
        summary: str,
        *,
        title: str | None = None,
        **facts: Any,
    ) -> None:
        of_model = {} if what == "variance-simulation" else self.facts
        if what == "anisotropy":  # of the weights, whatever text stands beside it
            of_model = {"model": self.facts["model"]}
        path = self.folder / what
        self.done.files += [
            write_result(path.with_suffix(".json"), what, definitions=definitions, table=table, **of_model, **facts),
            write_csv(path.with_suffix(".csv"), table),
            plot(table, path.with_suffix(".png"), title or f"{what}: {_short(self.options.model)}"),
        ]
        self.done.summaries.append(f"{what}: {summary}")


def _short(name: str | None) -> str:
    """The last part of a path or id, for a title."""
    return re.split(r"[/\\]", str(name).rstrip("/\\"))[-1]
