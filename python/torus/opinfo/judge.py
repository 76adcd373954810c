# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Compare one operator of PyTorch's operator database on "tpu" with the CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from torus.opinfo import views

# Nothing to compare: what they return is random or was never written.
UNCOMPARED = frozenset(
    [
        "bernoulli",
        "cauchy",
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "exponential",
        "geometric",
        "log_normal",
        "multinomial",
        "new_empty",
        "new_empty_strided",
        "nn.functional.alpha_dropout",
        "nn.functional.dropout",
        "nn.functional.dropout2d",
        "nn.functional.dropout3d",
        "nn.functional.feature_alpha_dropout",
        "nn.functional.fractional_max_pool2d",
        "nn.functional.fractional_max_pool3d",
        "nn.functional.multi_head_attention_forward",
        "nn.functional.rrelu",
        "normal",
        "pca_lowrank",
        "rand",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "svd_lowrank",
        "uniform",
    ]
)
# Their tensor arguments after the first are read on the host and belong on the CPU by contract.
_HOST_ARGUMENTS = frozenset(["tensor_split"])
# Eigenvectors are free in sign; the samples bring a function that removes the freedom.
FREE_SIGNS = frozenset(["linalg.eig", "linalg.eigh", "linalg.svd", "svd"])
# They return the place of one among equal elements, any of them; the position of "dim" among their
# arguments after the first.
_FREE_TIES = {"argsort": 0, "kthvalue": 1, "mode": 0, "sort": 0, "topk": 1}
_LOW_PRECISION = (torch.bfloat16, torch.float16)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to run of every operator.

    Attributes
    ----------
    dtype : str
        Name of the dtype of the samples, such as "float32".
    samples : int
        At most so many samples of an operator.
    backward : bool
        Compare gradients too, where the operator has them.
    views : bool
        Lay every tensor of a sample out as a view, see `torus.opinfo.views`.
    target : str
        A topology for which the samples' programs are compiled by the TPU compiler, see
        `torus.opinfo.compiling`; empty: they are run and compared.
    compiled : bool
        Run the operator on the device under ``torch.compile(fullgraph=True)``.
    ranks : int
        Run it on distributed tensors over so many processes, see `torus.opinfo.sharded`; 0: no.
    """

    dtype: str = "float32"
    samples: int = 3
    backward: bool = False
    views: bool = False
    target: str = ""
    compiled: bool = False
    ranks: int = 0


@dataclasses.dataclass
class Verdict:
    """What came out for one operator.

    Attributes
    ----------
    op : str
        Name in the operator database, with the variant after a full stop.
    verdict : str
        "pass", "wrong" (other values), "error" (refused), "timeout", "crash", "skipped" (nothing to
        compare), "nosample" (the CPU takes none), or "harness" (no sample could be made).
    passed, tried : int
        Samples.
    note : str
        The first thing that went wrong.
    untraceable : int
        Samples, not counted as tried, of which Dynamo makes no graph on the CPU either.
    """

    op: str
    verdict: str = "pass"
    passed: int = 0
    tried: int = 0
    note: str = ""
    untraceable: int = 0

    def fail(self, verdict: str, note: str) -> None:
        """Record a failure; an error counts for more than a wrong value."""
        if self.verdict != "error":
            self.verdict = verdict
        self.note = self.note or " ".join(note.split())[:200]


def op_name(op: Any) -> str:
    """Return the name of an entry of the operator database, variant included."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def entries(dtype: str) -> list[Any]:
    """Return the entries of PyTorch's operator database that take `dtype` on the CPU."""
    from torch.testing._internal.common_methods_invocations import op_db

    wanted = getattr(torch, dtype)
    return [op for op in op_db if wanted in op.supported_dtypes("cpu")]


