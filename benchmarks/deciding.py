"""What README.md and docs/when_to_use.md say in tables, from the result files: the verdict, qualities, and speeds.

Links are written as from docs/. `python docs/reference_tables.py` puts the tables into the pages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import yaml

from benchmarks.attention import DTYPES, HEAD_DIM, PASSES, PLAIN, SDPA, WITH_STATISTICS
from benchmarks.gpu import attention as gpu_attention
from benchmarks.gpu import page as gpu_page
from benchmarks.markdown import table
from benchmarks.measurement_file import RESULTS, ROOT, read_result
from benchmarks.sections import better_thread_ratios
from benchmarks.studies import evidence
from benchmarks.studies.parser import load_rows
from benchmarks.studies.scores import p_in_words, paired_t_test
from benchmarks.studies.tasks import Places, Task
from benchmarks.studies.tasks import read_result as read_training
from benchmarks.translating import CTRANSLATE2, OURS_BY_TYPE
from benchmarks.translation import MARIAN, OURS_UNREGULARIZED, VANILLA
from benchmarks.translation import OURS as RELUFORMER
from reluformer import ReLUFormerConfig

Cell = Mapping[str, Any]
FORWARD, BOTH = PASSES
# Files of attention alone on a CPU, with the instructions that the processor was held to.
ATTENTION_FILES = {"attention": "", "attention-avx2": ", limited to AVX2"}


class Quoted:
    """A pair of evidence.yaml, as a sentence quotes it.

    `softmax` and `relu`: by how much either is ahead; `low` and `high`: the 95 % interval of softmax's lead; `theirs`
    and `ours`: mean scores; `seeds` and `p` in words; `cpu_time`: of ours, as a multiple of theirs.
    """

    def __init__(self, name: str) -> None:
        self._pair = evidence.BY_NAME[name]
        sides = evidence.results_of(self._pair)
        self.theirs, self.ours = (fmean(result[self._pair.score]["score"] for result in side) for side in sides)
        self.relu, self.softmax = self.ours - self.theirs, self.theirs - self.ours
        self.seeds = evidence.SEEDS_IN_WORDS[len(sides[0])]

    @property
    def low(self) -> float:
        return -evidence.comparison(self._pair).interval(95)[1]

    @property
    def high(self) -> float:
        return -evidence.comparison(self._pair).interval(95)[0]

    @property
    def p(self) -> str:
        return p_in_words(evidence.comparison(self._pair).p_value)

    @property
    def cpu_time(self) -> float:
        theirs, ours = evidence.core_seconds(self._pair)
        return ours / theirs


class SeedPairs:
    """In how many pairs of one seed softmax is ahead, and how sure that is."""

    def __init__(self) -> None:
        differences = evidence.seed_differences()
        self.count, self.ahead = len(differences), sum(difference > 0 for difference in differences)
        self.p = p_in_words(paired_t_test(differences))


class CpuSpeeds:
    """Of all models of [`overview_rows`]: from the slowest to the fastest, in float32."""

    def __init__(self) -> None:
        rows = overview_rows()
        self.models = len(rows)
        self.training, self.use = (reach([row.ratios[name, "float32"] for row in rows]) for name in ("training", "use"))
        self.highest = f"{max(row.ratios['training', 'float32'] for row in rows):.2f}"
        self.without_dropout = f"{document_training(MARIAN)['0.0']:.2f}"


class GpuSpeeds:
    """One H100 with the default regulariser, in bfloat16: whole trainings, and attention compared with two others."""

    def __init__(self) -> None:
        self.model = reach(gpu_training(RELUFORMER).values())
        attention = read_result(RESULTS / "gpu/attention.json")
        self.flash, self.cudnn = (
            reach(gpu_ratios(attention, BOTH, WITH_STATISTICS, rival))
            for rival in (gpu_attention.FLASH, gpu_attention.CUDNN)
        )


class _Figures(dict):
    """What a sentence of the verdict names is computed when it is asked for: some pairs take seconds."""

    def __missing__(self, name: str) -> object:
        made = {"pairs": SeedPairs, "cpu": CpuSpeeds, "gpu": GpuSpeeds}.get(name)
        self[name] = made() if made else Quoted(name)
        return self[name]


def verdict_table() -> str:
    """What to take, case by case."""
    rows = yaml.safe_load(Path(__file__).with_name("verdict.yaml").read_text(encoding="utf-8"))
    figures = _Figures()
    cells = ([row["case"], f"**{row['take']}**", _minus(row["by"].format_map(figures))] for row in rows)
    return "\n".join(table(("your case", "take", "by how much, and how sure"), cells)) + "\n"


def _minus(text: str) -> str:
    """With the sign that is printed, before numbers alone."""
    return re.sub(r"(?<=[ (\[])-(?=\d)", "−", text)


def reach(values: Iterable[float]) -> str:
    """From the lowest to the highest."""
    low, *_, high = sorted(f"{value:.2f}" for value in values)
    return f"{low} to {high}"


# Quality: the numbers of a picture


def quality_table(names: Mapping[str, str], heading: str, ours: str = "ReLU") -> str:
    """Lines of evidence by name, with what the first column calls each; ours: what is compared with softmax."""
    rows = []
    for name, label in names.items():
        quoted, comparison = Quoted(name), evidence.comparison(evidence.BY_NAME[name])
        scores = [f"{quoted.theirs:.2f}", f"{quoted.ours:.2f}", evidence.signed(quoted.relu)]
        rows.append([label, *scores, evidence.how_sure(comparison)])
    return "\n".join(table((heading, "softmax", ours, f"{ours} minus softmax", "how sure"), rows)) + "\n"


BY_LENGTH = {
    **{f"documents_{length}": f"documents, {length:,} tokens" for length in (128, 256, 512, 1024, 2048)},
    "pictures_49": "images, 49 patches, two epochs",
    "pictures_196": "images, 196 patches, one epoch",
    "pictures_784": "images, 784 patches, one epoch",
}
BY_UPDATES = {
    "multi30k_800": "Multi30k, 800 updates",
    "multi30k_2400": "Multi30k, 2,400 updates",
    "multi30k": "Multi30k, 10,000 updates",
    "tatoeba_2400": "Tatoeba, 2,400 updates",
    "tatoeba": "Tatoeba, 10,000 updates",
}
BY_DROPOUT = {f"dropout_{dropout}": f"ReLU, dropout {dropout}" for dropout in (0.1, 0.2, 0.3)} | {
    "relu2_multi30k": "ReLU², dropout 0.1",
    "relu2_multi30k_dropout_0.2": "ReLU², dropout 0.2",
}


def quality_by_length() -> str:
    return quality_table(BY_LENGTH, "BLEU or accuracy in %")


def quality_by_updates() -> str:
    """Scores of finished trainings, and validation in the course of the longest."""
    leads = {corpus: validation_leads(*rows) for corpus, rows in COURSES.items()}
    header = (
        "validation loss of softmax minus that of ReLU, nats a token (above 0: ReLU is ahead)",
        *(f"{step:,} updates" for step in SHOWN_STEPS),
    )
    rows = (
        [f"{corpus}, three seeds", *(evidence.signed(fmean(lead[step]), 3) for step in SHOWN_STEPS)]
        for corpus, lead in leads.items()
    )
    return quality_table(BY_UPDATES, "BLEU") + "\n" + "\n".join(table(header, rows, numbers=True)) + "\n"


# The longest trainings on sentences: rows of softmax and of ReLU.
COURSES = {
    "Multi30k": ("sentences_end_softmax_dropout_0.1", "sentences_end_relu_dropout_0.1"),
    "Tatoeba": ("tatoeba_end_softmax", "tatoeba_end_relu"),
}
SHOWN_STEPS = (1000, 2000, 4000, 6000, 10_000)


def validation_leads(softmax: str, relu: str) -> dict[int, list[float]]:
    """Updates → by how many nats a token the validation loss of ReLU is the lower one, of each seed."""
    rows, places = load_rows(evidence.SIZE).rows, Places.of(evidence.SIZE)
    leads: dict[int, list[float]] = {}
    for seed in evidence.SEEDS:
        theirs, ours = (_validation(read_training(Task(rows[name], seed, places))) for name in (softmax, relu))
        for step in theirs:
            leads.setdefault(step, []).append(theirs[step] - ours[step])
    return leads


def _validation(result: Mapping[str, Any]) -> dict[int, float]:
    name = "eval_cross_entropy"
    return {entry["step"]: entry[name] for entry in result["log_history"] if name in entry}


def quality_by_dropout() -> str:
    return quality_table(BY_DROPOUT, "BLEU on Multi30k", "ReLU or ReLU²")


# Models and their data sets → a row of each.
MODELS = {
    ("sentences, ReLU", "Multi30k and Tatoeba, German → English"): "sentences_end_relu_dropout_0.1",
    ("sentences, ReLU²", "the same"): "sentences_end_relu2_lambda_0.1_dropout_0.1",
    ("documents of 512 tokens, ReLU", "Europarl, Italian → English"): "documents_end_relu_512",
    ("documents of 512 tokens, ReLU, first trained on 128 tokens, γ unchanged", "the same"): "documents_fixed_512",
    ("language models, ReLU", "Python source of packages on PyPI"): "lm_relu_attention_pre_gelu_lambda_0.01",
    ("language models, ReLU²", "the same"): "lm_relu2_attention_lambda_0.01",
    ("images in 49 patches, ReLU", "Fashion-MNIST"): "vit_relu_alpha_1.0_L49",
}


def models_table() -> str:
    """γ and λ of the default configuration, and of what was trained, with data sets and sizes; softmax has the same."""
    default = ReLUFormerConfig()
    rows = [["**default settings**", "", "", "", f"{default.attention_gamma:g}", f"{default.regularization_weight:g}"]]
    trainings, places = load_rows(evidence.SIZE).rows, Places.of(evidence.SIZE)
    for (label, data), name in MODELS.items():
        results = (read_training(Task(trainings[name], seed, places)) for seed in evidence.SEEDS)
        result = next(result for result in results if result)
        model, parameters = result["recipe"]["model"], result["training"]["parameters"]
        rows.append([label, data, _shape(model), f"{parameters / 1e6:.1f} M", *_gamma_and_lambda(model)])
    header = ("models", "data", "layers × width", "parameters", "γ", "λ")
    return "\n".join(table(header, rows)) + "\n"


def _shape(model: Mapping[str, Any]) -> str:
    if "d_model" in model:
        return f"{model['encoder_layers']} + {model['decoder_layers']} × {model['d_model']}"
    return f"{model['num_hidden_layers']} × {model['hidden_size']}"


def _gamma_and_lambda(model: Mapping[str, Any]) -> list[str]:
    """As the recipe of a model gives them, or else its preset: that of images divides by the length in place of γ."""
    if "attention_gamma" in model:
        return [f"{model['attention_gamma']:g}", f"{model['regularization_weight']:g}"]
    preset = ReLUFormerConfig.from_preset(model["preset"])
    assert preset.attention_scaling == "length", model
    return ["none; weights are divided by n", f"{preset.regularization_weight:g}"]


def claims_table() -> str:
    """How many of the paper's statements agree with our results, as docs/reproduction.md counts them."""
    report = (ROOT / "docs/reproduction.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ReLUFormer \(arXiv 2302\.06461\) \| (\w+) ((?:\| \d+ ){4})", report, re.MULTILINE)
    counts = [[about, *re.findall(r"\d+", numbers)] for about, numbers in rows]
    return "\n".join(table(("about", "agree", "disagree", "undecided", "not measured"), counts, numbers=True)) + "\n"


