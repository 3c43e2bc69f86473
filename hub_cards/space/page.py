"""The page itself: which components it has, and what a click does. What it shows is made in `views`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Before Gradio is imported: it would ask a server for its newest version and report what is used.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

import gradio as gr

from reluformer.analysis.collection import ALL, CROSS, DECODER_SELF, ENCODER_SELF
from reluformer.configuration.errors import UserError, one_line
from reluformer.hub_cards.space.observation import ObservedText, ObservedTranslator, Place, opening_place
from reluformer.hub_cards.space.views import heading_html, message_html, result_html

TITLE = "Attention, head by head"
_FOLDER = Path(__file__).parent
_MODULES = [("Encoder self", ENCODER_SELF), ("Decoder self", DECODER_SELF), ("Cross", CROSS)]
_ALL_HEADS = ("mean of all", ALL)
# What each model made of the last text: an observed text, or a sentence that says why there is none.
Results = list[ObservedText | str]


def build_page(models: Sequence[ObservedTranslator], examples: Sequence[str] = ()) -> gr.Blocks:
    """The page for one model, or for two side by side.

    Args:
        models: what translates; one column each.
        examples: texts to begin with; the page opens on the translation of the first, at its `opening_place`.
    """
    opened = [_observe(model, examples[0]) for model in models] if examples else []
    place = opening_place(_observed(opened))
    layers, heads = _sizes(opened, place.module)
    with gr.Blocks(title=f"{TITLE} · reluformer", analytics_enabled=False, fill_width=True) as page:
        gr.Markdown(_introduction(len(models)), elem_classes="intro")
        with gr.Row(elem_classes="ask"):
            text = gr.Textbox(
                value=examples[0] if examples else "",
                label="Text",
                info="Enter translates; line breaks count as spaces.",
                max_lines=8,
                autofocus=True,
                scale=6,
                elem_id="text",
            )
            button = gr.Button("Translate", variant="primary", scale=1, min_width=140, elem_id="translate")
        starts = [button.click, text.submit]
        if examples:
            shown = gr.Examples([[example] for example in examples], inputs=[text], label="Examples")
            starts.append(shown.load_input_event.then)
        with gr.Row(visible=bool(_observed(opened)), elem_classes="choose") as chooser:
            module = gr.Radio(_MODULES, value=place.module, label="Attention", elem_id="module", scale=4, min_width=420)
            layer = gr.Radio(layers, value=place.layer, label="Layer", elem_id="layer", scale=2, min_width=160)
            head = gr.Radio(heads, value=place.head, label="Head", elem_id="head", scale=4, min_width=400)
        with gr.Row(elem_classes="models"):
            results = opened or [None] * len(models)
            views = [_column(model, _view(model, result, place)) for model, result in zip(models, results, strict=True)]
        _Actions(models, text, chooser, [module, layer, head], views).connect(starts, opened)
    return page


def _introduction(models: int) -> str:
    side_by_side = f": {models} models side by side" if models > 1 else ""
    return (
        f"# {TITLE}\n\nTranslate a text and see which tokens each head looks at, how many of its weights are exactly zero, and "
        f"how spread the others are{side_by_side}. In the maps, white is a weight of exactly 0, and hatched is a key that the "
        "query does not see. The page opens on the cross-attention head with the most zeros and without dead rows."
    )


def _column(model: ObservedTranslator, view: str) -> gr.HTML:
    with gr.Column(min_width=480):
        gr.HTML(heading_html(model), apply_default_css=False)
        script = (_FOLDER / "page.js").read_text(encoding="utf-8")
        return gr.HTML(view, js_on_load=script, apply_default_css=False)


@dataclass(frozen=True)
class _Actions:
    """What the page does. chosen: the radio buttons of module, layer and head. views: one for each model."""

    models: Sequence[ObservedTranslator]
    text: gr.Textbox
    chooser: gr.Row
    chosen: list[gr.Radio]
    views: list[gr.HTML]

    def connect(self, starts: Sequence[Callable[..., Any]], opened: Results) -> None:
        """Translating is an event of its own: choosing a map reads what is kept of the last text, at first `opened`."""
        results = gr.State(opened)
        drawn = [*self.chosen, *self.views]
        options = {"api_visibility": "private", "show_progress": "minimal", "show_progress_on": self.views}
        for start in starts:
            start(
                self._translate,
                [results, self.text, *self.chosen],
                [results, self.chooser, *drawn],
                concurrency_id="translate",
                **options,
            )
        for radio in self.chosen:
            radio.input(self._choose, [results, *self.chosen], drawn, **options)
        for view in self.views:
            view.click(self._choose_clicked, [results], drawn, **options)

    def _translate(self, before: Results, text: str, module: str, layer: int, head: int | str) -> list[Any]:
        results = [_observe(model, text) for model in self.models]
        place = Place(module, layer, head) if _observed(before) else opening_place(_observed(results))
        shown = gr.Row(visible=bool(_observed(results)))
        return [results, shown, *self._choose(results, place.module, place.layer, place.head)]

    def _choose(self, results: Results, module: str, layer: int, head: int | str) -> list[Any]:
        """The radio buttons with what there is to choose, and a view for each model."""
        layers, heads = _sizes(results, module)
        # Encoder and decoder may differ in layers and heads: what is not there is left for what is.
        place = Place(module, min(layer, layers[-1]), head if head in heads else ALL)
        controls = [gr.Radio(value=module), gr.Radio(layers, value=place.layer), gr.Radio(heads, value=place.head)]
        pairs = zip(self.models, results, strict=True) if results else ()
        return [*controls, *(_view(model, result, place) for model, result in pairs)]

    def _choose_clicked(self, results: Results, event: gr.EventData) -> list[Any]:
        head = event.head if event.head == ALL else int(event.head)
        return self._choose(results, event.module, int(event.layer), head)


def _observed(results: Results) -> list[ObservedText]:
    return [result for result in results if isinstance(result, ObservedText)]


def _sizes(results: Results, module: str) -> tuple[list[int], list[Any]]:
    """Layers and heads to choose from: those of the model that has most."""
    observed = _observed(results)
    layers = max((each.layers(module) for each in observed), default=1)
    heads = max((each.heads(module) for each in observed), default=0)
    return list(range(1, layers + 1)), [_ALL_HEADS, *range(1, heads + 1)]


def _observe(model: ObservedTranslator, text: str) -> ObservedText | str:
    try:
        return model(text)
    except UserError as error:
        return str(error)


def _view(model: ObservedTranslator, result: ObservedText | str | None, place: Place) -> str:
    if result is None:
        return '<div class="view"></div>'
    return message_html(result) if isinstance(result, str) else result_html(model, result, place)


def launch_page(page: gr.Blocks, *, host: str | None = "127.0.0.1", port: int | None = None) -> str:
    """Starts to serve a page, without waiting for its end, and returns its address.

    Args:
        page: of `build_page`; its `close` ends it.
        host: what to listen on; None: what Gradio's environment variables say, as on the Hub.
        port: None: the first free one from 7860.

    Raises:
        UserError: the port is taken.
    """
    # Fonts of the reader's system: others would be fetched from a server. Buttons are neutral: blue is ReLU's.
    theme = gr.themes.Default(
        primary_hue="neutral", font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
    )
    try:
        _, address, _ = page.launch(
            server_name=host,
            server_port=port,
            share=False,
            quiet=True,
            prevent_thread_lock=True,
            ssr_mode=False,
            run_history=False,
            footer_links=[],
            theme=theme,
            css_paths=_FOLDER / "page.css",
        )
    except OSError as error:
        raise UserError(f"--port: {port or 'none from 7860'} can be listened on: {one_line(error)}") from error
    return address