@dataclasses.dataclass
class _Side:
    """A sample's tensors on one device."""

    tree: Any  # (input, args, kwargs)
    outputs: list[Any] = dataclasses.field(default_factory=list)

    def run(self, op: Any, process: Callable[[Any], Any] | None, compiled: bool = False) -> None:
        first, args, kwargs = self.tree
        call = _compiled(op) if compiled else op
        result = call(first, *args, **kwargs)
        self.outputs = tree_leaves(process(result) if process else result)

    def gradients(self) -> list[torch.Tensor | None]:
        """Of the weighted sum of the real outputs, with respect to every leaf."""
        outputs = [x for x in self.outputs if _is_tensor(x) and x.requires_grad]
        outputs = [x for x in outputs if x.is_floating_point()]
        leaves = [x for x in tree_leaves(self.tree) if _is_tensor(x) and x.requires_grad]
        if not outputs:
            return []
        # Weights that differ from element to element show a gradient at the wrong place.
        weights = [_weights(x) for x in outputs]
        return list(torch.autograd.grad(outputs, leaves, weights, allow_unused=True))


def _compiled(op: Any, backend: str = "tpu") -> Callable[..., Any]:
    """Return the operator as one graph, sizes that depend on values included."""
    import torch._dynamo
    from torch.testing._internal import common_methods_invocations as invocations

    torch._dynamo.reset()
    # As in PyTorch's own tests of compiled operators: seeding within a graph cannot be traced.
    invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    function = op.op

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._dynamo.config.patch(
            capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True
        ):
            return graph(*args, **kwargs)

    graph = torch.compile(
        lambda *args, **kwargs: function(*args, **kwargs),
        backend=backend,
        fullgraph=True,
        dynamic=False,
    )
    return call


def _is_untraceable(op: Any, side: _Side) -> bool:
    """Tell whether PyTorch cannot make a graph of the call on the CPU either."""
    first, args, kwargs = side.tree
    try:
        _compiled(op, "aot_eager")(first, *args, **kwargs)
    except torch._dynamo.exc.TorchDynamoException:
        return True
    except Exception:  # it can, and what it made does not run
        return False
    return False


def _is_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)


def _weights(x: torch.Tensor) -> torch.Tensor:
    ramp = torch.linspace(0.5, 1.5, x.numel(), dtype=torch.float64)
    return ramp.reshape(x.shape).to(x.dtype).to(x.device)


def _copy(
    tensor: torch.Tensor, device: str, grad: bool, place: Callable[[torch.Tensor], Any] | None
) -> torch.Tensor:
    detached = tensor.detach()
    if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
        copy = detached.clone() if device == "cpu" else detached.to(device)
    elif place is not None:
        copy = place(detached).on(device).detach()
    elif tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size():
        copy = views.whole_storage(detached).on(device).detach()
    else:
        copy = detached.clone() if device == "cpu" else detached.to(device)
    return copy.requires_grad_() if grad and tensor.requires_grad else copy


def side_of(op: Any, sample: Any, device: str, plan: Plan, grad: bool, first_kind: int) -> _Side:
    """Return a sample's tensors on a device, laid out as the plan says."""
    place = views.placements(first_kind) if plan.views else None

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return _copy(leaf, device, grad, place)
        if isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf == "cpu"):
            return torch.device(device)
        return leaf

    rest = (sample.args, sample.kwargs)
    if op.name not in _HOST_ARGUMENTS:
        rest = tree_map(move, rest)
    return _Side((tree_map(move, sample.input), *rest))


def elements_at(op: Any, side: _Side) -> list[Any]:
    """Replace the free places among the results by the elements that stand there."""
    first, args, kwargs = side.tree
    position = _FREE_TIES.get(op.name)
    if position is None or kwargs.get("stable"):
        return side.outputs
    dim = kwargs.get("dim", args[position] if len(args) > position else -1)
    source = first.detach().cpu()

    def look(output: torch.Tensor) -> torch.Tensor:
        places = output.cpu()
        if places.dim() < source.dim():
            places = places.unsqueeze(dim)
        return source.take_along_dim(places, dim) if source.dim() > 0 else source

    places = side.outputs[-1]
    return [*side.outputs[:-1], look(places)] if places.dtype == torch.int64 else side.outputs