# Speed


class ModelSpeed(NamedTuple):
    """ratios: by (task, type), how many times as fast a step with ReLU is as that of the class with softmax."""

    name: str
    kind: str
    processor: str
    ratios: dict[tuple[str, str], float]


def overview_rows() -> list[ModelSpeed]:
    """All models of which the same class was timed with softmax, by kind and length."""
    rows = []
    for words, inputs in TEXTS.items():
        where = {"shape": "wide", "inputs": inputs}
        name, pair = f"translation, {words}", (RELUFORMER, VANILLA)
        rows.append(_overview(name, "translation", "end-to-end", "generation", pair, where))
    pair = ("ReLU", "softmax")
    for length in PATCHES:
        where = {"length": length, "threads": 2}
        rows.append(_overview(f"images in {length} patches", "images", "vision", "inference", pair, where))
    for style, library in LANGUAGE_MODELS.items():
        for context in CONTEXTS:
            name, where = f"{style} language model, context of {context:,}", {"context": context, "library": library}
            rows.append(_overview(name, "language models", "decoder", "generation", pair, where))
    return rows


TEXTS = {"short sentences": "multi30k-like", "documents of 1,024 tokens": "1,024 tokens"}
PATCHES = (49, 196, 784)
CONTEXTS = (128, 1024, 4096)
# By whose shape they have: Transformers' classes.
LANGUAGE_MODELS = {"GPT-2-style": "GPT2LMHeadModel", "Llama-style": "LlamaForCausalLM"}


