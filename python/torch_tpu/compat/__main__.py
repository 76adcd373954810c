# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Run a program for torch_xla with the package torch_xla of `torch_tpu.compat`."""

from __future__ import annotations

import os
import runpy
import sys

from torch_tpu import compat

_USAGE = "usage: python -m torch_tpu.compat [-m MODULE | SCRIPT] [ARGUMENT ...]"


def main() -> None:
    """Run the program that the command line names, as ``__main__``."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"{_USAGE}\n\n{compat.__doc__}")
        return
    compat.enable()
    if arguments[0] == "-m":
        if len(arguments) < 2:
            sys.exit(_USAGE)
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
