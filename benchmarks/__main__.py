"""Speed and memory on this machine, which must be idle: measures, and writes the pages.

    python -m benchmarks attention memory …      those results/<name>-cpu.json, then the pages; `make bench` names all
    python -m benchmarks attention --quick       seconds; writes no page, and what it measures means nothing
    python -m benchmarks pages                   the pages alone, from the result files

All contenders of a cell are timed in alternating rounds of one process (see timing.py). On a GPU: python -m benchmarks.gpu --help
"""

from __future__ import annotations

import sys

from transformers.utils import logging

from benchmarks import attention, decoder, memory, translating, translation, vision, zeros
from benchmarks.measurement_file import PAGES, benchmark_parser
from benchmarks.pages import write_pages

BENCHMARKS = {
    benchmark.file: benchmark
    for benchmark in (
        attention.BENCHMARK,
        memory.BENCHMARK,
        translation.BENCHMARK,
        translation.TABLE_4_BENCHMARK,
        translating.BENCHMARK,
        vision.BENCHMARK,
        decoder.BENCHMARK,
        zeros.BENCHMARK,
    )
}


def main(arguments: list[str] | None = None) -> int:
    parser = benchmark_parser(__doc__)
    parser.add_argument("what", nargs="+", choices=[*BENCHMARKS, "pages"])
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
