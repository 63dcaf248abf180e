"""The SIMT target through its C interface, with the methods of the extension's sides."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import (
    POINTER,
    byref,
    c_char,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_uint,
    c_uint64,
    c_void_p,
)
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from afd._megamoe import Aborted, BadExpertId, Deadline, HandshakeError, MegamoeError
from tests.megamoe.weights import F32, Weights
from tests.megamoe.world import Shape

OK, NO_DEVICE = 0, 5
_ERRORS = {1: Aborted, 2: Deadline, 3: HandshakeError, 4: BadExpertId}
_I32, _F32 = POINTER(c_int32), POINTER(c_float)


class Error(ctypes.Structure):
    """entry.h's MegamoeSimtError."""

    _fields_ = [("culprit", c_int32), ("text", c_char * 500)]


class _Domain(ctypes.Structure):
    _fields_ = [
        ("device_memory", c_void_p),
        *((name, c_int32) for name in ("attention_ranks", "ffn_ranks", "lanes", "max_tokens",
                                       "hidden", "top_k", "experts", "moe_layers", "wire",
                                       "scale_format", "return_mode")),
        ("generation", c_uint64),
    ]  # fmt: skip


@cache
def library(path: Path) -> ctypes.CDLL:
    """The shared object with its signatures declared."""
    lib = ctypes.CDLL(str(path))
    error, domain, side = POINTER(Error), POINTER(_Domain), c_void_p
    signatures = {
        "probe": [error],
        "raise_abort": [domain, c_int, error],
        "open_attention": [domain, c_int, _I32, c_uint64, c_uint, POINTER(side), error],
        "dispatch": [side, c_uint64, c_int, c_int, _F32, c_int64, _I32, _F32, c_int, error],
        "combine": [side, c_int, _F32, c_int64, error],
        "open_ffn": [domain, c_int, _I32, c_int, c_uint64, c_uint, POINTER(side), error],
        "load": [side, c_int, c_int, _F32, _F32, _F32, error],
        "serve": [side, c_uint64, c_int, _I32, c_int, error],
        "close_attention": [side],
        "close_ffn": [side],
    }
    for name, arguments in signatures.items():
        getattr(lib, f"megamoe_simt_{name}").argtypes = arguments
    return lib


class Simt:
    """One process's view of a launch's memory, for sides of the SIMT target."""

    def __init__(
        self, path: Path, shape: Shape, memory: mmap.mmap, threads: int, generation: int = 0
    ) -> None:
        self._lib = library(path)
        self.shape = shape
        self.threads = threads
        self._view = c_char.from_buffer(memory)
        self.domain = _Domain(
            ctypes.addressof(self._view), shape.attention_ranks, shape.ffn_ranks, shape.lanes,
            shape.max_tokens, shape.hidden, shape.top_k, shape.experts, shape.moe_layers,
            shape.wire.value, shape.scale_format.value, shape.return_mode.value, generation,
        )  # fmt: skip

    def call(self, name: str, *arguments: object) -> None:
        """Calls entry.h's megamoe_simt_NAME; raises what it reports."""
        error = Error()
        status = getattr(self._lib, f"megamoe_simt_{name}")(*arguments, byref(error))
        if status == OK:
            return
        raised = _ERRORS.get(status, MegamoeError)(error.text.decode())
        if isinstance(raised, Aborted):
            raised.culprit = error.culprit
        raise raised

    def release(self) -> None:
        """Lets go of the memory, so that it can be unmapped."""
        del self._view


@contextmanager
def opened(path: Path, shape: Shape, fd: int, threads: int = 8) -> Iterator[Simt]:
    """The launch's memory mapped for sides of the SIMT target; close them first."""
    with mmap.mmap(fd, shape.layout().total_bytes) as memory:
        simt = Simt(path, shape, memory, threads)
        yield simt
        simt.release()


def _pointer(array: NDArray[np.generic], kind: type[ctypes._Pointer]) -> ctypes._Pointer:
    return array.ctypes.data_as(kind)


class SimtAttentionSide:
    """``AttentionSide`` on the SIMT target."""

    def __init__(self, simt: Simt, rank: int, deadline_ms: int) -> None:
        self._simt, self._side, self.rank = simt, c_void_p(), rank
        simt.call("open_attention", byref(simt.domain), rank, _pointer(simt.shape.owners(), _I32),
                  deadline_ms * 1_000_000, simt.threads, byref(self._side))  # fmt: skip

    def dispatch(self, step: int, layer: int, lane: int, x: F32, ids: NDArray[np.int32],
                 weights: F32) -> None:  # fmt: skip
        """As the extension's."""
        stride = x.strides[0] // 4
        self._simt.call("dispatch", self._side, step, layer, lane, _pointer(x, _F32), stride,
                        _pointer(ids, _I32), _pointer(weights, _F32), len(x))  # fmt: skip

    def combine(self, step: int, layer: int, lane: int, out: F32) -> None:
        """As the extension's."""
        self._simt.call("combine", self._side, lane, _pointer(out, _F32), out.strides[0] // 4)

    def close(self) -> None:
        """Frees the role."""
        self._simt._lib.megamoe_simt_close_attention(self._side)


class SimtFfnSide:
    """``FfnSide`` on the SIMT target, with the experts that the shape's owners give it."""

    def __init__(self, simt: Simt, rank: int, weights: Weights, deadline_ms: int) -> None:
        self._simt, self._side, self.rank = simt, c_void_p(), rank
        shape = simt.shape
        simt.call("open_ffn", byref(simt.domain), rank, _pointer(shape.owners(), _I32), shape.width,
                  deadline_ms * 1_000_000, simt.threads, byref(self._side))  # fmt: skip
        for layer in range(shape.moe_layers):
            for e in shape.held(rank):
                matrices = (weights.gate[layer, e], weights.up[layer, e], weights.down[layer, e])
                simt.call("load", self._side, layer, e, *(_pointer(m, _F32) for m in matrices))

    def serve(self, step: int, lanes: int, attention_ranks: NDArray[np.int32]) -> None:
        """As the extension's."""
        self._simt.call("serve", self._side, step, lanes, _pointer(attention_ranks, _I32),
                        len(attention_ranks))  # fmt: skip

    def close(self) -> None:
        """Frees the role."""
        self._simt._lib.megamoe_simt_close_ffn(self._side)
