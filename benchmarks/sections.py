"""What ATTENTION.md, MODELS.md and SPARSE.md show of each result file: small tables, a picture where one would rather
look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from statistics import median
from typing import Any

from benchmarks import words
from benchmarks.attention import (
    DTYPES,
    EAGER,
    EAGER_RELU,
    FLEX_RELU,
    PASSES,
    PLAIN,
    PRODUCT,
    SDPA,
    SHORT_LENGTHS,
    WITH_STATISTICS,
)
from benchmarks.columns import (
    FASTER,
    Column,
    Result,
    fact,
    groups,
    median_ratio,
    number,
    ratio,
    said,
    shown,
    speed,
    time,
)
from benchmarks.decoder import RELU, SOFTMAX, UNREGULARIZED
from benchmarks.markdown import table
from benchmarks.translating import CTRANSLATE2, OURS_BY_TYPE
from benchmarks.translation import MARIAN, MARIAN_SMOOTHED, OURS_UNREGULARIZED, VANILLA
from benchmarks.translation import OURS as RELUFORMER
from benchmarks.vision import VIT
from benchmarks.without_library import LIBRARY
from benchmarks.without_library import WITHOUT as WITHOUT_LIBRARY


def attention(result: Result) -> Iterator[str]:
    yield from ("![Speed of ReLU attention beside softmax by length](results/attention-cpu.png)",)
    yield from ("", "### One token: the cost of a call")
    yield from said(result, "Milliseconds of one call; lower is better")
    calls = [cell for cell in result["cells"] if cell["length"] == 1]
    names = (PLAIN, WITH_STATISTICS, SDPA, EAGER_RELU)
    yield from shown(
        calls, [fact("dtype", "type"), fact("pass"), *(time(name, heading=words.contender(name)) for name in names)]
    )
    yield from _short_lengths(result)
    long = [cell for cell in result["cells"] if cell["length"] >= 64 and cell["head_dim"] == 64 and cell["heads"] == 8]
    for (dtype, which), cells in groups(long, "dtype", "pass").items():
        yield from ("", f"### {dtype}, {words.value(which)}")
        yield from said(result, f"ReLU attention beside PyTorch's softmax, 8 heads of 64. {FASTER}")
        facts = [fact("length", "tokens"), fact("batch"), fact("causal"), time(PLAIN)]
        over = [ratio(PLAIN, SDPA), ratio(WITH_STATISTICS, SDPA)]
        chosen = [cell for cell in cells if cell["batch"] == 1 or cell["length"] > SHORT_LENGTHS[-1]]
        yield from shown(chosen, [*facts, *over])
        yield from said(
            result, "How many times as fast ReLU attention is as other ways to compute weights, batch 1. Medians"
        )
        others = [cell for cell in chosen if EAGER[0] in cell["times"]]
        rivals = [median_ratio(PLAIN, name) for name in (*EAGER, FLEX_RELU)]
        yield from shown(others, [fact("length", "tokens"), fact("causal"), *rivals])
    yield from ("", "### Error of the result")
    yield from said(
        result,
        "Relative root mean square error against float64; float32, forward. Lower is better",
    )
    errors = [
        Column(words.contender(name), lambda cell, name=name: f"{cell['errors'][name]:.1e}")
        for name in (PLAIN, FLEX_RELU)
    ]
    yield from shown([cell for cell in result["cells"] if "errors" in cell], [fact("length", "tokens"), *errors])


def attention_with_avx2(result: Result) -> Iterator[str]:
    """How much of the processor each uses, and the share of torch's product that ours reaches."""
    yield (
        "PyTorch, oneDNN, MKL and our own loops were held to AVX2. GFLOP/s count products of matrices alone: two forward, seven "
        f"in training, where ours has S and T. `{PRODUCT}` is two matrices of 2,048 × 2,048 in float32, in the same rounds."
    )
    for (dtype, which), cells in groups(result["cells"], "dtype", "pass").items():
        (ours,) = cells[0]["speedups"]
        yield from ("", f"### AVX2: {dtype}, {words.value(which)}")
        yield from said(
            result, f"GFLOP/s, and how many times as fast ReLU attention is as the others, 8 heads. {FASTER}"
        )
        facts = [fact("length", "tokens"), fact("head_dim", "width of a head"), fact("threads")]
        speeds = [
            Column(words.contender(name), lambda cell, name=name: f"{cell['gflops'][name]:.0f}")
            for name in (ours, SDPA, PRODUCT)
        ]
        share = Column(
            "ours, of the product", lambda cell, ours=ours: f"{cell['gflops'][ours] / cell['gflops'][PRODUCT]:.2f}"
        )
        yield from shown(cells, [*facts, *speeds, share, ratio(ours, SDPA)])


