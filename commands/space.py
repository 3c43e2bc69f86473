"""`reluformer space`: serves a page for one model, or for two side by side, on this machine alone."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path

from reluformer.commands.parsing import Parser
from reluformer.configuration.errors import UserError

_EXAMPLES = 5
# A map of a longer sentence would be too wide to begin with.
_LONGEST_EXAMPLE = 80


def run(arguments: list[str]) -> int:
    """The verb, with the arguments after its name; it serves until it is interrupted.

    Raises:
        UserError: Gradio is missing, a model cannot be loaded, an option is out of range, or the port is taken.
    """
    from reluformer.hub_cards.space.observation import ObservedTranslator

    options = _parser().parse_args(arguments)
    require_gradio()
    models = [options.model] if options.second is None else [options.model, options.second]
    given = {name: value for name in ("num_beams", "device") if (value := getattr(options, name)) is not None}
    observed = [ObservedTranslator.from_pretrained(model, map_tokens=options.map_tokens, **given) for model in models]

    from reluformer.hub_cards.space.page import build_page, launch_page

    page = build_page(observed, options.example or examples_of(models[0]))
    address = launch_page(page, port=options.port)
    print(f"{' and '.join(models)}: {address}  (Ctrl-C ends it)", flush=True)
    try:
        threading.Event().wait()
    finally:
        page.close(verbose=False)
    return 0


def require_gradio() -> None:
    """Raises a `UserError` where Gradio is not installed."""
    if importlib.util.find_spec("gradio") is None:
        raise UserError(
            "space: needs the package 'gradio', which is not installed; pip install 'reluformer[space]' brings what the "
            "command needs"
        )


def examples_of(model: str | Path) -> list[str]:
    """A few short sources that a run has translated for its evaluation; none where the folder holds no such file."""
    from reluformer.training.scoring.evaluation import read_translations

    for path in sorted(Path(model).glob("translations.*.tsv")):
        sources = dict.fromkeys(source for source, _, _ in read_translations(path))
        return [source for source in sources if len(source) <= _LONGEST_EXAMPLE][:_EXAMPLES]
    return []


def _parser() -> Parser:
    from reluformer.hub_cards.space.observation import DEFAULT_MAP_TOKENS

    parser = Parser(
        prog="reluformer space",
        description="Serves a page, on this machine alone, that translates a text and shows the attention of every head.",
    )
    parser.add_argument("--model", required=True, metavar="PATH_OR_ID", help="run folder, checkpoint or id on the Hub")
    parser.add_argument("--second", metavar="PATH_OR_ID", help="another model, to be shown beside it")
    parser.add_argument("--port", type=int, help="default: the first free one from 7860")
    parser.add_argument(
        "--example", action="append", metavar="TEXT", help="to begin with; may be repeated; default: the run's"
    )
    parser.add_argument(
        "--map_tokens",
        type=int,
        default=DEFAULT_MAP_TOKENS,
        help=f"tokens of each side on a map, from the first; default: {DEFAULT_MAP_TOKENS}",
    )
    parser.add_argument("--num_beams", type=int, help="width of the beam; default: 5")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, …; default: a GPU if there is one")
    return parser
