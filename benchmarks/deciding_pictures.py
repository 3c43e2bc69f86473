"""The pictures of README.md and of pages in docs/, from the result files: `python -m benchmarks.deciding_pictures`.

Each is written to docs/images. Blue is ReLU and orange softmax, as in all pictures; series differ in their markers,
too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from benchmarks import deciding, fine_tuning
from benchmarks.attention import DTYPES, PASSES, PLAIN, WITH_STATISTICS
from benchmarks.gpu.attention import CUDNN, FLASH
from benchmarks.measurement_file import RESULTS, ROOT, read_result
from benchmarks.studies import evidence
from benchmarks.studies.parser import load_rows
from benchmarks.studies.scores import STATISTICS
from benchmarks.studies.tasks import Places, Task
from benchmarks.studies.tasks import read_result as read_training
from benchmarks.translation import INPUTS
from benchmarks.translation import OURS as RELUFORMER
from reluformer.analysis.drawing import BLACK, GREY, PURPLE, RELU, SOFTMAX, TEAL, finish, new_figure

IMAGES = ROOT / "docs/images"
WIDTH, DPI = 9.6, 125  # 1,200 pixels
FORWARD, BOTH = PASSES
CIRCLE, SQUARE, DIAMOND, TRIANGLE = "o", "s", "D", "^"


def _write(figure: Figure, name: str) -> Path:
    path = IMAGES / f"{name}.png"
    figure.savefig(path, dpi=DPI, metadata={"Software": None})
    return path


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, fontsize=11, loc="left", fontweight="bold")


# At a glance

# A panel for each unit: pairs of evidence.yaml, and what they are called.
GLANCE_QUALITY = {
    "BLEU": {
        "multi30k": "sentences, Multi30k",
        "tatoeba": "sentences, Tatoeba",
        "relu2_multi30k": "sentences, Multi30k, ReLU²",
        "by_sentence": "documents, split into sentences",
        "documents_512": "documents of 512 tokens",
    },
    "accuracy, points": {
        "pictures_49": "images, 49 patches",
        "pictures_196": "images, 196 patches",
        "pictures_784": "images, 784 patches, one epoch",
    },
    "perplexity": {
        "language_gelu": "language model with GELU",
        "language_relu2": "language model with ReLU, ReLU²",
    },
}
LIMITS = {"BLEU": 3.2, "accuracy, points": 4.0, "perplexity": 1.6}
Points = Sequence[tuple[float, float]]


def at_a_glance() -> Path:
    """Left: by how much softmax or ReLU is ahead, a panel for each unit. Right: how many times as fast ReLU is."""
    figure = new_figure(WIDTH, 6.4)
    left, right = figure.subfigures(1, 2, width_ratios=(1.02, 1))
    panels = left.subplots(len(GLANCE_QUALITY), 1, height_ratios=[len(rows) + 0.6 for rows in GLANCE_QUALITY.values()])
    for axes, (unit, rows) in zip(panels, GLANCE_QUALITY.items(), strict=True):
        _quality_at_a_glance(axes, unit, rows)
    _title(panels[0], "Quality compared with softmax")
    marks = [_names_of_marks(GREY)[0], _names_of_marks(GREY)[1], _name_of_interval(GREY)]
    left.legend(handles=marks, fontsize=8.5, frameon=False, ncols=3, loc="outside lower center")
    axes = right.subplots()
    _speed_at_a_glance(axes)
    each = Line2D([], [], color=GREY, marker="|", linestyle="", markersize=10, markeredgewidth=2)
    each.set_label("one measured case (orange: ReLU is slower)")
    right.legend(handles=[each], fontsize=8.5, frameon=False, loc="outside lower center")
    return _write(figure, "at_a_glance")


def _quality_at_a_glance(axes: Axes, unit: str, rows: Mapping[str, str]) -> None:
    """An interval of three seeds as a line; of fewer seeds, each of them."""
    for row, name in enumerate(rows):
        pair = evidence.BY_NAME[name]
        comparison, better = evidence.comparison(pair), -1 if STATISTICS[pair.score].lower_is_better else 1
        color = RELU if better * fmean(comparison.each) > 0 else SOFTMAX
        if comparison.has_seeds:
            axes.plot(comparison.interval(95), [row, row], color=color, linewidth=4, alpha=0.4, solid_capstyle="butt")
        _draw_seeds(axes, [(fmean(comparison.each), row)], [[(one, row) for one in comparison.each]], color, CIRCLE)
        lead = "ReLU" if color == RELU else "softmax"
        _beside(axes, row, f"{lead} by {abs(fmean(comparison.each)):.2f}")
    limit = LIMITS[unit]
    axes.set_xlim(*((limit, -limit) if unit.startswith("perplexity") else (-limit, limit)))
    axes.axvline(0, color=BLACK, linewidth=1)
    axes.set_yticks(range(len(rows)), list(rows.values()), fontsize=9)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(f"← softmax ahead     {unit}     ReLU ahead →", fontsize=8.5)
    finish(axes)


def _beside(axes: Axes, row: int, words: str) -> None:
    """Right of the axes, where nothing is drawn."""
    axes.annotate(
        words, (1.03, row), xycoords=("axes fraction", "data"), va="center", fontsize=9, annotation_clip=False
    )


def _name_of_interval(color: str) -> Line2D:
    return Line2D([], [], color=color, linewidth=4, alpha=0.4, label="95 % interval")


def _draw_seeds(axes: Axes, means: Points, seeds: Sequence[Points], color: str, marker: str) -> None:
    """A filled mark for a mean, with small empty ones for its seeds; of one seed alone, one empty mark."""
    for mean, each in zip(means, seeds, strict=True):
        several = len(each) > 1
        axes.plot(*mean, marker, color=color, markersize=8, markerfacecolor=color if several else "white", zorder=3)
        if several:
            axes.plot(
                *zip(*each, strict=True),
                marker,
                color=color,
                markersize=4,
                markerfacecolor="white",
                zorder=4,
                linestyle="",
            )


def _names_of_marks(color: str) -> list[Line2D]:
    marks = {"color": color, "marker": CIRCLE, "linestyle": ""}
    return [
        Line2D([], [], markersize=8, label="mean of seeds", **marks),
        Line2D([], [], markersize=6, markerfacecolor="white", label="one seed", **marks),
    ]


def _speed_at_a_glance(axes: Axes) -> None:
    """A mark for each case that was measured, from the slowest to the fastest."""
    attention = read_result(RESULTS / "gpu/attention.json")
    rows, sentences = deciding.overview_rows(), deciding.SENTENCES
    full, held = (
        deciding.better_threads("translating", sentences),
        deciding.equal_threads("translating-avx2", sentences),
    )
    reaches = {
        "CPU: train a model,\nvs. softmax": [row.ratios["training", "float32"] for row in rows],
        "CPU: inference,\nvs. softmax": [row.ratios["use", "float32"] for row in rows],
        "Xeon: translate, int8,\nvs. CTranslate2": full["int8"],
        "Xeon: translate, float32,\nvs. CTranslate2": full["float32"],
        "EPYC, AVX2: translate,\nint8, vs. CTranslate2": held["int8"],
        "EPYC, AVX2: translate,\nfloat32, vs. CTranslate2": held["float32"],
        "H100: train a small model,\nvs. softmax": list(deciding.gpu_training(RELUFORMER).values()),
        "H100: train attention,\nvs. FlashAttention-2": deciding.gpu_ratios(attention, BOTH, WITH_STATISTICS, FLASH),
        "H100: train attention,\nvs. cuDNN": deciding.gpu_ratios(attention, BOTH, WITH_STATISTICS, CUDNN),
    }
    for row, ratios in enumerate(reaches.values()):
        low, high = min(ratios), max(ratios)
        axes.plot([low, high], [row, row], color=GREY, linewidth=1.5, zorder=1)
        for ratio in ratios:
            axes.plot(ratio, row, "|", color=RELU if ratio > 1 else SOFTMAX, markersize=12, markeredgewidth=2)
        _beside(axes, row, f"{low:.2f} to {high:.2f}")
    axes.set_yticks(range(len(reaches)), list(reaches), fontsize=9)
    axes.set_ylim(len(reaches) - 0.5, -0.5)
    _ratio_axis(axes, "x", (0.5, 1, 2, 4))
    axes.set_xlim(0.48, 5.4)
    axes.set_xlabel("← ReLU slower      ReLU faster →", fontsize=8.5)
    _title(axes, "How many times as fast ReLU is")
    finish(axes)


def _ratio_axis(axes: Axes, which: str, ticks: Sequence[float]) -> None:
    """Twice as fast is as far from 1 as half as fast."""
    axis = getattr(axes, f"{which}axis")
    getattr(axes, f"set_{which}scale")("log")
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FixedFormatter([f"{tick:g}×" for tick in ticks]))
    axis.set_minor_locator(NullLocator())
    getattr(axes, f"set_{which}lim")(ticks[0] / 1.05, ticks[-1] * 1.05)
    (axes.axvline if which == "x" else axes.axhline)(1, color=BLACK, linewidth=1)


# Quality

SIDES = (("softmax", SOFTMAX, SQUARE), ("ReLU", RELU, CIRCLE))


def quality_by_length() -> Path:
    """BLEU of documents and accuracy of pictures: means, and each seed."""
    figure = new_figure(WIDTH, 3.8)
    documents, pictures = figure.subplots(1, 2)
    _by_length(documents, "documents", (128, 256, 512, 1024, 2048), "BLEU")
    documents.set_xlabel("tokens of a document", fontsize=9)
    _title(documents, "Documents (empty marks: one seed)")
    _by_length(pictures, "pictures", (49, 196, 784), "accuracy, %")
    pictures.set_xlabel("patches of an image", fontsize=9)
    _title(pictures, "Images (49 patches: two epochs, else one)")
    documents.legend(frameon=False, fontsize=9)
    return _write(figure, "quality_by_length")


def _by_length(axes: Axes, what: str, lengths: Sequence[int], label: str) -> None:
    pairs = [evidence.BY_NAME[f"{what}_{length}"] for length in lengths]
    for side, (name, color, marker) in enumerate(SIDES):
        scores = [[result[pair.score]["score"] for result in evidence.results_of(pair)[side]] for pair in pairs]
        # images of unlike patches were trained for unlike numbers of epochs: no line leads from one to the next
        line = "-" if what == "documents" else " "
        _draw_line(axes, dict(zip(lengths, scores, strict=True)), color, marker, name, line)
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylabel(label, fontsize=9)
    finish(axes)


def _draw_line(
    axes: Axes, scores: Mapping[float, Sequence[float]], color: str, marker: str, label: str, line: str = "-"
) -> None:
    """Scores of all seeds by their position on the axis."""
    means = [(at, fmean(each)) for at, each in scores.items()]
    axes.plot(*zip(*means, strict=True), line, color=color)
    axes.plot([], [], line, color=color, marker=marker, markersize=8, label=label)
    _draw_seeds(axes, means, [[(at, one) for one in each] for at, each in scores.items()], color, marker)


def quality_by_updates() -> Path:
    """Left: whole trainings, by their length. Right: validation in the course of the longest."""
    figure = new_figure(WIDTH, 3.8)
    finished, course = figure.subplots(1, 2)
    for corpus, (names, color, marker, line, shift) in CORPORA.items():
        scores = {}
        for pair in (evidence.BY_NAME[name] for name in names):
            comparison = evidence.comparison(pair)
            at = evidence.results_of(pair)[0][0]["training"]["updates"] + shift
            scores[at] = comparison.each
            if comparison.has_seeds:
                finished.plot(
                    [at, at], comparison.interval(95), color=color, linewidth=4, alpha=0.35, solid_capstyle="butt"
                )
        _draw_line(finished, scores, color, marker, corpus, " ")  # 800 updates had another learning rate
        leads = deciding.validation_leads(*deciding.COURSES[corpus])
        steps, lead = list(leads), list(leads.values())
        course.plot(steps, list(map(fmean, lead)), line, color=color, marker=marker, markersize=5, label=corpus)
        course.fill_between(steps, list(map(min, lead)), list(map(max, lead)), color=color, alpha=0.15, linewidth=0)
    finished.annotate("half the\nlearning rate", (800, 2.55), (12, -14), textcoords="offset points", fontsize=9)
    finished.set_ylabel("BLEU of ReLU minus that of softmax", fontsize=9)
    finished.set_xlabel("updates (Tatoeba is drawn a little to the right)", fontsize=9)
    _title(finished, "Test score of complete runs")
    course.set_ylabel("loss of softmax minus that of ReLU, nats", fontsize=9)
    course.set_xlabel("updates", fontsize=9)
    _title(course, "Validation loss during the longest runs")
    for axes in (finished, course):
        axes.axhline(0, color=BLACK, linewidth=1)
        axes.set_xlim(0, 10_500)
        marks = [*axes.get_legend_handles_labels()[0], *_names_of_marks(GREY), _name_of_interval(GREY)]
        if axes is course:
            marks[2:] = [Patch(color=GREY, alpha=0.15, linewidth=0, label="from the lowest seed to the highest")]
        axes.legend(handles=marks, frameon=False, fontsize=8.5, title="above 0: ReLU is ahead", title_fontsize=9)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        finish(axes)
    return _write(figure, "quality_by_updates")


# Pairs of finished trainings; colour, marker, line; shift to the right, so that both are seen
CORPORA = {
    "Multi30k": (("multi30k_800", "multi30k_2400", "multi30k"), RELU, CIRCLE, "-", 0),
    "Tatoeba": (("tatoeba_2400", "tatoeba"), TEAL, DIAMOND, "--", 160),
}


def quality_by_dropout() -> Path:
    """BLEU on Multi30k of each attention and dropout: means, and each seed."""
    figure = new_figure(WIDTH, 3.6)
    axes = figure.subplots()
    rows, places = load_rows(evidence.SIZE).rows, Places.of(evidence.SIZE)
    for name, row, color, marker, shift in DROPOUT_LINES:
        scores = {}
        for dropout in (0.1, 0.2, 0.3):
            trained = rows.get(row.format(dropout))
            results = [trained and read_training(Task(trained, seed, places)) for seed in evidence.SEEDS]
            scores[dropout + shift] = [result["bleu"]["score"] for result in results if result]
        scores = {at: each for at, each in scores.items() if each}
        _draw_line(axes, scores, color, marker, name)
    axes.set_xticks((0.1, 0.2, 0.3))
    axes.set_xlabel("dropout (0.1, 0.2 or 0.3; marks are drawn side by side)", fontsize=9)
    axes.set_ylabel("BLEU on Multi30k", fontsize=9)
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
    _title(axes, "Multi30k after 10,000 updates (filled: mean of three seeds, empty: one seed)")
    finish(axes)
    return _write(figure, "quality_by_dropout")


DROPOUT_LINES = (
    ("softmax", "sentences_end_softmax_dropout_{}", SOFTMAX, SQUARE, -0.003),
    ("ReLU", "sentences_end_relu_dropout_{}", RELU, CIRCLE, 0.0),
    ("ReLU²", "sentences_end_relu2_lambda_0.1_dropout_{}", TEAL, TRIANGLE, 0.003),
)


# A model to start from


def fine_tuning_by_pairs() -> Path:
    """Left: BLEU on the captions that were trained on. Right: on the sentences that the first training was of."""
    figure = new_figure(WIDTH, 3.8)
    captions, tatoeba = figure.subplots(1, 2)
    result = read_result(RESULTS / fine_tuning.RESULT)
    panels = {"test": captions, "tatoeba": tatoeba}
    for start, text in fine_tuning.COLUMNS:
        color, marker, line = STARTS[start]
        label = fine_tuning.STARTS[start].replace("`", "")
        _draw_line(panels[text], fine_tuning.chosen_scores(result, start, text), color, marker, label, line)
    for text, axes in panels.items():
        axes.axhline(result["before"][text], color=BLACK, linewidth=1, linestyle=":", label="before fine-tuning")
        axes.set_xscale("log")
        axes.set_xticks(fine_tuning.PAIRS, [f"{pairs:,}" for pairs in fine_tuning.PAIRS])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_ylim(bottom=0)
        axes.set_xlabel("sentence pairs of captions", fontsize=9)
        axes.set_ylabel("BLEU", fontsize=9)
        finish(axes)
    figure.legend(*captions.get_legend_handles_labels(), fontsize=9, frameon=False, ncols=4, loc="outside lower center")
    _title(captions, "What was learned: captions, test")
    _title(tatoeba, "What was kept: Tatoeba, validation")
    return _write(figure, "fine_tuning_by_pairs")


# Colour, marker and line by where a training starts
STARTS = {"base": (RELU, CIRCLE, "-"), "new": (GREY, SQUARE, "--"), "lora": (PURPLE, DIAMOND, " ")}


# Speed


def speed_by_length() -> Path:
    """Attention alone, a panel for each processor that was measured, and the training of whole models."""
    files = deciding.measured_attention()
    figure = new_figure(WIDTH, 4.2)
    *alone, whole = figure.subplots(1, len(files) + 1, sharey=True)
    for axes, (file, name) in zip(alone, files.items(), strict=True):
        for task, ours, which, color, marker in (
            ("training", WITH_STATISTICS, BOTH, RELU, CIRCLE),
            ("inference", PLAIN, FORWARD, TEAL, TRIANGLE),
        ):
            for dtype, line in zip(DTYPES, ("-", "--"), strict=True):
                cells = deciding.attention_cells(file, ours, which, dtype)
                if cells:  # of this type
                    ratios = [cell["median"] for cell in cells.values()]
                    axes.plot(
                        list(cells), ratios, line, color=color, marker=marker, markersize=5, label=f"{task}, {dtype}"
                    )
        _title(axes, f"Attention alone\n{name}")
        lengths = deciding.attention_cells(file, PLAIN, FORWARD, "float32")
        _by_log_length(axes, (min(lengths), max(lengths)))
        axes.legend(frameon=False, fontsize=8.5)
    _whole_models(whole)
    alone[0].set_ylabel("times as fast as softmax", fontsize=9)
    return _write(figure, "speed_by_length")


def _whole_models(axes: Axes) -> None:
    """Training, float32, by the length of the inputs."""
    styles = {
        "translation": ([INPUTS[name].mean for name in deciding.TEXTS.values()], PURPLE, DIAMOND),
        "images": (deciding.PATCHES, RELU, CIRCLE),
        **{
            style: (deciding.CONTEXTS, color, marker)
            for style, color, marker in zip(deciding.LANGUAGE_MODELS, (TEAL, GREY), (TRIANGLE, SQUARE), strict=True)
        },
    }
    for label, (lengths, color, marker) in styles.items():
        rows = [row for row in deciding.overview_rows() if row.name.startswith(label)]
        ratios = [row.ratios["training", "float32"] for row in rows]
        words = f"{label}, {rows[0].processor}"
        axes.plot(lengths, ratios, color=color, marker=marker, markersize=6, label=words)
    _title(axes, "Training whole models\nfloat32")
    _by_log_length(axes, (16, 4096))
    axes.set_xlabel("tokens, or patches of an image", fontsize=9)
    axes.legend(frameon=False, fontsize=8.5, loc="upper left")


def _by_log_length(axes: Axes, ends: tuple[int, int]) -> None:
    """ends: the shortest and the longest length."""
    axes.set_xscale("log", base=2)
    ticks = [length for length in (16, 64, 256, 1024, 4096) if ends[0] <= length <= ends[1]]
    axes.set_xticks(ticks, [f"{length:,}" for length in ticks], fontsize=9)
    axes.xaxis.set_minor_locator(NullLocator())
    _ratio_axis(axes, "y", (0.5, 0.75, 1, 1.5, 2, 3, 4, 6))
    axes.set_xlabel("tokens", fontsize=9)
    finish(axes)


PICTURES: tuple[Callable[[], Path], ...] = (
    at_a_glance,
    quality_by_length,
    quality_by_updates,
    quality_by_dropout,
    fine_tuning_by_pairs,
    speed_by_length,
)


def main() -> None:
    for draw in PICTURES:
        print(draw().relative_to(ROOT))


if __name__ == "__main__":
    main()
