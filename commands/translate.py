"""`reluformer translate`: arguments, a file, or standard input."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from tqdm.auto import tqdm

from reluformer.commands.parsing import Parser, add_decoding_options
from reluformer.configuration.errors import UserError
from reluformer.translating.readers import is_unicode, text_file, text_lines
from reluformer.translating.shipped import DEFAULT_MODEL, located, shipped_models
from reluformer.translating.source_encoding import SPLITS

# More lines, or more characters, take longer than one likes to wait without a sign.
_LINES, _CHARACTERS = 20, 2_000


def run(arguments: list[str]) -> int:
    """The verb, with the arguments after its name; returns the exit status."""
    parser = Parser(prog="reluformer translate", description="Translates text: arguments, a file, or standard input.")
    add, default = parser.add_argument, f"default: {DEFAULT_MODEL}, German to English"
    kinds = "run folder, checkpoint, exported model, id on the Hub, or one of the package, such as tatoeba-en-de"
    add("text", nargs="*", help="texts to translate, of one sentence or several; line breaks stay where they are")
    add("--model", default=DEFAULT_MODEL, metavar="NAME_OR_PATH", help=f"{kinds}; {default}")
    add("--input", metavar="FILE", help="text file; each line is translated to one line; default: -, standard input")
    add("--output", metavar="FILE", help="default: standard output")
    add(
        "--split",
        choices=SPLITS,
        help="translate each sentence of a text by itself, or the text as a whole; default: what the model was trained "
        "on",
    )
    add_decoding_options(parser)
    options = parser.parse_args(arguments)
    if options.text and options.input:
        raise UserError("translate: give texts or --input, not both")
    for name in shipped_models():
        if name in options.text:
            raise UserError(f"translate: {name!r} is the name of a model, given as a text; write --model {name}")
    if options.output is not None:
        _check_output(options.output, options.input)
    located(options.model)  # refuses a mistyped name before the text is read and torch imported
    texts = options.text or read_lines(options.input or "-")
    for number, text in enumerate(texts, start=1):
        if not is_unicode(text):
            raise UserError(f"translate: line {number} of the text is not UTF-8: {text!a}")

    from reluformer.translating.saved_translation import quick_translator

    names = (
        "num_beams",
        "length_penalty",
        "batch_tokens",
        "split",
        "long_sources",
        "attn_implementation",
        "device",
        "compute",
    )
    settings = {name: value for name in names if (value := getattr(options, name)) is not None}
    translator = quick_translator(options.model, **settings)
    if translator is None:
        from reluformer.export.running import load_translator
        from reluformer.modeling_reluformer.registration import register

        register()
        translator = load_translator(options.model, **settings)
    progress = len(texts) > _LINES or sum(map(len, texts)) > _CHARACTERS
    translations = translator.stream(texts, progress=progress)  # all texts are checked before a file is opened
    if not options.text:
        translations = one_line_each(translations)
    if options.output is None:
        write_lines(translations, sys.stdout)
    else:
        with Path(options.output).open("w", encoding="utf-8", newline="\n") as stream:
            write_lines(translations, stream)
    return 0


def read_lines(path: str) -> list[str]:
    """Lines of a file, perhaps compressed, or, for "-", of standard input. Only "\\n" ends a line: line n is
    translation n."""
    instead = "write the column to translate into a text file, or give plain text as standard input"
    try:
        return list(text_lines(sys.stdin.buffer if path == "-" else text_file(path, instead)))
    except UserError as error:
        raise UserError(f"--input: {error}") from error


def _check_output(name: str, source: str | None) -> None:
    """Raises `UserError` for a file that cannot be written, before minutes of translating, and for the one that is
    read."""
    path = Path(name)
    if source not in (None, "-") and path.is_file() and Path(source).exists() and path.samefile(source):
        raise UserError(f"--output: {name!r} is the file that --input reads and would be replaced; give another file")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"--output: {name!r} cannot be written; give a file in a folder that is there")


def one_line_each(translations: Iterable[str]) -> Iterator[str]:
    """The translations of lines; a line break in one becomes a space, with a note."""
    for number, translation in enumerate(translations, start=1):
        line = re.sub(r"[\r\n]+", " ", translation)
        if line != translation:
            note = f"translation {number} held line breaks, written as spaces"
            tqdm.write(f"reluformer: note: {note}", file=sys.stderr)
        yield line


def write_lines(translations: Iterable[str], stream: TextIO) -> None:
    """Each translation as soon as it is there, and a line break after it."""
    for translation in translations:
        if stream.isatty():
            tqdm.write(translation, file=stream)  # clear of the bar on the same terminal
        else:
            stream.write(f"{translation}\n")
        stream.flush()
