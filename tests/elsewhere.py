"""A second device where there is none: tensors of the CPU that say they lie elsewhere, and can't be mixed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

DEVICE = torch.device("xpu")
"""A device that PyTorch knows by name and the package treats as no special case."""


class Elsewhere(TorchFunctionMode):
    """While it is entered, what is moved to or made on `DEVICE` is there, until it is moved back.

    An operation on tensors of both devices raises, as does NumPy's view of one that isn't on the CPU. As in PyTorch,
    tensors without dimensions may be mixed, and indices may lie on the CPU. crossings: how many tensors were moved.
    """

    crossings = 0

    def send(self, model: torch.nn.Module) -> torch.nn.Module:
        """Move a model there, and return it."""
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.elsewhere = True  # type: ignore[attr-defined]
        return model

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call on the CPU what was asked for, and say of its results where they are."""
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if name == "__get__":
            return _property(func, args)
        named = [value for value in (*args[1:], kwargs.get("device")) if _is_device(value)]
        args = [torch.device("cpu") if _is_device(value) else value for value in args]
        if named and "device" in kwargs:
            kwargs["device"] = "cpu"
        if named or name == "cpu":
            there = bool(named) and torch.device(named[0]) == DEVICE
            return self._moved(func, args, kwargs, there)
        there = _place(name, args, kwargs)
        return _marked(func(*args, **kwargs), there)

    def _moved(self, func: Any, args: Any, kwargs: Any, there: bool) -> Any:
        """Call a function that names a device."""
        result = func(*args, **kwargs)
        crosses = bool(args) and torch.is_tensor(args[0]) and _there(args[0]) != there
        self.crossings += crosses
        return _marked(result.clone() if crosses and result is args[0] else result, there)


def _place(name: str, args: Any, kwargs: Any) -> bool:
    """Return whether a function's tensors are elsewhere, or raise if they are in both places."""
    if name in ("__getitem__", "__setitem__") and not _there(args[0]):
        operands = [args[0], *args[2:], *(index for index in _tensors(args[1:2]) if _there(index))]
    else:
        operands = [args[0], *args[2:]] if name in ("__getitem__", "__setitem__") else [*args, *kwargs.values()]
    tensors = list(_tensors(operands))
    places = {_there(tensor) for tensor in tensors if tensor.ndim}
    if len(places) == 2:
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, but found cpu and {DEVICE}")
    there = any(_there(tensor) for tensor in tensors) if not places else places.pop()
    if there and name in ("numpy", "__array__"):
        raise TypeError(f"can't convert {DEVICE} device type tensor to numpy")
    return there


def _property(func: Any, args: Any) -> Any:
    result, asked = func(*args), func.__self__.__name__
    if asked == "device":
        return DEVICE if _there(args[0]) else result
    return not _there(args[0]) if asked == "is_cpu" else _marked(result, _there(args[0]))


def _marked(result: Any, there: bool) -> Any:
    for tensor in _tensors([result]):
        tensor.elsewhere = there  # type: ignore[attr-defined]
    return result


def _there(tensor: torch.Tensor) -> bool:
    return getattr(tensor, "elsewhere", False)


def _is_device(value: Any) -> bool:
    return isinstance(value, torch.device) or (isinstance(value, str) and value in ("cpu", DEVICE.type))


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if torch.is_tensor(value):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif isinstance(value, Mapping):
            yield from _tensors(value.values())
