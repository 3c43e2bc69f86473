"""The model card of a folder, rendered from what was measured. A value that was not measured is not in it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2  # noqa: F401  (the card's template needs it, and huggingface_hub does not say which package is missing)
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import PreTrainedConfig

from reluformer.configuration.errors import UserError
from reluformer.configuration.scores import SCORES, TOLD_SCORES, Score
from reluformer.hub_cards.model_folder import ModelFolder, is_number
from reluformer.modeling_reluformer.fused.activations import ACTIVATIONS
from reluformer.records.records import write_whole
from reluformer.records.redaction import last_part, public_text
from reluformer.training.run.run_folder import CARD_FILE

TEMPLATE = Path(__file__).with_name("card_template.md")
PICTURES = ("training_curve.png", "attention_map.png")
# Key in the Trainer's log, name in the card, format.
_ATTENTION_STATISTICS = (
    ("attention_sum", "mean row sum S", "{:.3f}"),
    ("attention_entropy", "mean row entropy H (nats)", "{:.3f}"),
    ("dead_row_fraction", "dead rows (no positive weight)", "{:.2%}"),
)


def render_card(
    folder: str | Path,
    *,
    license: str | None = None,
    language: str | Sequence[str] | None = None,
    dataset: str | None = None,
    repo_id: str | None = None,
) -> str:
    """The card of a model as Markdown with metadata.

    Args:
        folder: of a run, of a `Trainer` with `ModelCardCallback`, or of `save_pretrained`; only config.json must be
            there.
        license: of the weights, as the Hub names licences. It depends on the data, so that nothing else can be known
            here.
        language: codes of ISO 639, of a translation the source's and the target's.
        dataset: id on the Hub of what it was trained and evaluated on.
        repo_id: where the model will be on the Hub, for the examples; default a path to fill in.

    `license`, `language` and `dataset` that are None are those of the recipe or of the card in the folder, if it has
    any.

    Raises:
        UserError: no ReLUFormer in the folder.
    """
    model = ModelFolder(folder, license=license, language=language, dataset=dataset)
    name = public_text(repo_id.split("/")[-1] if repo_id and not model.recipe.get("name") else model.name)
    config = model.config
    card = ModelCard.from_template(
        _metadata(model, name),
        template_path=str(TEMPLATE),
        name=name,
        model=model,
        is_reluformer=(config.attention_activation, config.attention_scaling) == ("relu", "variance"),
        location=repo_id or f"path/to/{name}",
        formula=attention_formula(config),
        regularization=regularization_formula(config),
        origin=_origin(model),
        scores_of=measured_scores,
        evaluated_text=evaluated_text,
        measured_on=_measured_on,
        statistics=_attention_statistics(model),
        pictures=[picture for picture in PICTURES if model.has(picture)],
    )
    # Parts that are left out leave empty lines behind.
    return re.sub(r"\n{3,}", "\n\n", str(card)).rstrip() + "\n"


def write_card(folder: str | Path, *, keep_scores: bool = False, **options: Any) -> Path:
    """Writes `render_card` to README.md in the folder, over an older card, and returns its path.

    Raises:
        UserError: with keep_scores, the older card has scores, and nothing in the folder records any for the new one.
    """
    path, text = Path(folder) / CARD_FILE, render_card(folder, **options)
    if keep_scores and path.is_file() and _has_scores(path.read_text(encoding="utf-8")) and not _has_scores(text):
        raise UserError(f"{path}: has scores that no other file of the folder records; rename it to write a card anew")
    write_whole(path, text)  # a card marks a run as finished
    return path


def _has_scores(card: str) -> bool:
    return bool(ModelCard(card, ignore_metadata_errors=True).data.eval_results)


def attention_formula(config: PreTrainedConfig) -> str:
    """The weight of key j for query i, in LaTeX, with the configuration's numbers put in."""
    weight = ACTIVATIONS[config.attention_activation].latex
    if config.attention_scaling == "variance":
        weight = rf"\frac{{{weight}}}{{\gamma \sqrt{{n_i / 2}}}}"
    elif config.attention_scaling == "length":
        weight = rf"n_i^{{-{config.attention_alpha:g}}} \; {weight}"
    return rf"x_{{ij}} = \frac{{q_i \cdot k_j}}{{\sqrt{{d}}}}, \qquad s_{{ij}} = {weight}"


def regularization_formula(config: PreTrainedConfig) -> str | None:
    """The regulariser in LaTeX; None where its weight is 0."""
    if not config.regularization_weight:
        return None
    return (
        rf"\mathcal{{L}} = \mathrm{{CE}} + {config.regularization_weight:g} \, \mathcal{{L}}_{{reg}}, \qquad "
        r"\mathcal{L}_{reg} = \mathrm{mean}_i \left( |\log S_i| + "
        rf"\max(H_i - {config.entropy_margin:g} \log n_i, 0) \right), \qquad S_i = \sum_j s_{{ij}}"
    )


def _metadata(model: ModelFolder, name: str) -> ModelCardData:
    results = [*_results(model)]
    activation = model.config.attention_activation
    papers = ["arxiv:2302.06461", *(["arxiv:2309.08586"] if model.kind.task == "image-classification" else [])]
    return ModelCardData(
        language=model.languages or None,
        license=model.license,
        library_name="transformers",
        pipeline_tag=model.kind.task,
        tags=["reluformer", f"{activation}-attention", *(papers if activation != "softmax" else [])],
        datasets=[model.dataset_id] if model.dataset_id else None,
        metrics=sorted({result.metric_type for result in results}) or None,
        model_name=name,
        eval_results=results or None,
        **({"base_model": model.base_model, "base_model_relation": "finetune"} if model.base_model else {}),
    )


