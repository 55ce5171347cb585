"""Arrays of either framework: checked on the way in, handed to a backend, and back to the caller's kind.

Nothing here computes a probability. torch is touched only when a caller brings a tensor or asks for it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from specnb.errors import SpecnbError

FLOATS = ("float16", "bfloat16", "float32", "float64")


def is_torch(array: Any) -> bool:
    """Tell whether an object is a torch tensor; a program without torch has none."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def describe(array: Any) -> str:
    """Return 'dtype [shape]', and the device of a tensor that isn't on the CPU, for error messages."""
    device = f" on {array.device}" if is_torch(array) and array.device.type != "cpu" else ""
    return f"{dtype_name(array)} {list(array.shape)}{device}"


def dtype_name(array: Any) -> str:
    """Return a dtype's name without its framework: 'float32', not 'torch.float32'."""
    return str(array.dtype).removeprefix("torch.")


def on_host(array: Any) -> bool:
    """Tell whether values can be read without waiting for a device or breaking a traced graph."""
    if not is_torch(array):
        return True
    return array.device.type == "cpu" and not sys.modules["torch"].compiler.is_compiling()


def like(value: Any, reference: Any, name: str = "array") -> Any:
    """Return a list, a scalar or an array as an array of the reference's framework, on its device."""
    if not is_torch(reference):
        return to_numpy(value) if is_torch(value) else _numbers(name, value)
    if is_torch(value):
        if value.layout is not sys.modules["torch"].strided:
            raise SpecnbError(f"{name} is a tensor of layout {value.layout}; expected a dense one: use .to_dense()")
        if value.ndim and value.device != reference.device:
            raise SpecnbError(
                f"arrays lie on {reference.device} and {value.device}; expected one device: move them with .to()"
            )
        return value.to(reference.device)
    return to_torch(_numbers(name, value)).to(reference.device)


def _numbers(name: str, value: Any) -> np.ndarray:
    """Return a list or a scalar as an array of numbers; NumPy keeps Python's floats float64."""
    if isinstance(value, np.ma.MaskedArray):
        raise SpecnbError(f"{name} is a masked array, and a mask means nothing here; expected .filled(0), say")
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise SpecnbError(f"{name} is no array: {error}; expected rows of equal length") from None
    if array.dtype.kind not in "biuf" and dtype_name(array) != "bfloat16":
        raise SpecnbError(f"{name} is {describe(array)}; expected an array of numbers")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype == np.uint64:
        if array.size and array.max() > np.uint64(2**63 - 1):
            raise SpecnbError(f"{name} holds {array.max()}; expected integers below 2^63")
        array = array.astype(np.int64)
    return array


def floats(name: str, array: Any, reference: Any = None) -> Any:
    """Return an array of probabilities or logits as it is, or raise if its dtype isn't a supported float."""
    array = like(array, array if reference is None else reference, name)
    if dtype_name(array) not in FLOATS:
        raise SpecnbError(f"{name} is {describe(array)}; expected one of {', '.join(FLOATS)}")
    return array.detach() if is_torch(array) else array


def integers(name: str, array: Any, reference: Any) -> Any:
    """Return an array of integers as int64, or raise if it holds anything else."""
    array = like(array, reference, name)
    if array.shape and 0 in array.shape:  # an empty list has no integer dtype to show
        return array.long() if is_torch(array) else array.astype(np.int64)
    if not dtype_name(array).startswith(("int", "uint")):
        raise SpecnbError(f"{name} is {describe(array)}; expected integers")
    return array.long() if is_torch(array) else array.astype(np.int64, copy=False)


def to_numpy(array: Any) -> np.ndarray:
    """Return a tensor or array as NumPy's; bfloat16, which NumPy lacks, as float32 (exactly)."""
    if is_torch(array):
        try:
            array = array.detach().cpu()
            return (array.float() if dtype_name(array) == "bfloat16" else array).numpy()
        except (NotImplementedError, TypeError) as error:
            raise SpecnbError(
                f"a tensor of layout {array.layout} on {array.device} came; expected a dense one that holds values"
            ) from error
    array = np.asarray(array)
    return array.astype(np.float32) if dtype_name(array) == "bfloat16" else array


def to_torch(array: Any) -> Any:
    """Return an array as a tensor that shares its memory where torch can (not read-only, no negative strides)."""
    if is_torch(array):
        return array
    import torch

    array = to_numpy(array)
    shareable = array.flags.writeable and min(array.strides, default=0) >= 0 and array.dtype.isnative
    return torch.from_numpy(array if shareable else array.astype(array.dtype.newbyteorder("="), order="C"))


def convert(backend: str, *arrays: Any) -> list[Any]:
    """Return arrays (None and Python numbers pass) in the framework of a backend."""
    change = to_numpy if backend == "numpy" else to_torch
    return [change(a) if is_torch(a) or isinstance(a, np.ndarray) else a for a in arrays]
