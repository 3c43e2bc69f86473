"""The model card of a run, rendered from what was measured. A figure that was not measured is not in it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from reluformer.hub_cards.formula import attention_formula, attention_notes, regularization_formula
from reluformer.hub_cards.measurements import RunFolder, is_number

TEMPLATE = Path(__file__).with_name("card_template.md")
# Key in evaluation.<split>.json, type of the metric on the Hub, name.
METRICS = (
    ("bleu", "bleu", "BLEU (sacreBLEU)"),
    ("document_bleu", "bleu", "BLEU over whole documents"),
    ("tokenized_lowercase_bleu", "bleu", "BLEU, lower-cased"),
    ("moses_lowercase_bleu", "bleu", "BLEU, lower-cased, Moses-tokenised"),
    ("chrf", "chrf", "chrF"),
    ("exact_match", "exact_match", "Exact match (%)"),
)


def render_card(run_dir: str | Path, *, license: str | None = None, repo_id: str | None = None) -> str:
    """The card of a run as Markdown with metadata.

    Args:
        run_dir: run folder; only config.json must be there.
        license: of the weights, as the Hub names licences; left out if not given, since it depends on the data.
        repo_id: where the model will be on the Hub, for the example; default a path to fill in.

    Raises:
        UserError: no ReLUFormer in the folder, or one of its files is damaged.
    """
    run = RunFolder(Path(run_dir))
    card = ModelCard.from_template(_metadata(run, license), template_path=str(TEMPLATE), **_contents(run, repo_id))
    # Parts that are left out leave empty lines behind.
    text = re.sub(r"\n{3,}", "\n\n", str(card)).rstrip() + "\n"
    ModelCard(text)  # raises if the metadata cannot be read back
    return text


def write_card(run_dir: str | Path, *, license: str | None = None, repo_id: str | None = None) -> Path:
    """Writes `render_card` to README.md in the run folder, over an older card, and returns its path."""
    text = render_card(run_dir, license=license, repo_id=repo_id)
    path = Path(run_dir) / "README.md"
    # Whole or not at all: a run is finished when its card is there.
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
    return path


def _metadata(run: RunFolder, license: str | None) -> ModelCardData:
    results = [result for evaluation in run.evaluations for result in _results(run, evaluation)]
    dataset = (run.section("data").get("dataset") or {}).get("path")
    return ModelCardData(
        language=run.languages or None,
        license=license,
        library_name="transformers",
        pipeline_tag="translation",
        tags=["reluformer", f"{run.config.attention_activation}-attention", "arxiv:2302.06461"],
        datasets=[dataset] if dataset else None,
        metrics=sorted({result.metric_type for result in results}) or None,
        model_name=run.name,
        eval_results=results or None,
    )


def _results(run: RunFolder, evaluation: dict[str, Any]) -> Iterator[EvalResult]:
    data = run.section("data")
    dataset = data.get("dataset") or {}
    name = evaluation.get("dataset") or dataset.get("path") or run.name
    for key, metric_type, metric_name in METRICS:
        if not is_number(evaluation.get(key)):
            continue
        signature = evaluation.get(f"{key}_signature")
        yield EvalResult(
            task_type="translation",
            task_name=f"Translation {'-'.join(run.languages)}".strip(),
            dataset_type=dataset.get("path") or _slug(name),
            dataset_name=name,
            dataset_config=dataset.get("name"),
            dataset_split=evaluation["split"],
            dataset_revision=dataset.get("revision"),
            metric_type=metric_type,
            metric_name=metric_name,
            metric_value=round(evaluation[key], 2),
            metric_args={"signature": signature} if signature else None,
        )


def _contents(run: RunFolder, repo_id: str | None) -> dict[str, Any]:
    """What the template puts in; a value that is None or empty leaves its part out."""
    config, record = run.config, run.training_record
    return {
        "name": run.name,
        "description": run.recipe.get("description"),
        "languages": run.languages,
        "location": repo_id or f"path/to/{run.name}",
        "config": config,
        "formula": attention_formula(config),
        "notes": attention_notes(config),
        "regularization": regularization_formula(config),
        "moses": run.moses,
        "lowercases": run.lowercases,
        "origin": _origin(run.section("data")),
        "corpora": run.corpora,
        "training": _training(run),
        "command": record.get("command"),
        "evaluations": [_evaluation(evaluation) for evaluation in run.evaluations],
        "figures": run.attention_figures(),
        "measured_on": _measured_on(record),
        "curve": run.has("training_curve.png"),
        "map": run.has("attention_map.png"),
    }


def _origin(data: dict[str, Any]) -> str | None:
    """Where the pairs come from, without the paths of the machine that read them."""
    if dataset := data.get("dataset"):
        details = [str(dataset[key]) for key in ("name", "revision") if dataset.get(key)]
        return f"data set `{dataset['path']}`" + (f" ({', '.join(details)})" if details else "")
    if data.get("demo"):
        return "a generated corpus of number words (`reluformer.training.demo_corpus`)"
    if files := data.get("train"):
        return f"parallel files `{Path(files['source']).name}` and `{Path(files['target']).name}`"
    return None


def _training(run: RunFolder) -> list[tuple[str, str]]:
    """(what, value) of the recipe and its record, in the order of the card."""
    record, arguments, tokenizer = run.training_record, run.section("training"), run.section("tokenizer")
    averaged = record.get("averaged_checkpoints") or []
    schedule = f"{arguments.get('lr_scheduler_type')}, {arguments.get('warmup_steps') or 0:g} warm-up updates"
    rows = [
        ("parameters", _number(record.get("parameters"))),
        ("updates", _number(record.get("updates"))),
        ("target tokens an update, mean", _number(record.get("target_tokens_per_update"))),
        ("target tokens a second", _number(record.get("target_tokens_per_second"))),
        ("wall time", f"{record['seconds'] / 60:,.1f} min" if is_number(record.get("seconds")) else None),
        ("averaged checkpoints", f"{len(averaged)}: {', '.join(averaged)}" if averaged else None),
        ("learning rate, peak", _number(arguments.get("learning_rate"), "{:g}")),
        ("schedule", schedule if arguments.get("lr_scheduler_type") else None),
        ("Adam β1, β2", _pair(arguments.get("adam_beta1"), arguments.get("adam_beta2"))),
        ("label smoothing", f"{run.config.label_smoothing:g}"),
        ("dropout (residual, attention)", _pair(run.config.dropout, run.config.attention_dropout)),
        ("vocabulary", f"{run.config.vocab_size:,} pieces"),
        ("longest side in training", _number(run.section("data").get("max_length"), "{:,} tokens")),
        ("tokenizer taken from", f"`{tokenizer['path']}`" if tokenizer.get("path") else None),
        ("seed", _number(record.get("seed"), "{}")),
    ]
    return [(name, value) for name, value in rows if value is not None]


def _evaluation(evaluation: dict[str, Any]) -> dict[str, Any]:
    scores = [
        (name, f"{evaluation[key]:.2f}", evaluation.get(f"{key}_signature"))
        for key, _, name in METRICS
        if is_number(evaluation.get(key))
    ]
    decoding = evaluation.get("decoding") or {}
    settings = ", ".join(f"{name} {value}" for name, value in decoding.items() if name != "batch_tokens")
    return {**evaluation, "scores": scores, "decoding": settings}


def _measured_on(record: dict[str, Any]) -> str | None:
    """Date, machine, versions and commit in one line."""
    machine, versions = record.get("machine") or {}, record.get("versions") or {}
    commit = record.get("git_commit")
    parts = [
        record.get("date"),
        ", ".join(machine.get("accelerators") or []) or machine.get("cpu"),
        *(f"{name} {versions[name]}" for name in ("reluformer", "torch", "transformers") if versions.get(name)),
        f"commit {commit[:12]}{', with local changes' if record.get('git_dirty') else ''}" if commit else None,
    ]
    return " · ".join(part for part in parts if part) or None


def _number(value: Any, text: str = "{:,.0f}") -> str | None:
    return text.format(value) if is_number(value) else None


def _pair(first: Any, second: Any) -> str | None:
    return f"{first:g}, {second:g}" if is_number(first) and is_number(second) else None


def _slug(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-").lower()
