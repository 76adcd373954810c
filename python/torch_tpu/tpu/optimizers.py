# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Training with one program per step: forward, loss, backward and optimizer together.

`SingleTraceTrainer` captures the step once for each shape of its arguments. It takes the optimizers
of this module, whose numbers are arguments of the program, or any of ``torch.optim`` that can be
captured; learning rates may change at every step and compile nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_tpu.tpu.graphs import TPUGraph, _snapshot, graph

__all__ = ["AdamW", "Muon", "Optimizer", "Sgd", "SingleTraceTrainer"]

LossFunction = Callable[[torch.nn.Module, Sequence[Any], dict[str, Any]], torch.Tensor]


class _Number:
    """A number on the device that follows one on the host, uploaded only when that has changed."""

    def __init__(self, value: float, device: torch.device) -> None:
        self.tensor = torch.zeros((), dtype=torch.float32, device=device)
        self._held = 0.0
        self.set(value)

    def set(self, value: float) -> None:
        if value != self._held:
            self.tensor.copy_(torch.tensor(value, dtype=torch.float32))
            self._held = value


class Optimizer:
    """Base of the optimizers that `SingleTraceTrainer` captures.

    A subclass names its arrays per parameter in `slots` and computes in `update`, in tensors alone:
    what is a Python number there is fixed by the capture.

    Parameters
    ----------
    **numbers : float
        What may change from step to step; each is an attribute that can be set, such as ``lr``.
    """

    slots: tuple[str, ...] = ()

    def __init__(self, **numbers: float) -> None:
        self._values = {name: float(value) for name, value in numbers.items()}
        self._numbers: dict[str, _Number] = {}
        self.parameters: list[torch.Tensor] = []
        self.state: dict[str, list[torch.Tensor]] = {}
        self.steps = torch.zeros(())

    def __getattr__(self, name: str) -> float:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        values = self.__dict__.get("_values", {})
        if name in values:
            values[name] = float(value)
        else:
            super().__setattr__(name, value)

    def init(self, parameters: Iterable[torch.Tensor]) -> None:
        """Allocate the state for parameters, all on one device."""
        self.parameters = list(parameters)
        if not self.parameters:
            raise ValueError("there are no parameters to train")
        device = self.parameters[0].device
        self._numbers = {name: _Number(value, device) for name, value in self._values.items()}
        self.steps = torch.zeros((), dtype=torch.float32, device=device)
        self.state = {
            slot: [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
            for slot in self.slots
        }

    def number(self, name: str) -> torch.Tensor:
        """Return one of the changing numbers as a float32 tensor without dimensions."""
        return self._numbers[name].tensor

    def sync_numbers(self) -> None:
        """Bring numbers that were set to the device; done before each step."""
        for name, value in self._values.items():
            self._numbers[name].set(value)

    @torch.no_grad()
    def step(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Update all parameters.

        Parameters
        ----------
        gradients : sequence of torch.Tensor or None
            One for each parameter; None leaves it as it is.
        """
        self.steps.add_(1)
        for index, gradient in enumerate(gradients):
            if gradient is not None:
                own = {slot: tensors[index] for slot, tensors in self.state.items()}
                self.update(self.parameters[index], gradient, own)

    def update(
        self, parameter: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor]
    ) -> None:
        """Update one parameter and its state in place."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return numbers, step count and state; the tensors are copies."""
        return {
            "numbers": dict(self._values),
            "steps": self.steps.clone(),
            "state": {slot: [t.clone() for t in tensors] for slot, tensors in self.state.items()},
        }

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned, for the same parameters."""
        self._values.update(state_dict["numbers"])
        self.steps.copy_(state_dict["steps"])
        for slot, tensors in state_dict["state"].items():
            for own, given in zip(self.state[slot], tensors, strict=True):
                own.copy_(given)


class Sgd(Optimizer):
    """Stochastic gradient descent, as `torch.optim.SGD`.

    Parameters
    ----------
    lr, momentum, dampening, weight_decay : float
        `lr` and `weight_decay` may be set at any time; whether there is momentum may not change.
    nesterov : bool
        Look ahead along the momentum.
    """

    def __init__(
        self,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(lr=lr, weight_decay=weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("nesterov needs a momentum and no dampening")
        self.momentum = momentum
        self.dampening = dampening
        self.nesterov = nesterov
        self.slots = ("momentum_buffer",) if momentum else ()

    def update(
        self, parameter: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor]
    ) -> None:
        """Update one parameter and its state in place."""
        gradient = gradient + parameter * self.number("weight_decay").to(parameter.dtype)
        if self.momentum:
            buffer = state["momentum_buffer"]
            # The first gradient is taken whole.
            share = torch.where(self.steps == 1, 1.0, 1.0 - self.dampening).to(gradient.dtype)
            buffer.mul_(self.momentum).add_(gradient * share)
            gradient = gradient + self.momentum * buffer if self.nesterov else buffer
        parameter.sub_(gradient * self.number("lr").to(parameter.dtype))


class AdamW(Optimizer):
    """Adam with decoupled weight decay, as `torch.optim.AdamW`.

    Parameters
    ----------
    lr, weight_decay : float
        May be set at any time.
    betas : tuple of float
        Shares of the running averages that are kept.
    eps : float
        Added to the root of the second average.
    """

    slots = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(lr=lr, weight_decay=weight_decay)
        self.betas = betas
        self.eps = eps

    def update(
        self, parameter: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor]
    ) -> None:
        """Update one parameter and its state in place."""
        first, second = self.betas
        lr, dtype = self.number("lr"), parameter.dtype
        parameter.mul_((1 - lr * self.number("weight_decay")).to(dtype))
        state["exp_avg"].lerp_(gradient, 1 - first)
        state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        scale = lr / (1 - first**self.steps)
        root = torch.sqrt(1 - second**self.steps).to(dtype)
        denominator = state["exp_avg_sq"].sqrt() / root + self.eps
        parameter.sub_(scale.to(dtype) * (state["exp_avg"] / denominator))


class Muon(Optimizer):
    """Momentum made orthogonal, for matrices; AdamW for all other parameters.

    As `torch.optim.Muon`, which takes matrices only.

    Parameters
    ----------
    lr, weight_decay : float
        May be set at any time; both rules use them.
    momentum : float
        Share of the running average that is kept.
    nesterov : bool
        Look ahead along the momentum.
    ns_coefficients : tuple of float
        Of the polynomial whose iterates approach an orthogonal matrix.
    eps : float
        Least norm by which is divided.
    ns_steps : int
        How many iterates.

    References
    ----------
    Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024.
    """

    slots = ("momentum_buffer", "exp_avg_sq")

    def __init__(
        self,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
    ) -> None:
        super().__init__(lr=lr, weight_decay=weight_decay)
        self.momentum = momentum
        self.nesterov = nesterov
        self.ns_coefficients = ns_coefficients
        self.eps = eps
        self.ns_steps = ns_steps
        self._others = AdamW(lr, weight_decay=weight_decay)

    def _orthogonal(self, matrix: torch.Tensor) -> torch.Tensor:
        a, b, c = self.ns_coefficients
        x = matrix.bfloat16()
        if matrix.shape[0] > matrix.shape[1]:
            x = x.T
        x = x / x.norm().clamp(min=self.eps)
        for _ in range(self.ns_steps):
            gram = x @ x.T
            x = a * x + (b * gram + c * (gram @ gram)) @ x
        return x.T if matrix.shape[0] > matrix.shape[1] else x

    def update(
        self, parameter: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor]
    ) -> None:
        """Update one parameter and its state in place."""
        buffer = state["momentum_buffer"]
        if parameter.dim() != 2:
            self._others._numbers, self._others.steps = self._numbers, self.steps
            own = {"exp_avg": buffer, "exp_avg_sq": state["exp_avg_sq"]}
            self._others.update(parameter, gradient, own)
            return
        lr, dtype = self.number("lr"), parameter.dtype
        buffer.lerp_(gradient, 1 - self.momentum)
        direction = gradient.lerp(buffer, self.momentum) if self.nesterov else buffer
        rows, columns = parameter.shape
        step = self._orthogonal(direction).to(dtype) * math.sqrt(max(1.0, rows / columns))
        parameter.mul_((1 - lr * self.number("weight_decay")).to(dtype))
        parameter.sub_(step * lr.to(dtype))


# ---- the optimizers of torch.optim ----


class _TorchOptimizer:
    """A ``torch.optim`` optimizer whose learning rates are tensors while a step is captured."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._device = optimizer.param_groups[0]["params"][0].device
        self._rates: list[_Number | None] = []
        for group in optimizer.param_groups:
            if "fused" in group:
                group["fused"], group["foreach"] = True, False
            elif "capturable" in group:
                group["capturable"] = True
            is_number = not isinstance(group["lr"], torch.Tensor)
            self._rates.append(_Number(group["lr"], self._device) if is_number else None)
        self._move_steps()
        self.is_ready = bool(optimizer.state)

    def _move_steps(self) -> None:
        for state in self._optimizer.state.values():
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].to(self._device)

    def sync_numbers(self) -> None:
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            if rate is not None:
                rate.set(float(group["lr"]))

    def step(self, parameters: Sequence[torch.Tensor], gradients: Sequence[Any]) -> None:
        groups = self._optimizer.param_groups
        before = [group["lr"] for group in groups]
        try:
            for group, rate in zip(groups, self._rates, strict=True):
                group["lr"] = rate.tensor if rate is not None else group["lr"]
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            # Not what the optimizer's step was wrapped in: schedulers count the calls of the user.
            self._optimizer.step()
        finally:
            for group, value in zip(groups, before, strict=True):
                group["lr"] = value
            for parameter in parameters:
                parameter.grad = None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state_dict)
        self._move_steps()
        self.is_ready = bool(self._optimizer.state)


