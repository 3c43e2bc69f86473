"""`reluformer translate`: arguments, a file, or standard input."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from tqdm.auto import tqdm

from reluformer.commands.parsing import Parser, add_decoding_options
from reluformer.configuration.errors import UserError
from reluformer.training.data.readers import is_unicode, text_file, text_lines
from reluformer.training.shipped import DEFAULT_MODEL


def run(arguments: list[str]) -> int:
    """The verb, with the arguments after its name; returns the exit status."""
    parser = Parser(prog="reluformer translate", description="Translates text: arguments, a file, or standard input.")
    add, default = parser.add_argument, f"default: {DEFAULT_MODEL}, German to English"
    kinds = "run folder, checkpoint, exported model, id on the Hub, or one of the package, such as tatoeba-en-de"
    add("text", nargs="*", help="texts to translate")
    add("--model", default=DEFAULT_MODEL, metavar="NAME_OR_PATH", help=f"{kinds}; {default}")
    add("--input", metavar="FILE", help="one sentence a line; - is standard input, the default")
    add("--output", metavar="FILE", help="default: standard output")
    add_decoding_options(parser)
    options = parser.parse_args(arguments)
    if options.text and options.input:
        raise UserError("translate: give texts or --input, not both")
    if options.output is not None:
        _check_output(options.output, options.input)
    texts = options.text or read_lines(options.input or "-")
    for number, text in enumerate(texts, start=1):
        if not is_unicode(text):
            raise UserError(f"translate: line {number} of the text is not UTF-8: {text!a}")

    from reluformer.training.saved_translation import quick_translator

    names = ("num_beams", "length_penalty", "batch_tokens", "long_sources", "attn_implementation", "device", "compute")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    translator = quick_translator(options.model, **given)
    if translator is None:
        from reluformer.export.running import load_translator
        from reluformer.modeling_reluformer.registration import register

        register()
        translator = load_translator(options.model, **given)
    # The bar goes to stderr; a person who gave a text or two, or sees each line as it is done, has no need of it.
    progress = not options.text and (options.output is not None or not sys.stdout.isatty())
    translations = translator.stream(texts, progress=progress)  # all texts are checked before a file is opened
    if options.output is None:
        write_lines(translations, sys.stdout)
    else:
        with Path(options.output).open("w", encoding="utf-8", newline="\n") as stream:
            write_lines(translations, stream)
    return 0


def read_lines(path: str) -> list[str]:
    """Lines of a file, perhaps compressed, or, for "-", of standard input. Only "\\n" ends a line: line n is translation n."""
    instead = "write the column to translate into a text file, or give plain text as standard input"
    try:
        return list(text_lines(sys.stdin.buffer if path == "-" else text_file(path, instead)))
    except UserError as error:
        raise UserError(f"--input: {error}") from error


def _check_output(name: str, source: str | None) -> None:
    """Raises `UserError` for a file that cannot be written, before minutes of translating, and for the one that is read."""
    path = Path(name)
    if source not in (None, "-") and path.is_file() and Path(source).exists() and path.samefile(source):
        raise UserError(f"--output: {name!r} is the file that --input reads and would be replaced; give another file")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"--output: {name!r} cannot be written; give a file in a folder that is there")


def write_lines(translations: Iterable[str], stream: TextIO) -> None:
    """Each translation as one line as soon as it is there; a line break in it becomes a space, with a note."""
    for number, translation in enumerate(translations, start=1):
        line = re.sub(r"[\r\n]+", " ", translation)
        if line != translation:
            note = f"translation {number} held line breaks, written as spaces"
            tqdm.write(f"reluformer: note: {note}", file=sys.stderr)
        stream.write(f"{line}\n")
        stream.flush()
