# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Which call reaches which lowering: samples of PyTorch's OpInfo, and hand-written calls.

A *case* is one sample of one OpInfo, run forward or with gradients. ``coverage.json`` lists few
cases that together reach nearly every operator of the table; ``tools/record_operator_coverage.py``
writes it. `HAND` has a call for each of the others.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import pathlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

COVERAGE_FILE = pathlib.Path(__file__).with_name("coverage.json")


@dataclasses.dataclass(frozen=True)
class Case:
    """One sample of an OpInfo; `operators` are the lowerings it is there for."""

    op: str
    variant: str
    dtype: str
    sample: int
    backward: bool
    operators: tuple[str, ...] = ()

    def __str__(self) -> str:
        suffix = "-grad" if self.backward else ""
        return f"{self.op}{'.' if self.variant else ''}{self.variant}-{self.dtype}{suffix}"


def load_cases() -> list[Case]:
    """Read ``coverage.json``."""
    content = json.loads(COVERAGE_FILE.read_text())
    return [Case(**{**row, "operators": tuple(row["operators"])}) for row in content["cases"]]


# ---- the table ----


def _schemas(base: str) -> list[torch.FunctionSchema]:
    return torch._C._jit_get_schemas_for_operator(f"aten::{base}")


def _overload(schema: torch.FunctionSchema) -> str:
    name = schema.name.removeprefix("aten::")
    return f"{name}.{schema.overload_name}" if schema.overload_name else name


def _is_out_of(out: torch.FunctionSchema, functional: torch.FunctionSchema) -> bool:
    own, other = functional.arguments, out.arguments
    if len(other) <= len(own) or not all(a.is_out for a in other[len(own) :]):
        return False
    return all(
        not b.is_out and str(a.type) == str(b.type) for a, b in zip(own, other, strict=False)
    )


def _is_in_place_of(in_place: torch.FunctionSchema, functional: torch.FunctionSchema) -> bool:
    own, other = functional.arguments, in_place.arguments
    return len(own) == len(other) and all(
        (b.alias_info is not None and b.alias_info.is_write) == (i == 0)
        and (a.name, str(a.type)) == (b.name, str(b.type))
        for i, (a, b) in enumerate(zip(own, other, strict=True))
    )


@functools.cache
def native_operators() -> dict[str, frozenset[str]]:
    """Each operator of the table with the overloads that its lowering serves."""
    import torch_tpu._C

    table: dict[str, frozenset[str]] = {}
    for name, _family in torch_tpu._C._operators():
        base, _, overload = name.partition(".")
        served = {name}
        functional = next((s for s in _schemas(base) if _overload(s) == name), None)
        if not base.endswith("_"):
            served.add(f"{base}_.{overload}" if overload else f"{base}_")
        if functional is not None:
            served.update(_overload(s) for s in _schemas(base) if _is_out_of(s, functional))
            in_place = _schemas(f"{base}_")
            served.update(_overload(s) for s in in_place if _is_in_place_of(s, functional))
        table[name] = frozenset(served)
    return table


@functools.cache
def _operator_of() -> dict[str, str]:
    return {o: name for name, overloads in native_operators().items() for o in overloads}


def exists(name: str) -> bool:
    """Tell whether PyTorch has this overload, so that a misspelt operator is noticed."""
    return any(_overload(s) == name for s in _schemas(name.partition(".")[0]))


class Recorder:
    """Collects in `operators` which lowerings the calls inside ``with`` reach."""

    def __init__(self) -> None:
        self.operators: set[str] = set()

    def __enter__(self) -> Recorder:
        torch.tpu.reset_metrics()
        config = torch._C._profiler._ExperimentalConfig(capture_overload_names=True)
        self._profile = torch.autograd.profiler.profile(experimental_config=config)
        self._profile.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._profile.__exit__(*error)
        fallen_back = {
            _operator_of().get(name.removeprefix("aten::"))
            for name in torch.tpu.metrics()["fallbacks"]
        }
        for event in self._profile.kineto_results.events():
            if not event.name().startswith("aten::"):
                continue
            base, overload = event.name().removeprefix("aten::"), event.overload_name()
            operator = _operator_of().get(f"{base}.{overload}" if overload else base)
            if operator is not None and operator not in fallen_back:
                self.operators.add(operator)


# ---- OpInfo ----


@functools.cache
def op_infos() -> dict[tuple[str, str], Any]:
    """Map (name, variant) to OpInfo."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return {(o.name, o.variant_test_name): o for o in op_db}


def samples(case: Case) -> Iterator[Any]:
    """Samples of the case's OpInfo on the CPU, the same in every run."""
    torch.manual_seed(0)
    info = op_infos()[case.op, case.variant]
    return iter(info.sample_inputs("cpu", getattr(torch, case.dtype), requires_grad=case.backward))


