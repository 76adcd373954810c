# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""What is done with an architecture on both devices: forward, generation, one training step.

The reference is the CPU with the same weights and inputs. Where float32 results differ by more than
the tolerance, the CPU in float64 decides: a device that is no farther from that than the CPU's own
float32 agrees. And where the model is not continuous there (a ReLU at 0, a choice among experts
whose scores are equal), the CPU's own results jump when its weights move by a millionth: a device
that is no farther off than those jumps agrees too.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import re
import sysconfig
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torus.compat import trees
from torus.compat.build import Subject
from torus.compat.inputs import Draw, Inputs
from torus.compat.trees import Named

DEVICE = "tpu"
TOKENS = 4
_TOLERANCE = 1e-3
# Gradients sum rounding errors of the whole model; what is far smaller than the greatest of all
# gradients is cancellation and is measured in units of this share of it.
_GRADIENT_TOLERANCE, _GRADIENT_FLOOR = 1e-2, 1e-4
_LEARNING_RATE = 1e-2
# How much farther from float64 than the CPU's float32 a result may be.
_SLACK = 4.0
# Weights are moved so many times, by this share of each; how much farther than the CPU's own
# results then move a result may be.
_SHAKES, _SHAKE, _JUMP = 4, 1e-6, 2.0
_LIBRARIES = os.path.join(sysconfig.get_path("purelib"), "")

Outcome = dict[str, Any]


@dataclasses.dataclass
class Found:
    """What came out of one stage.

    Attributes
    ----------
    verdict : str
        "match", "differs", "error", "random" (the CPU itself gives other numbers each time: shapes
        and dtypes agree), "none" (the model has no such stage), "cpu" (the CPU cannot do it), or
        "plugin" (the PJRT plugin lacks what the backend asks of it, which TPUs have).
    note : str
        What differs, or the error.
    difference : float
        Greatest difference in units of the greatest number of its tensor.
    programs : int
        Programs that were compiled, or loaded from the disk cache.
    seconds : float
        On the device, compilations included.
    fallbacks : list of str
        Operators that ran on the CPU.
    """

    verdict: str = "match"
    note: str = ""
    difference: float = 0.0
    programs: int = 0
    seconds: float = 0.0
    fallbacks: list[str] = dataclasses.field(default_factory=list)

    def row(self) -> Outcome:
        """Return the fields that say something."""
        row = {k: v for k, v in dataclasses.asdict(self).items() if v}
        return {**row, "difference": float(f"{self.difference:.3g}")}


def _metrics() -> dict[str, Any]:
    read = getattr(torch.get_device_module(DEVICE), "metrics", None)
    return read() if read else {}


@contextlib.contextmanager
def measure(found: Found) -> Iterator[None]:
    """Fill in programs, seconds and fallbacks of what runs inside."""
    before, start = _metrics(), time.monotonic()
    try:
        yield
    finally:
        after = _metrics()
        found.seconds = round(time.monotonic() - start, 2)
        for name in ("compilations", "disk_hits"):
            found.programs += after.get(name, 0) - before.get(name, 0)
        calls, old = after.get("fallbacks", {}), before.get("fallbacks", {})
        found.fallbacks = sorted(name for name in calls if calls[name] > old.get(name, 0))


def settle(
    found: Found,
    actual: Named,
    expected: Named,
    exact: Callable[[], Named],
    shaken: Callable[[], Iterator[Named]] | None = None,
    tolerance: float = _TOLERANCE,
    floor: float = 1e-6,
) -> None:
    """Compare results and write the verdict down.

    Parameters
    ----------
    found : Found
    actual, expected : dict of str to torch.Tensor
        On the device and on the CPU.
    exact : callable
        Computes the same in float64 on the CPU; only called where the two differ.
    shaken : callable, optional
        Yields what the CPU computes with weights that have moved a little; called as rarely.
    tolerance, floor : float
        See `trees.Difference` and `trees.compare`.
    """
    difference = trees.compare(actual, expected, floor)
    found.difference = difference.relative
    if difference.within(tolerance):
        return
    found.verdict, found.note = "differs", difference.text()
    if difference.notes:
        return
    if _confirmed(found, actual, expected, exact, tolerance, floor) or shaken is None:
        return
    moved = max(trees.compare(each, expected, floor).relative for each in shaken())
    if difference.relative <= _JUMP * moved:
        found.verdict, found.note = "match", f"the CPU moves by {moved:.2g} with its weights"


