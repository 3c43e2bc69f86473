"""What the card's template puts in: figures as text, and sentences about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers.trainer import TRAINING_ARGS_NAME

from reluformer.configuration.scores import SCORES, Score
from reluformer.hub_cards.formula import attention_formula, attention_notes, regularization_formula
from reluformer.hub_cards.model_folder import ModelFolder
from reluformer.hub_cards.public_names import public_name
from reluformer.hub_cards.trainer_log import is_number
from reluformer.training.run.redaction import last_part, public_command, public_text, public_values
from reluformer.training.run.run_folder import RECORD_FILE

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


def model_name(run: ModelFolder, repo_id: str | None) -> str:
    """The recipe's name or, of another model, that of its repository or folder."""
    return repo_id.split("/")[-1] if repo_id and not run.recipe.get("name") else run.name


def contents(run: ModelFolder, repo_id: str | None) -> dict[str, Any]:
    """The values of the template by name; a value that is None or empty leaves its part out."""
    config, kind, record, name = run.config, run.kind, _training_record(run), model_name(run, repo_id)
    location = repo_id or f"path/to/{public_text(name)}"
    command = record.get("command")
    formulas = {
        "kind": kind,
        "summary": kind.summary(config, run.languages),
        "is_reluformer": (config.attention_activation, config.attention_scaling) == ("relu", "variance"),
        "location": location,
        "with_package": kind.with_package(config, location),
        "use": kind.use(config),
        "formula": attention_formula(config),
        "notes": attention_notes(config),
        "regularization": regularization_formula(config),
        "command": public_command(command) if command else None,
    }
    told = {
        "name": name,
        "description": run.recipe.get("description"),
        "needs_entmax": config.attention_activation in ("sparsemax", "entmax15"),
        "moses": run.moses,
        "lowercases": run.lowercases,
        "origin": _origin(run),
        "base_model": run.base_model,
        "base_run": run.base_run,
        "base_is_other": bool(run.recipe.get("initialize_from")),
        "corpora": [{**corpus, "name": run.public_label(corpus["name"])} for corpus in run.corpora],
        "training": _training(run),
        "unknown": _unknown(run),
        "evaluations": [_evaluation(run, evaluation, record) for evaluation in run.evaluations],
        "logged_evaluations": _logged_evaluations(run),
        "figures": run.attention_figures(),
        "analysis": _analysis(run),
        "speeds": _speeds(run),
        "measured_on": _measured_on(record),
        "limits": _limits(run),
        "license": run.license,
        "is_run": run.is_run,
        "regularization_was": _regularization_was(run),
        "last_checkpoint": _last_checkpoint(run),
        "weights_are_of_either": _weights_are_of_either(run),
    }
    return {**public_values(told), **formulas}


def _regularization_was(run: ModelFolder) -> str:
    """What stands before the formula of the regulariser: a configuration alone does not say that it was used."""
    if run.section("training").get("label_smoothing_factor"):
        return "The Trainer's own label smoothing was on, which trains without the model's regulariser:"
    known = run.is_run or run.section("training")
    return "Trained with the regulariser" if known else "The model's loss in training holds the regulariser"


def _last_checkpoint(run: ModelFolder) -> str | None:
    """The checkpoint whose log stands in for the folder's own."""
    elsewhere = run.state_file is not None and run.state_file.parent != run.path
    return run.state_file.parent.name if elsewhere and not run.has(RECORD_FILE) else None


def _weights_are_of_either(run: ModelFolder) -> bool:
    """Whether the weights may be those of the best checkpoint, which the state of a Trainer does not tell."""
    best = run.training_record.get("best")
    is_known = run.is_run or run.has(RECORD_FILE) or run.checkpoint is not None
    return bool(best) and not is_known and best["update"] != run.training_record.get("updates")


def _origin(run: ModelFolder) -> str | None:
    """Where the pairs come from, without the paths of the machine that read them."""
    data = run.section("data")
    if dataset := run.dataset:
        details = [str(dataset[key]) for key in ("name", "revision") if dataset.get(key)]
        return f"data set `{dataset['path']}`" + (f" ({', '.join(details)})" if details else "")
    if data.get("demo"):
        return "a generated corpus of number words (`reluformer.training.data.demo_corpus`)"
    if run.stated_dataset:
        return f"data set `{run.stated_dataset}`"
    if tables := data.get("tables"):
        paths = [tables["train"]] if isinstance(tables["train"], str) else tables["train"]
        return f"tables {', '.join(f'`{last_part(path)}`' for path in paths)}"
    if folder := data.get("folder"):
        return f"folder `{last_part(folder['path'])}`"
    if texts := next((data[name] for name in ("corpus", "train") if "packages" in (data.get(name) or {})), None):
        return _text_origin(texts)
    if (files := data.get("train")) and "images" in files:
        return f"IDX files `{last_part(files['images'])}` and `{last_part(files['labels'])}`"
    if files:
        return f"parallel files `{last_part(files['source'])}` and `{last_part(files['target'])}`"
    return None