def _overview(name: str, kind: str, file: str, use: str, pair: tuple[str, str], where: Cell) -> ModelSpeed:
    result = read_result(RESULTS / f"{file}-cpu.json")
    ours, softmax = pair
    ratios = {
        ("use" if cell["task"] == use else cell["task"], cell["dtype"]): cell["speedups"][ours][softmax]["median"]
        for cell in result["cells"]
        if where.items() <= cell.items() and softmax in cell["speedups"].get(ours, {})
    }
    return ModelSpeed(name, kind, processor(result), ratios)


def processor(result: Mapping[str, Any]) -> str:
    """A name to read: Intel's says twice that it is one."""
    return re.sub(r"\(R\)| Processor", "", result["machine"]["cpu"])


def overview_table() -> str:
    """Speed of training and use of whole models, by type."""
    header = [
        "model",
        "processor",
        "training, float32",
        "training, bfloat16",
        "inference, float32",
        "inference, bfloat16",
    ]
    keys = [(task, dtype) for task in ("training", "use") for dtype in DTYPES]
    rows = ([row.name, row.processor, *(f"{row.ratios[key]:.2f}" for key in keys)] for row in overview_rows())
    return "\n".join(table(header, rows, numbers=True)) + "\n"


def attention_cells(file: str, ours: str, which: str, dtype: str) -> dict[int, Mapping[str, float]]:
    """Length → how many times as fast attention alone is as softmax (`sdpa`), of batch 1, not causal; empty if not
    measured."""
    result = read_result(RESULTS / f"{file}-cpu.json")
    wanted = {"dtype": dtype, "pass": which, "causal": False, "batch": 1, "head_dim": HEAD_DIM}
    cells = [] if result is None else result["cells"]
    ratios = {
        cell["length"]: cell["speedups"][ours][SDPA]
        for cell in cells
        if wanted.items() <= cell.items() and SDPA in cell["speedups"].get(ours, {}) and cell["length"] > 1
    }
    return dict(sorted(ratios.items()))