def _confirmed(
    found: Found,
    actual: Named,
    expected: Named,
    exact: Callable[[], Named],
    tolerance: float,
    floor: float,
) -> bool:
    """Ask float64; return whether it is for the device."""
    try:
        truth = {k: v.to(expected[k].dtype) for k, v in exact().items() if k in expected}
    except Exception:  # a model that insists on float32
        return False
    ours, theirs = trees.compare(actual, truth, floor), trees.compare(expected, truth, floor)
    if ours.notes or ours.relative > max(tolerance, _SLACK * theirs.relative):
        return False
    found.verdict, found.note = "match", f"the CPU is {theirs.relative:.2g} from float64"
    return True


_PLUGIN = re.compile(
    r"untyped custom call|no FFI handler|No such compile option|does not support memory stat"
    r"|computation_partitioner|not supported by XLA:CPU",
    re.I,
)


def is_of_plugin(note: str) -> bool:
    """Return whether an error says that the PJRT plugin lacks what plugins for TPUs have."""
    return bool(_PLUGIN.search(note))


def failed(error: BaseException) -> Found:
    """Return what an exception of the backend amounts to."""
    note = as_error(error)
    return Found("plugin" if is_of_plugin(note) else "error", note)


def as_error(error: BaseException) -> str:
    """Return an exception as one line, in which files of libraries begin with the library."""
    text = f"{type(error).__name__}: {error}".replace(_LIBRARIES, "")
    return " ".join(text.split())[:400]


class Runner:
    """Runs the stages of one model.

    Parameters
    ----------
    subject : Subject
    compiled : bool
        Run through ``torch.compile`` on the device.
    """

    def __init__(self, subject: Subject, compiled: bool = False) -> None:
        self._subject = subject
        self._compiled = compiled
        self._on_cpu = copy.deepcopy(subject.model)
        self._on_device: Any = None

    def _model(self) -> Any:
        if self._on_device is None:
            self._on_device = copy.deepcopy(self._subject.model).to(DEVICE)
        return self._on_device

    def _call(self) -> Callable[..., Any]:
        model = self._model()
        return torch.compile(model, backend=DEVICE) if self._compiled else model

    # Forward.

    def forward(self) -> Found:
        """Compare every tensor of a forward pass."""
        subject, found = self._subject, Found()
        try:
            expected = _forward(self._on_cpu, trees.to_device(subject.inputs, "cpu"), 0)
            again = _forward(self._on_cpu, trees.to_device(subject.inputs, "cpu"), 7)
        except Exception as error:  # it needs a package that is not installed
            return Found("cpu", as_error(error))
        random = not trees.compare(again, expected).within(1e-5)
        with measure(found):
            inputs = trees.to_device(subject.inputs, DEVICE)
            results = _forward(self._call(), inputs, 0)
            actual = {name: value.cpu() for name, value in results.items()}
        if random:
            _settle_random(found, actual, expected)
        else:
            settle(found, actual, expected, self._exact_forward, self._shaken_forward)
        return found

    def _exact_forward(self) -> Named:
        model = copy.deepcopy(self._subject.model).double()
        return _forward(model, trees.to_double(self._subject.inputs), 0)

    def _shaken_forward(self) -> Iterator[Named]:
        for model in self._shaken():
            yield _forward(model, trees.to_device(self._subject.inputs, "cpu"), 0)

    # Generation.

    def generate(self) -> Found:
        """Compare the tokens of a greedy generation."""
        if not self._generates():
            return Found("none")
        inputs, found = self._prompt(), Found()
        try:
            expected = _generate(self._on_cpu, trees.to_device(inputs, "cpu"))
        except Exception as error:  # the model asks for other inputs
            return Found("cpu", as_error(error))
        with measure(found):
            actual = _generate(self._model(), trees.to_device(inputs, DEVICE))
            tokens = actual["sequences"].cpu()
        _settle_tokens(found, tokens, expected, actual)
        return found

    def _generates(self) -> bool:
        can = getattr(self._subject.model, "can_generate", None)
        return bool(can and can()) and bool(self._prompt())

    def _prompt(self) -> Inputs:
        keys = ("input_ids", "input_features", "input_values", "pixel_values")
        inputs = {k: v for k, v in self._subject.inputs.items() if not k.startswith("decoder_")}
        return inputs if any(key in inputs for key in keys) else {}

    # The TPU compiler.

    def compile_for(self, topology: str) -> Found:
        """Have the TPU compiler compile the forward pass as one program."""
        from torch_tpu import aot

        found, inputs = Found(programs=1), trees.to_device(self._subject.inputs, DEVICE)
        try:
            with torch.no_grad():
                text = aot.lower(self._model(), for_tpu=True, **inputs).text
        except aot.NotLowered as error:  # it waits for a value, so that it is several programs
            return Found("none", as_error(error))
        try:
            with _without("XLA_FLAGS"):  # the options of the plugin here
                compiled = aot.compile_text(text, topology, serialize=False)
            found.seconds = round(compiled.seconds, 2)
        except aot.CompilationRefused as error:
            found.verdict, found.note = "error", as_error(error)
        return found

    # Training.

    def train(self) -> Found:
        """Compare gradients and parameters after one step of gradient descent."""
        subject, found = self._subject, Found()
        try:
            model = copy.deepcopy(subject.model)
            expected = _step(model, trees.to_device(subject.inputs, "cpu"))
        except Exception as error:  # a model without a gradient
            return Found("cpu", as_error(error))
        moved, call = self._model(), self._call()
        self._on_device = None  # the step moves its weights: later stages begin with new ones
        with measure(found):
            results = _step(moved, trees.to_device(subject.inputs, DEVICE), call)
            actual = {name: value.cpu() for name, value in results.items()}
        gradients = (v for k, v in expected.items() if k.startswith("gradient"))
        floor = _GRADIENT_FLOOR * trees.largest(gradients)
        ways = (self._exact_step, self._shaken_step)
        settle(found, actual, expected, *ways, _GRADIENT_TOLERANCE, max(floor, 1e-6))
        return found

    def _shaken_step(self) -> Iterator[Named]:
        for model in self._shaken():
            yield _step(model, trees.to_device(self._subject.inputs, "cpu"))

    def _shaken(self) -> Iterator[torch.nn.Module]:
        for seed in range(_SHAKES):
            model, draw = copy.deepcopy(self._subject.model), Draw(seed)
            with torch.no_grad():
                for p in model.parameters():
                    if p.is_floating_point():
                        p.mul_(1 + _SHAKE * draw.normal(*p.shape).to(p.dtype))
            yield model

    def _exact_step(self) -> Named:
        model = copy.deepcopy(self._subject.model).double()
        return _step(model, trees.to_double(self._subject.inputs))


