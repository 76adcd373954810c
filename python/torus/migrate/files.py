# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Finds the files of a project, and what in files that are no Python a person should look at."""

from __future__ import annotations

import os
import re
import tokenize
from collections.abc import Iterable, Iterator

from torus.migrate import Finding, Migration, is_interesting, look_at, migrate_source
from torus.migrate.environment import VARIABLE
from torus.migrate.rules import ENVIRONMENT_REMEDIES

_SKIPPED = {".git", ".hg", ".svn", ".tox", ".venv", "venv", "node_modules", "__pycache__", "build"}
_LISTED = re.compile(
    r"requirements.*\.(txt|in)|setup\.(py|cfg)|pyproject\.toml|environment.*\.ya?ml|"
    r".*\.(sh|bash|env)|Dockerfile.*|\.env"
)
_PACKAGE = re.compile(r"(?<![\w.])(torch[-_]xla|optimum[-_]tpu)(?![\w.])")
_NOTEBOOK = (
    "notebooks are not rewritten: export it (jupyter nbconvert --to script) and migrate that"
)
_INSTALL = "install torus-tpu instead"


def find(paths: Iterable[str]) -> Iterator[str]:
    """Yield the files under some paths, sorted; a path that is a file is yielded as it is.

    Raises
    ------
    FileNotFoundError
        If a path does not exist.
    """
    for path in paths:
        if not os.path.exists(path):
            raise FileNotFoundError(path)
        if os.path.isfile(path):
            yield path
            continue
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(set(folders) - _SKIPPED)
            for name in sorted(names):
                if name.endswith((".py", ".ipynb")) or _LISTED.fullmatch(name):
                    yield os.path.join(folder, name)


def migrate_files(paths: Iterable[str]) -> Iterator[Migration]:
    """Yield what becomes of each file that has anything to migrate or to report.

    Parameters
    ----------
    paths : iterable of str
        Files and folders. They are read only.
    """
    texts: dict[str, str | Finding] = {path: _read(path) for path in find(paths)}
    project = look_at(
        text for path, text in texts.items() if isinstance(text, str) and path.endswith(".py")
    )
    for path, text in texts.items():
        if isinstance(text, Finding):
            yield Migration(path, "", "", [text])
        elif path.endswith(".py"):
            migration = migrate_source(text, path, project)
            if os.path.basename(path) == "setup.py":
                migration.findings.extend(_examine(path, text))
            if migration.is_changed or migration.findings:
                yield migration
        else:
            findings = _examine_notebook(path, text) or _examine(path, text)
            if findings:
                yield Migration(path, text, text, findings)


def _read(path: str) -> str | Finding:
    """Return a file's text, its line ends as they are, or why it cannot be read."""
    try:
        with open(path, "rb") as file:
            encoding = tokenize.detect_encoding(file.readline)[0]
        with open(path, encoding=encoding, newline="") as file:
            return file.read()
    except (SyntaxError, UnicodeDecodeError, OSError) as error:
        return Finding(path, 1, 1, "unreadable", f"cannot be read: {error}")


def write(migration: Migration) -> None:
    """Write a migrated file in place of the old one, in its encoding and with its mode."""
    with open(migration.path, "rb") as file:
        encoding = tokenize.detect_encoding(file.readline)[0]
    beside = f"{migration.path}.torus-{os.getpid()}"
    try:
        with open(beside, "w", encoding=encoding, newline="") as file:
            file.write(migration.after)
        os.chmod(beside, os.stat(migration.path).st_mode & 0o7777)
        os.replace(beside, os.path.realpath(migration.path))
    except BaseException:
        if os.path.exists(beside):
            os.unlink(beside)
        raise


def _examine_notebook(path: str, text: str) -> list[Finding]:
    if path.endswith(".ipynb") and is_interesting(text.replace('\\"', '"')):
        return [Finding(path, 1, 1, "notebook", _NOTEBOOK)]
    return []


def _examine(path: str, text: str) -> list[Finding]:
    """Report packages and environment variables in a file that is no Python."""
    findings = []
    for number, line in enumerate(text.splitlines(), 1):
        for match in _PACKAGE.finditer(line):
            findings.append(Finding(path, number, match.start() + 1, match[0], _INSTALL))
        for match in VARIABLE.finditer(line):
            remedy = ENVIRONMENT_REMEDIES[match[0]]
            findings.append(Finding(path, number, match.start() + 1, match[0], remedy))
    return findings
