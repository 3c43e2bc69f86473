"""Fills the tables of README.md and docs/*.md that follow from the code or from result files, between `<!-- generated:
name -->` and `<!-- end of generated -->`.

python docs/reference_tables.py            writes them
python docs/reference_tables.py --check    says which are out of date, with status 1
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from reluformer import ReLUFormerConfig
from reluformer.configuration.recipe_parser import RECIPES_FOLDER, recipe_layers, recipe_names
from reluformer.modeling_reluformer.attention_reluformer import ATTENTION_SCALINGS, NON_NEGATIVE, NORMALIZED, POINTWISE
from reluformer.modeling_reluformer.configuration_reluformer import PRESETS, valid_attention_implementations

DOCS = Path(__file__).resolve().parent
sys.path.append(str(DOCS.parent))  # benchmarks/ is not installed
_BLOCK = re.compile(
    r"(?P<begin><!-- generated: (?P<name>[\w ]+) -->\n).*?(?P<end><!-- end of generated -->)", re.DOTALL
)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def activations() -> str:
    """Which scalings, implementations and regulariser go with each activation."""
    rows = []
    for name in (*POINTWISE, *NORMALIZED):
        pointwise = name in POINTWISE
        scalings = _codes(ATTENTION_SCALINGS) if pointwise else "`none`"
        regulariser = "yes" if name in NON_NEGATIVE else "no"
        kind = "point-wise" if pointwise else "normalised"
        rows.append([f"`{name}`", kind, scalings, regulariser, _codes(valid_attention_implementations(name))])
    header = (
        "`attention_activation`",
        "weights",
        "`attention_scaling`",
        "L_reg",
        "`attn_implementation`, default first",
    )
    return table(header, rows)


def presets() -> str:
    """What each preset sets, resolved."""
    fields = (
        "attention_activation",
        "attention_scaling",
        "attention_gamma",
        "attention_output_norm",
        "attention_qk_norm",
        "regularization_weight",
    )
    rows = []
    for name in PRESETS:
        config = ReLUFormerConfig.from_preset(name)
        values = {field: getattr(config, field) for field in fields}
        if values["attention_scaling"] != "variance":
            values["attention_gamma"] = "–"
        rows.append([f"`{name}`", *(_cell(value) for value in values.values())])
    return table(("preset", *(f"`{field}`" for field in fields)), rows)


def recipes() -> str:
    """Every recipe for translation."""
    rows = []
    for name in recipe_names():
        says = _resolved(name)
        data = says["data"]
        languages = f"{data['source_language']} → {data['target_language']}"
        length, steps = f"{data.get('max_length', 256):,}", f"{says['training']['max_steps']:,}"
        rows.append([f"`{name}`", languages, *_preset_and_gamma(says), length, steps])
    return table(("recipe", "languages", "preset", "γ", "`data.max_length`", "updates"), rows)


def _preset_and_gamma(says: dict) -> tuple[str, str]:
    """Of a recipe's model; one that keeps the attention of `initialize_from` names neither."""
    if "model" not in says:
        return f"of `{says['initialize_from']}`", "–"
    preset = says["model"].get("preset", "reluformer")
    config = ReLUFormerConfig.from_preset(preset)
    if config.attention_scaling != "variance":
        return f"`{preset}`", "–"
    return f"`{preset}`", f"{says['model'].get('attention_gamma', config.attention_gamma):g}"


def _resolved(name: str) -> dict:
    """The sections of a recipe over those of its base, one level deep and `model` key by key, as far as the table
    reads."""
    merged: dict = {}
    for _, says in recipe_layers(RECIPES_FOLDER / f"{name}.yaml"):
        for section, value in says.items():
            merged[section] = {**merged.get(section, {}), **value} if isinstance(value, dict) else value
    return merged


def paper_sizes() -> str:
    """The papers' own sizes, as they were tried without a GPU."""
    from benchmarks.measurement_file import RESULTS

    rows = []
    for row in json.loads((RESULTS / "paper-sizes-cpu.json").read_text(encoding="utf-8"))["rows"]:
        memory = " / ".join(f"{each / 2**30:.1f}" for each in row["memory"].values())
        hours = " / ".join(f"{each:.1f}" for each in row["hours"].values())
        if row["row"] == "reluformer":
            hours += f"; {_measured_hours(row['items']['updates']):.1f} on one, as an update was measured"
        losses = " → ".join(f"{loss:.3f}" for loss in row["losses"])
        command = f"`python -m benchmarks.studies --size paper --only {row['row']}`"
        size, updates = f"{row['parameters'] / 1e6:.1f} M", f"{row['items']['updates']:,}"
        rows.append([row["what"], command, size, updates, losses, memory, hours, "never run"])
    header = (
        "what",
        "command",
        "parameters",
        "updates",
        "loss of two updates",
        "GiB a GPU, 1 / 8",
        "hours, 1 / 8",
        "on a GPU",
    )
    return table(header, rows)