def _text_origin(texts: Mapping[str, Any]) -> str:
    """Of a source of texts."""
    if packages := texts.get("packages"):
        return f"the Python sources of {', '.join(packages['names'])}, as they are installed"
    if dataset := texts.get("dataset"):
        return f"data set `{public_name(dataset['path'])}`"
    paths = [texts["paths"]] if isinstance(texts["paths"], str) else texts["paths"]
    return f"text files {', '.join(f'`{last_part(path)}`' for path in paths)}"


def _unknown(run: ModelFolder) -> list[str]:
    """What a reader will look for, and nobody has recorded."""
    if run.is_run:
        return []
    pickled = (
        " (`training_args.bin`, a pickle, which can execute code and is not opened)"
        if run.has(TRAINING_ARGS_NAME)
        else ""
    )
    missing = {
        "the data that it was trained on": _origin(run) is None,
        "the weights that it started from": not run.recipe and run.base_model is None,
        f"the arguments of the training{pickled}": not run.section("training"),
        "the updates of the training": not is_number(run.training_record.get("updates")),
        "machine and versions": _measured_on(run.training_record) is None,
    }
    return [what for what, is_missing in missing.items() if is_missing]


def _training(run: ModelFolder) -> list[tuple[str, str]]:
    """(what, value) of the recipe and its record, in the order of the card."""
    record, arguments, tokenizer = run.training_record, run.section("training"), run.section("tokenizer")
    averaged = record.get("averaged_checkpoints") or []
    schedule = f"{arguments.get('lr_scheduler_type')}, {arguments.get('warmup_steps') or 0:g} warm-up updates"
    precision = next((name for name in ("bf16", "fp16") if arguments.get(name)), None)
    has_adam = arguments and "adam" in arguments.get("optim", "adamw")
    rows = [
        ("parameters", _number(record.get("parameters"))),
        ("updates", _number(record.get("updates"))),
        ("epochs", _number(record.get("epochs"), "{:.2f}")),
        ("target tokens an update, mean", _number(record.get("target_tokens_per_update"))),
        ("pictures an update, mean", _number(record.get("images_per_update"))),
        ("examples an update", _number(record.get("examples_per_update"))),
        ("loss, last logged", _number(record.get("last_loss"), "{:.4g}")),
        ("best checkpoint", _best(record)),
        ("weights", _weights_of(record)),
        # a plain Trainer does not log what went before it was resumed
        (
            "wall time" if run.is_run else "wall time of the last call of `train`",
            f"{record['seconds'] / 60:,.1f} min" if is_number(record.get("seconds")) else None,
        ),
        ("processes", _number(record.get("processes"))),
        ("mixed precision", precision),
        ("averaged checkpoints", f"{len(averaged)}: {', '.join(averaged)}" if averaged else None),
        ("learning rate, peak", _number(arguments.get("learning_rate"), "{:g}")),
        (
            "learning rate, highest logged",
            None if arguments else _number(record.get("highest_learning_rate"), "{:.3g}"),
        ),
        ("optimizer", _optimizer(arguments)),
        ("schedule", schedule if arguments.get("lr_scheduler_type") else None),
        (
            "Adam β1, β2",
            _pair(*(arguments.get(name, default) for name, default in ADAM.items())) if has_adam else None,
        ),
        ("label smoothing by the Trainer", _number(arguments.get("label_smoothing_factor") or None, "{:g}")),
        *run.kind.settings(run.config),
        ("longest side in training", _number(run.section("data").get("max_length"), "{:,} tokens")),
        ("tokenizer taken from", f"`{public_name(tokenizer['path'])}`" if tokenizer.get("path") else None),
        ("seed", _number(record.get("seed"), "{}")),
    ]
    return [(name, value) for name, value in rows if value is not None]


def _best(record: Mapping[str, Any]) -> str | None:
    best = record.get("best")
    return f"update {best['update']:,}, chosen by a metric of {best['metric']:.4g}" if best else None


def _weights_of(record: Mapping[str, Any]) -> str | None:
    update = record.get("weights_of_update")
    return f"of update {update:,}" if is_number(update) and update != record.get("updates") else None


def _optimizer(arguments: Mapping[str, Any]) -> str | None:
    """Where it is recorded: recipes do not name the library's default."""
    decay = arguments.get("weight_decay")
    return f"{arguments['optim']}, weight decay {decay or 0:g}" if arguments.get("optim") else None


def _training_record(run: ModelFolder) -> dict[str, Any]:
    """The record, with the device where the recipe says that it is the processor: accelerators may have stood idle."""
    on_cpu = run.training_record and run.section("training").get("use_cpu")
    return {**run.training_record, **({"device": "cpu"} if on_cpu else {})}