def check_outputs(actual: list[Any], expected: list[Any]) -> None:
    """Raise an AssertionError if results differ by more than their dtype lets them."""
    if len(actual) != len(expected):
        raise AssertionError(f"{len(actual)} results, {len(expected)} on the CPU")
    for a, e in zip(actual, expected, strict=True):
        if isinstance(e, torch.Tensor):
            exact = not (e.is_floating_point() or e.is_complex())
            rtol, atol = (3e-2, 3e-2) if e.dtype in _LOW_PRECISION else (2e-3, 2e-4)
            torch.testing.assert_close(
                a.detach().cpu(),
                e.detach(),
                rtol=0 if exact else rtol,
                atol=0 if exact else atol,
                equal_nan=True,
            )


def check_gradients(actual: list[torch.Tensor | None], expected: list[torch.Tensor | None]) -> None:
    """Raise an AssertionError if gradients differ, or are there on one side only."""
    for a, e in zip(actual, expected, strict=True):
        if (a is None) != (e is None):
            raise AssertionError("gradient present on one device only")
        if a is not None and e is not None:
            low = e.dtype in _LOW_PRECISION
            rtol, atol = (3e-2, 3e-2) if low else (5e-3, 5e-4)
            a = a.cpu().to(e.dtype)
            torch.testing.assert_close(a, e, rtol=rtol, atol=atol, equal_nan=True)


def judge(op: Any, plan: Plan, first_kind: int = 0) -> Verdict:
    """Run the samples of an operator on both devices.

    Parameters
    ----------
    op : OpInfo
        An element of `entries`.
    plan : Plan
    first_kind : int
        With `plan.views`: where the cycle of kinds begins.

    Returns
    -------
    Verdict
        Never "timeout" or "crash": those are seen from outside only.
    """
    found = Verdict(op_name(op))
    if op.name in UNCOMPARED:
        found.verdict, found.note = "skipped", "random or uninitialised"
        return found
    dtype = getattr(torch, plan.dtype)
    grad = plan.backward and op.supports_autograd and dtype.is_floating_point
    for number, sample in enumerate(samples(op, dtype, grad, plan.samples, found)):
        _judge_sample(op, sample, plan, grad, first_kind + number, found)
    if found.tried == 0 and found.verdict == "pass":
        found.verdict = "nosample"
        if found.untraceable:
            found.verdict, found.note = "skipped", "Dynamo makes no graph of it on the CPU either"
    return found


def samples(op: Any, dtype: torch.dtype, grad: bool, limit: int, found: Verdict) -> Iterator[Any]:
    """Yield the operator's first samples; that none can be made is noted in `found`."""
    torch.manual_seed(0)
    try:
        samples = iter(op.sample_inputs("cpu", dtype, requires_grad=grad))
        for _ in range(limit):
            yield next(samples)
    except StopIteration:
        pass
    except (RuntimeError, ValueError, TypeError, ImportError) as error:
        found.fail("harness", str(error))


def _judge_sample(
    op: Any, sample: Any, plan: Plan, grad: bool, first_kind: int, found: Verdict
) -> None:
    if sample.kwargs.get("dropout_p", 0.0) > 0.0:  # random
        return
    process = sample.output_process_fn_grad if grad or op.name in FREE_SIGNS else None
    try:
        actual = side_of(op, sample, "tpu", plan, grad, first_kind)
        expected = side_of(op, sample, "cpu", plan, grad, first_kind)
        expected.run(op, process)
    except Exception:  # the CPU itself does not take it
        return
    found.tried += 1
    try:
        actual.run(op, process, plan.compiled)
        check_outputs(elements_at(op, actual), elements_at(op, expected))
        if grad:
            check_gradients(actual.gradients(), expected.gradients())
        found.passed += 1
    except AssertionError as error:
        found.fail("wrong", str(error))
    except Exception as error:  # whatever a backend may raise is its verdict
        if plan.compiled and _is_untraceable(op, expected):
            found.tried -= 1
            found.untraceable += 1
        else:
            found.fail("error", f"{type(error).__name__}: {error}")
