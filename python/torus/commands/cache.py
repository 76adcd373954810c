# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Show, limit or empty the folder of compiled programs.

The folder is TORUS_CACHE_DIR, else torus/programs in XDG_CACHE_HOME, else in ~/.cache. Running
processes are not disturbed: a program that is gone is compiled again. Only files that Torus wrote
are counted and removed.

Examples
--------
  torus cache list                  the programs, last used first
  torus cache size --json           how many bytes they take
  torus cache prune --limit 500MiB  remove those used longest ago
  torus cache clear --yes           remove all

Exit status 0: done. 1: something could not be removed. 2: wrong usage.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import os
import re
import stat
import struct
import sys
import time
from typing import Any

HELP = "list, prune or clear the compiled programs on disk"

_MAGIC = 0x3153555249544F54
_HEADER = struct.Struct("=5Q")  # magic, identity, key bytes, body bytes, checksum
_ENTRY = re.compile(r"[0-9a-f]{32}\.program")
_LEFTOVER = re.compile(r"\.new-.{6}")
_LEFTOVER_SECONDS = 3600
_LIMIT = 4 << 30
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclasses.dataclass(frozen=True)
class Entry:
    """A file of the cache.

    Attributes
    ----------
    name : str
        Its name in the folder.
    size_bytes : int
        Its size.
    used : float
        When it was read or written last, in seconds since the epoch.
    identity : str
        Plugin, version and options it was compiled for, as a hash; empty if the file is damaged.
    """

    name: str
    size_bytes: int
    used: float
    identity: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of the command to its parser."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list the programs, last used first")
    listing.add_argument("--all", action="store_true", help="all of them, not only the last 20")
    size = actions.add_parser("size", help="show how many there are and how large they are")
    prune = actions.add_parser("prune", help="remove those used longest ago")
    prune.add_argument(
        "--limit",
        type=parse_size,
        metavar="SIZE",
        help="what may remain, such as 500MiB (default: TORUS_CACHE_LIMIT, else 4GiB)",
    )
    clear = actions.add_parser("clear", help="remove all")
    clear.add_argument("--yes", action="store_true", help="do not ask")
    for action in (listing, size, prune, clear):
        action.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(arguments: argparse.Namespace) -> int:
    """Do what the command line says.

    Returns
    -------
    int
        0 if it was done, 1 if a file could not be removed, 2 without a folder or an answer.
    """
    folder = cache_folder(os.environ)
    if not folder:
        print("torus cache: there is no folder (TORUS_CACHE=0, or no HOME)", file=sys.stderr)
        return 2
    actions = {"list": _list, "size": _size, "prune": _prune, "clear": _clear}
    return actions[arguments.action](folder, arguments)


def cache_folder(environment: Any) -> str:
    """Return the folder of compiled programs as the engine chooses it.

    Parameters
    ----------
    environment : mapping of str to str
        Read: ``TORUS_CACHE``, ``TORUS_CACHE_DIR``, ``XDG_CACHE_HOME``, ``HOME``.

    Returns
    -------
    str
        The folder, which need not exist; empty if the cache is off.
    """
    if environment.get("TORUS_CACHE") == "0":
        return ""
    if "TORUS_CACHE_DIR" in environment:
        return environment["TORUS_CACHE_DIR"]
    if "XDG_CACHE_HOME" in environment:
        return os.path.join(environment["XDG_CACHE_HOME"], "torus", "programs")
    if "HOME" in environment:
        return os.path.join(environment["HOME"], ".cache", "torus", "programs")
    return ""


def parse_size(text: str) -> int:
    """Read a size such as ``"1GiB"``, ``"500M"`` or ``"1.5 GB"``; units are powers of 1024.

    Raises
    ------
    argparse.ArgumentTypeError
        If it is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size, such as 500MiB or 1GiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def format_size(size_bytes: int) -> str:
    """Return a size for people: ``"1.5 GiB"``."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def read_entries(folder: str) -> list[Entry]:
    """Return the files of the cache, last used first; none if there is no folder."""
    entries = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as files:
        for file in files:
            if _ENTRY.fullmatch(file.name) is None:
                continue
            # A file that another process has just removed is no entry.
            with contextlib.suppress(FileNotFoundError):
                info = file.stat(follow_symlinks=False)
                if stat.S_ISREG(info.st_mode):
                    identity = _read_identity(file.path)
                    entries.append(Entry(file.name, info.st_size, info.st_mtime, identity))
    return sorted(entries, key=lambda entry: entry.used, reverse=True)


