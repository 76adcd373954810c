# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Rewrite programs for torch_xla or optimum-tpu to PyTorch's device "tpu".

Shows what would change as a diff, and lists with file, line and remedy what it leaves to you.
Nothing is written without --write. Comments and layout stay; a migrated file stays as it is when
it is migrated again. docs/migrating.md has the table of what becomes of what. Needs the package
libcst: pip install 'torus-tpu[migrate]'.

Examples
--------
  torus migrate train.py                the diff of one file
  torus migrate . > migration.patch     all files of a project, as a patch
  torus migrate --write src tests       rewrite them
  torus migrate --json . | jq .todo     what is left to do, for a program

Exit status 0: nothing is left to do by hand. 1: something is, it is listed. 2: wrong usage.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torus.migrate import Finding, Migration

HELP = "rewrite programs for torch_xla or optimum-tpu"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a file, or a folder to search")
    parser.add_argument("--write", action="store_true", help="rewrite the files")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colours in the diff (default: on a terminal, without NO_COLOR)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Migrate the files of the command line.

    Returns
    -------
    int
        0 if nothing is left to do, 1 if something is, 2 if a path does not exist or libcst is
        not installed.
    """
    try:
        from torus.migrate import files
    except ImportError as error:
        print(
            f"torus migrate: {error}; install it with: pip install 'torus-tpu[migrate]'",
            file=sys.stderr,
        )
        return 2
    try:
        migrations = list(_with_progress(files.migrate_files(arguments.paths)))
    except FileNotFoundError as error:
        print(f"torus migrate: there is no {error}", file=sys.stderr)
        return 2
    if arguments.write:
        for migration in migrations:
            if migration.is_changed:
                files.write(migration)
    if arguments.json:
        print(json.dumps(_facts(migrations, arguments.write), indent=2))
    else:
        _print(migrations, arguments)
    return int(not all(migration.is_complete for migration in migrations))


def _with_progress(migrations: Any) -> Any:
    """Show on a terminal which file is being read."""
    from rich.console import Console

    console = Console(stderr=True)
    with console.status("reading") as status:
        for migration in migrations:
            status.update(migration.path)
            yield migration


def unified_diff(migration: Migration) -> str:
    """Return what changes in a file as a patch."""
    lines = difflib.unified_diff(
        migration.before.splitlines(keepends=True),
        migration.after.splitlines(keepends=True),
        f"a/{migration.path.lstrip('/')}",
        f"b/{migration.path.lstrip('/')}",
    )
    marked = [
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    ]
    return "".join(marked)


def _findings(migrations: list[Migration], manual: bool) -> list[Finding]:
    return [f for migration in migrations for f in migration.findings if f.manual is manual]


def _facts(migrations: list[Migration], written: bool) -> dict[str, Any]:
    def rows(manual: bool) -> list[dict[str, Any]]:
        chosen = _findings(migrations, manual)
        return [
            {key: value for key, value in dataclasses.asdict(f).items() if key != "manual"}
            for f in chosen
        ]

    return {
        "files": [
            {
                "path": migration.path,
                "changed": migration.is_changed,
                "written": migration.is_changed and written,
                "complete": migration.is_complete,
                "diff": unified_diff(migration),
            }
            for migration in migrations
        ],
        "todo": rows(True),
        "remarks": rows(False),
    }


def _print(migrations: list[Migration], arguments: argparse.Namespace) -> None:
    """Print the diff on stdout, so that it can be a patch, and the lists on stderr."""
    from rich.console import Console

    forced = {"always": True, "never": False, "auto": None}[arguments.color]
    output = Console(force_terminal=forced, no_color=arguments.color == "never", soft_wrap=True)
    if not arguments.write:
        for migration in migrations:
            _print_diff(output, migration)
    messages = Console(stderr=True, soft_wrap=True, highlight=False)
    _print_list(messages, "left to do:", _findings(migrations, True), "yellow")
    _print_list(messages, "to know:", _findings(migrations, False), "cyan")
    changed = sum(migration.is_changed for migration in migrations)
    noun = "file" if changed == 1 else "files"
    verb = "rewritten" if arguments.write else "would change"
    messages.print(f"{changed} {noun} {verb}, {len(_findings(migrations, True))} left to do")


_STYLES = {"+++": "bold", "---": "bold", "@": "cyan", "+": "green", "-": "red"}


def _print_diff(console: Any, migration: Migration) -> None:
    from rich.text import Text

    text = unified_diff(migration)
    if not console.is_terminal:
        sys.stdout.write(text)
        return
    for line in text.splitlines():
        style = next((s for start, s in _STYLES.items() if line.startswith(start)), "")
        console.print(Text(line, style=style))


def _print_list(console: Any, title: str, findings: list[Finding], style: str) -> None:
    from rich.markup import escape

    if findings:
        console.print(f"[bold {style}]{title}[/]")
    for finding in findings:
        place = escape(f"{finding.path}:{finding.line}:{finding.column}")
        console.print(f"  {place}: [bold]{escape(finding.name)}[/]: {escape(finding.remedy)}")
