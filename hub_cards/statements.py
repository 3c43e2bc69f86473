"""What only a person can say of a model: checked, and read back from the metadata of the card in its folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import metadata_load

from reluformer.configuration.errors import UserError, one_line
from reluformer.hub_cards.public_names import has_form_of_id

_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*")


@dataclass(frozen=True)
class Statements:
    """What a person has said; None where nothing was.

    license: of the weights, as the Hub names licences. language: codes of ISO 639, of a translation the source's and the
    target's. dataset: id on the Hub of what it was trained on.

    Raises:
        UserError: one that does not have the form of the Hub.
    """

    license: str | None = None
    language: tuple[str, ...] | None = None
    dataset: str | None = None

    def __post_init__(self) -> None:
        if self.license is not None and not _LICENSE.fullmatch(self.license):
            raise UserError(
                f"--license: {self.license!r} is not a name of the Hub's, such as cc-by-4.0, apache-2.0 or other (all of "
                "them: https://huggingface.co/docs/hub/repositories-licenses)"
            )
        for code in self.language or ():
            if not _LANGUAGE.fullmatch(code):
                raise UserError(
                    f"--language: {code!r} is no code of a language; give one of ISO 639, such as de or pt-BR"
                )
        if self.dataset is not None and not has_form_of_id(self.dataset):
            raise UserError(
                f"--dataset: {self.dataset!r} is no data set of the Hub; give an id such as bentrevett/multi30k, or nothing"
            )

    @classmethod
    def of(
        cls, *, license: str | None = None, language: str | Sequence[str] | None = None, dataset: str | None = None
    ) -> Statements:
        """With one language or several."""
        return cls(license, (language,) if isinstance(language, str) else language and tuple(language), dataset)


def card_metadata(card: Path) -> dict[str, Any]:
    """The metadata of a card, {} without one.

    Raises:
        UserError: they cannot be read.
    """
    if not card.is_file():
        return {}
    try:
        return metadata_load(card) or {}
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"{card}: its metadata cannot be read ({one_line(error)}); mend or remove it") from error


def texts(value: Any) -> list[str]:
    """The texts of a field of metadata, which holds one or a list."""
    return [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
