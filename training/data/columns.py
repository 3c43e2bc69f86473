"""Which columns of a table or a data set hold the two sides of a pair, and what stands in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reluformer.configuration.errors import UserError

_MOST_NAMED = 20


@dataclass(frozen=True)
class PairColumns:
    """The columns that a recipe names, or those named as the languages.

    Args:
        source_language: of the recipe's data.
        target_language: of the recipe's data.
        source: column of the source texts. `translation.de` is the field `de` of the column `translation`. None: that field
            of the source language, or the column of its name.
        target: column of the target texts, likewise.
        document: column that names each pair's document; None: there is none.
        section: of the recipe in which the columns are named, for errors.
    """

    source_language: str
    target_language: str
    source: str | None = None
    target: str | None = None
    document: str | None = None
    section: str = "data.tables"

    def choose(self, known: Sequence[str], label: str) -> list[str]:
        """The names of the source, the target and, if one is given, the document column.

        Args:
            known: all columns, with those inside others as `outer.inner`.
            label: of the table, for errors.

        Raises:
            UserError: one of them is not there, with those that are; source and target are the same.
        """
        chosen = [
            self._find(known, label, "source_column", _candidates(self.source, self.source_language)),
            self._find(known, label, "target_column", _candidates(self.target, self.target_language)),
        ]
        if chosen[0] == chosen[1]:
            raise UserError(
                f"{label}: column {chosen[0]!r} is both source and target; set {self.section}.source_column and "
                f"{self.section}.target_column to the two sides"
            )
        if self.document is not None:
            chosen.append(self._find(known, label, "document_column", [self.document]))
        return chosen

    def _find(self, known: Sequence[str], label: str, key: str, candidates: list[str]) -> str:
        for name in candidates:
            if known.count(name) > 1:
                raise UserError(f"{label}: {known.count(name)} columns are named {name!r}; give each its own name")
            if name in known:
                return name
        wanted = " or ".join(map(repr, candidates))
        more = f" and {len(known) - _MOST_NAMED:,} more" if len(known) > _MOST_NAMED else ""
        raise UserError(
            f"{label}: no column {wanted}; there are: {', '.join(known[:_MOST_NAMED])}{more}; set {self.section}.{key}"
        )


def _candidates(given: str | None, language: str) -> list[str]:
    return [f"translation.{language}", language] if given is None else [given]


def value_at(record: Mapping[str, Any], name: str) -> Any:
    """What stands in a column of a row, or in the field of one (`translation.de`); None where there is nothing."""
    if name in record:
        return record[name]
    value: Any = record
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def names_inside(record: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The names of all columns, those inside others as `outer.inner`.

    Args:
        record: by column, what it holds: a mapping for a column that has fields, anything else for one that has none.
    """
    names = []
    for name, inside in record.items():
        names += names_inside(inside, f"{prefix}{name}.") if isinstance(inside, Mapping) else [f"{prefix}{name}"]
    return names
