"""The model card of a folder, rendered from what was measured. A figure that was not measured is not in it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jinja2  # noqa: F401  (the card's template needs it, and huggingface_hub does not say which package is missing)
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from reluformer.configuration.whole_files import write_whole
from reluformer.hub_cards.card_contents import PICTURES, contents, measured_scores, model_name
from reluformer.hub_cards.model_folder import ModelFolder
from reluformer.hub_cards.statements import Statements, texts
from reluformer.training.run.redaction import public_text
from reluformer.training.run.run_folder import CARD_FILE, RECORD_FILE

TEMPLATE = Path(__file__).with_name("card_template.md")
BY_TRAINER = "generated_from_trainer"  # the tag of the cards that Transformers writes


def render_card(
    folder: str | Path,
    *,
    license: str | None = None,
    language: str | Sequence[str] | None = None,
    dataset: str | None = None,
    repo_id: str | None = None,
    pictures: str = "",
) -> str:
    """The card of a model as Markdown with metadata.

    Args:
        folder: of a run, of a plain `Trainer` (its output_dir or a checkpoint), or of `save_pretrained`; only config.json must
            be there.
        license: of the weights, as the Hub names licences. It depends on the data, so that nothing else can be known here.
        language: codes of ISO 639, of a translation the source's and the target's.
        dataset: id on the Hub of what it was trained and evaluated on.
        repo_id: where the model will be on the Hub, for the examples; default a path to fill in.
        pictures: what stands before the names of pictures, such as "files/".

    `license`, `language` and `dataset` that are None are those of the recipe or of the card in the folder, if it has any.

    Raises:
        UserError: no ReLUFormer in the folder, one of its files is damaged, the recipe says otherwise, or the licence, a
            language or the data set has not the Hub's form.
    """
    return render_card_of(_model_folder(folder, license, language, dataset), repo_id=repo_id, pictures=pictures)


def render_card_of(run: ModelFolder, *, repo_id: str | None = None, pictures: str = "") -> str:
    """`render_card` of a folder that is read already."""
    values = contents(run, repo_id)
    values["pictures"] = {name: f"{pictures}{name}" for name in PICTURES if run.has(name)}
    card = ModelCard.from_template(_metadata(run, repo_id), template_path=str(TEMPLATE), **values)
    # Parts that are left out leave empty lines behind.
    text = re.sub(r"\n{3,}", "\n\n", str(card)).rstrip() + "\n"
    ModelCard(text)  # raises if the metadata cannot be read back
    return text


def write_card(
    folder: str | Path,
    *,
    license: str | None = None,
    language: str | Sequence[str] | None = None,
    dataset: str | None = None,
    repo_id: str | None = None,
    output: str | Path | None = None,
) -> Path:
    """Writes `render_card` over an older card, and returns its path.

    Args:
        output: file; None is README.md in the folder. Elsewhere, the card's pictures are copied to `<stem>_files` beside it.
        others: see `render_card`.
    """
    run = _model_folder(folder, license, language, dataset)
    path = run.path / CARD_FILE if output is None else Path(output)
    beside = path.with_name(f"{path.stem}_files")
    is_elsewhere = path.parent.resolve() != run.path.resolve()
    prefix = f"{beside.name}/" if is_elsewhere else ""
    text = render_card_of(run, repo_id=repo_id, pictures=prefix)
    if is_elsewhere:
        for name in PICTURES:
            if run.has(name):
                beside.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(run.path / name, beside / name)
    # Whole or not at all: a run is finished when its card is there.
    write_whole(path, text)
    return path


def _model_folder(
    folder: str | Path, license: str | None, language: str | Sequence[str] | None, dataset: str | None
) -> ModelFolder:
    return ModelFolder(Path(folder), Statements.of(license=license, language=language, dataset=dataset))


def _metadata(run: ModelFolder, repo_id: str | None) -> ModelCardData:
    results = [result for evaluation in run.evaluations for result in _results(run, evaluation)]
    results = results or list(_logged_results(run))
    base = {"base_model": run.base_model, "base_model_relation": "finetune"} if run.base_model else {}
    activation = run.config.attention_activation
    tags = ["reluformer", f"{activation}-attention", *(run.kind.papers if activation != "softmax" else ())]
    return ModelCardData(
        language=run.languages or None,
        license=run.license,
        library_name="transformers",
        pipeline_tag=run.kind.task,
        tags=tags + [BY_TRAINER] * _is_by_trainer(run),
        datasets=[run.dataset_id] if run.dataset_id else None,
        metrics=sorted({result.metric_type for result in results}) or None,
        model_name=public_text(model_name(run, repo_id)),
        eval_results=results or None,
        **base,
    )


def _is_by_trainer(run: ModelFolder) -> bool:
    """Whether a plain Trainer has trained it."""
    return not run.is_run and (
        run.state_file is not None or run.has(RECORD_FILE) or BY_TRAINER in texts(run.card.get("tags"))
    )


def _logged_results(run: ModelFolder) -> Iterator[EvalResult]:
    """Of a plain Trainer; none where it is not known on what they were measured."""
    if run.stated_dataset is None:
        return
    for prefix, name, value in run.logged_scores:
        yield EvalResult(
            task_type=run.kind.task,
            task_name=_task_name(run),
            dataset_type=run.stated_dataset,
            dataset_name=run.stated_dataset,
            dataset_split=None if prefix == "eval" else prefix.removeprefix("eval_"),
            metric_type=_slug(name),
            metric_name=name,
            metric_value=round(value, 4),
        )


def _task_name(run: ModelFolder) -> str:
    return f"{run.kind.task_title} {'-'.join(run.languages)}".strip()


def _results(run: ModelFolder, evaluation: dict[str, Any]) -> Iterator[EvalResult]:
    dataset = run.dataset
    name = run.evaluated_text(evaluation) or run.name
    for score in measured_scores(run, evaluation):
        signature = evaluation.get(f"{score.name}_signature")
        yield EvalResult(
            task_type=run.kind.task,
            task_name=_task_name(run),
            dataset_type=run.dataset_id or _slug(name),
            dataset_name=name,
            dataset_config=dataset.get("name"),
            dataset_split=evaluation["split"],
            dataset_revision=dataset.get("revision"),
            metric_type=score.hub_type,
            metric_name=score.title,
            metric_value=round(evaluation[score.name], score.digits),
            metric_args={"signature": signature} if signature else None,
        )


def _slug(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-").lower()
