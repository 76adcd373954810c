# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Runs programs one after the other, each in a fork of a process that has imported the libraries.

Standard input is a JSON list of command lines, each a list of words without the interpreter; the
last line of the output is a JSON list of ``{"status": ..., "output": ...}``. With the argument
``--compat`` the programs find the torch_xla of `torch_tpu.compat`.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
import traceback

import torch  # noqa: F401
import transformers


def run(words: list[str]) -> dict[str, object]:
    """Run a program in a child; return its exit status and output."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            os._exit(be_program(words, output.fileno()))
        _, status = os.waitpid(child, 0)
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
        return {"status": os.waitstatus_to_exitcode(status), "output": text}


def be_program(words: list[str], descriptor: int) -> int:
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.argv = words
    sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
    code = 0
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def main() -> None:
    if "--compat" in sys.argv:
        from torch_tpu import compat

        compat.enable()
    programs = json.load(sys.stdin)
    # Importing them is most of what a small program does: do it once.
    _ = transformers.LlamaForCausalLM
    print(json.dumps([run(words) for words in programs]))


if __name__ == "__main__":
    main()
