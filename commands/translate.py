"""`reluformer translate`: arguments, a file, or standard input."""

from __future__ import annotations

import sys

from reluformer.commands.parsing import DECODING, Parser, add_decoding_options
from reluformer.configuration.errors import UserError
from reluformer.training.data.text_lines import check_output, output, read_lines, texts_of_arguments, write_lines


def run(arguments: list[str]) -> int:
    """The verb, with the arguments after its name; returns the exit status."""
    parser = Parser(prog="reluformer translate", description="Translates text: arguments, a file, or standard input.")
    parser.add_argument("text", nargs="*", help="texts to translate")
    parser.add_argument(
        "--model", required=True, metavar="PATH_OR_ID", help="run folder, checkpoint, exported model or id on the Hub"
    )
    parser.add_argument("--input", metavar="FILE", help="one sentence a line; - is standard input, the default")
    parser.add_argument("--output", metavar="FILE", help="default: standard output")
    add_decoding_options(parser, {**DECODING, "long_sources": "error"})
    options = parser.parse_args(arguments)
    if options.text and options.input:
        raise UserError("translate: give texts or --input, not both")
    if options.output is not None:
        check_output(options.output, options.input)
    texts = texts_of_arguments(options.text) or read_lines(options.input or "-")

    from reluformer.export.translating import load_translator

    names = ("num_beams", "length_penalty", "batch_tokens", "long_sources", "attn_implementation", "device")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    translator = load_translator(options.model, **given)
    # The bar goes to stderr; a person who gave a text or two, or sees each line as it is done, has no need of it.
    progress = not options.text and (options.output is not None or not sys.stdout.isatty())
    translations = translator.stream(texts, progress=progress)  # all texts are checked before a file is opened
    with output(options.output) as stream:
        write_lines(translations, stream, len(texts))
    return 0
