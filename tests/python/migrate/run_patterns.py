# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Runs programs one after the other, each in a fork of a process that has imported the libraries.

``python run_patterns.py [--compat] PROGRAM ...`` prints what each printed, as one JSON object.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
import tempfile
import traceback

import torch  # noqa: F401
import transformers


def run(program: str) -> dict[str, object]:
    """Run a program in a child; return its exit status and output."""
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if child == 0:
            os._exit(be_program(program, output.fileno()))
        _, status = os.waitpid(child, 0)
        output.seek(0)
        return {"status": os.waitstatus_to_exitcode(status), "output": output.read()}


def be_program(program: str, descriptor: int) -> int:
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.argv = [program]
    code = 0
    try:
        runpy.run_path(program, run_name="__main__")
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def main() -> None:
    programs = sys.argv[1:]
    if programs[0] == "--compat":
        from torch_tpu import compat

        compat.enable()
        programs = programs[1:]
    with contextlib.suppress(AttributeError):
        _ = transformers.LlamaForCausalLM  # imported once for all
    print(json.dumps({program: run(program) for program in programs}))


if __name__ == "__main__":
    main()
