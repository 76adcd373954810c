# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Sparse tensors against the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

INDICES = torch.tensor([[0, 1, 1, 2, 0], [2, 0, 0, 1, 2]])
VALUES = torch.tensor([1.5, -2.0, 0.5, 3.0, 4.0])
MATRIX = torch.linspace(-2, 2, 12).reshape(3, 4)
OTHER = torch.linspace(-1, 1, 20).reshape(4, 5)


def coo(device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A 3 x 4 matrix with two places named twice."""
    values = VALUES.to(dtype).to(device)
    return torch.sparse_coo_tensor(INDICES.to(device), values, (3, 4))


def hybrid(device: str) -> torch.Tensor:
    values = torch.arange(15.0).reshape(5, 3).to(device)
    return torch.sparse_coo_tensor(INDICES.to(device), values, (3, 4, 3))


def csr(device: str) -> torch.Tensor:
    return MATRIX.relu().to(device).to_sparse_csr()


def dense(x: torch.Tensor) -> torch.Tensor:
    return x.cpu() if x.layout == torch.strided else x.cpu().to_dense()


def compare(function: Callable[[str], torch.Tensor]) -> None:
    expected, actual = function("cpu"), function("tpu")
    assert actual.device.type == "tpu"
    assert actual.layout == expected.layout
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(dense(actual), dense(expected))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64]
)
def test_coalesce(dtype: torch.dtype) -> None:
    compare(lambda d: coo(d, dtype).coalesce())
    actual, expected = coo("tpu", dtype).coalesce(), coo("cpu", dtype).coalesce()
    torch.testing.assert_close(actual.indices().cpu(), expected.indices())


CASES = {
    "hybrid": lambda d: hybrid(d).coalesce(),
    "to_dense": lambda d: coo(d).to_dense(),
    "to_sparse": lambda d: MATRIX.relu().to(d).to_sparse(),
    "to_sparse_rows": lambda d: MATRIX.to(d).to_sparse(1),
    "move": lambda d: coo("cpu").to(d),
    "convert": lambda d: coo(d).double(),
    "clone": lambda d: coo(d).clone(),
    "zeros_like": lambda d: torch.zeros_like(coo(d)),
    "empty": lambda d: torch.empty(3, 4, layout=torch.sparse_coo, device=d),
    "add": lambda d: coo(d) + coo(d).coalesce(),
    "add_dense": lambda d: torch.add(MATRIX.to(d), coo(d), alpha=2.5),
    "add_to_dense": lambda d: MATRIX.clone().to(d).add_(coo(d), alpha=-0.5),
    "add_in_place": lambda d: coo(d).add_(coo(d)),
    "subtract": lambda d: coo(d) - 2 * coo(d),
    "multiply": lambda d: coo(d) * coo(d).coalesce(),
    "multiply_dense": lambda d: coo(d) * MATRIX.to(d),
    "divide": lambda d: coo(d) / 2,
    "mm": lambda d: torch.sparse.mm(coo(d), OTHER.to(d)),
    "addmm": lambda d: torch.sparse.addmm(torch.ones(3, 5).to(d), coo(d), OTHER.to(d), beta=0.5),
    "mv": lambda d: coo(d) @ OTHER[:, 0].to(d),
    "dense_by_sparse": lambda d: OTHER.t().contiguous().to(d) @ coo(d).t(),
    "sparse_by_sparse": lambda d: torch.sparse.mm(coo(d), coo(d).t()),
    "bmm": lambda d: torch.bmm(
        torch.stack([MATRIX, MATRIX + 1]).to(d).to_sparse(), torch.stack([OTHER, -OTHER]).to(d)
    ),
    "sum": lambda d: coo(d).sum(),
    "sum_dim": lambda d: torch.sparse.sum(coo(d), 0),
    "norm": lambda d: coo(d).norm(),
    "transpose": lambda d: coo(d).t(),
    "cat": lambda d: torch.cat([coo(d), coo(d)]),
    "select": lambda d: coo(d)[1],
    "index_select": lambda d: coo(d).index_select(0, torch.tensor([2, 0, 2]).to(d)),
    "index_dense": lambda d: hybrid(d).index_select(2, torch.tensor([2, 0]).to(d)),
    "mask": lambda d: MATRIX.to(d).sparse_mask(coo(d).coalesce()),
    "mask_sparse": lambda d: MATRIX.to(d).to_sparse().sparse_mask(coo(d).coalesce()),
    "sin": lambda d: coo(d).sin(),
    "power": lambda d: coo(d).pow(2),
    "sqrt_in_place": lambda d: coo(d).coalesce().abs().sqrt_(),
    "csr": csr,
    "csr_to_dense": lambda d: csr(d).to_dense(),
    "csr_to_coo": lambda d: csr(d).to_sparse(),
    "coo_to_csr": lambda d: coo(d).to_sparse_csr(),
    "csc": lambda d: MATRIX.to(d).to_sparse_csc(),
    "csr_move": lambda d: csr("cpu").to(d),
    "csr_mm": lambda d: csr(d) @ OTHER.to(d),
    "dense_by_csr": lambda d: OTHER.t().contiguous().to(d) @ csr(d).to_sparse().t(),
    "csr_mv": lambda d: csr(d) @ OTHER[:, 0].to(d),
    "csr_scaled": lambda d: -csr(d) * 2,
    "csr_sin": lambda d: csr(d).sin(),
    "sampled_addmm": lambda d: torch.sparse.sampled_addmm(
        csr(d), torch.ones(3, 5).to(d), OTHER.t().contiguous().to(d), beta=0.5, alpha=2.0
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    compare(CASES[name])


def test_modes(mode: str) -> None:
    compare(lambda d: torch.sparse.mm(coo(d) + coo(d), OTHER.to(d)))


@pytest.mark.parametrize("consume", ["mm", "dense", "add"])
def test_gradient(consume: str) -> None:
    """Values and the dense operand get the CPU's gradients."""

    def run(device: str) -> list[torch.Tensor]:
        values = VALUES.clone().to(device).requires_grad_()
        other = OTHER.clone().to(device).requires_grad_()
        x = torch.sparse_coo_tensor(INDICES.to(device), values, (3, 4))
        if consume == "mm":
            y = torch.sparse.mm(x, other)
        elif consume == "dense":
            y = x.to_dense() @ other
        else:
            y = (torch.ones(3, 4, device=device) + x) @ other
        y.pow(2).sum().backward()
        return [values.grad.cpu(), other.grad.cpu()]

    torch.testing.assert_close(run("tpu"), run("cpu"))


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5),
        lambda p: torch.optim.SparseAdam(list(p), lr=0.1),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
    ],
)
def test_embedding_with_sparse_gradients(make: Callable) -> None:
    def run(device: str) -> torch.Tensor:
        torch.manual_seed(0)
        table = torch.nn.Embedding(6, 3, sparse=True).to(device)
        optimizer = make(table.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            table(torch.tensor([1, 1, 4]).to(device)).pow(2).sum().backward()
            assert table.weight.grad.is_sparse
            optimizer.step()
        return table.weight.detach().cpu()

    torch.testing.assert_close(run("tpu"), run("cpu"))


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reduced_product(reduce: str, dtype: torch.dtype) -> None:
    """Row 0 of the sparse matrix is empty."""

    def run(device: str) -> list[torch.Tensor]:
        sparse = csr(device).to(dtype).requires_grad_()
        other = OTHER.to(dtype).to(device).requires_grad_()
        result = torch.sparse.mm(sparse, other, reduce)
        weights = torch.linspace(0.5, 1.5, result.numel(), device=device).reshape(result.shape)
        gradients = torch.autograd.grad(result, [sparse, other], weights.to(dtype))
        return [dense(x) for x in (result.detach(), *gradients)]

    limit = 1e-5 if dtype == torch.float32 else 2e-2
    for actual, expected in zip(run("tpu"), run("cpu"), strict=True):
        torch.testing.assert_close(actual, expected, rtol=limit, atol=limit)


def test_reduced_product_of_nothing() -> None:
    sparse = torch.zeros(3, 4).to("tpu").to_sparse_csr().requires_grad_()
    other = OTHER.to("tpu").requires_grad_()
    result = torch.sparse.mm(sparse, other, "amax")
    assert not result.any()
    assert not torch.autograd.grad(result.sum(), other)[0].any()
    with pytest.raises(RuntimeError, match="reduce"):
        torch.sparse.mm(sparse, other, "median")


def test_fallback_is_counted() -> None:
    torch.tpu.reset_metrics()
    compare(lambda d: torch.sparse.softmax(coo(d), 1))
    assert "aten::_sparse_softmax" in torch.tpu.metrics()["fallbacks"]


def test_errors() -> None:
    with pytest.raises(RuntimeError):
        coo("tpu") + torch.sparse_coo_tensor(INDICES.to("tpu"), VALUES.to("tpu"), (3, 5))
    with pytest.raises(RuntimeError):
        torch.sparse.mm(coo("tpu"), OTHER.t().contiguous().to("tpu"))


def test_text() -> None:
    assert "nnz=5" in str(coo("tpu"))
