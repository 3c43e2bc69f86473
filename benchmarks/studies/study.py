"""What a study says: the rows it needs, the paper's figures beside them, and what the paper claims of them. All of it
is data.

A row is a recipe in layers; rows stand in `catalogue/rows.yaml`, so that every study can use the same one. A study is
one file `catalogue/<name>.yaml`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

SIZES = ("smoke", "cpu", "paper")
Size = Literal["smoke", "cpu", "paper"]
RELUFORMER_PAPER = "arXiv 2302.06461"


@dataclass(kw_only=True)
class Analysis:
    """What `reluformer analyze --what` measures on a row's model when it is trained: `analyses.<what>.…` of its result.

    lines: test pairs, or lines of test documents, that are analysed, from the first; null takes all. documents:
    sentences are given, each with its document's name, and packed as the recipe says. pictures: which
    of those it draws are kept beside the result, as in a file search (`*.layer1.png`).
    """

    what: str
    lines: int | None = 200
    documents: bool = False
    pictures: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class AtSize:
    """What one size changes of a row: other layers, a last fragment of a recipe."""

    layers: list[str] | None = None
    recipe: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class RowFamily:
    """One row, or, with `each`, one for every combination of values; `{name}` in its name and values stands for them.

    layers: recipes, later ones laid over earlier ones: files of `bases/` or recipes of the package, without `.yaml`;
    `{size}` stands for the size. recipe: a fragment, laid over the layers. at: what a size changes. each: values by
    name; by size where they differ: `{ffn: [128, 512]}` or `{ffn: {cpu: [128, 512], paper: [32]}}`; those that belong
    together are one value: `{length: [{length: 128, gamma: 16.0}]}`. sizes: where the row exists. starts_from: by size,
    the name of a row further up whose model, trained with the same seed, this one starts from, with its tokenizer.
    analyses: of the trained model.
    """

    layers: list[str] = field(default_factory=list)
    recipe: dict[str, Any] = field(default_factory=dict)
    at: dict[str, AtSize] = field(default_factory=dict)
    each: dict[str, Any] = field(default_factory=dict)
    sizes: list[Size] = field(default_factory=lambda: list(SIZES))
    starts_from: dict[Size, str] = field(default_factory=dict)
    analyses: list[Analysis] = field(default_factory=list)


@dataclass(kw_only=True)
class Figure:
    """A column of a study's table, headed `label`, of numbers with so many `digits`, multiplied by `factor`.

    path: where the figure stands in a row's result: names joined by points, `log.<name>` for the last logged value and
    `log10.<name>` for the mean of the last ten; `table[layer=all,p_percent=0.2]` takes the row of a table with these
    values.
    file: a JSON file of another benchmark that holds the figure instead, once for all seeds and without any training.
    names: what that file calls a row, where it is not the row's name; `{row}` stands for it in the path. relative_to:
    row → row with which it is compared: the figure is then by how many percent it is above that one, with the same
    seed; rows that are not named have none. sizes: where the figure, and what is claimed of it, is shown.
    `<path>_error`, where there is one, is its standard error.
    """

    label: str
    path: str
    digits: int = 2
    factor: float = 1.0
    file: str | None = None
    names: dict[str, str] = field(default_factory=dict)
    relative_to: dict[str, str] = field(default_factory=dict)
    sizes: list[Size] = field(default_factory=lambda: list(SIZES))


@dataclass(kw_only=True)
class StudyRow:
    """A row, or those of a family, in a study's table.

    row, label: its name in `rows.yaml`, and what the table calls it, with a family's values. paper: the paper's figures
    by column, as text; of a family, by column and then by the row's name. not_here: why it cannot be run here, where it
    cannot.
    seeds: by size, where they are others than the study's.
    """

    row: str
    label: str
    paper: dict[str, Any] = field(default_factory=dict)
    not_here: str | None = None
    seeds: dict[str, list[int]] = field(default_factory=dict)


@dataclass(kw_only=True)
class Claim:
    """Something the paper (or, with `Study.ours`, we) say of a study's rows, in a form that figures can bear out or
    contradict.

    Exactly one kind; `report._HOW_TO_READ` says how it is decided:

    - `higher` and `lower`: `figure` of the first row is above that of the second by more than `margin`; with a negative
      `margin` it may be below by as much.
    - `best` and `among`: the same of one row and each of several others.
    - `equal`: two rows or more, whose `figure` differs by at most `margin`, which `text` says.
    - `diverges`: a row that does not converge (`twin` names its softmax twin).
    - `row` with `above`, `below` or both: `figure` of one row against numbers.

    A claim whose names have `{name}` is made for each row whose values fill the first of them to its own name. With
    `of_updates` it is about what more updates do; any other claim of rows that differ in them decides nothing. With
    `per_compute` it is about what so many core-seconds buy, whatever the updates.

    statement: what the paper states, where several claims, also of several studies, test one statement; else the text,
    with which all claims of a family are one. A report counts statements. to_the_end: its rows were trained to the end,
    so that it decides about the statement, and claims of shorter trainings do not.
    """

    text: str
    figure: str = "bleu"
    higher: str | None = None
    lower: str | None = None
    best: str | None = None
    among: list[str] | None = None
    equal: list[str] | None = None
    diverges: str | None = None
    twin: str | None = None
    row: str | None = None
    above: float | None = None
    below: float | None = None
    margin: float = 0.0
    of_updates: bool = False
    per_compute: bool = False
    statement: str | None = None
    to_the_end: bool = False


@dataclass(kw_only=True)
class Plot:
    """A picture: a column of the study over a value of families, or, with `table`, a table of single rows.

    file: its name, a PNG. x: name of the value that runs along the axis, or a column of the study; with `table`, of its
        column.
    y: a column of the study; with `table`, of the table. lines: families, or rows, by their label. levels: rows that
    have no place on the axis: a dashed line across at their figure. activations: whose colour a line or level has, by
    label; one without has its own. table: path of a table in a row's result, as in [`Figure`]; without a last name, all
    its rows that fit but those whose `x` is no number, such as the layer `all`. log_x, x_max: a logarithmic axis; where
    it ends.
    """

    file: str
    title: str
    x: str
    y: str
    x_label: str
    lines: dict[str, str]
    levels: dict[str, str] = field(default_factory=dict)
    activations: dict[str, str] = field(default_factory=dict)
    table: str | None = None
    y_label: str | None = None
    log_x: bool = True
    x_max: float | None = None


@dataclass(kw_only=True)
class Study:
    """One table or figure of a paper, or, with `ours`, a study of our own, whose claims are expectations.

    title, position: what it is, and its place in a report. source: where in the paper, on which corpus, and how our
    rows differ from it. rows, figures: the rows and columns of its table. seeds: by size. pictures: rows by label whose
    pictures, drawn by one of their analyses, are shown.
    """

    title: str
    position: int
    source: str
    rows: list[StudyRow]
    figures: dict[str, Figure]
    claims: list[Claim] = field(default_factory=list)
    seeds: dict[str, list[int]] = field(default_factory=dict)
    plots: list[Plot] = field(default_factory=list)
    pictures: dict[str, str] = field(default_factory=dict)
    paper: str = RELUFORMER_PAPER
    ours: bool = False
