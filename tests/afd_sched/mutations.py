"""Messages that are almost right: for decoders and for a coordinator that must not care."""

from __future__ import annotations

import random
import typing
from collections.abc import Iterator

import msgspec

from afd_sched.ints import pack_int32, pack_int64

_BYTES = [b"", b"\x00", pack_int32([0, 1]), pack_int64([1]), bytes(range(40))]
_INTS = [0, 1, 3, 127, 128, 2**31 - 1, 2**31, 2**40, 2**63 - 1]


def examples(union: typing.Any, rng: random.Random) -> list[bytes]:
    """A valid encoding of every message of a union."""
    return [msgspec.msgpack.encode(example(kind, rng)) for kind in typing.get_args(union)]


def example(kind: typing.Any, rng: random.Random) -> typing.Any:
    """A valid message with odd values."""
    fields = msgspec.structs.fields(kind)
    return kind(**{field.encode_name: _value(field.type, rng) for field in fields})


def _value(kind: typing.Any, rng: random.Random) -> typing.Any:
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        most = kind.__metadata__[0].le
        return min(rng.choice(_INTS), most)
    if origin is tuple:
        return tuple(_value(kind.__args__[0], rng) for _ in range(rng.randrange(3)))
    if origin is dict:
        return {"steps": 1.5}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return example(kind, rng)
    choices: dict[typing.Any, list[typing.Any]] = {
        int: _INTS,
        float: [0.0, 1.0, -1e300, float("inf"), float("nan")],
        bool: [True, False],
        str: ["", "a sentence", "\u00e9" * 40],
        bytes: _BYTES,
    }
    return rng.choice(choices[kind])


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One to four random edits: flips, cuts, repeats, insertions, MessagePack heads."""
    out = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(6):
            case 0 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                del out[at:]
            case 2:
                del out[at : at + rng.randrange(1, 8)]
            case 3:
                out[at:at] = rng.randbytes(rng.randrange(1, 8))
            case 4:
                out[at:at] = out[at : at + rng.randrange(1, 16)]
            case _ if at < len(out):
                # Heads of maps, arrays, strings, binaries, extensions and wide integers.
                out[at] = rng.choice(b"\x80\x90\xa0\xc1\xc4\xc6\xc7\xc9\xcf\xd3\xd9\xdb\xdd\xdf")
    return bytes(out)


def mutants(union: typing.Any, count: int, seed: int) -> Iterator[bytes]:
    """``count`` inputs: mutants of valid messages, and a few of nothing but noise."""
    rng = random.Random(seed)
    base = examples(union, rng)
    for i in range(count):
        if i % 1000 == 0:
            base = examples(union, rng)
        if i % 16 == 0:
            yield rng.randbytes(rng.randrange(80))
        else:
            yield mutate(rng.choice(base), rng)
