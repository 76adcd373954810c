# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Write tests/python/ops/coverage.json: few OpInfo samples that reach the operators of the table.

Run it after adding an operator; it takes some minutes. Operators that no sample reaches are
printed: each needs a call in `HAND` of tests/python/ops/operator_cases.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import pathlib
import signal
import sys
import warnings
from typing import Any

os.environ.setdefault("TORUS_FALLBACK", "silent")
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/python/ops"))

import operator_cases as cases  # noqa: E402
import torch  # noqa: E402

_SAMPLE_SECONDS = 20


def _raise_timeout(*_: object) -> None:
    raise TimeoutError


def _dtypes(info: Any) -> list[str]:
    wanted = [torch.float32, torch.int64, torch.bool, torch.complex64]
    found = [d for d in wanted if d in info.supported_dtypes("cpu")]
    return [str(d).removeprefix("torch.") for d in found[:1]]


def _reached(case: cases.Case, sample: Any) -> set[str]:
    recorder = cases.Recorder()
    signal.alarm(_SAMPLE_SECONDS)
    try:
        with recorder:
            cases.run(case, sample, "tpu")
            torch.tpu.synchronize()
    except Exception as error:
        print(f"{case}[{case.sample}]: {type(error).__name__}", file=sys.stderr)
        return set()
    finally:
        signal.alarm(0)
    return recorder.operators


def _record(most_samples: int) -> dict[cases.Case, set[str]]:
    """Operators reached by the first samples of every OpInfo, forward and with gradients."""
    reached = {}
    for (name, variant), info in sorted(cases.op_infos().items()):
        for dtype, backward in itertools.product(_dtypes(info), (False, True)):
            if backward and (dtype != "float32" or not info.supports_autograd):
                continue
            try:
                first = list(
                    itertools.islice(
                        cases.samples(cases.Case(name, variant, dtype, 0, backward)), most_samples
                    )
                )
            except Exception as error:
                print(f"{name}: no samples: {error}", file=sys.stderr)
                continue
            for index, sample in enumerate(first):
                case = cases.Case(name, variant, dtype, index, backward)
                reached[case] = _reached(case, sample)
    return reached


def _cover(reached: dict[cases.Case, set[str]]) -> list[cases.Case]:
    """Greedy set cover; ties go to the case that does least besides, then to the first."""
    missing = set().union(*reached.values())
    chosen = []
    while missing:
        best = max(reached, key=lambda c: (len(reached[c] & missing), -len(reached[c]), -c.sample))
        new = tuple(sorted(reached[best] & missing))
        chosen.append(dataclasses.replace(best, operators=new))
        missing -= set(new)
    return sorted(chosen, key=lambda c: (c.op, c.variant, c.backward, c.sample))


def main() -> None:
    """Record and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=4, help="of each OpInfo (default: 4)")
    most_samples = parser.parse_args().samples
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _raise_timeout)
    chosen = _cover(_record(most_samples))
    rows = [
        {
            "op": c.op,
            "variant": c.variant,
            "dtype": c.dtype,
            "sample": c.sample,
            "backward": c.backward,
            "operators": list(c.operators),
        }
        for c in chosen
    ]
    content = {"torch": torch.__version__.split("+")[0], "cases": rows}
    cases.COVERAGE_FILE.write_text(json.dumps(content, indent=1) + "\n")
    covered = {o for c in chosen for o in c.operators}
    given = covered | set(cases.HAND) | set(cases.ELSEWHERE)
    left = sorted(set(cases.native_operators()) - given)
    print(f"{len(rows)} cases reach {len(covered)} of {len(cases.native_operators())} operators")
    print("without a case:", *left, sep="\n  ")


if __name__ == "__main__":
    main()