def measured_scores(run: ModelFolder, evaluation: Mapping[str, Any]) -> list[Score]:
    """The scores that the card tells of an evaluation, the recipe's headline first.

    Cased scores are left out where the tokenizer lower-cases, unless the headline is one of them.
    """
    if not run.kind.scores:
        return []
    headline = SCORES.get(run.section("evaluation").get("headline"), run.kind.scores[0])
    uncased = run.lowercases and not headline.cased
    told = [
        score for score in run.kind.scores if is_number(evaluation.get(score.name)) and not (uncased and score.cased)
    ]
    return sorted(told, key=lambda score: score is not headline)


def _evaluation(run: ModelFolder, evaluation: dict[str, Any], training: Mapping[str, Any]) -> dict[str, Any]:
    scores = [
        (score.title, f"{evaluation[score.name]:.{score.digits}f}", evaluation.get(f"{score.name}_signature"))
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


def _logged_evaluations(run: ModelFolder) -> list[dict[str, Any]]:
    """Of a plain Trainer: its figures under its names, as nothing more is known of them."""
    weights_of = run.training_record.get("weights_of_update", run.checkpoint)
    return [
        {
            "prefix": prefix,
            "after": _number(evaluation.get("update")),
            "is_of_others": weights_of is not None and evaluation.get("update") != weights_of,
            "metrics": [
                (name.replace("|", "\\|"), f"{round(value, 4):g}") for name, value in evaluation["metrics"].items()
            ],
        }
        for prefix, evaluation in run.logged_evaluations.items()
    ]


def _decoding(evaluation: Mapping[str, Any]) -> str:
    settings = evaluation.get("decoding") or {}
    return ", ".join(f"{name} {value}" for name, value in settings.items() if name != "batch_tokens")


def _speeds(run: ModelFolder) -> list[tuple[str, str, str]]:
    """(what, speed, measured on) of the training and of each evaluation, as far as they were measured."""
    record, rows = _training_record(run), []
    if is_number(record.get("target_tokens_per_second")):
        speed = f"{record['target_tokens_per_second']:,.0f} target tokens a second"
        rows.append(("training, all processes", speed, _machine(record)))
    if is_number(record.get("images_per_second")):
        rows.append(
            ("training, all processes", f"{record['images_per_second']:,.0f} pictures a second", _machine(record))
        )
    if is_number(record.get("examples_per_second")):
        speed = f"{record['examples_per_second']:,.4g} examples a second"
        rows.append(("training, all processes", speed, _machine(record) or "not recorded"))
    for evaluation in run.evaluations:
        if is_number(evaluation.get("images_per_second")):
            speed = f"{evaluation['images_per_second']:,.0f} pictures a second"
            rows.append((f"classifying `{evaluation['split']}`", speed, _machine(evaluation)))
        if is_number(evaluation.get("tokens_per_second")):
            speed = f"{evaluation['tokens_per_second']:,.0f} tokens a second"
            rows.append((f"predicting `{evaluation['split']}`", speed, _machine(evaluation)))
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


def _analysis(run: ModelFolder) -> dict[str, Any] | None:
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


def _limits(run: ModelFolder) -> list[str]:
    """One sentence or two each, in the order of the card."""
    config, data = run.config, run.section("data")
    limits = [run.kind.input_limit(config)]
    if data.get("packing") and data.get("max_length"):
        limits.append(
            f"Trained on consecutive sentences packed to documents of at most {data['max_length']:,} tokens a side."
        )
    elif data.get("max_length"):
        limits.append(
            f"Trained on pairs of at most {data['max_length']:,} tokens a side; what longer input does was not measured."
        )
    if data.get("text") == "moses":
        limits.append(
            "Trained on text that Moses had tokenised: tokenise the source likewise; the translation comes tokenised."
        )
    if run.lowercases:
        limits.append("The tokenizer lower-cases: translations have no capital letters.")
    if config.attention_scaling == "variance":
        gamma = "the learned `γ`" if config.attention_gamma_learnable else f"`γ` = {config.attention_gamma:g}"
        limits.append(
            f"The weights of a row with `n` visible keys are scaled by 1/(γ√(n/2)). The model and {gamma} fit the `n` of its "
            f"training {run.kind.material}; rows that see many more keys have other sums, and what that does to "
            f"{run.kind.product} was not measured."
        )
    elif config.attention_scaling == "length":
        limits.append(
            f"The weights of a row with `n` visible keys are scaled by `n` to the power of −{config.attention_alpha:g}. The "
            f"model fits the `n` of its training {run.kind.material}; what many more keys do was not measured."
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
    elif run.logged_evaluations:
        limits.append(
            "Only its loss was measured: no score of this model is known, and no domain, robustness or bias was examined."
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
