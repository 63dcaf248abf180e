"""Reading Hugging Face checkpoints: safetensors, one file or sharded, FP8 blocks included.

A tensor is mapped and read only when asked for, so a rank touches just what it owns; ``read``
records the names. Torch is not needed: the format is a JSON header before raw little-endian bytes.
"""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from afd.errors import CheckpointError

_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
}
_MAX_HEADER_BYTES = 100_000_000


class SafetensorsFile:
    """One mapped file; ``entries`` maps a tensor's name to (dtype name, shape, begin, end)."""

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError if the file is not safetensors or is cut short."""
        self.path = path
        try:
            with path.open("rb") as file:
                prefix = file.read(8)
                size = int.from_bytes(prefix, "little")
                if len(prefix) != 8 or size > _MAX_HEADER_BYTES:
                    raise CheckpointError(f"{path} is not a safetensors file (bad header length)")
                header = json.loads(file.read(size))
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise CheckpointError(f"{path} is not a safetensors file: {error}") from error
        self._data = 8 + size
        header.pop("__metadata__", None)
        try:
            self.entries: dict[str, tuple[str, tuple[int, ...], int, int]] = {
                name: (e["dtype"], tuple(e["shape"]), *e["data_offsets"])
                for name, e in header.items()
            }
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"{path} has a malformed tensor entry: {error}") from error
        longest = max((e[3] for e in self.entries.values()), default=0)
        if self._data + longest > len(self._map):
            raise CheckpointError(
                f"{path} is cut short: its header promises {self._data + longest} bytes and it "
                f"has {len(self._map)}; download it again"
            )

    def tensor(self, name: str) -> NDArray[Any]:
        """The tensor as a read-only view of the map; raises CheckpointError for its dtype."""
        dtype_name, shape, begin, end = self.entries[name]
        dtype = _DTYPES.get(dtype_name)
        if dtype is None:
            raise CheckpointError(
                f"tensor {name} of {self.path} is stored as {dtype_name}; "
                f"supported are {', '.join(_DTYPES)}"
            )
        count = int(np.prod(shape, dtype=np.int64))
        if count * dtype.itemsize != end - begin:
            raise CheckpointError(
                f"tensor {name} of {self.path} has {end - begin} bytes for shape {shape}"
            )
        if count == 0:
            return np.empty(shape, dtype)
        return np.frombuffer(self._map, dtype, count, self._data + begin).reshape(shape)


class Checkpoint:
    """A checkpoint folder. ``read`` is the set of tensor names that were opened."""

    def __init__(self, folder: Path, fp8_block: tuple[int, int] | None = None) -> None:
        """``fp8_block``: rows and columns of one scale of ``*_scale_inv``; None if not FP8."""
        self.folder = folder
        self.read: set[str] = set()
        self._fp8_block = fp8_block
        self._files: dict[str, SafetensorsFile] = {}
        self._index = self._load_index()

    def _load_index(self) -> dict[str, str]:
        index = self.folder / "model.safetensors.index.json"
        if index.is_file():
            try:
                return dict(json.loads(index.read_text())["weight_map"])
            except (ValueError, KeyError, TypeError) as error:
                raise CheckpointError(f"{index} is not a safetensors index: {error}") from error
        single = self.folder / "model.safetensors"
        if single.is_file():
            return dict.fromkeys(self._file(single.name).entries, single.name)
        raise CheckpointError(
            f"{self.folder} holds no model.safetensors and no model.safetensors.index.json; "
            "only safetensors checkpoints are served"
        )

    def _file(self, name: str) -> SafetensorsFile:
        if name not in self._files:
            self._files[name] = SafetensorsFile(self.folder / name)
        return self._files[name]

    def __contains__(self, name: str) -> bool:
        return name in self._index

    def _file_of(self, name: str) -> SafetensorsFile:
        if name not in self._index:
            raise CheckpointError(f"{self.folder} has no tensor {name}, which its config implies")
        file = self._file(self._index[name])
        if name not in file.entries:
            raise CheckpointError(f"{file.path} lacks tensor {name}, which the index places there")
        return file

    def raw(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """The tensor as stored; raises CheckpointError if missing or of another shape."""
        tensor = self._file_of(name).tensor(name)
        self.read.add(name)
        if tensor.shape != shape:
            raise CheckpointError(f"tensor {name} has shape {tensor.shape}, expected {shape}")
        return tensor

    def weight(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """A weight ready for packing: bfloat16 viewed as uint16, or float32.

        FP8 weights are multiplied by their block's ``weight_scale_inv`` in float32; float16 is
        widened. Raises CheckpointError as ``raw`` does.
        """
        tensor = self.raw(name, shape)
        if tensor.dtype == ml_dtypes.bfloat16:
            return tensor.view(np.uint16)
        if tensor.dtype == ml_dtypes.float8_e4m3fn:
            return self._dequantize(name, tensor)
        return np.ascontiguousarray(tensor, np.float32)

    def is_fp8(self, name: str) -> bool:
        """Whether the tensor is stored as e4m3; raises CheckpointError if it is missing."""
        return self._file_of(name).entries[name][0] == "F8_E4M3"

    def fp8(
        self, name: str, shape: tuple[int, ...]
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """An FP8 weight as stored: its e4m3 codes, and the ``*_scale_inv`` of its blocks [row
        blocks, column blocks]. Raises CheckpointError as ``raw`` does, or if it is not FP8."""
        tensor = self.raw(name, shape)
        if tensor.dtype != ml_dtypes.float8_e4m3fn:
            raise CheckpointError(
                f"tensor {name} is stored as {tensor.dtype} where the checkpoint's other experts "
                "are FP8; convert them all"
            )
        return tensor.view(np.uint8), self._scales(name, tensor)

    def vector(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """A small tensor as float32."""
        return np.ascontiguousarray(self.raw(name, shape), np.float32)

    def _block(self, name: str) -> tuple[int, int]:
        if self._fp8_block is None:
            raise CheckpointError(
                f"tensor {name} is FP8 but config.json has no quantization_config with a "
                "weight_block_size"
            )
        return self._fp8_block

    def _scales(self, name: str, tensor: NDArray[Any]) -> NDArray[np.float32]:
        rows, cols = tensor.shape
        block_rows, block_cols = self._block(name)
        return self.vector(f"{name}_scale_inv", (-(-rows // block_rows), -(-cols // block_cols)))

    def _dequantize(self, name: str, tensor: NDArray[Any]) -> NDArray[np.float32]:
        rows, cols = tensor.shape
        block_rows, block_cols = self._block(name)
        scale = self._scales(name, tensor)
        full = np.repeat(np.repeat(scale, block_rows, 0)[:rows], block_cols, 1)[:, :cols]
        return tensor.astype(np.float32) * full