def measured_attention() -> dict[str, str]:
    """Files of attention alone that are there, with the processor and what it was held to."""
    results = {file: read_result(RESULTS / f"{file}-cpu.json") for file in ATTENTION_FILES}
    return {file: processor(result) + ATTENTION_FILES[file] for file, result in results.items() if result is not None}


def attention_table() -> str:
    """Attention alone by length, a table for each processor: training with the regulariser's statistics, inference
    without."""
    kinds = [("training", WITH_STATISTICS, BOTH), ("inference", PLAIN, FORWARD)]
    tables = []
    for file, name in measured_attention().items():
        columns = {
            f"{task}, {dtype}": attention_cells(file, ours, which, dtype)
            for task, ours, which in kinds
            for dtype in DTYPES
        }
        columns = {label: cells for label, cells in columns.items() if cells}
        lengths = sorted({length for cells in columns.values() for length in cells})
        rows = (
            [
                f"{length:,}",
                *(f"{cells[length]['median']:.2f}" if length in cells else "–" for cells in columns.values()),
            ]
            for length in lengths
        )
        tables.append("\n".join(table((f"{name}: tokens", *columns), rows, numbers=True)) + "\n")
    return "\n".join(tables)


def better_threads(file: str, inputs: str | None = None) -> dict[str, list[float]]:
    """Type → ours over CTranslate2, each at the number of threads with which it takes the least time; inputs: None
    takes all."""
    ratios = better_thread_ratios(read_result(RESULTS / f"{file}-cpu.json"))
    chosen = [of_types for (_, texts, *_), of_types in ratios.items() if inputs in (None, texts)]
    return {dtype: [of_types[dtype] for of_types in chosen] for dtype in CTRANSLATE2}


def equal_threads(file: str, inputs: str | None = None) -> dict[str, list[float]]:
    """The same with as many threads for both: medians of rounds in which both were timed in turn."""
    cells = [cell for cell in read_result(RESULTS / f"{file}-cpu.json")["cells"] if inputs in (None, cell["inputs"])]
    return {
        dtype: [cell["speedups"][OURS_BY_TYPE[dtype]][rival]["median"] for cell in cells]
        for dtype, rival in CTRANSLATE2.items()
    }