def _read_identity(path: str) -> str:
    try:
        with open(path, "rb") as file:
            head = file.read(_HEADER.size)
    except PermissionError:
        return ""
    if len(head) < _HEADER.size:
        return ""
    magic, identity, *_ = _HEADER.unpack(head)
    return f"{identity:016x}" if magic == _MAGIC else ""


def _leftovers(folder: str) -> list[str]:
    """Files that a killed process was writing, an hour ago or earlier."""
    names = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as files:
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                age = time.time() - file.stat(follow_symlinks=False).st_mtime
                if _LEFTOVER.fullmatch(file.name) and age > _LEFTOVER_SECONDS:
                    names.append(file.name)
    return names


def _remove(folder: str, names: list[str]) -> list[str]:
    """Remove files; returns what went wrong. A file that is gone already is well."""
    problems = []
    for name in names:
        try:
            os.unlink(os.path.join(folder, name))
        except FileNotFoundError:
            pass
        except OSError as error:
            problems.append(str(error))
    return problems


def _total(entries: list[Entry]) -> int:
    return sum(entry.size_bytes for entry in entries)


def _default_limit() -> int:
    text = os.environ.get("TORUS_CACHE_LIMIT", "")
    return int(text) if text.isdecimal() and int(text) > 0 else _LIMIT


def _facts(folder: str, entries: list[Entry]) -> dict[str, Any]:
    return {
        "folder": folder,
        "count": len(entries),
        "bytes": _total(entries),
        "limit_bytes": _default_limit(),
    }


def _size(folder: str, arguments: argparse.Namespace) -> int:
    entries = read_entries(folder)
    if arguments.json:
        print(json.dumps(_facts(folder, entries)))
    else:
        print(_line(folder, entries))
    return 0


def _line(folder: str, entries: list[Entry]) -> str:
    limit = format_size(_default_limit())
    noun = "program" if len(entries) == 1 else "programs"
    return f"{len(entries)} {noun}, {format_size(_total(entries))} of {limit}, in {folder}"


def _list(folder: str, arguments: argparse.Namespace) -> int:
    entries = read_entries(folder)
    if arguments.json:
        listed = [dataclasses.asdict(entry) for entry in entries]
        print(json.dumps({**_facts(folder, entries), "entries": listed}))
        return 0
    shown = entries if arguments.all else entries[:20]
    if shown:
        _print_table(shown)
    if len(shown) < len(entries):
        print(f"... and {len(entries) - len(shown)} more (--all shows them)")
    print(_line(folder, entries))
    return 0


def _print_table(entries: list[Entry]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("program", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("last used", no_wrap=True)
    table.add_column("made for", no_wrap=True)
    for entry in entries:
        used = datetime.datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M:%S")
        made_for = entry.identity[:8] or "damaged"
        table.add_row(entry.name[:12], format_size(entry.size_bytes), used, made_for)
    Console().print(table)


def _prune(folder: str, arguments: argparse.Namespace) -> int:
    limit = _default_limit() if arguments.limit is None else arguments.limit
    entries = read_entries(folder)
    total, names = _total(entries), _leftovers(folder)
    for entry in reversed(entries):
        if total <= limit:
            break
        names.append(entry.name)
        total -= entry.size_bytes
    return _finish(folder, arguments, names)


def _clear(folder: str, arguments: argparse.Namespace) -> int:
    entries = read_entries(folder)
    if entries and not arguments.yes:
        if not sys.stdin.isatty():
            print("torus cache clear: say --yes where nobody can be asked", file=sys.stderr)
            return 2
        print(_line(folder, entries))
        if input("Remove them all? [y/N] ").strip().lower() not in ("y", "yes"):
            return 0
    return _finish(folder, arguments, [entry.name for entry in entries] + _leftovers(folder))


def _finish(folder: str, arguments: argparse.Namespace, names: list[str]) -> int:
    before = _total(read_entries(folder))
    problems = _remove(folder, names)
    entries = read_entries(folder)
    removed, freed = len(names) - len(problems), before - _total(entries)
    if arguments.json:
        facts = {"removed": removed, "freed_bytes": freed, "problems": problems}
        print(json.dumps({**_facts(folder, entries), **facts}))
    else:
        noun = "file" if removed == 1 else "files"
        print(f"Removed {removed} {noun}, {format_size(freed)}.")
        print(_line(folder, entries))
        for problem in problems:
            print(f"torus cache: {problem}", file=sys.stderr)
    return 1 if problems else 0
