# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Long runs: verdicts kept in a file as they come, and a progress bar."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Row = dict[str, Any]


class Journal:
    """Rows by key, in a file of JSON lines if one is named; the last of a key counts.

    Parameters
    ----------
    path : str, optional
    key : sequence of str
        The fields that tell rows apart.
    """

    def __init__(self, path: str | None, key: Sequence[str]) -> None:
        self.rows: dict[tuple[Any, ...], Row] = {}
        self._key = tuple(key)
        self._path = pathlib.Path(path) if path else None
        self._file: Any = None
        self._start = ""  # what ends the line before the next one

    def __enter__(self) -> Journal:
        if self._path is None:
            return self
        if self._path.exists():
            text = self._path.read_text("utf-8")
            # A run that was killed may have left half a line.
            self._start = "" if text.endswith("\n") or not text else "\n"
            for line in text.splitlines():
                with contextlib.suppress(ValueError):
                    self._keep(json.loads(line))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("a", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def key(self, row: Row) -> tuple[Any, ...]:
        """Return what tells rows apart; a field that older files lack is as good as empty."""
        return tuple(row.get(name) or "" for name in self._key)

    def _keep(self, row: Row) -> None:
        self.rows[self.key(row)] = row

    def add(self, row: Row) -> None:
        """Keep a row and write it down."""
        self._keep(row)
        if self._file is not None:
            self._file.write(self._start + json.dumps(row) + "\n")
            self._file.flush()
            self._start = ""


@contextlib.contextmanager
def progress_bar(title: str, total: int) -> Iterator[Callable[[str, bool], None]]:
    """Show a progress bar on standard error while the context lasts.

    Yields
    ------
    callable
        To be called for every row with its name and whether it failed.
    """
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("{task.fields[name]}"),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total, name="")
        failures = 0

        def advance(name: str, failed: bool) -> None:
            nonlocal failures
            failures += failed
            bar.update(task, advance=1, name=name, description=f"{title}, {failures} failed")

        yield advance
