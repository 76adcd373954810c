# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""docs/operators.md says what the code does."""

from __future__ import annotations

import importlib.util
import pathlib
import re

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/operators.md"


def test_page_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    written_for = re.search(r"^PyTorch ([\d.]+): ", page, flags=re.MULTILINE)
    assert written_for is not None
    if written_for[1] != torch.__version__.split("+")[0]:
        pytest.skip(f"the page was written for PyTorch {written_for[1]}")
    spec = importlib.util.spec_from_file_location("generate", ROOT / "tools/generate_operators.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert generate.render() == page, "run `make docs-operators`"


def test_links_of_the_pages_exist() -> None:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
