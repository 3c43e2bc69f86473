"""The model card of a run, rendered from what was measured. A figure that was not measured is not in it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData, metadata_load

from reluformer.configuration.errors import UserError, one_line
from reluformer.configuration.whole_files import write_whole
from reluformer.hub_cards.card_contents import PICTURES, contents, measured_scores
from reluformer.hub_cards.measurements import RunFolder
from reluformer.training.run.run_folder import CARD_FILE

TEMPLATE = Path(__file__).with_name("card_template.md")


def render_card(
    run_dir: str | Path, *, license: str | None = None, repo_id: str | None = None, pictures: str = ""
) -> str:
    """The card of a run as Markdown with metadata.

    Args:
        run_dir: run folder; only config.json must be there.
        license: of the weights, as the Hub names licences; None takes the one of the card in the folder, if it has one. It
            depends on the data, so that nothing else can be known here.
        repo_id: where the model will be on the Hub, for the examples; default a path to fill in.
        pictures: what stands before the names of pictures, such as "files/".

    Raises:
        UserError: no ReLUFormer in the folder, one of its files is damaged, or the licence is not a name of the Hub's form.
    """
    run = RunFolder(Path(run_dir))
    license = _known_license(run.path) if license is None else _checked_license(license)
    values = contents(run, license, repo_id)
    values["pictures"] = {name: f"{pictures}{name}" for name in PICTURES if run.has(name)}
    card = ModelCard.from_template(_metadata(run, license), template_path=str(TEMPLATE), **values)
    # Parts that are left out leave empty lines behind.
    text = re.sub(r"\n{3,}", "\n\n", str(card)).rstrip() + "\n"
    ModelCard(text)  # raises if the metadata cannot be read back
    return text


def write_card(
    run_dir: str | Path,
    *,
    license: str | None = None,
    repo_id: str | None = None,
    output: str | Path | None = None,
) -> Path:
    """Writes `render_card` over an older card, and returns its path.

    Args:
        output: file; None is README.md in the run folder. Elsewhere, the card's pictures are copied to `<stem>_files` beside it.
        others: see `render_card`.
    """
    folder = Path(run_dir)
    path = folder / CARD_FILE if output is None else Path(output)
    beside = path.with_name(f"{path.stem}_files")
    is_elsewhere = path.parent.resolve() != folder.resolve()
    prefix = f"{beside.name}/" if is_elsewhere else ""
    text = render_card(folder, license=license, repo_id=repo_id, pictures=prefix)
    if is_elsewhere:
        for name in PICTURES:
            if (folder / name).is_file():
                beside.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(folder / name, beside / name)
    # Whole or not at all: a run is finished when its card is there.
    write_whole(path, text)
    return path


def _checked_license(license: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", license):
        raise UserError(
            f"--license: {license!r} is not a name of the Hub's, such as cc-by-4.0, apache-2.0 or other (all of them: "
            "https://huggingface.co/docs/hub/repositories-licenses)"
        )
    return license


def _known_license(folder: Path) -> str | None:
    """The licence that the card in the folder has: it was given once, and a new card must not lose it."""
    path = folder / CARD_FILE
    if not path.is_file():
        return None
    try:
        license = (metadata_load(path) or {}).get("license")
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: its metadata cannot be read ({one_line(error)}); mend or remove it") from error
    return _checked_license(license) if isinstance(license, str) else None


def _metadata(run: RunFolder, license: str | None) -> ModelCardData:
    results = [result for evaluation in run.evaluations for result in _results(run, evaluation)]
    base = {"base_model": run.base_model, "base_model_relation": "finetune"} if run.base_model else {}
    return ModelCardData(
        language=run.languages or None,
        license=license,
        library_name="transformers",
        pipeline_tag="translation",
        tags=["reluformer", f"{run.config.attention_activation}-attention", "arxiv:2302.06461"],
        datasets=[run.dataset_id] if run.dataset_id else None,
        metrics=sorted({result.metric_type for result in results}) or None,
        model_name=run.name,
        eval_results=results or None,
        **base,
    )


def _results(run: RunFolder, evaluation: dict[str, Any]) -> Iterator[EvalResult]:
    dataset = run.dataset
    name = run.evaluated_text(evaluation) or run.name
    for score in measured_scores(run, evaluation):
        signature = evaluation.get(f"{score.name}_signature")
        yield EvalResult(
            task_type="translation",
            task_name=f"Translation {'-'.join(run.languages)}".strip(),
            dataset_type=run.dataset_id or _slug(name),
            dataset_name=name,
            dataset_config=dataset.get("name"),
            dataset_split=evaluation["split"],
            dataset_revision=dataset.get("revision"),
            metric_type=score.hub_type,
            metric_name=score.title,
            metric_value=round(evaluation[score.name], 2),
            metric_args={"signature": signature} if signature else None,
        )


def _slug(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-").lower()
