# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Every lowering of the table is reached by a test, and gives what the CPU gives.

``python tools/record_operator_coverage.py`` brings the list of cases up to date.
"""

from __future__ import annotations

import ast
import pathlib
import sys
import warnings
from typing import Any

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent / "ops"))

import operator_cases as cases

CASES = cases.load_cases()

# Results that are random or uninitialised: only their types and shapes are compared.
RANDOM = {
    "bernoulli", "cauchy", "empty", "empty_like", "empty_permuted", "empty_strided", "exponential",
    "geometric", "log_normal", "multinomial", "new_empty", "new_empty_strided",
    "nn.functional.alpha_dropout", "nn.functional.dropout", "nn.functional.dropout2d",
    "nn.functional.dropout3d", "nn.functional.feature_alpha_dropout",
    "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
    "nn.functional.multi_head_attention_forward", "nn.functional.rrelu",
    "nn.functional.scaled_dot_product_attention", "normal", "pca_lowrank", "rand_like", "randint",
    "randint_like", "randn", "randn_like", "svd_lowrank", "uniform", "linalg.eigh", "linalg.qr",
    "linalg.svd", "qr", "svd", "geqrf",
}  # fmt: skip


def compare(actual: list[Any], expected: list[Any], exact: bool = True) -> None:
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        if not isinstance(e, torch.Tensor):
            assert type(a) is type(e)
            continue
        assert a.dtype == e.dtype
        assert a.shape == e.shape
        if exact:
            a, e = a.detach().cpu(), e.detach()
            torch.testing.assert_close(a, e, rtol=2e-3, atol=2e-4, equal_nan=True)


def test_every_operator_has_a_case() -> None:
    covered = {name for case in CASES for name in case.operators}
    left = set(cases.native_operators()) - covered - set(cases.HAND) - set(cases.ELSEWHERE)
    assert not left, (
        f"no test reaches {sorted(left)}: run tools/record_operator_coverage.py, and give what it "
        "still lists a call in tests/python/ops/operator_cases.py"
    )


def test_every_case_names_an_operator() -> None:
    named = {name for case in CASES for name in case.operators}
    named |= set(cases.HAND) | set(cases.ELSEWHERE)
    assert not {name for name in named if not cases.exists(name)}
    unknown = named - set(cases.native_operators())
    assert not unknown, f"not in the table: {sorted(unknown)}"


def test_the_tests_named_elsewhere_exist() -> None:
    folder = pathlib.Path(cases.__file__).parent
    for name in sorted(set(cases.ELSEWHERE.values())):
        file, _, function = name.partition("::")
        tree = ast.parse((folder / file).read_text(encoding="utf-8"))
        assert function in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}, name


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("case", CASES, ids=str)
def test_sample(case: cases.Case) -> None:
    expected = cases.run(case, cases.sample_of(case), "cpu")
    with cases.Recorder() as recorder:
        actual = cases.run(case, cases.sample_of(case), "tpu")
        torch.tpu.synchronize()
    assert set(case.operators) <= recorder.operators
    compare(actual, expected, exact=case.op not in RANDOM)


@pytest.mark.parametrize("name", sorted(cases.HAND))
def test_call(name: str) -> None:
    if name not in cases.native_operators():
        pytest.fail(f"{name} is not in the table")
    expected = cases.run_hand(name, "cpu")
    with cases.Recorder() as recorder:
        actual = cases.run_hand(name, "tpu")
        torch.tpu.synchronize()
    assert name in recorder.operators
    compare(actual, expected)
