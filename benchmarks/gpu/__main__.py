"""The campaign on a GPU: what there is to know of a card in stages of minutes, which need no network.

    make gpu-bundle                         build/gpu: a folder with what another machine needs
    python -m benchmarks.gpu all --dry-run  what each stage would measure, and in how many minutes; needs no GPU
    python -m benchmarks.gpu all            all stages, in the order in which they stand here
    python -m benchmarks.gpu check          is it right? The others are worth nothing where this one fails
    python -m benchmarks.gpu shares         training with a share of the regulariser: 1, 0.5, 0.25, 0.125
    python -m benchmarks.gpu attention      TFLOP/s of attention alone, beside its rivals and the card's own product
    python -m benchmarks.gpu models         training and generation of whole models, beside the library's
    python -m benchmarks.gpu decode         few queries: by the kernel, or by plain products?
    python -m benchmarks.gpu tune           tiles of each kernel; a trial on the CPU needs TRITON_INTERPRET=1
    python -m benchmarks.gpu page           writes benchmarks/GPU.md from benchmarks/results/gpu/

Each stage ends within its minutes and writes STAGE.json whole after every cell. Called again, it goes on where it
stopped and tries again what failed: with what stands in the folder of --output, or else in benchmarks/results/gpu/, if
the source and the card are the same. So `all` is called until nothing is left. Trainings are those of the studies,
several at once: `python -m benchmarks.studies --gpu --jobs 12 --study relu2`.
"""

from __future__ import annotations

import argparse
import faulthandler
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.gpu.campaign import CUDA, RESULTS, plan_stage, run_stage

PAGE = RESULTS.parents[1] / "GPU.md"
# The most useful first.
STAGES = ("check", "shares", "attention", "models", "decode", "tune")
MOST_MINUTES = 10.0


def main(arguments: list[str] | None = None) -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__, formatter_class=raw)
    parser.add_argument("stage", choices=(*STAGES, "all", "page"))
    parser.add_argument(
        "--minutes", type=float, default=MOST_MINUTES, help="a stage ends within them (default, and most: 10)"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be measured in how many minutes")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder (default: benchmarks/results/gpu)")
    parser.add_argument("--toy", action="store_true", help="without a GPU, tiny sizes: does the program work?")
    options = parser.parse_args(arguments)
    if not 0 < options.minutes <= MOST_MINUTES:
        print(
            f"gpu: --minutes {options.minutes:g}: a stage has more than 0 and at most {MOST_MINUTES:g}", file=sys.stderr
        )
        return 2
    if options.stage == "all":
        command_line = list(sys.argv[1:] if arguments is None else arguments)
        failed = [_run_alone(stage, command_line) != 0 for stage in STAGES]  # a killed one has a negative status
        return int(any(failed))
    module = import_module(f"benchmarks.gpu.{options.stage}")
    if options.dry_run and options.stage != "page":
        return plan_stage(options.stage, lambda: module.cells(options), options)
    if options.stage == "page":
        if not any((options.output / f"{stage}.json").is_file() for stage in STAGES):
            print(f"gpu: {options.output} holds no results, and the page would be empty", file=sys.stderr)
            return 2
        PAGE.write_text(module.render(options.output), encoding="utf-8")
        return print(PAGE) or 0
    if options.toy == CUDA:
        hide = "CUDA_VISIBLE_DEVICES= hides the GPU from a toy run" if CUDA else "--toy tries the stage on the CPU"
        print(f"gpu: CUDA is {'' if CUDA else 'not '}available; {hide}", file=sys.stderr)
        return 2
    faulthandler.dump_traceback_later(60 * options.minutes, exit=True)  # ends a cell that hangs
    return run_stage(options.stage, lambda: module.cells(options), options)


def _run_alone(stage: str, arguments: list[str]) -> int:
    """A stage in a process of its own: one that breaks its connection to the card leaves the others theirs."""
    arguments = [stage if argument == "all" else argument for argument in arguments]
    return subprocess.run([sys.executable, "-m", "benchmarks.gpu", *arguments]).returncode


if __name__ == "__main__":
    sys.exit(main())