def sample_of(case: Case) -> Any:
    """Make the sample of the case."""
    return next(itertools.islice(samples(case), case.sample, None))


def on_device(tree: Any, device: str) -> Any:
    """Copy tensors, and devices named among arguments, to `device`; leaves require grad again."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().to(device).requires_grad_(leaf.requires_grad)
        is_cpu = isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf == "cpu")
        return torch.device(device) if is_cpu else leaf

    return tree_map(move, tree)


def run(case: Case, sample: Any, device: str) -> list[Any]:
    """Run the sample on the device.

    Returns
    -------
    list
        Results, then gradients of the sum of the real ones. Tensors stay on the device.
    """
    info = op_infos()[case.op, case.variant]
    torch.manual_seed(0)
    arguments = on_device((sample.input, sample.args, sample.kwargs), device)
    result = info(arguments[0], *arguments[1], **arguments[2])
    if case.backward and sample.output_process_fn_grad:
        result = sample.output_process_fn_grad(result)
    results = tree_leaves(result)
    if not case.backward:
        return results
    outputs = [x for x in results if isinstance(x, torch.Tensor) and x.requires_grad]
    inputs = [x for x in tree_leaves(arguments) if isinstance(x, torch.Tensor) and x.requires_grad]
    if not outputs or not inputs:
        return results
    total = sum((x.real if x.is_complex() else x).sum() for x in outputs)
    return [*results, *torch.autograd.grad(total, inputs, allow_unused=True)]


# ---- calls that no OpInfo makes ----


def _x(*shape: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=torch.float32).reshape(shape) * 0.13 + 0.2).fmod(0.9)


def _list() -> list[torch.Tensor]:
    return [_x(2, 3), _x(4)]


def _i(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def _foreach_calls() -> Iterator[tuple[str, tuple[Any, ...]]]:
    unary = (
        "abs acos asin atan ceil clone cos cosh erf erfc exp expm1 floor frac lgamma log log10 "
        "log1p log2 max neg reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc zero"
    )
    for name in unary.split():
        yield f"_foreach_{name}", (_list(),)
    for name in ["add", "sub", "mul", "div", "clamp_max", "clamp_min", "maximum", "minimum", "pow"]:
        yield f"_foreach_{name}.List", (_list(), _list())
        yield f"_foreach_{name}.Scalar", (_list(), 0.5)
        yield f"_foreach_{name}.ScalarList", (_list(), [0.5, 0.25])
    for name in ["add", "mul", "div"]:
        yield f"_foreach_{name}.Tensor", (_list(), torch.tensor(0.5))
    for name in ["addcdiv", "addcmul"]:
        yield f"_foreach_{name}.Scalar", (_list(), _list(), _list(), 0.5)
        yield f"_foreach_{name}.ScalarList", (_list(), _list(), _list(), [0.5, 0.25])
    yield "_foreach_lerp.List", (_list(), _list(), _list())
    yield "_foreach_lerp.Scalar", (_list(), _list(), 0.5)
    yield "_foreach_lerp.ScalarList", (_list(), _list(), [0.5, 0.25])
    yield "_foreach_norm.Scalar", (_list(),)
    yield "_foreach_powsum.Scalar", (_list(),)
    yield "_foreach_pow.ScalarAndTensor", (0.5, _list())


def _number_calls() -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Overloads with a number where the OpInfo has a tensor."""
    for name in ["__ilshift__", "__irshift__", "__lshift__", "__rshift__"]:
        yield f"{name}.Scalar", (_i(1, 2, 40), 2)
        yield f"{name}.Tensor", (_i(1, 2, 40), _i(1, 2, 3))
    for name in ["bitwise_and", "bitwise_or", "bitwise_xor"]:
        yield f"{name}.Scalar", (_i(1, 2, 7), 3)
        yield f"{name}.Scalar_Tensor", (3, _i(1, 2, 7))
    for name in ["bitwise_left_shift", "bitwise_right_shift"]:
        yield f"{name}.Tensor_Scalar", (_i(1, 2, 7), 2)
        yield f"{name}.Scalar_Tensor", (70, _i(1, 2, 3))
    polynomials = (
        "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v "
        "chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l "
        "legendre_polynomial_p shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u "
        "shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w"
    )
    for name in polynomials.split():
        yield f"special_{name}.n_scalar", (_x(4), 3)
        yield f"special_{name}.x_scalar", (0.4, torch.tensor([0.0, 1.0, 4.0]))
    for name in ("special_xlog1py", "special_zeta"):
        yield f"{name}.other_scalar", (_x(4) + 1, 1.5)
        yield f"{name}.self_scalar", (1.5, _x(4) + 1)
    yield "xlogy.Scalar_Other", (_x(4), 1.5)
    yield "xlogy.Scalar_Self", (1.5, _x(4))
    yield "clamp_max", (_x(4), 0.4)
    yield "clamp_min", (_x(4), 0.4)
    yield "copysign.Scalar", (_x(4), -1.0)
    yield "div.Scalar_mode", (_x(4), 0.3), {"rounding_mode": "floor"}
    yield "floor_divide.Scalar", (_x(4), 0.3)
    yield "fmod.Scalar", (_x(4), 0.3)
    yield "remainder.Scalar_Tensor", (0.8, _x(4))
    yield "bucketize.Scalar", (0.4, _x(4))
    yield "searchsorted.Scalar", (_x(4), 0.4)
    yield "isin.Scalar_Tensor", (2, _i(1, 2, 3))
    yield "isin.Tensor_Scalar", (_i(1, 2, 3), 2)


