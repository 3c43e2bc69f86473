"""What the studies still lack, about how many core-hours that takes, and which corpora they read.

The cost of a training is what its result recorded: seconds of training, validation and evaluation, times the threads. A
training that has not run is estimated by its updates, or epochs, and the seconds that one took in rows like it: in its own
family, or else on the same corpus at the same length, or of language models of the same size. Preparing data and analyses take
minutes more, and are not in the results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.markdown import table
from benchmarks.studies.outcomes import NOT_HERE, Outcome, outcomes_of
from benchmarks.studies.parser import STUDIES_FOLDER, Catalogue, Row, load_rows, load_study, study_names
from benchmarks.studies.tasks import RESULTS, RUNS, Places, Task, read_result
from reluformer.configuration.errors import UserError

GENERATED = "made by the program"
ALL = "all"
NAMED = 8  # so many missing rows are named; `--list` names all
CORPORA = "recipes.md#corpora"  # beside docs/reproducing.md
CORPORA_PAGE = f"docs/{CORPORA}"


@dataclass(frozen=True)
class Cost:
    """Core-seconds of some trainings. estimated: whether one of them has not run. unknown: of how many nothing is known."""

    trainings: int = 0
    seconds: float = 0.0
    estimated: bool = False
    unknown: int = 0

    def __str__(self) -> str:
        """Core-hours: "2.4", "~0.3" where some are estimated, "–" for none.

        Where nothing like some of the rows has run, "> 2.4", and where that holds for all, "not known".
        """
        if not self.trainings:
            return "–"
        if self.unknown == self.trainings:
            return "not known"
        hours = self.seconds / 3600
        if self.unknown:
            return f"> {hours:.1f}"
        return f"{'~' if self.estimated else ''}{hours:.1f}" if hours >= 0.05 else "< 0.1"


@dataclass(frozen=True)
class StudyCosts:
    """What a study lacks and takes.

    Args:
        title: of the study.
        missing: rows without evidence, as a reader knows them or how many, and seeds that others lack.
        whole: from nothing, with what its rows start from. left: what is missing, the same way.
        corpora: rows by what they are trained on: see `corpus_of`.
    """

    title: str
    missing: list[str]
    whole: Cost
    left: Cost
    corpora: dict[str, Row]


class CostBook:
    """The core-seconds of trainings at one size, from the results of all rows.

    Args:
        catalogue: the rows. places: of the results.
    """

    def __init__(self, catalogue: Catalogue, places: Places) -> None:
        self._by_row: dict[str, list[float]] = {}
        self._by_kind: dict[tuple[str, ...], list[float]] = {}
        files = sorted(places.results.glob("*.json"))
        tasks = [Task(row, _seed(file), places) for row in _unique(catalogue) for file in files if _is_of(row, file)]
        for task in tasks:
            result = read_result(task)
            if result is None or task.row.recipe is None:
                continue
            seconds = core_seconds(result)
            self._by_row.setdefault(task.row.key, []).append(seconds)
            for kind in _kinds(task.row):
                done = result["training"]["updates" if _unit(task.row) == "max_steps" else "epochs"]
                self._by_kind.setdefault(kind, []).append(seconds / done)

    def cost(self, tasks: Iterable[Task]) -> Cost:
        """Of these trainings together, each once."""
        found = {(task.row.key, task.seed): self._of(task.row) for task in tasks if task.row.recipe is not None}
        known = [each for each in found.values() if each is not None]
        seconds, estimated = sum(each for each, _ in known), any(guessed for _, guessed in known)
        return Cost(trainings=len(found), seconds=seconds, estimated=estimated, unknown=len(found) - len(known))

    def _of(self, row: Row) -> tuple[float, bool] | None:
        """Core-seconds of one seed, and whether they are estimated."""
        if row.key in self._by_row:
            return sum(self._by_row[row.key]) / len(self._by_row[row.key]), False
        for kind in _kinds(row):
            if kind in self._by_kind:
                return median(self._by_kind[kind]) * row.recipe["training"][_unit(row)], True
        return None


def core_seconds(result: Mapping[str, Any]) -> float:
    """Seconds of training, validation and evaluating a split, times threads and processes; without what it started from.

    Where the CPU seconds of the updates were measured, they are taken.
    """
    training = result["training"]
    cores = training["machine"]["torch_threads"] * training["processes"]
    evaluated = sum(each["seconds"] for each in result["evaluations"].values())
    if (measured := result.get("cpu_seconds")) is None:
        return (result["training_seconds"] + evaluated) * cores
    validated = sum(entry.get("eval_runtime", 0.0) for entry in result["log_history"])
    return measured * training["processes"] + (validated + evaluated) * cores


def study_costs(
    size: str, *, runs: Path = RUNS, results: Path = RESULTS, studies: Path = STUDIES_FOLDER
) -> dict[str, StudyCosts]:
    """Of every study that has rows at a size, in the order of the report; at last of all of them, each training once.

    What a missing row starts from counts as missing too: a result is in the repository, its model is not.
    """
    catalogue, places = load_rows(size, studies), Places.of(size, runs, results)
    book = CostBook(catalogue, places)
    loaded = sorted(((load_study(name, studies), name) for name in study_names(studies)), key=lambda s: s[0].position)
    found, everything, everything_left = {}, [], []
    for study, name in loaded:
        outcomes = [each for each in outcomes_of(study, catalogue, places).values() if each.status != NOT_HERE]
        tasks = [*_with_starts(task for each in outcomes for task in each.tasks.values())]
        left = [
            *_with_starts(task for each in outcomes for seed, task in each.tasks.items() if seed not in each.results)
        ]
        if tasks:
            corpora = {corpus_of(task.row.recipe): task.row for task in tasks if task.row.recipe is not None}
            found[name] = StudyCosts(study.title, _missing(outcomes), book.cost(tasks), book.cost(left), corpora)
            everything += tasks
            everything_left += left
    found[ALL] = StudyCosts("each training once", [], book.cost(everything), book.cost(everything_left), {})
    return found


def corpus_of(recipe: Mapping[str, Any]) -> str:
    """What a recipe is trained on: the folder of its files, the name of a data set or of its list of packages, or `GENERATED`."""
    data = recipe["data"]
    if packages := (data.get("corpus") or {}).get("packages"):
        return packages["listed"] or "installed packages"
    files = data.get("train") or {}
    if dataset := data.get("dataset") or files.get("dataset"):
        return dataset["path"]
    if files:
        paths = files.get("source") or files.get("images") or files["paths"]
        return Path(paths[0] if isinstance(paths, list) else paths).parent.as_posix()
    return GENERATED


def costs_table(**places: Path) -> str:
    """The costs of all studies on two CPU cores in Markdown, and the corpora of both sizes.

    Args:
        places: see `study_costs`.
    """
    costs, paper = (study_costs(size, **places) for size in ("cpu", "paper"))
    lines = [
        [f"`{name}`", each.title, _joined(each.missing), each.whole, each.left, _links(each), _links(paper.get(name))]
        for name, each in costs.items()
    ]
    header = ["study", "what", "missing", "core-hours", "missing core-hours", "corpus", "corpus, size `paper`"]
    return "\n".join(table(header, lines)) + "\n"


def summary(costs: StudyCosts) -> str:
    """The same of one study on one line."""
    corpora = [
        f"{corpus} ({_source(row, CORPORA_PAGE)})" for corpus, row in costs.corpora.items() if corpus != GENERATED
    ]
    parts = [f"missing: {_joined(costs.missing)}", f"core-hours: {costs.left} of {costs.whole}"]
    return " · ".join([*parts, f"corpus: {_joined(corpora)}"])


def _links(costs: StudyCosts | None) -> str:
    corpora = costs.corpora.items() if costs else ()
    return _joined([corpus if corpus == GENERATED else f"[`{corpus}`]({_address(row)})" for corpus, row in corpora])


def _address(row: Row) -> str:
    """`_source` without the remark behind it, which would end a link."""
    return _source(row, CORPORA).partition(" ")[0]


def _source(row: Row, page: str) -> str:
    """Where a corpus is to be had: its homepage, the data set's page of the Hub, or a page of ours that says it."""
    data = row.recipe["data"]
    if data.get("homepage"):
        return data["homepage"]
    return f"https://huggingface.co/datasets/{data['dataset']['path']}" if data.get("dataset") else page


