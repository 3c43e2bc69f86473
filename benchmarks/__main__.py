"""Speed on this machine, which must be idle: measures, and writes the pages.

    python -m benchmarks attention vision …      those results/<name>-cpu.json, then the pages; `make bench` names all
    python -m benchmarks attention --quick       seconds; writes no page, and what it measures means nothing
    python -m benchmarks pages                   the pages alone, from the result files

All contenders of a cell are timed in alternating rounds of one process (see timing.py). On a GPU: python -m
benchmarks.gpu --help
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from transformers.utils import logging

from benchmarks import attention, decoder, translating, translation, vision, without_library, zeros
from benchmarks.measurement_file import PAGES, RESULTS
from benchmarks.pages import write_pages
from reluformer.commands.main import exit_status

ALL = [module.BENCHMARK for module in (attention, translation, translating, vision, decoder, zeros)]
MORE = [
    translation.TABLE_4_BENCHMARK,
    translating.TYPES_BENCHMARK,
    translating.AVX2_BENCHMARK,
    attention.AVX2_BENCHMARK,
    without_library.BENCHMARK,
]
BENCHMARKS = {benchmark.file: benchmark for benchmark in (*ALL, *MORE)}


def main(arguments: list[str] | None = None) -> int:
    return exit_status(partial(_run, arguments))


def _run(arguments: list[str] | None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=[*BENCHMARKS, "pages"])
    parser.add_argument("--output", type=Path, default=RESULTS, help="default: benchmarks/results/")
    parser.add_argument("--quick", action="store_true", help="seconds, sizes that mean nothing: does the program work?")
    parser.add_argument("--seed", type=int, default=0, help="of inputs and weights (default: 0)")
    options = parser.parse_args(arguments)
    logging.set_verbosity_error()
    for name in options.what:
        if name != "pages":
            print(BENCHMARKS[name].run(options))
    if not options.quick:
        print(*write_pages(options.output, PAGES), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
