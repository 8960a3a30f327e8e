"""Mutated seeds, as a hypothesis strategy.

hypothesis draws a short program of bytes: two choose the seed and how to take it apart, and every twelve are one
mutation. A draw of bytes is the fastest that hypothesis has, and readers take no more than a millisecond.
"""

import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from hypothesis import strategies as st

from .wrappings import Parts

STEP, MOST_STEPS = 12, 6
MAX_LENGTH = 1 << 20  # bytes of a mutated file
BYTES = (0, 1, 0x7F, 0x80, 0xFF, 0x20, 0x0A, 0x22, 0x2D, 0x39)
INTEGERS = (0, 1, -1, 2, 7, 8, 127, 128, 255, 256, 32767, 65535, 65536, 1 << 20, 1 << 24, (1 << 31) - 1, 1 << 31,
            (1 << 32) - 1, 1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip
NUMBERS = (b"0", b"-1", b"1", b"1.5", b"1e999", b"-0.0", b"NaN", b"1e-300", b"99999999999", b"9223372036854775808",
           b"9" * 30, b"9" * 5000)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1.5, 7, 2**31, 2**63, 10**30, 1e308, float("nan"), float("inf"), "", "x", "x" * 1000,
    "\x1b[31m", "\ud800", [], {}, [None], [[]], [0, 0], [1.5], {"x": 1}, [-1, 5], "F32", "cait", [[[[[[[[]]]]]]]],
)  # fmt: skip


class Program:
    """The drawn bytes of one mutation, read as numbers."""

    def __init__(self, step: bytes) -> None:
        self.kind = step[0]
        self.a, self.b, self.c = (int.from_bytes(step[i:j], "little") for i, j in ((1, 4), (4, 8), (8, 12)))

    def place(self, length: int) -> int:
        """A position, in half of the cases among the first bytes, where headers are."""
        return self.a % min(length, 64) if self.a & 1 and length else self.a % max(1, length)

    def size(self, length: int) -> int:
        return 1 + self.b % max(1, min(length, 1 << (self.c % 12)))


def mutate(data: bytes, step: bytes, seeds: Sequence[bytes], tokens: Sequence[bytes]) -> bytes:
    p = Program(step)
    place = p.place(len(data))
    size = p.size(len(data) - place)
    other = seeds[p.b % len(seeds)]
    elsewhere = p.c % max(1, len(other))
    token = tokens[p.b % len(tokens)] if tokens else NUMBERS[p.b % len(NUMBERS)]
    kinds: tuple[Callable[[], bytes], ...] = (
        lambda: _put(data, place, bytes([(data[place] if data else 0) ^ 1 << p.b % 8])),
        lambda: _put(data, place, bytes([BYTES[p.b % len(BYTES)]])),
        lambda: _put(data, place, bytes([p.b & 255])),
        lambda: _put(data, place, _integer(INTEGERS[p.b % len(INTEGERS)], p.c)),
        lambda: _put(data, place, _integer(len(data) - place + p.b % 9 - 4, p.c)),
        lambda: data[:place] + data[place + size :],
        lambda: data[:place] + data[place : place + size] * (2 + p.c % 40) + data[place + size :],
        lambda: _put(data, place, data[place + size : place + 2 * size] + data[place : place + size]),
        lambda: data[:place] + other[elsewhere : elsewhere + size] + data[place + size :],
        lambda: data[:place],
        lambda: data + bytes([p.a & 255]) * size,
        lambda: data[:place] + token + data[place:],
        lambda: _put(data, place, token),
        lambda: data[:place] + _often(data[place : place + size], p.c) + data[place + size :],
        lambda: data[:place] + _often(token, p.c) + data[place:],
        lambda: _numbers(data, p),
        lambda: _numbers(data, p),
        lambda: _json(data, p),
        lambda: _json(data, p),
        lambda: _json(data, p),
    )  # fmt: skip
    return kinds[p.kind % len(kinds)]()[:MAX_LENGTH]


def _put(data: bytes, place: int, new: bytes) -> bytes:
    return data[:place] + new + data[place + len(new) :]


def _often(content: bytes, times: int) -> bytes:
    """Up to 100,000 times, which is deeper than any stack."""
    return content * min(1 << times % 18, 200_000 // max(1, len(content)))


def _integer(value: int, form: int) -> bytes:
    width = (1, 2, 4, 8)[form % 4]
    return (value % (1 << 8 * width)).to_bytes(width, "big" if form & 4 else "little")


def _numbers(data: bytes, p: Program) -> bytes:
    """Replace decimal digits by another number."""
    start = p.place(len(data))
    while start < len(data) and not 48 <= data[start] <= 57:
        start += 1
    end = start
    while end < len(data) and 48 <= data[end] <= 57:
        end += 1
    return data[:start] + NUMBERS[p.b % len(NUMBERS)] + data[end:]


def _json(data: bytes, p: Program) -> bytes:
    """Replace, remove or copy a value of a JSON text; bytes that are none get a number."""
    if not data.lstrip().startswith((b"{", b"[")):
        return _numbers(data, p)
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return _numbers(data, p)
    spots: list[tuple[Any, Any]] = []
    below = [tree]
    while below:
        node = below.pop()
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            spots.append((node, key))
            if isinstance(node[key], dict | list):
                below.append(node[key])
    if not spots:
        return json.dumps(VALUES[p.b % len(VALUES)]).encode()
    node, key = spots[p.a % len(spots)]
    choice = p.c % 8
    if choice == 0:
        del node[key]
    elif choice == 1:
        other, name = spots[p.b % len(spots)]
        node[key] = json.loads(json.dumps(other[name]))
    elif choice == 2 and isinstance(node, dict):
        node[str(key) + "x"] = node.pop(key)
    elif choice == 3 and isinstance(node[key], str) and node[key].startswith("{"):
        inner = Program(bytes([p.kind, *node[key].encode()[-3:], *p.b.to_bytes(8, "little")]))
        node[key] = _json(node[key].encode(), inner).decode("latin-1")
    elif choice == 4:
        return json.dumps(tree).replace(json.dumps(node[key]), "[" * 3000 + "]" * 3000, 1).encode()
    else:
        node[key] = VALUES[p.b % len(VALUES)]
    return json.dumps(tree).encode()


@cache  # there are few seeds
def _apart(wrapping: Callable[[bytes], Parts], data: bytes) -> Parts:
    try:
        return wrapping(data)
    except Exception:  # a seed that was kept because it is damaged
        return [data], b"".join


def programs() -> st.SearchStrategy[bytes]:
    return st.binary(min_size=2 + STEP, max_size=2 + STEP * MOST_STEPS)


def mutated(
    program: bytes, seeds: Sequence[bytes], wrapping: Callable[[bytes], Parts] | None, tokens: Sequence[bytes]
) -> bytes:
    """Run a program: mutate a seed as a whole, or in its parts, or both."""
    data, how = seeds[program[0] % len(seeds)], program[1]
    steps = [program[i : i + STEP] for i in range(2, len(program) - STEP + 1, STEP)]
    if wrapping is not None and how % 4:
        original, join = _apart(wrapping, data)
        parts = original.copy()
        for step in steps:
            which = int.from_bytes(step[9:12], "little") % len(parts)
            parts[which] = mutate(parts[which], step, seeds, tokens)
        data = join(parts)
        steps = steps[:1] if how % 16 == 1 else []
    for step in steps:
        data = mutate(data, step, seeds, tokens)
    return data[:MAX_LENGTH]