def attention_without_library(result: Result) -> Iterator[str]:
    """What is lost on a machine that cannot build the library."""
    yield (
        "Without a compiler, on Windows, or with `RELUFORMER_COMPILED=0`, attention is computed by PyTorch's own operators, and "
        "`Translator` runs `generate`."
    )
    tasks = groups(result["cells"], "task")
    yield from said(result, f"Attention, 8 heads of 64; training has S and T. {FASTER}")
    facts = [fact("length", "tokens"), fact("batch"), fact("dtype", "type"), fact("pass")]
    ratios = [ratio(LIBRARY, WITHOUT_LIBRARY), ratio(LIBRARY, SDPA)]
    yield from shown(tasks["attention",], [*facts, *ratios])
    yield from said(result, f"Translating sentences in float32, random weights. {FASTER}")
    facts = [fact("shape", "model"), fact("beams"), fact("sentences"), time(LIBRARY)]
    yield from shown(tasks["translation",], [*facts, time(WITHOUT_LIBRARY), ratio(LIBRARY, WITHOUT_LIBRARY)])


def _short_lengths(result: Result) -> Iterator[str]:
    """Over the faster of two rivals: the lowest, the median and the highest over batches, widths of heads, causal or
    not."""
    yield from ("", "### Short sequences")
    what = (
        "ReLU attention over the faster of softmax (SDPA) and ReLU with all weights in memory, for batches of 1, 4 and "
        "64"
    )
    yield from said(result, f"{what}, heads of 32 and 64, causal or not: median (lowest to highest). {FASTER}")
    rows = []
    for length in SHORT_LENGTHS:
        row = [str(length)]
        for dtype in DTYPES:
            for which in PASSES:
                wanted = {"length": length, "dtype": dtype, "pass": which}
                ratios = [
                    min(cell["speedups"][PLAIN][rival]["median"] for rival in (SDPA, EAGER_RELU))
                    for cell in result["cells"]
                    if wanted.items() <= cell.items() and EAGER_RELU in cell["times"]
                ]
                row.append(f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        rows.append(row)
    heading = ("tokens", *(f"{dtype}, {words.value(which)}" for dtype in DTYPES for which in PASSES))
    yield from table(heading, rows, numbers=True)


# Of each model whose memory was measured, by its name in the file: a heading.
MEMORY = {
    "attention": "Attention alone: batch {batch}, {heads} heads of {head_dim}, {dtype}",
    "model": "A translation model of width {d_model} with {encoder_layers} layer on each side, batch {batch}",
    "vocabulary": "The tiny translation model, {tokens:,} tokens a batch, by vocabulary",
    "decoder": "A language model of width {hidden_size} with {num_hidden_layers} layers, loss without logits",
}
HOW_MEMORY = (
    "Each value comes from a process of its own: the peak of its memory in one training step, less what it held before "
    "the step. Linux counts it in pages, to about 1 MB."
)


def memory(result: Result) -> Iterator[str]:
    settings, cells = result["settings"], result["cells"]
    yield HOW_MEMORY
    for what in dict.fromkeys(cell["what"] for cell in cells):
        row = "vocabulary" if what == "vocabulary" else "length"
        chosen = {(cell["contender"], cell[row]): cell for cell in cells if cell["what"] == what}
        names, values = (list(dict.fromkeys(key[part] for key in chosen)) for part in (0, 1))
        yield from ("", f"### {MEMORY[what].format(**settings[what])}")
        yield from said(result, "Peak memory of a training step; lower is better")
        rows = ([f"{value:,}", *(_megabytes(chosen.get((name, value))) for name in names)] for value in values)
        heading = "pieces" if row == "vocabulary" else "tokens"
        yield from table((heading, *map(words.contender, names)), rows, numbers=True)


def _megabytes(cell: Result | None) -> str:
    if cell is None:
        return "–"
    return f"not run: {cell['not_run']}" if "not_run" in cell else f"{cell['extra_bytes'] / 1e6:,.0f} MB"


def loss(result: Result) -> Iterator[str]:
    yield from said(result, f"The loss and its gradients, with the logits in memory and without them. {FASTER}")
    facts = [fact("dtype", "type"), fact("width"), fact("vocabulary")]
    names = ("without logits", "from logits")
    yield from shown(result["cells"], [*facts, *(time(name) for name in names), ratio(*names)])


TEXTS = [fact("shape", "model"), fact("inputs", "texts"), fact("dtype", "type")]


def translation(result: Result) -> Iterator[str]:
    by_task = groups(result["cells"], "task")
    dropout = fact("attention_dropout", "attention dropout")
    training = [*TEXTS, dropout]
    yield "### Training"
    yield from said(result, f"Target tokens a second of ReLUFormer, and how that compares. {FASTER}")
    rivals = [ratio(RELUFORMER, name, f"over {words.contender(name)}") for name in (MARIAN, MARIAN_SMOOTHED, VANILLA)]
    yield from shown(by_task["training",], [*training, speed(RELUFORMER), *rivals])
    yield from ("", "### Training without the regulariser")
    yield from said(result, f"The same with λ = 0. {FASTER}")
    rivals = [ratio(OURS_UNREGULARIZED, name, f"over {words.contender(name)}") for name in (MARIAN, MARIAN_SMOOTHED)]
    yield from shown(by_task["training",], [*training, speed(OURS_UNREGULARIZED), *rivals])
    yield from ("", "### Translating with `generate`, five beams")
    yield from said(result, f"Sentences a second. {FASTER}")
    rivals = [ratio(RELUFORMER, name, f"over {words.contender(name)}") for name in (MARIAN, VANILLA)]
    yield from shown(by_task["generation",], [*TEXTS, speed(RELUFORMER), speed(MARIAN), *rivals])
    yield from ("", "### Sparse attention")
    yield from said(result, "Target tokens a second in training, sentences a second in translating; higher is better")
    others = [cell for cell in result["cells"] if "sparsemax" in cell["times"]]
    names = (RELUFORMER, VANILLA, "sparsemax", "entmax15")
    yield from shown(others, [fact("task"), *TEXTS, *map(speed, names)])
    slowest = result["settings"]["slowest"]
    yield from ("", f"Sparsemax and 1.5-entmax were left out where one call took longer than {slowest:g} s.")


def beam_search(result: Result) -> Iterator[str]:
    yield from said(result, f"Five beams, float32, beside our softmax model. {FASTER}")
    names = (RELUFORMER, "sparsemax", "entmax15", "rela")
    columns = [ratio(name, VANILLA, words.contender(name)) for name in names]
    yield from shown(result["cells"], [fact("shape", "model"), *columns])


def translating(result: Result, picture: str | None = None) -> Iterator[str]:
    if instruction_set := result["settings"].get("instruction_set"):
        yield f"PyTorch, oneDNN, MKL, CTranslate2 and our own loops were all held to {instruction_set}."
    yield (
        "Both programs have the same number of threads in the tables by model. With few sentences, CTranslate2 is "
        "often faster with one thread than with two, so the first table takes each program at its better number where "
        "both were measured."
    )
    if picture:
        yield from ("", f"![Speed of translating beside CTranslate2](results/{picture})")
    yield from at_better_threads(result)
    for (shape, inputs), cells in groups(result["cells"], "shape", "inputs").items():
        name = words.value(shape)
        yield from ("", f"### {name[0].upper()}{name[1:]} model, {words.value(inputs)}")
        yield from said(result, f"{FASTER}")
        facts = [fact("beams"), fact("sentences", "texts a batch"), fact("threads")]
        ours, theirs = OURS_BY_TYPE["float32"], CTRANSLATE2["float32"]
        yield from shown(cells, [*facts, time(ours), time(theirs), ratio(ours, theirs), ratio(ours, MARIAN)])
        yield from said(result, f"The same in int8, and ours in bfloat16. {FASTER}")
        ours, theirs = OURS_BY_TYPE["int8"], CTRANSLATE2["int8"]
        yield from shown(cells, [*facts, time(ours), time(theirs), ratio(ours, theirs), time(f"{RELUFORMER} bfloat16")])


def better_thread_ratios(result: Result) -> dict[tuple[Any, ...], dict[str, float]]:
    """(shape, inputs, beams, sentences) → type → ours over CTranslate2, each at its better number of threads."""
    ratios: dict[tuple[Any, ...], dict[str, float]] = {}
    for names, cells in groups(result["cells"], "shape", "inputs", "beams", "sentences").items():
        for compute, rival in CTRANSLATE2.items():
            ours, theirs = (
                min(cell["times"][name]["median_ms"] for cell in cells) for name in (OURS_BY_TYPE[compute], rival)
            )
            ratios.setdefault(names, {})[compute] = theirs / ours
    return ratios


def at_better_threads(result: Result) -> Iterator[str]:
    ratios = better_thread_ratios(result)
    if len(ratios) == len(result["cells"]):  # each was measured with one number
        return
    rows = [
        [*map(words.value, names), *(f"{of[compute]:.2f}" for compute in CTRANSLATE2)] for names, of in ratios.items()
    ]
    yield from ("", "### Each program at its better number of threads")
    yield from said(result, f"ReLUFormer over CTranslate2. {FASTER}")
    yield from table(("model", "texts", "beams", "texts a batch", *CTRANSLATE2), rows, numbers=True)


def types(result: Result) -> Iterator[str]:
    yield (
        "The models that come with the package translate Multi30k's test split, 1,000 sentences, in one thread. A type "
        "changes a translation where two continuations are close. In float32, the few differences are translations "
        "that do not end: `generate` cuts them at 128 tokens, and the `Translator` at 16 more than twice the source's."
    )
    yield from said(result, "BLEU: higher is better. CPU seconds: lower is better")
    rows = []
    for cell in result["cells"]:
        for name, measured in cell["types"].items():
            computed = "`generate`, float32" if name == "generate" else f"`Translator`, {name}"
            row = [cell["model"], cell["beams"], computed, f"{measured['bleu']:.2f}", f"{measured['equal']:,}"]
            rows.append([*row, f"{measured['cpu_seconds']:.1f}"])
    yield from table(("model", "beams", "computed by", "BLEU", "same as `generate`", "CPU seconds"), rows, numbers=True)


def vision(result: Result) -> Iterator[str]:
    for (task, dtype), cells in groups(result["cells"], "task", "dtype").items():
        yield from ("", f"### {task.capitalize()}, {dtype}")
        yield from said(result, f"Pictures a second of the model with ReLU attention, and how that compares. {FASTER}")
        facts = [fact("length", "patches"), fact("images", "batch"), fact("threads")]
        rivals = [ratio(RELU, name, f"over {words.contender(name)}") for name in (SOFTMAX, VIT)]
        yield from shown(cells, [*facts, speed(RELU), *rivals])


def language_models(result: Result) -> Iterator[str]:
    said_of = {"training": "Training", "prefill": "Reading a prompt", "generation": "Generating"}
    for (task, library), cells in groups(result["cells"], "task", "library").items():
        yield from ("", f"### {said_of[task]}, in the shape of {words.value(library)}")
        yield from said(result, f"Tokens a second of the model with ReLU attention, and how that compares. {FASTER}")
        facts = [fact("dtype", "type"), fact("context")]
        rivals = [ratio(RELU, name, f"over {words.contender(name)}") for name in (SOFTMAX, library)]
        cost = ratio(RELU, UNREGULARIZED, "over itself without the regulariser")
        yield from shown(cells, [*facts, speed(RELU), *rivals, cost])


# Ways to compute the feed-forward networks, by the name of a contender without its type.
WAYS = {
    "torch": "PyTorch",
    "dense": "our loop, every neuron",
    "zeros": "our loop, zeros skipped",
    "both": "zeros skipped, PyTorch's int8 elsewhere",
    "twin": "PyTorch, the twin with SiLU",
}


def trained(result: Result) -> Iterator[str]:
    state, twin, settings = result["states"][-1], result["twin"], result["settings"]
    yield (
        "A language model of Python sources with ReLU and a gate in its feed-forward networks, trained with an L1 "
        "weight. Its twin has SiLU instead, and no zeros. Both were scored on held-out text."
    )
    yield from said(result, "Perplexity: lower is better")
    rows = [["ReLU, L1 weight", f"{state['perplexity']:.3f}", f"{100 * state['zeros']:.1f} %"]]
    yield from table(
        ("model", "perplexity", "zeros"), [*rows, ["SiLU", f"{twin['perplexity']:.3f}", "0 %"]], numbers=True
    )
    cells = {cell["threads"]: cell for cell in result["cells"]}
    zeros = f"{100 * result['cells'][0]['generated_zeros']:.1f} %"
    yield from said(result, f"Milliseconds of {settings['new_tokens']} new tokens, {zeros} zeros; lower is better")
    rows = []
    for name in result["cells"][0]["times"]:
        dtype, way = name.split(" ", 1)
        rows.append([dtype, WAYS[way], *(number(cell["times"][name]["median_ms"]) for cell in cells.values())])
    heading = ("type", "computed by", *(f"{count} thread{'s' * (count > 1)}" for count in cells))
    yield from table(heading, rows, numbers=True)
    yield from said(result, f"Skipping zeros over the others, by the number of threads. {FASTER}")
    rows = []
    for ours in result["cells"][0]["speedups"]:
        for rival in result["cells"][0]["speedups"][ours]:
            pair = [_way(name) for name in (ours, rival)]
            rows.append([*pair, *(ratio(ours, rival).text(cell) for cell in cells.values())])
    yield from table(("the first", "the second", *heading[2:]), rows, numbers=True)


def _way(name: str) -> str:
    dtype, way = name.split(" ", 1)
    return f"{WAYS[way]}, {dtype}"


def zeros_models(result: Result) -> Iterator[str]:
    yield (
        "Weights are new, and a bias makes the zeros. A prompt is short, so that nearly all time is that of new tokens."
    )
    yield from ("", "![Speed of skipping zeros beside PyTorch](results/sparse-models-cpu.png)")
    facts = [Column("zeros", lambda cell: f"{100 * cell['measured_zeros']:.1f} %"), fact("beams"), fact("threads")]
    for (shape,), cells in groups(result["cells"], "shape").items():
        yield from ("", f"### {shape}")
        for dtype, ways in (("float32", ("torch", "dense", "zeros")), ("int8", ("torch", "dense", "zeros", "both"))):
            yield from said(result, f"Milliseconds a new token, {dtype}; lower is better")
            times = [time(f"{dtype} {way}", each="new_tokens", heading=WAYS[way]) for way in ways]
            yield from shown(cells, [*facts, *times])
        yield from said(result, f"Skipping zeros over PyTorch. {FASTER}")
        pairs = (("float32 zeros", "float32 torch"), ("int8 zeros", "int8 torch"), ("int8 both", "int8 torch"))
        headings = ("float32", "int8", "int8, PyTorch's int8 elsewhere")
        rivals = [ratio(*pair, heading) for pair, heading in zip(pairs, headings, strict=True)]
        yield from shown(cells, [*facts, *rivals])


TITLES = {
    "ATTENTION": "Speed and memory of ReLU attention",
    "MODELS": "Whole models beside their rivals",
    "SPARSE": "Zeros of feed-forward networks, spent in decoding",
}
ABOUT = {
    "ATTENTION": """\
How fast is ReLU attention on a CPU, beside PyTorch's softmax (`scaled_dot_product_attention`, SDPA) and other ways to compute
attention weights? `ReLU` is `relu_attention`; `S and T` are the two sums of each row that the regulariser needs in training. The
others hold all weights in memory, and were not timed (–) where that takes too long. FlexAttention has no backward pass on a CPU.
""",
    "MODELS": """\
How fast do whole models train, translate and generate on a CPU? All have new weights. Sentences have about 15 tokens, and
documents up to 1,024. Marian, ViT, GPT-2 and Llama are Transformers' models with SDPA. Models with ReLU attention train with
their regulariser (λ = 0.01) unless a table says otherwise.

| model | layers on each side | width | feed-forward width | vocabulary |
|---|--:|--:|--:|--:|
| tiny | 4 | 128 | 256 | 10,350 |
| wide | 2 | 512 | 2,048 | 8,000 |
| wide, 32,000 pieces | 2 | 512 | 2,048 | 32,000 |
| IWSLT14 | 6 | 512 | 1,024 | 10,000 |
""",
    "SPARSE": """\
A model that decodes one token on a CPU spends its time reading weights. How much time does it save to skip those that a zero
multiplies? `PyTorch` computes every network as it comes, in int8 by `quantize_dynamic`. `Our loop, every neuron` is the loop of
`use_sparse_ffn` without skipping, so that the gain of the loop and the gain of the zeros can be told apart.
""",
}
Section = tuple[str, Callable[[Result], Iterable[str]]]
SECTIONS: Mapping[str, Mapping[str, Section]] = {
    "ATTENTION": {
        "attention": ("Attention alone", attention),
        "attention-avx2": ("Attention with AVX2 alone", attention_with_avx2),
        "without-library": ("Without the compiled library", attention_without_library),
        "memory": ("Peak memory of a training step", memory),
        "loss": ("The loss without logits", loss),
    },
    "MODELS": {
        "end-to-end": ("Translation", translation),
        "generation": ("Beam search of the systems of Table 4", beam_search),
        "translating": (
            "Translating on a CPU, beside CTranslate2",
            partial(translating, picture="translating-cpu.png"),
        ),
        "translating-avx2": ("The same with AVX2 alone", translating),
        "translating-types": ("What the types cost", types),
        "vision": ("Vision Transformers", vision),
        "decoder": ("Language models", language_models),
        "decoder-memory": ("Peak memory of a language model's training step", memory),
    },
    "SPARSE": {"sparse-trained": ("A trained model", trained), "sparse-models": ("Whole models", zeros_models)},
}
