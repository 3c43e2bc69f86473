"""The trained models that come with the package: folders of `models/`, by whose names they are called."""

from __future__ import annotations

from pathlib import Path

from reluformer.configuration.errors import UserError

MODELS = Path(__file__).parents[1] / "models"
DEFAULT_MODEL = "tatoeba-de-en"
FIGURES_FILE = "figures.json"  # what was measured of one of them


def shipped_models() -> list[str]:
    """Their names."""
    return sorted(path.parent.name for path in MODELS.glob("*/config.json"))


def located(path_or_hub_id: str | Path) -> str | Path:
    """The folder of a model that comes with the package, for its name; a path that is there, and an id on the Hub, as
    it is.

    Raises:
        UserError: what can be none of these. The Hub, where ids are `owner/name`, is not asked for it: without a
            network that takes half a minute.
    """
    name, ours = str(path_or_hub_id), shipped_models()
    if Path(name).is_file():
        raise UserError(f"{name!r}: is a file; give the folder of a model")
    if Path(name).exists():
        return path_or_hub_id
    if name in ours:
        return MODELS / name
    if "/" not in name:
        # the Hub's oldest models are known without an owner, too, but each has one
        raise UserError(
            f"{name!r}: no such folder here, and no model of the package ({', '.join(ours) or 'none'}); give one of "
            "these, a folder, or an id on the Hub with its owner, such as openai-community/gpt2"
        )
    if name.count("/") > 1 or name.startswith((".", "/", "~", "runs/")):
        raise UserError(f"{name!r}: no such folder; give the folder of a model, or a repository id on the Hub")
    return path_or_hub_id
