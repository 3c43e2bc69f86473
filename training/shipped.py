"""The trained models that come with the package: folders of `models/`, by whose names they are called."""

from __future__ import annotations

from pathlib import Path

from reluformer.configuration.errors import UserError

MODELS = Path(__file__).parents[1] / "models"
DEFAULT_MODEL = "tatoeba-de-en"


def located(path_or_hub_id: str | Path) -> str | Path:
    """The folder of a model that comes with the package, for its name; anything else as it is.

    Raises:
        UserError: a single word that is neither such a name nor a folder here.
    """
    if "/" in str(path_or_hub_id) or Path(path_or_hub_id).exists():
        return path_or_hub_id
    names = sorted(path.parent.name for path in MODELS.glob("*/config.json"))
    if str(path_or_hub_id) in names:
        return MODELS / path_or_hub_id
    raise UserError(
        f"{str(path_or_hub_id)!r}: no such folder, and not one of the models that come with the package "
        f"({', '.join(names) or 'there is none'}); give one of these, a folder, or OWNER/NAME of the Hub"
    )
