"""Untrusted pickles, interpreted without running anything.

A pickle is a program for a small stack machine, whose REDUCE calls functions and whose BUILD rewrites objects. Python's
own unpickler trusts its input: it can be sent into endless recursion, to a memo of 8 GB, and, by one forgotten name,
to any function. This one knows numbers, strings and containers. All else is what its caller makes of a name, and the
program can do nothing with that but hand it back.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

MAX_PICKLE = 10_000_000  # bytes; that of a training checkpoint with 1,000 tensors has about 500,000
MAX_OPCODES = 1_000_000  # such a checkpoint needs 150,000; each may make an object of 100 bytes

# opcodes that push their own argument
_VALUES = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
           "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class UnsafeFileError(ValueError):
    """The file asks for something that tensors do not need."""


class Ignored:
    """Stands for an object that is not needed: it may be called and filled, and stays as it is."""

    __slots__ = ()


IGNORED = Ignored()


def unpickle(
    data: bytes,
    named: Callable[[str, str], Any],
    call: Callable[[Any, tuple[Any, ...]], Any],
    stored: Callable[[Any], Any],
) -> Any:
    """Return the object that a pickle describes, as PyTorch writes them: protocol 2, or later ones.

    Dicts have only those entries whose keys are strings, and sets are ignored.

    named   what to push for a class or function, given its module and its name
    call    what to push for a call of that
    stored  what to push for a persistent id, PyTorch's reference to a storage
    """
    stack: list[Any] = []
    marks: list[int] = []  # heights of the stack
    memo: dict[int, Any] = {}

    def popped(count: int | None = None) -> list[Any]:
        """Take that many objects from the stack, or all above the last mark."""
        at = marks.pop() if count is None else len(stack) - count
        if at < (marks[-1] if marks else 0):
            raise ValueError("it takes more from the stack than there is")
        taken = stack[at:]
        del stack[at:]
        return taken

    argument: Any
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if count >= MAX_OPCODES:
            raise ValueError(f"its pickle has more than {MAX_OPCODES:,} steps")
        match opcode.name:
            case name if name in _VALUES:
                stack.append(argument)
            case name if name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_SET":
                stack.append(IGNORED)
            case "MARK":
                marks.append(len(stack))
            case "TUPLE":
                stack.append(tuple(popped()))
            case name if name in _TUPLES:
                stack.append(tuple(popped(_TUPLES[name])))
            case "FROZENSET":
                popped()
                stack.append(IGNORED)
            case "APPEND" | "APPENDS" | "ADDITEMS":
                _extend(stack, popped(1 if opcode.name == "APPEND" else None))
            case "SETITEM" | "SETITEMS":
                _update(stack, popped(2 if opcode.name == "SETITEM" else None))
            case "POP":
                popped(1)
            case "POP_MARK":
                popped()
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "GLOBAL":
                module, _, attribute = argument.partition(" ")
                stack.append(named(module, attribute))
            case "STACK_GLOBAL":
                module, attribute = popped(2)
                if not isinstance(module, str) or not isinstance(attribute, str):
                    raise ValueError("it refers to something that has no name")
                stack.append(named(module, attribute))
            case "REDUCE" | "NEWOBJ":
                function, arguments = popped(2)
                if type(arguments) is not tuple:
                    raise ValueError("it calls something without a tuple of arguments")
                stack.append(IGNORED if function is IGNORED else call(function, arguments))
            case "BUILD":
                popped(1)
                if type(stack[-1]) is not dict and stack[-1] is not IGNORED:  # a state_dict has _metadata
                    raise UnsafeFileError("it tries to rewrite the reader")
            case "BINPERSID":
                stack.append(stored(popped(1)[0]))
            case "STOP":
                return popped(1)[0]
            case "PROTO" | "FRAME":
                pass
            case name:
                raise ValueError(f"its pickle uses {name}, which PyTorch does not write")
    raise ValueError("its pickle has no end")


def _extend(stack: list[Any], items: list[Any]) -> None:
    if type(stack[-1]) is list:
        stack[-1].extend(items)
    elif stack[-1] is not IGNORED:
        raise ValueError("it appends to something that is no list")


def _update(stack: list[Any], items: list[Any]) -> None:
    """Names are the only keys that matter, and hashing others may recurse or collide."""
    if type(stack[-1]) is dict:
        stack[-1].update((key, value) for key, value in zip(items[::2], items[1::2], strict=True) if type(key) is str)
    elif stack[-1] is not IGNORED:
        raise ValueError("it sets items of something that is no dict")