def _joined(parts: list[str]) -> str:
    return "; ".join(parts) or "–"


def _missing(outcomes: Iterable[Outcome]) -> list[str]:
    """Rows without any evidence, by name where they are few; of the others, how many lack a seed."""
    rows, seeds = [], {}
    for outcome in outcomes:
        lacking = [seed for seed in outcome.tasks if seed not in outcome.results]
        if lacking and not outcome.results:
            rows.append(outcome.entry.label)
        else:
            for seed in lacking:
                seeds[seed] = seeds.get(seed, 0) + 1
    if len(rows) > NAMED:
        rows = [f"{len(rows)} rows"]
    return rows + [f"seed {seed} of {count} row{'s' * (count > 1)}" for seed, count in sorted(seeds.items())]


def _with_starts(tasks: Iterable[Task]) -> Iterator[Task]:
    for task in tasks:
        while task is not None:
            yield task
            task = task.start


def _kinds(row: Row) -> list[tuple[str, ...]]:
    """What rows that take about as long an update have in common, the nearest first."""
    task, model, unit = str(row.recipe.get("task")), row.recipe.get("model", {}), _unit(row)
    length = str(row.recipe["data"].get("max_length"))
    kinds = [("family", row.family), ("data", corpus_of(row.recipe), task, length, str(model.get("patch_size")), unit)]
    if task == "language_modeling":  # whatever the corpus, an update has as many tokens
        batch = row.recipe["training"].get("per_device_train_batch_size")
        kinds.append((task, length, *map(str, (batch, model.get("hidden_size"), model.get("num_hidden_layers"))), unit))
    return kinds


def _unit(row: Row) -> str:
    """What the recipe of a row counts its length in."""
    return "max_steps" if "max_steps" in row.recipe["training"] else "num_train_epochs"


def _unique(catalogue: Catalogue) -> list[Row]:
    return list({row.key: row for row in catalogue.rows.values()}.values())


def _is_of(row: Row, file: Path) -> bool:
    return file.stem.rpartition("-seed")[0] == row.name


def _seed(file: Path) -> int:
    row, _, seed = file.stem.rpartition("-seed")
    if not seed.isdecimal():
        raise UserError(f"{file}: a result is named {row}-seed<number>.json; rename it, or move it elsewhere")
    return int(seed)
