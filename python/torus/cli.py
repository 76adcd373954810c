# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The program ``torus``: finds the command and runs it.

A command is a module of `torus.commands` with ``HELP`` (one line), ``add_arguments(parser)`` and
``run(arguments) -> int``. Its module imports nothing heavy at the top, so that ``torus --help`` is
quick.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

from torus.commands import COMMANDS


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="torus", description="Tools for PyTorch's device 'tpu'.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = importlib.import_module(f"torus.commands.{name}")
        command = commands.add_parser(name, help=module.HELP, description=module.__doc__)
        command.formatter_class = argparse.RawDescriptionHelpFormatter
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Parameters
    ----------
    arguments : sequence of str, optional
        Command line without the program's name; that of the process by default.

    Returns
    -------
    int
        Exit status: 0 success, 1 the command found a problem, 2 wrong usage.
    """
    parsed = _make_parser().parse_args(arguments)
    try:
        return parsed.run(parsed)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 1