def _measured_hours(updates: int) -> float:
    """Hours of so many updates on one H100, each as long as that of IWSLT14's sentences in GPU.md."""
    from benchmarks.measurement_file import RESULTS

    wanted = {"task": "training", "shape": "iwslt14", "lengths": "sentences", "model": "ReLUFormer", "compiled": False}
    cells = json.loads((RESULTS / "gpu/models.json").read_text(encoding="utf-8"))["cells"]
    (cell,) = [cell for cell in cells if cell["cell"] == wanted]
    return updates * cell["median_ms"] / 3.6e6


def _of_results() -> dict[str, Callable[[], str]]:
    """Tables of what was trained and measured, by name; `evidence …` are the sections of docs/evidence.md."""
    from benchmarks import deciding, fine_tuning
    from benchmarks.studies import evidence

    pairs = {f"evidence {name}": partial(evidence.evidence_table, name) for name in evidence.SECTIONS}
    models = {f"evidence {name}": partial(evidence.models_table, name) for name in evidence.MODELS}
    own = {"seed pairs": evidence.seed_pairs, "fine tuning": fine_tuning.scores_table}
    return {**pairs, **models, **own, **deciding.TABLES}


def robustness() -> str:
    """What the models of the package score on text as people type it, and what they scored before they had learned it:
    each after the recipe that its own one starts from."""
    from benchmarks.measurement_file import RESULTS, read_result
    from benchmarks.robustness import WORDS
    from reluformer.translating.shipped import FIGURES_FILE, MODELS, shipped_models

    titles, columns = ["sources"], []
    for name in shipped_models():
        titles += [f"`{name}`, before variants", f"`{name}`"]
        columns.append(read_result(RESULTS / f"robustness-{name.replace('-', '_')}.json"))
        columns.append(read_result(MODELS / name / FIGURES_FILE)["robustness"])
    rows = [
        [WORDS[kind], *(f"{column['scores'][kind]['tokenized_lowercase_bleu']:.1f}" for column in columns)]
        for kind in columns[0]["scores"]
    ]
    unchanged = [f"{each['foreign']['unchanged']} of {each['foreign']['texts']}" for each in columns]
    return table(titles, [*rows, ["other scripts and emoji, translated to themselves", *unchanged]])


TABLES: dict[str, Callable[[], str]] = {
    "activations": activations,
    "presets": presets,
    "recipes": recipes,
    "paper sizes": paper_sizes,
    "robustness": robustness,
    **_of_results(),
}


def filled(text: str, folder: Path = DOCS) -> str:
    """A page with its tables as they are now.

    Args:
        text: the page.
        folder: that the page stands in; links in the tables are made to lead from there.

    Raises:
        ValueError: a block of a name that is no table.
    """

    def fill(block: re.Match[str]) -> str:
        if block["name"] not in TABLES:
            raise ValueError(f"{block['name']!r} is no table; there are: {', '.join(TABLES)}")
        lines = re.sub(r"(?<=\]\()(?=[\w.]+\.md)", _from(folder), TABLES[block["name"]]())
        return f"{block['begin']}{lines}{block['end']}"

    return _BLOCK.sub(fill, text)


def _from(folder: Path) -> str:
    """What a link from docs/ begins with when it stands in another folder."""
    path = DOCS.relative_to(folder).as_posix()
    return "" if path == "." else f"{path}/"


def _codes(values: Iterable[str]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def main() -> int:
    """Writes or checks README.md and all pages of this folder; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    os.chdir(DOCS.parent)  # where the files of benchmarks/ and runs/ are looked for
    pages = {path: path.read_text(encoding="utf-8") for path in (DOCS.parent / "README.md", *sorted(DOCS.glob("*.md")))}
    stale = {path: new for path, text in pages.items() if (new := filled(text, path.parent)) != text}
    for path, text in stale.items():
        if not check:
            path.write_text(text, encoding="utf-8")
        print(f"{path.name}: {'out of date; run python docs/reference_tables.py' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