def batches(file: str, inputs: str) -> str:
    """How many texts were translated at once, and with how many beams."""
    cells = [cell for cell in read_result(RESULTS / f"{file}-cpu.json")["cells"] if cell["inputs"] == inputs]
    texts, beams = (sorted({cell[name] for cell in cells}) for name in ("sentences", "beams"))
    return f"{texts[0]} to {texts[-1]} at once, {' or '.join(map(str, beams))} beams"


SENTENCES = "multi30k-like"


def speed_on_a_cpu() -> str:
    """Both processors beside each other, from the slowest cell to the fastest."""
    rows = overview_rows()
    names = list(dict.fromkeys(row.processor for row in rows))
    link = "evidence.md#training-and-inference-on-a-cpu"

    def models(task: str) -> list[str]:
        """The kinds beside the numbers: each processor timed models of others."""
        cells = []
        for name in names:
            timed = [row for row in rows if row.processor == name]
            kinds = " and ".join(dict.fromkeys(row.kind for row in timed))
            ratios = reach(row.ratios[task, "float32"] for row in timed)
            cells.append(f"[{ratios}]({link}) ({len(timed)} models: {kinds})")
        return cells

    lines = [["training, float32", "the same model with softmax", *models("training")]]
    lines.append(["inference, float32", "the same model with softmax", *models("use")])
    lines += _attention_lines(names)
    lines += _translating_lines(names)
    return "\n".join(table(("ReLU on two cores of a CPU", "compared with", *names), lines)) + "\n"


def _attention_lines(names: Sequence[str]) -> list[list[str]]:
    """Attention alone, a row each for training and use; `names`: of processors."""
    rows = []
    for task, ours, which in (("training", WITH_STATISTICS, BOTH), ("inference", PLAIN, FORWARD)):
        cells = dict.fromkeys(names, "not measured")
        for file, told in measured_attention().items():
            cpu, _, held = told.partition(",")
            ratio_by_length = attention_cells(file, ours, which, "float32")
            ratios = {length: ratio["median"] for length, ratio in ratio_by_length.items()}
            lengths = f"{min(ratios):,} to {max(ratios):,} tokens"
            if min(ratios.values()) < 1:
                lengths += f", above 1 from {faster_from(ratios)} on"
            words = f"; {held.strip()}" if held else ""
            cells[cpu] = f"[{reach(ratios.values())}](when_to_use.md#speed-by-length) ({lengths}{words})"
        rows.append([f"attention alone, {task}, float32", "softmax (`sdpa`)", *cells.values()])
    return rows


def faster_from(ratios: Mapping[int, float]) -> int:
    """The length from which on ReLU is faster at every longer one, too."""
    slower = max(length for length, ratio in ratios.items() if ratio <= 1)
    return min(length for length in ratios if length > slower)


def _translating_lines(names: Sequence[str]) -> list[list[str]]:
    """Compared with CTranslate2: a processor with all its instructions, and one that is held to AVX2."""
    link = "evidence.md#translating-beside-ctranslate2"
    full, held = (read_result(RESULTS / f"{file}-cpu.json") for file in ("translating", "translating-avx2"))
    rows = []
    for dtype in reversed(tuple(CTRANSLATE2)):
        cells = dict.fromkeys(names, "not measured")
        ratios = reach(better_threads("translating", SENTENCES)[dtype])
        cells[processor(full)] = f"[{ratios}]({link}) ({batches('translating', SENTENCES)})"
        ratios = reach(equal_threads("translating-avx2", SENTENCES)[dtype])
        cells[processor(held)] = f"[{ratios}]({link}) ({batches('translating-avx2', SENTENCES)}; limited to AVX2)"
        rows.append([f"translating sentences, {dtype}", f"CTranslate2, {dtype}", *cells.values()])
    return rows


def speed_on_a_gpu() -> str:
    """On an H100, with the regulariser of the default training and without it."""
    link, length = "evidence.md#one-h100", f"{gpu_page.GOAL_LENGTH:,} tokens"
    attention = read_result(RESULTS / "gpu/attention.json")
    rows = []
    for rival in (gpu_attention.FLASH, gpu_attention.CUDNN):
        ratios = [f"[{reach(gpu_ratios(attention, BOTH, ours, rival))}]({link})" for ours in (WITH_STATISTICS, PLAIN)]
        rows.append([f"attention alone, training, {length}", rival, *ratios])
    for rival in (gpu_attention.FLASH, gpu_attention.CUDNN):
        ratio = f"[{reach(gpu_ratios(attention, FORWARD, PLAIN, rival))}]({link})"
        rows.append([f"attention alone, inference, {length}", rival, "no regulariser at inference", ratio])
    both = [gpu_training(ours) for ours in (RELUFORMER, OURS_UNREGULARIZED)]
    for lengths, words in (("sentences", "sentences"), ("1,024 tokens", "documents of 1,024 tokens")):
        ratios = [f"[{ratios[lengths]:.2f}]({link})" for ratios in both]
        rows.append([f"training a small translation model on {words}", "the same model with softmax", *ratios])
    header = ("ReLU on one H100", "compared with", "with the default regulariser (λ = 0.01)", "without (λ = 0)")
    return "\n".join(table(header, rows)) + "\n"


