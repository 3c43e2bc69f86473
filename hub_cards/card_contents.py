"""What the card's template puts in: figures as text, and sentences about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reluformer.configuration.scores import SCORES, TOLD_SCORES, Score
from reluformer.hub_cards.formula import attention_formula, attention_notes, regularization_formula
from reluformer.hub_cards.measurements import RunFolder, is_number
from reluformer.hub_cards.public_names import public_name
from reluformer.training.run.redaction import last_part, public_command, public_values

PICTURES = ("training_curve.png", "attention_map.png")
# Of transformers.TrainingArguments: a saved recipe leaves out what is the library's default.
ADAM = {"adam_beta1": 0.9, "adam_beta2": 0.999}
_MODULES = {"all": "all", "encoder_self": "encoder", "decoder_self": "decoder", "cross": "decoder to encoder"}
# Column of analysis/entropy.json, name in the card, format.
_ROW_FIGURES = (
    ("entropy", "entropy H (nats)", "{:.3f}"),
    ("uniform_entropy", "log n, the most it can be", "{:.3f}"),
    ("dead_row_fraction", "dead rows", "{:.2%}"),
    ("zero_fraction", "exact zeros", "{:.1%}"),
    ("row_sum", "row sum S", "{:.3f}"),
)


def contents(run: RunFolder, license: str | None, repo_id: str | None) -> dict[str, Any]:
    """The values of the template by name; a value that is None or empty leaves its part out."""
    config, record = run.config, _training_record(run)
    command = record.get("command")
    formulas = {
        "config": config,
        "formula": attention_formula(config),
        "notes": attention_notes(config),
        "regularization": regularization_formula(config),
        "command": public_command(command) if command else None,
    }
    told = {
        "name": run.name,
        "description": run.recipe.get("description"),
        "languages": run.languages,
        "location": repo_id or f"path/to/{run.name}",
        "needs_entmax": config.attention_activation in ("sparsemax", "entmax15"),
        "moses": run.moses,
        "lowercases": run.lowercases,
        "origin": _origin(run),
        "base_model": run.base_model,
        "base_run": run.base_run,
        "base_is_other": bool(run.recipe.get("initialize_from")),
        "corpora": [{**corpus, "name": run.public_label(corpus["name"])} for corpus in run.corpora],
        "training": _training(run),
        "evaluations": [_evaluation(run, evaluation, record) for evaluation in run.evaluations],
        "figures": run.attention_figures(),
        "analysis": _analysis(run),
        "speeds": _speeds(run),
        "measured_on": _measured_on(record),
        "limits": _limits(run),
        "license": license,
    }
    return {**public_values(told), **formulas}


def _origin(run: RunFolder) -> str | None:
    """Where the pairs come from, without the paths of the machine that read them."""
    data = run.section("data")
    if dataset := run.dataset:
        details = [str(dataset[key]) for key in ("name", "revision") if dataset.get(key)]
        return f"data set `{dataset['path']}`" + (f" ({', '.join(details)})" if details else "")
    if data.get("demo"):
        return "a generated corpus of number words (`reluformer.training.data.demo_corpus`)"
    if files := data.get("train"):
        return f"parallel files `{last_part(files['source'])}` and `{last_part(files['target'])}`"
    return None


def _training(run: RunFolder) -> list[tuple[str, str]]:
    """(what, value) of the recipe and its record, in the order of the card."""
    record, arguments, tokenizer = run.training_record, run.section("training"), run.section("tokenizer")
    averaged = record.get("averaged_checkpoints") or []
    schedule = f"{arguments.get('lr_scheduler_type')}, {arguments.get('warmup_steps') or 0:g} warm-up updates"
    precision = next((name for name in ("bf16", "fp16") if arguments.get(name)), None)
    rows = [
        ("parameters", _number(record.get("parameters"))),
        ("updates", _number(record.get("updates"))),
        ("epochs", _number(record.get("epochs"), "{:.2f}")),
        ("target tokens an update, mean", _number(record.get("target_tokens_per_update"))),
        ("wall time", f"{record['seconds'] / 60:,.1f} min" if is_number(record.get("seconds")) else None),
        ("processes", _number(record.get("processes"))),
        ("mixed precision", precision),
        ("averaged checkpoints", f"{len(averaged)}: {', '.join(averaged)}" if averaged else None),
        ("learning rate, peak", _number(arguments.get("learning_rate"), "{:g}")),
        ("schedule", schedule if arguments.get("lr_scheduler_type") else None),
        (
            "Adam β1, β2",
            _pair(*(arguments.get(name, default) for name, default in ADAM.items())) if arguments else None,
        ),
        ("label smoothing", f"{run.config.label_smoothing:g}"),
        ("dropout (residual, attention)", _pair(run.config.dropout, run.config.attention_dropout)),
        ("vocabulary", f"{run.config.vocab_size:,} pieces"),
        ("longest side in training", _number(run.section("data").get("max_length"), "{:,} tokens")),
        ("tokenizer taken from", f"`{public_name(tokenizer['path'])}`" if tokenizer.get("path") else None),
        ("seed", _number(record.get("seed"), "{}")),
    ]
    return [(name, value) for name, value in rows if value is not None]


def _training_record(run: RunFolder) -> dict[str, Any]:
    """The record, with the device where the recipe says that it is the processor: accelerators may have stood idle."""
    on_cpu = run.training_record and run.section("training").get("use_cpu")
    return {**run.training_record, **({"device": "cpu"} if on_cpu else {})}


def measured_scores(run: RunFolder, evaluation: Mapping[str, Any]) -> list[Score]:
    """The scores that the card tells of an evaluation, the recipe's headline first.

    Cased scores are left out where the tokenizer lower-cases, unless the headline is one of them.
    """
    headline = SCORES.get(run.section("evaluation").get("headline"), TOLD_SCORES[0])
    uncased = run.lowercases and not headline.cased
    told = [score for score in TOLD_SCORES if is_number(evaluation.get(score.name)) and not (uncased and score.cased)]
    return sorted(told, key=lambda score: score is not headline)


def _evaluation(run: RunFolder, evaluation: dict[str, Any], training: Mapping[str, Any]) -> dict[str, Any]:
    scores = [
        (score.title, f"{evaluation[score.name]:.2f}", evaluation.get(f"{score.name}_signature"))
        for score in measured_scores(run, evaluation)
    ]
    # Said once where only the minute differs from that of the training.
    is_elsewhere = _measured_on({**evaluation, "date": None}) != _measured_on({**training, "date": None})
    return {
        **evaluation,
        "scores": scores,
        "dataset": run.evaluated_text(evaluation),
        "decoding": _decoding(evaluation),
        "measured_on": _measured_on(evaluation) if is_elsewhere else None,
    }


def _decoding(evaluation: Mapping[str, Any]) -> str:
    settings = evaluation.get("decoding") or {}
    return ", ".join(f"{name} {value}" for name, value in settings.items() if name != "batch_tokens")


def _speeds(run: RunFolder) -> list[tuple[str, str, str]]:
    """(what, speed, measured on) of the training and of each evaluation, as far as they were measured."""
    record, rows = _training_record(run), []
    if is_number(record.get("target_tokens_per_second")):
        speed = f"{record['target_tokens_per_second']:,.0f} target tokens a second"
        rows.append(("training, all processes", speed, _machine(record)))
    for evaluation in run.evaluations:
        if not is_number(evaluation.get("sentences_per_second")):
            continue
        decoding = evaluation.get("decoding") or {}
        settings = [f"beams {decoding['num_beams']}"] if is_number(decoding.get("num_beams")) else []
        if is_number(decoding.get("batch_tokens")):
            settings.append(f"at most {decoding['batch_tokens']:,} source tokens at once")
        unit = "packed documents" if evaluation.get("packing") else "sentences"
        what = ", ".join([f"translating `{evaluation['split']}`", *settings])
        rows.append((what, f"{evaluation['sentences_per_second']:,.2f} {unit} a second", _machine(evaluation)))
    return rows


def _analysis(run: RunFolder) -> dict[str, Any] | None:
    """The table of `reluformer analyze --what entropy`: head, rows and what it was measured on."""
    rows, text = run.analysed_rows()
    rows = [row for row in rows if row.get("module") in _MODULES]
    columns = [column for column in _ROW_FIGURES if any(is_number(row.get(column[0])) for row in rows)]
    if not columns:
        return None
    cells = [
        [_MODULES[row["module"]], *(_number(row.get(key), form) or "" for key, _, form in columns)] for row in rows
    ]
    parts = [f"{text['sentences']:,} pairs" if is_number(text.get("sentences")) else None]
    parts += [f"of {', '.join(text['files'])}" if text.get("files") else None]
    measured = " ".join(part for part in parts if part)
    target = f"targets: {text['target']}" if text.get("target") else None
    return {
        "head": [name for _, name, _ in columns],
        "rows": cells,
        "measured": ", ".join(part for part in (measured, target, text.get("date")) if part),
    }


def _limits(run: RunFolder) -> list[str]:
    """One sentence or two each, in the order of the card."""
    config, data = run.config, run.section("data")
    limits = [f"At most {config.max_position_embeddings:,} tokens a side; longer input is refused."]
    if data.get("packing") and data.get("max_length"):
        limits.append(
            f"Trained on consecutive sentences packed to documents of at most {data['max_length']:,} tokens a side."
        )
    elif data.get("max_length"):
        limits.append(
            f"Trained on pairs of at most {data['max_length']:,} tokens a side; what longer input does was not measured."
        )
    if run.lowercases:
        limits.append("The tokenizer lower-cases: translations have no capital letters.")
    if config.attention_scaling == "variance":
        gamma = "the learned `γ`" if config.attention_gamma_learnable else f"`γ` = {config.attention_gamma:g}"
        limits.append(
            f"The weights of a row with `n` visible keys are scaled by 1/(γ√(n/2)). The model and {gamma} fit the `n` of its "
            "training text; rows that see many more keys have other sums, and what that does to a translation was not measured."
        )
    elif config.attention_scaling == "length":
        limits.append(
            f"The weights of a row with `n` visible keys are scaled by `n` to the power of −{config.attention_alpha:g}. The "
            "model fits the `n` of its training text; what many more keys do was not measured."
        )
    limits.append(
        f"The weights belong to `{config.attention_activation}` attention as above. Another activation (softmax for ReLU, or "
        "ReLU for softmax), scaling or γ in `config.json` is another function of the same weights: fine-tune after such a "
        "change (`reluformer convert --attention`)."
    )
    seed = run.training_record.get("seed")
    if is_number(seed):
        limits.append(f"One training, with seed {seed}: how much its figures vary between seeds is not known from it.")
    if run.is_evaluated:
        limits.append(
            "Measured on the splits above and nothing else: no other domain, no robustness, no bias was examined."
        )
    else:
        limits.append("Not evaluated: no score of this model is known, and no domain, robustness or bias was examined.")
    return limits


def _measured_on(record: Mapping[str, Any]) -> str | None:
    """Date, machine, versions and commit in one line."""
    versions, commit = record.get("versions") or {}, record.get("git_commit")
    parts = [
        record.get("date"),
        _machine(record),
        *(f"{name} {versions[name]}" for name in ("reluformer", "torch", "transformers") if versions.get(name)),
        f"commit {commit[:12]}{', with local changes' if record.get('git_dirty') else ''}" if commit else None,
    ]
    return " · ".join(part for part in parts if part) or None


def _machine(record: Mapping[str, Any]) -> str:
    """Accelerators or, where none was used, processor and threads; "" where it is not known."""
    machine = record.get("machine") or {}
    on_cpu = str(record.get("device", "")).startswith("cpu")
    if machine.get("accelerators") and not on_cpu:
        return ", ".join(machine["accelerators"])
    threads = machine.get("torch_threads")
    count = f"{threads} thread{'' if threads == 1 else 's'}" if is_number(threads) else None
    return ", ".join(part for part in (machine.get("cpu"), count) if part)


def _number(value: Any, text: str = "{:,.0f}") -> str | None:
    return text.format(value) if is_number(value) else None


def _pair(first: Any, second: Any) -> str | None:
    return f"{first:g}, {second:g}" if is_number(first) and is_number(second) else None
