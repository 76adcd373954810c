# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Write docs/operators.md: what each ATen operator does on device "tpu".

Everything comes from PyTorch's dispatch tables, the table of lowerings and the sources, so the
result is the same wherever the same PyTorch is installed.
"""

from __future__ import annotations

import collections
import pathlib
import re
import sys

import torch
import torchgen

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs/operators.md"
_COMPOSITE_KEYS = (
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)
_INTRODUCTION = """\
# Operators

Every overload of ATen that dense tensors can reach, and what device "tpu" does with it.
`make docs-operators` writes this page from PyTorch's dispatch tables and the table of lowerings.

- **native**: lowered to StableHLO and recorded into the window, or done by the binding without a
  program (views, sizes, copies).
- **composite**: PyTorch itself makes it of other operators, which are listed here in their turn.
- **CPU fallback**: a correct answer on the CPU, with a warning, a count and two copies.
- **refused**: makes quantized tensors (`torch.qint8` and its kin), which PyTorch has deprecated and
  which do not live on the device. The error names what to do instead: `torchao.quantization`,
  whose weights are plain tensors, or `torch.fake_quantize_per_tensor_affine` and its kin.

Gradient: *formula* where PyTorch has a derivative for the operator, *by parts* where it is
differentiated through the operators it is made of.
"""


# Overloads whose results are quantized tensors.
_REFUSED = re.compile(
    r"aten::(_empty_\w*affine_quantized|_make_per_\w+_quantized_tensor|quantize_per_\w+)(\.\w+)?"
)


def _has(name: str, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


def _category(name: str) -> str | None:
    if _has(name, "PrivateUse1"):
        return "native"
    if _REFUSED.fullmatch(name):
        return "refused"
    if any(_has(name, key) for key in _COMPOSITE_KEYS):
        return "composite"
    return "CPU fallback" if _has(name, "CPU") else None


def _differentiable() -> set[str]:
    """Overloads with a line of their own in PyTorch's derivatives.yaml."""
    folder = pathlib.Path(torchgen.__file__).parent / "packaged/autograd"
    text = (folder / "derivatives.yaml").read_text(encoding="utf-8")
    return set(re.findall(r"^- name: ([\w.]+)\(", text, flags=re.MULTILINE))


def _functional_name(overload: str) -> list[str]:
    """Names under which the lowering of an in-place or out= overload may stand in the table."""
    base, _, suffix = overload.partition(".")
    in_place = base.removesuffix("_") + (f".{suffix}" if suffix else "")
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{base}")
    own = next((s for s in schemas if s.overload_name == suffix), None)
    names = [overload, in_place]
    if own is not None and any(a.is_out for a in own.arguments):
        inputs = [str(a.type) for a in own.arguments if not a.is_out]
        for s in schemas:
            if [str(a.type) for a in s.arguments] == inputs:
                names.append(f"{base}.{s.overload_name}" if s.overload_name else base)
    return names


def _gradient(overload: str, category: str, formulas: set[str]) -> str:
    if any(name in formulas for name in _functional_name(overload)):
        return "formula"
    if category == "composite" and _has(f"aten::{overload}", "CompositeImplicitAutograd"):
        return "by parts"
    return ""


def _partial_fallbacks() -> dict[str, list[str]]:
    """Reasons that the lowerings of each family give for sending a case to the CPU."""
    reasons: dict[str, list[str]] = {}
    for path in sorted((ROOT / "src/ops").glob("*.c")):
        text = path.read_text(encoding="utf-8")
        found = re.findall(r"op_fallback\(\s*call,\s*((?:\"[^\"]*\"\s*)+)\)", text)
        texts = ["".join(re.findall(r"\"([^\"]*)\"", each)) for each in found]
        if texts:
            reasons[path.name] = sorted(set(texts))
    return reasons


def _row(overload: str, category: str, families: dict[str, str], formulas: set[str]) -> str:
    names = [n for n in _functional_name(overload) if n in families]
    family = note = ""
    if category == "native" and names:
        family = families[names[0]]
        note = f"lowering of `{names[0]}`" if names[0] != overload else ""
    elif category == "native":
        family, note = "binding", "no lowering of its own"
    gradient = _gradient(overload, category, formulas)
    return f"| `{overload}` | {category} | {family} | {gradient} | {note} |"


def render() -> str:
    """Return the page."""
    import torch_tpu._C

    families = {name: file.removesuffix(".c") for name, file in torch_tpu._C._operators()}
    formulas = _differentiable()
    rows: dict[str, list[str]] = collections.defaultdict(list)
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        category = _category(name) if name.startswith("aten::") else None
        if category is None:
            continue
        rows[category].append(_row(name.removeprefix("aten::"), category, families, formulas))
    total = sum(map(len, rows.values()))
    version = torch.__version__.split("+")[0]
    lines = [_INTRODUCTION, f"PyTorch {version}: {total} overloads.\n"]
    lines += ["| | overloads |", "|---|---|"]
    categories = ("native", "composite", "CPU fallback", "refused")
    lines += [f"| {c} | {len(rows[c])} |" for c in categories]
    lines += [f"| lowerings in the table | {len(families)} |", ""]
    lines += ["## Cases of native operators that still run on the CPU", ""]
    lines += ["| family | case |", "|---|---|"]
    for file, texts in _partial_fallbacks().items():
        lines += [f"| {file.removesuffix('.c')} | {text} |" for text in texts]
    for category in ("CPU fallback", "refused", "native", "composite"):
        lines += ["", f"## {category[0].upper()}{category[1:]}", ""]
        lines += ["| overload | | family | gradient | notes |", "|---|---|---|---|---|"]
        lines += rows[category]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page."""
    TARGET.write_text(render(), encoding="utf-8")
    print(f"wrote {TARGET.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    main()