def _forward(model: Callable[..., Any], inputs: Inputs, seed: int) -> Named:
    torch.manual_seed(seed)
    with torch.no_grad():
        return trees.tensors(model(**inputs))


def _settle_random(found: Found, actual: Named, expected: Named) -> None:
    def blank(named: Named) -> Named:
        return {k: torch.zeros_like(v) for k, v in named.items()}

    difference = trees.compare(blank(actual), blank(expected))
    found.verdict = "random" if difference.within(0.0) else "differs"
    found.note = "" if difference.within(0.0) else difference.text()


def _generate(model: Any, inputs: Inputs) -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        return model.generate(
            **inputs,
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            do_sample=False,
            num_beams=1,
            return_dict_in_generate=True,
            output_logits=True,
        )


def _settle_tokens(found: Found, tokens: torch.Tensor, expected: Any, actual: Any) -> None:
    wanted = expected["sequences"]
    if tokens.shape == wanted.shape and torch.equal(tokens, wanted):
        return
    found.verdict, found.note = "differs", f"tokens {tokens.tolist()} instead of {wanted.tolist()}"
    found.note = found.note[:200]
    for ours, theirs in zip(actual["logits"], expected["logits"], strict=False):
        ours = ours.cpu()
        if not torch.equal(ours.argmax(-1), theirs.argmax(-1)):
            best = theirs.topk(2, -1).values
            margin = (best[..., 0] - best[..., 1]).min() / best.abs().max().clamp_min(1e-6)
            if margin < _TOLERANCE:
                found.verdict, found.note = "match", "two tokens are equally likely"
            return


@contextlib.contextmanager
def _without(variable: str) -> Iterator[None]:
    """Hide a variable of the environment from processes that are started inside."""
    value = os.environ.pop(variable, None)
    try:
        yield
    finally:
        if value is not None:
            os.environ[variable] = value


def _step(model: Any, inputs: Inputs, call: Callable[..., Any] | None = None) -> Named:
    """One step on the mean square of all results; gradients and new parameters by name."""
    torch.manual_seed(0)
    model.zero_grad(set_to_none=True)
    results = trees.tensors((call or model)(**inputs)).values()
    outputs = [x for x in results if x.is_floating_point() and x.requires_grad]
    loss = sum((x.to(_accumulator(x)) ** 2).mean() for x in outputs)
    loss.backward()
    named = [(name, p) for name, p in model.named_parameters() if p.grad is not None]
    gradients = {f"gradient of {name}": p.grad.detach().clone() for name, p in named}
    torch.optim.SGD([p for _, p in named], lr=_LEARNING_RATE).step()
    return {**gradients, **{f"new {name}": p.detach() for name, p in named}}


def _accumulator(tensor: torch.Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
