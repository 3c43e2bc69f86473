"""The trained models that come with the package: folders of `models/`, by whose names they are called."""

from __future__ import annotations

from pathlib import Path

MODELS = Path(__file__).parents[1] / "models"
DEFAULT_MODEL = "tatoeba-de-en"


def shipped_models() -> list[str]:
    """Their names."""
    return sorted(path.parent.name for path in MODELS.glob("*/config.json"))


def located(path_or_hub_id: str | Path) -> str | Path:
    """The folder of a model that comes with the package, for its name; anything else, and a folder of that name, as it is."""
    ours = str(path_or_hub_id) in shipped_models() and not Path(path_or_hub_id).exists()
    return MODELS / path_or_hub_id if ours else path_or_hub_id
