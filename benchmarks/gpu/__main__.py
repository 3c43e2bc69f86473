"""The campaign on a GPU: what there is to know of a card in stages of minutes, which need no network.

    make gpu-bundle                                   build/gpu: a folder with what another machine needs
    python -m benchmarks.gpu check --minutes 3        is it right? The others are worth nothing where this one fails
    python -m benchmarks.gpu attention --minutes 8    TFLOP/s of attention alone, beside its rivals
    python -m benchmarks.gpu models --minutes 8       training and generation of whole models, beside the library's
    python -m benchmarks.gpu tune --minutes 8         tiles of each kernel; a trial on the CPU needs TRITON_INTERPRET=1
    python -m benchmarks.gpu page                     writes benchmarks/GPU.md from benchmarks/results/gpu/

Each stage ends within its minutes, writes STAGE.json whole after every cell, and goes on where it stopped when it is called
again: with what stands in the folder of --output, or else in benchmarks/results/gpu/, if the source and the card are the same.
Trainings are those of the studies, several at once: `python -m benchmarks.studies --gpu --jobs 12 --study relu2`.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.gpu.campaign import CUDA, RESULTS, run_stage

PAGE = RESULTS.parents[1] / "GPU.md"
STAGES = ("check", "attention", "models", "tune")


def main(arguments: list[str] | None = None) -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__, formatter_class=raw)
    parser.add_argument("stage", choices=(*STAGES, "page"))
    parser.add_argument("--minutes", type=float, default=8.0, help="the stage ends within them (default: 8)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder (default: benchmarks/results/gpu)")
    parser.add_argument("--toy", action="store_true", help="without a GPU, tiny sizes: does the program work?")
    options = parser.parse_args(arguments)
    module = import_module(f"benchmarks.gpu.{options.stage}")
    if options.stage == "page":
        PAGE.write_text(module.render(options.output), encoding="utf-8")
        return print(PAGE) or 0
    if options.toy == CUDA:
        hide = "CUDA_VISIBLE_DEVICES= hides the GPU from a toy run" if CUDA else "--toy tries the stage on the CPU"
        print(f"gpu: CUDA is {'' if CUDA else 'not '}available; {hide}", file=sys.stderr)
        return 2
    faulthandler.dump_traceback_later(60 * options.minutes, exit=True)  # ends a cell that hangs
    return run_stage(options.stage, lambda: module.cells(options), options)


if __name__ == "__main__":
    sys.exit(main())