def gpu_ratios(result: Mapping[str, Any], which: str, ours: str, rival: str) -> list[float]:
    """How many times as fast, for heads of 64 and 128, causal or not."""
    cells = [cell["ms"][which] for cell in result["cells"] if "failed" not in cell]
    return [ms[rival] / ms[ours] for ms in cells if rival in ms]


def gpu_training(ours: str) -> dict[str, float]:
    """By lengths of the texts: target tokens a second over those of the class with softmax."""
    every = read_result(RESULTS / "gpu/models.json")["cells"]
    cells = [cell for cell in every if cell["cell"]["task"] == "training" and not cell["cell"]["compiled"]]
    speeds = {(cell["cell"]["lengths"], cell["cell"]["model"]): cell["a_second"] for cell in cells}
    lengths = dict.fromkeys(length for length, _ in speeds)
    return {length: speeds[length, ours] / speeds[length, VANILLA] for length in lengths}


def with_and_without_dropout() -> str:
    """Training on documents of 1,024 tokens: what attention dropout makes of it."""
    rivals = {"the same model with softmax": VANILLA, "`MarianMTModel` (softmax)": MARIAN}
    ratios = {words: document_training(rival) for words, rival in rivals.items()}
    dropouts = sorted(ratios["`MarianMTModel` (softmax)"], reverse=True)
    rows = (
        [words, *(f"{of[dropout]:.2f}" if dropout in of else "not measured" for dropout in dropouts)]
        for words, of in ratios.items()
    )
    header = (
        "training on documents of 1,024 tokens, float32, compared with",
        *(f"attention dropout {each}" for each in dropouts),
    )
    return "\n".join(table(header, rows, numbers=True)) + "\n"


def document_training(rival: str) -> dict[str, float]:
    """Attention dropout → how many times as fast as the rival, in float32 on documents of 1,024 tokens."""
    result = read_result(RESULTS / "end-to-end-cpu.json")
    where = {"task": "training", "shape": "wide", "inputs": "1,024 tokens", "dtype": "float32"}
    cells = (cell for cell in result["cells"] if where.items() <= cell.items())
    return {
        str(cell["attention_dropout"]): cell["speedups"][RELUFORMER][rival]["median"]
        for cell in cells
        if rival in cell["speedups"][RELUFORMER]
    }


def translating_table() -> str:
    """Ours over CTranslate2: each at its better number of threads, at equal numbers, and where both are held to
    AVX2."""
    told = {
        "each at its better number of threads": ("translating", better_threads, SENTENCES),
        "equal numbers of threads": ("translating", equal_threads, SENTENCES),
        "both limited to AVX2, two threads each": ("translating-avx2", equal_threads, SENTENCES),
    }
    rows = []
    for words, (file, compute, inputs) in told.items():
        ratios = compute(file, inputs)
        cpu = processor(read_result(RESULTS / f"{file}-cpu.json"))
        spans = (reach(ratios[dtype]) for dtype in ("int8", "float32"))
        rows.append([cpu, words, batches(file, inputs), *spans, str(len(ratios["int8"]))])
    return "\n".join(table(("processor", "threads", "texts", "int8", "float32", "cases"), rows)) + "\n"


TABLES: dict[str, Callable[[], str]] = {
    "verdict": verdict_table,
    "claims": claims_table,
    "trained models": models_table,
    "speed on a CPU": speed_on_a_cpu,
    "speed on a GPU": speed_on_a_gpu,
    "quality by length": quality_by_length,
    "quality by updates": quality_by_updates,
    "quality by dropout": quality_by_dropout,
    "speed of models": overview_table,
    "speed of attention": attention_table,
    "attention dropout and speed": with_and_without_dropout,
    "speed of translating": translating_table,
}