class _Step:
    """A training step captured for one shape of arguments."""

    def __init__(self, trainer: SingleTraceTrainer, leaves: Sequence[Any], spec: Any) -> None:
        self._inputs = [
            torch.empty_like(leaf, device=trainer.device)
            if isinstance(leaf, torch.Tensor)
            else leaf
            for leaf in leaves
        ]
        self._load(leaves)
        args, kwargs = pytree.tree_unflatten(self._inputs, spec)
        self._graph = TPUGraph()
        with graph(self._graph):
            self._loss = trainer._run(args, kwargs)

    def _load(self, leaves: Sequence[Any]) -> None:
        for own, given in zip(self._inputs, leaves, strict=True):
            if isinstance(own, torch.Tensor):
                own.copy_(given.detach())

    def __call__(self, leaves: Sequence[Any]) -> torch.Tensor:
        self._load(leaves)
        self._graph.replay()
        return _snapshot(self._loss)


class SingleTraceTrainer:
    """Trains a model with one program per step.

    Parameters
    ----------
    model : torch.nn.Module
        On one device; the parameters that require gradients when the trainer is made are trained.
    optimizer : Optimizer, torch.optim.Optimizer or None
        One of this module, which must not have been used; or one of ``torch.optim`` for the same
        parameters, whose groups are switched to ``fused`` or ``capturable``. None: only loss and
        gradients are computed, and the gradients are left in ``grad``.
    compile_fn : Callable, optional
        Accepted and not used: the step is captured.
    compute_loss_fn : Callable, optional
        ``compute_loss_fn(model, args, kwargs) -> loss``, with the arguments of the step.
    loss_fn : Callable, optional
        ``loss_fn(output, target) -> loss``: the last argument of the step is the target, the model
        gets the others. Mean squared error where neither function is given.

    Notes
    -----
    The first step for a shape of arguments captures it, and compiles once; arguments that are no
    tensors are part of the shape. With an optimizer of ``torch.optim`` the very first step runs
    operator by operator, because it allocates the state. Losses that were returned do not change
    later. What the model does in Python happens at the capture only.

    Examples
    --------
    >>> trainer = SingleTraceTrainer(model, AdamW(lr=1e-3), loss_fn=cross_entropy)  # doctest: +SKIP
    >>> for x, y in batches:  # doctest: +SKIP
    ...     loss = trainer.step(x, y)
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizer | torch.optim.Optimizer | None = None,
        compile_fn: Callable[..., Any] | None = None,
        compute_loss_fn: LossFunction | None = None,
        loss_fn: Callable[[Any, torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        del compile_fn
        if compute_loss_fn is not None and loss_fn is not None:
            raise ValueError("give compute_loss_fn or loss_fn, not both")
        self.model = model
        self.optimizer = optimizer
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        if not self._parameters:
            raise ValueError("the model has no parameter that requires gradients")
        self.device = self._parameters[0].device
        self._compute_loss = compute_loss_fn
        self._loss_fn = loss_fn or torch.nn.functional.mse_loss
        self._steps: dict[Hashable, _Step] = {}
        self._torch: _TorchOptimizer | None = None
        if isinstance(optimizer, torch.optim.Optimizer):
            self._torch = _TorchOptimizer(optimizer)
        elif optimizer is not None:
            optimizer.init(self._parameters)

    def _loss(self, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor:
        if self._compute_loss is not None:
            return self._compute_loss(self.model, args, kwargs)
        return self._loss_fn(self.model(*args[:-1], **kwargs), args[-1])

    def _run(self, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor:
        loss = self._loss(args, kwargs)
        gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        if self._torch is not None:
            self._torch.step(self._parameters, gradients)
        elif self.optimizer is not None:
            self.optimizer.step(gradients)
        else:
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                parameter.grad = gradient
        return loss.detach()

    def _key(self, leaves: Sequence[Any], spec: Any) -> Hashable:
        described = tuple(
            (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf
            for leaf in leaves
        )
        return described, str(spec), self.model.training

    def step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Train on one batch.

        Parameters
        ----------
        *args, **kwargs
            Tensors, on the device or the host, possibly nested; anything else must be hashable.

        Returns
        -------
        torch.Tensor
            The loss before the update, not waited for.
        """
        numbers = self._torch or self.optimizer
        if numbers is not None:
            numbers.sync_numbers()
        if self._torch is not None and not self._torch.is_ready:
            self._torch.is_ready = True
            args, kwargs = pytree.tree_map_only(
                torch.Tensor, lambda t: t.to(self.device), (args, kwargs)
            )
            return self._run(args, kwargs)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        key = self._key(leaves, spec)
        captured = self._steps.get(key)
        if captured is None:
            captured = self._steps[key] = _Step(self, leaves, spec)
        return captured(leaves)

    __call__ = step

    def make_compiled_train_step(
        self, *args: Any, compile_fn: Callable[..., Any] | None = None, **kwargs: Any
    ) -> Callable[..., torch.Tensor]:
        """Return `step`; the example arguments and `compile_fn` are accepted and not needed."""
        del args, compile_fn, kwargs
        return self.step

    def state_dict(self) -> dict[str, Any]:
        """Return the states of model and optimizer."""
        optimizer = self.optimizer.state_dict() if self.optimizer is not None else None
        return {"model": self.model.state_dict(), "optimizer": optimizer}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.model.load_state_dict(state_dict["model"])
        if self._torch is not None:
            self._torch.load_state_dict(state_dict["optimizer"])
            self._steps.clear()  # the tensors of the state are others now
        elif self.optimizer is not None:
            self.optimizer.load_state_dict(state_dict["optimizer"])