def _other_calls() -> Iterator[tuple[Any, ...]]:
    yield "_addmm_activation", (_x(3), _x(2, 4), _x(4, 3))
    yield "_int_mm", (torch.ones(32, 16, dtype=torch.int8), torch.ones(16, 8, dtype=torch.int8))
    yield "_masked_softmax", (_x(2, 3), _x(2, 3) > 0.5, 1, 2)
    yield "_masked_softmax_backward", (_x(2, 3), _x(2, 3).softmax(1), _x(2, 3) > 0.5, 1)
    yield "_native_batch_norm_legit.no_stats", (_x(4, 3), _x(3), _x(3), True, 0.1, 1e-5)
    yield "_stack", ([_x(2, 3), _x(2, 3)], 1)
    yield "_weight_norm_interface", (_x(2, 3), _x(2, 1))
    norms = _x(2, 3).norm(dim=1, keepdim=True)
    yield "_weight_norm_interface_backward", (_x(2, 3), _x(2, 3), _x(2, 1), norms, 0)
    yield "_upsample_bicubic2d_aa", (_x(1, 2, 4, 6), [2, 3], False)
    yield "_upsample_bicubic2d_aa_backward", (_x(1, 2, 2, 3), [2, 3], [1, 2, 4, 6], False)
    for name, rank in (("upsample_nearest", 2), ("upsample_nearest", 3)):
        size, output = [2, 3, 4][:rank], [4, 3, 8][:rank]
        for prefix in ("", "_"):
            full = f"{prefix}{name}{'_exact' if prefix else ''}{rank}d"
            yield full, (_x(1, 2, *size), output)
            yield f"{full}_backward", (_x(1, 2, *output), output, [1, 2, *size])
    for rank, kind in ((2, "reflection"), (3, "reflection"), (3, "replication")):
        shape, pad = [3, 4, 3][:rank], [1] * (2 * rank)
        padded = [n + 2 for n in shape]
        yield f"{kind}_pad{rank}d", (_x(1, 2, *shape), pad)
        yield f"{kind}_pad{rank}d_backward", (_x(1, 2, *padded), _x(1, 2, *shape), pad)
    yield "all.dims", (_x(2, 3) > 0.4, [0, 1])
    yield "any.dims", (_x(2, 3) > 0.4, [0, 1])
    yield "batch_norm_update_stats", (_x(4, 3), _x(3), _x(3), 0.1)
    yield "embedding_renorm", (_x(4, 3), _i(0, 2), 0.5, 2.0)
    yield "norm.ScalarOpt_dim_dtype", (_x(2, 3), 2.0, [1], False), {"dtype": torch.float64}
    yield "repeat_interleave.Tensor", (_i(1, 0, 3),)
    yield "scatter.value_reduce", (_x(4), 0, _i(1, 1, 2), 0.5), {"reduce": "add"}
    yield "unique_dim", (_x(4, 2).round(), 0, True, True, True)
    yield "unique_dim_consecutive", (_x(4, 2).round(), 0, True, True)
    yield "linalg_eigvals.out", (_x(3, 3),), {"out": torch.empty(0, dtype=torch.complex64)}
    yield "linalg_ldl_factor_ex", (_x(3, 3) + _x(3, 3).T,)
    factors = torch.linalg.ldl_factor(_x(3, 3) + _x(3, 3).T)
    yield "linalg_ldl_solve", (*factors, _x(3, 2))
    yield "dequantize.self", (_i(1, 2, 3),)
    yield "eye.out", (3,), {"out": torch.empty(0)}
    yield "range.out", (1, 4, 1), {"out": torch.empty(0)}


