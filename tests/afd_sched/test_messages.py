"""Bulk integers and messages survive the wire; the package stays light."""

from __future__ import annotations

import subprocess
import sys
import typing

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_sched import messages
from afd_sched.ints import pack_int32, pack_int64, unpack_int32, unpack_pairs

INT32 = st.integers(-(2**31), 2**31 - 1)


@given(st.lists(INT32))
def test_int32_round_trip(values: list[int]) -> None:
    assert unpack_int32(pack_int32(values)).tolist() == values
    assert len(pack_int32(values)) == 4 * len(values)


@given(st.lists(st.tuples(INT32, INT32)))
def test_pairs_round_trip(pairs: list[tuple[int, int]]) -> None:
    assert [tuple(pair) for pair in unpack_pairs(pack_int32(pairs)).tolist()] == pairs


def test_integers_are_little_endian_whatever_the_input_is() -> None:
    assert pack_int32([1]) == b"\x01\x00\x00\x00"
    assert pack_int32(np.array([1, 2, 3], ">i4")[::2]) == pack_int32([1, 3])
    assert pack_int64([2**40]) == (2**40).to_bytes(8, "little")


@pytest.mark.parametrize("length", [1, 3, 5, 7])
def test_half_an_integer_is_an_error(length: int) -> None:
    with pytest.raises(ValueError, match="buffer size"):
        unpack_int32(bytes(length))


def test_half_a_pair_is_an_error() -> None:
    with pytest.raises(ValueError, match="reshape"):
        unpack_pairs(bytes(12))


@pytest.mark.parametrize(
    "union", [messages.ToCoordinator, messages.ToFrontend, messages.ToWorker], ids=str
)
def test_every_message_round_trips_through_its_union(union: typing.Any) -> None:
    decoder = msgspec.msgpack.Decoder(union)
    for kind in typing.get_args(union):
        values = {
            field.name: _value(field.type)
            for field in msgspec.structs.fields(kind)
            if field.required
        }
        message = kind(**values)
        encoded = msgspec.msgpack.encode(message)
        assert decoder.decode(encoded) == message
        # Array-like: the tag, then values, no field names.
        assert msgspec.msgpack.decode(encoded)[0] == kind.__name__


def _value(kind: typing.Any) -> typing.Any:
    if typing.get_origin(kind) is typing.Annotated:
        return min(2**40, kind.__metadata__[0].le)
    samples: dict[typing.Any, typing.Any] = {
        int: 2**40,
        str: "a sentence",
        bytes: b"\x00\xff",
        dict[str, float]: {"steps": 3.5},
        messages.SamplingParams: messages.SamplingParams(seed=2**62, stop_token_ids=(1, 2)),
    }
    return samples[kind]


def test_importing_the_control_plane_loads_neither_torch_nor_the_engine() -> None:
    program = (
        "import sys, pkgutil, importlib, afd_sched\n"
        "for module in pkgutil.iter_modules(afd_sched.__path__):\n"
        "    if module.name != '__main__': importlib.import_module(f'afd_sched.{module.name}')\n"
        "bad = {'torch', 'afd', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'loaded {bad}' if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
