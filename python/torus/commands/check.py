# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Say whether a model lowers, fits and scales on TPUs that are not there.

The model is built from its configuration without memory for its weights, its step is recorded as
one StableHLO program, and the TPU compiler (libtpu) compiles that for each topology. Topologies
name the chip and its counts along each axis: v5e:2x2, v5p:2x2x1, v6e:2x2, tpu7x:2x2x1,
tpu7x:4x8x8 (256 chips, 512 devices).

Exit status 0: the step lowers and every topology takes it. 1: it does not. 2: wrong usage.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torus.check.report import Report
    from torus.check.runner import Options, Say

_EXAMPLES = """\
examples:
  torus check examples/configs/llama-3-8b.json --topology v6e:2x2 --topology tpu7x:2x2x1
  torus check ./my-model --mode train --batch 8 --seq 2048 --dtype mixed --topology v6e:2x2
  torus check meta-llama/Llama-3.1-70B --shard fsdp --topology tpu7x:4x8x8 --html report.html
  torus check examples/configs/llama-3-8b.json --mode decode --batch 8 --seq 4096
  torus check mine.py:make --topology v6e:1x1 --json
  torus check examples/configs/llama-3-8b.json --mode train --shard fsdp --scaling 1,4,16,64,256

In mine.py, make() returns (module or callable, inputs), the inputs as a tuple or a dict.
"""

HELP = "compile a model for TPUs that are not there: does it lower, fit, scale"


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _counts(text: str) -> list[int]:
    return [_positive(word) for word in text.split(",")]


def _two_counts(text: str) -> tuple[int, int]:
    counts = _counts(text)
    if len(counts) != 2 or counts[0] >= counts[1]:
        raise argparse.ArgumentTypeError("takes two growing numbers, such as 2,4")
    return counts[0], counts[1]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add("model", metavar="MODEL", help="folder, configuration, file.py:function, or Hub name")
    add("--component", default="", help="part of a Diffusers pipeline (default: its transformer)")
    add(
        "--topology",
        action="append",
        metavar="NAME",
        help="may be given several times (default: v6e:2x2)",
    )
    _add_step(parser)
    _add_devices(parser)
    add("--save", type=pathlib.Path, metavar="FOLDER", help="keep the executables")
    add("--save-text", type=pathlib.Path, metavar="FOLDER", help="keep the StableHLO programs")
    add("--html", type=pathlib.Path, metavar="FILE", help="write the report as a page with plots")
    add("--json", action="store_true", help="print one JSON object instead of tables")


def _add_step(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--mode",
        choices=("forward", "train", "decode"),
        default="forward",
        help="train: gradients and AdamW; decode: one token with a static cache of --seq",
    )
    add(
        "--batch",
        type=_positive,
        default=0,
        metavar="N",
        help="samples in a step over all devices (default: one, or one for each part of the axis "
        "data); with --scaling: on each such part",
    )
    add("--seq", type=_positive, default=512, metavar="N", help="tokens (default: 512)")
    add(
        "--dtype",
        choices=("bfloat16", "float16", "float32", "mixed"),
        default="bfloat16",
        help="mixed: float32 parameters, bfloat16 autocast (default: bfloat16)",
    )
    add("--remat", action="store_true", help="train: compute layers again in the backward pass")


def _add_devices(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--shard",
        choices=("none", "fsdp", "tp", "2d"),
        default="none",
        help="spread the step over all devices of the topology (default: none, one device)",
    )
    add(
        "--model-parallel",
        type=_positive,
        default=0,
        metavar="N",
        help="size of the axis model of tp and 2d (default: chosen)",
    )
    add(
        "--scaling",
        type=_counts,
        metavar="CHIPS",
        help="compare chip counts of the topology's kind, such as 1,4,16,64,256",
    )
    add(
        "--roll",
        choices=("auto", "never", "always"),
        default="auto",
        help="compile repeated layers as a loop over stacked weights: always, never, or where the "
        "program is long; the report says which (default: auto)",
    )
    add(
        "--layers",
        type=_two_counts,
        metavar="A,B",
        help="compile only A and B layers, and extend memory, traffic and times from these in a "
        "straight line: marked as such",
    )


def run(arguments: argparse.Namespace) -> int:
    """Check the model and print the report.

    Returns
    -------
    int
        0 if all is well, 1 if the model does not lower or fit somewhere, 2 for wrong usage.
    """
    from torus.check import source

    try:
        options = _options(arguments)
        model = source.find(arguments.model, arguments.component)
        with _progress(quiet=arguments.json) as say:
            report = _check(model, options, arguments, say)
    except ValueError as error:  # SourceError is one
        print(f"torus check: {error}", file=sys.stderr)
        return 2
    _write(report, arguments)
    return 0 if report.ok else 1


def _options(arguments: argparse.Namespace) -> Options:
    from torus.check.runner import Options

    if arguments.layers and (arguments.save or arguments.save_text):
        raise ValueError("--layers compiles no program of the whole model that could be kept")
    return Options(
        topologies=tuple(arguments.topology or ("v6e:2x2",)),
        mode=arguments.mode,
        batch=arguments.batch,
        seq=arguments.seq,
        dtype=arguments.dtype,
        remat=arguments.remat,
        shard=arguments.shard,
        model_parallel=arguments.model_parallel,
        layers=arguments.layers or (),
        roll=arguments.roll,
        save=arguments.save,
        save_text=arguments.save_text,
    )


def _check(model: Any, options: Options, arguments: argparse.Namespace, say: Say) -> Report:
    from torus.check import runner, scaling

    if arguments.scaling:
        return scaling.check(model, options, arguments.scaling, say)
    return runner.check(model, options, say)


@contextlib.contextmanager
def _progress(quiet: bool) -> Iterator[Say]:
    """Show on stderr what is being done; on a terminal also for how long."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False)
    if quiet or not console.is_terminal:
        yield lambda line: None if quiet else console.print(escape(line))
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=None)
        yield lambda line: progress.reset(task, description=escape(line))


def _write(report: Report, arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from torus.check.report import print_report

    if arguments.html is not None:
        from torus.check.page import render

        arguments.html.write_text(render(report), "utf-8")
    if arguments.json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        print_report(report, Console(highlight=False))