def _results(model: ModelFolder) -> Iterator[EvalResult]:
    """Of the evaluations of a run, and those that `ModelCardCallback` has recorded if it is known on what they were
    measured."""
    what = f"{model.kind.task.replace('-', ' ').capitalize()} {'-'.join(model.languages)}".strip()
    task = {"task_type": model.kind.task, "task_name": what}
    dataset = model.section("data").get("dataset") or {}
    for evaluation in model.evaluations:
        name = evaluated_text(model, evaluation) or model.name
        for score in measured_scores(model, evaluation):
            signature = evaluation.get(f"{score.name}_signature")
            yield EvalResult(
                **task,
                dataset_type=model.dataset_id or _slug(name),
                dataset_name=name,
                dataset_config=dataset.get("name"),
                dataset_split=evaluation["split"],
                dataset_revision=dataset.get("revision"),
                metric_type=score.hub_type,
                metric_name=score.title,
                metric_value=round(evaluation[score.name], 2),
                metric_args={"signature": signature} if signature else None,
            )
    for prefix, name, value in model.logged_scores if model.dataset_id else ():
        yield EvalResult(
            **task,
            dataset_type=model.dataset_id,
            dataset_name=model.dataset_id,
            dataset_split=None if prefix == "eval" else prefix.removeprefix("eval_"),
            metric_type=_slug(name),
            metric_name=name,
            metric_value=round(value, 4),
        )


def _slug(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-").lower()


def _origin(model: ModelFolder) -> str | None:
    """Where the training text or pictures come from, without the paths of the machine that read them."""
    data = model.section("data")
    dataset = data.get("dataset") or ({"path": model.dataset_id} if model.dataset_id else {})
    if data.get("demo"):
        return "a generated corpus of number words (`reluformer.training.data.demo_corpus`)"
    if dataset and not dataset.get("files"):
        details = ", ".join(str(dataset[key]) for key in ("name", "revision") if dataset.get(key))
        return f"data set `{dataset['path']}`" + (f" ({details})" if details else "")
    paths = dataset.get("files") or data.get("train")
    files = _file_names(paths["train"] if isinstance(paths, Mapping) and "train" in paths else paths)
    return f"files {', '.join(f'`{name}`' for name in files)}" if files else None


def _file_names(held: Any) -> list[str]:
    """The last parts of all paths in a section of a recipe, and the documents that it names."""
    if isinstance(held, str):
        return [last_part(held)]
    if isinstance(held, Mapping):
        held = [[f"document {name}" for name in value or ()] if key == "only" else value for key, value in held.items()]
    return [name for value in held or () for name in _file_names(value)]


def measured_scores(model: ModelFolder, evaluation: Mapping[str, Any]) -> list[Score]:
    """The scores that the card shows of an evaluation, the recipe's headline first.

    Cased scores are left out where the tokenizer lower-cases, unless the headline is one of them.
    """
    headline = SCORES.get(model.section("evaluation").get("headline"), TOLD_SCORES[0])
    uncased = model.lowercases and not headline.cased
    measured = [score for score in TOLD_SCORES if is_number(evaluation.get(score.name))]
    shown = [score for score in measured if not (uncased and score.cased)]
    return sorted(shown, key=lambda score: score is not headline)


def evaluated_text(model: ModelFolder, evaluation: Mapping[str, Any]) -> str | None:
    """What an evaluation is of: the name it records or, where that only repeats the split, the files' names."""
    name, split = evaluation.get("dataset"), evaluation["split"]
    files = _file_names(model.section("data").get(split))
    return ", ".join(files) if files and name in (None, split) else name


def _attention_statistics(model: ModelFolder) -> list[tuple[str, str, str]]:
    """(name, value, where it was measured) of the last logged ones, on the validation split if they were."""
    rows, last = [], model.record.get("weights_of_update") or math.inf
    history = [entry for entry in model.log_history if entry["step"] <= last]
    for key, name, form in _ATTENTION_STATISTICS:
        for logged, where in ((f"eval_{key}", "validation"), (key, "training, with dropout")):
            entries = [entry for entry in history if is_number(entry.get(logged))]
            if entries:
                rows.append((name, form.format(entries[-1][logged]), f"{where}, update {entries[-1]['step']:,}"))
                break
    return rows


def _measured_on(record: Mapping[str, Any]) -> str:
    """Date, machine, versions and commit in one line."""
    versions, commit = record.get("versions") or {}, record.get("git_commit")
    parts = [
        record.get("date"),
        machine_of(record),
        *(f"{name} {versions[name]}" for name in ("reluformer", "torch", "transformers") if versions.get(name)),
        f"commit {commit[:12]}{', with local changes' if record.get('git_dirty') else ''}" if commit else None,
    ]
    return " · ".join(part for part in parts if part)


def machine_of(record: Mapping[str, Any]) -> str:
    """Accelerators or, where none was used, processor and threads; "" where it is not known."""
    machine = record.get("machine") or {}
    if machine.get("accelerators") and not str(record.get("device")).startswith("cpu"):
        return ", ".join(machine["accelerators"])
    threads = machine.get("torch_threads")
    of_threads = f"{threads} thread{'s' if threads > 1 else ''}" if threads else None
    return ", ".join(part for part in (machine.get("cpu"), of_threads) if part)