def _hand() -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    calls = itertools.chain(_foreach_calls(), _number_calls(), _other_calls())
    return {name: (args, *(more or ({},))) for name, args, *more in calls}


# Overload -> its arguments, positional and by keyword. Compared with the CPU.
HAND = _hand()

# What has no kernel on the CPU, gives other numbers each time, or needs a whole optimizer around
# it: the test that is about it.
ELSEWHERE = {
    **dict.fromkeys(
        ["fake_quantize_per_channel_affine_cachemask", "fake_quantize_per_tensor_affine_cachemask",
         "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams"],
        "test_remaining.py::test_fake_quantize",
    ),
    **dict.fromkeys(
        ["_fake_quantize_learnable_per_channel_affine",
         "_fake_quantize_learnable_per_channel_affine_backward",
         "_fake_quantize_learnable_per_tensor_affine",
         "_fake_quantize_learnable_per_tensor_affine_backward"],
        "test_remaining.py::test_learnt_quantisation",
    ),
    **dict.fromkeys(
        ["_jagged_to_padded_dense_forward", "_padded_dense_to_jagged_forward"],
        "test_remaining.py::test_padding_of_rows",
    ),
    "_sample_dirichlet": "test_remaining.py::test_dirichlet",
    "_standard_gamma": "test_remaining.py::test_gamma",
    "_standard_gamma_grad": "test_remaining.py::test_gamma_gradient",
    "binomial": "test_remaining.py::test_binomial",
    "poisson": "test_remaining.py::test_poisson",
    **dict.fromkeys(
        ["_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_"],
        "test_optimizer.py::test_gradient_scaling",
    ),
    **dict.fromkeys(
        ["_fused_adagrad_", "_fused_adam_", "_fused_adamw_", "_fused_sgd_"],
        "test_optimizer.py::test_steps",
    ),
    **dict.fromkeys(
        ["_fused_adagrad_.tensor_lr", "_fused_adam_.tensor_lr", "_fused_adamw_.tensor_lr",
         "_fused_sgd_.tensor_lr"],
        "test_optimizer.py::test_tensor_learning_rate",
    ),
    **dict.fromkeys(
        ["batch_norm_backward_elemt", "batch_norm_backward_reduce", "batch_norm_elemt",
         "batch_norm_gather_stats", "batch_norm_gather_stats_with_counts", "batch_norm_stats"],
        "test_norm.py::test_sync_batch_norm_pieces",
    ),
    **dict.fromkeys(
        ["_thnn_fused_gru_cell", "_thnn_fused_gru_cell_backward", "_thnn_fused_lstm_cell",
         "_thnn_fused_lstm_cell_backward_impl"],
        "test_rnn.py::test_cells",
    ),
    **dict.fromkeys(
        ["_scaled_mm", "_weight_int8pack_mm"], "test_matmul.py::test_quantised_products"
    ),
    **dict.fromkeys(["linalg_eig", "_linalg_eigvals"], "test_linalg_eig.py::test_eig"),
    "_dirichlet_grad": "test_remaining.py::test_dirichlet_gradient",
    **dict.fromkeys(
        ["_convert_weight_to_int4pack", "_convert_weight_to_int4pack_for_cpu",
         "_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu"],
        "test_matmul.py::test_four_bit_weights",
    ),
    "_embedding_bag_dense_backward": "test_embedding.py::test_bags",
    "_grouped_mm": "test_matmul.py::test_grouped",
    **dict.fromkeys(
        ["addmm.dtype", "baddbmm.dtype", "bmm.dtype", "mm.dtype"], "test_matmul.py::test_products"
    ),
    **dict.fromkeys(["bernoulli.Tensor", "bernoulli.p"], "test_random.py::test_bernoulli"),
    **dict.fromkeys(
        ["normal.float_Tensor", "normal_functional"], "test_random.py::test_normal_overloads"
    ),
    **dict.fromkeys(["random", "random.to"], "test_random.py::test_integers"),
    "randperm.generator_out": "test_random.py::test_randperm",
}  # fmt: skip


def run_hand(name: str, device: str) -> list[Any]:
    """Results of the call and then its tensors, which it may have written."""
    base, _, overload = name.partition(".")
    function = getattr(getattr(torch.ops.aten, base), overload or "default")
    args, kwargs = tree_map(
        lambda x: x.detach().clone().to(device) if isinstance(x, torch.Tensor) else x, HAND[name]
    )
    written = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    if "Device" in str(function._schema) and not written:
        kwargs["device"] = device
    return [*tree_leaves(function(*args, **kwargs)), *written]
