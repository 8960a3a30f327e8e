"""CuPy's calls into the CUDA runtime and driver, led to functions of ours.

The Cython modules of CuPy call each other through C functions, which they look up when they are imported: each module
has a dict `__pyx_capi__` of capsules, one for each function, and the name of a capsule is the function's C signature.
We put other capsules there before anyone looks. Each points at a small C++ function with that very signature, which
calls a Python function and, if that raises, returns what tells Cython of an exception. (ctypes could make such
functions too, but it prints exceptions and goes on.)
"""

from __future__ import annotations

import atexit
import ctypes
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from . import gxx

HEADER = """
#include <cstddef>
#include <cstdint>
#include <sys/types.h>
#include <type_traits>

struct PyObject { void* of_no_interest; };
extern "C" {  // the few functions of Python that are needed, so that its headers are not
PyObject* PyObject_CallObject(PyObject*, PyObject*);
PyObject* PyTuple_New(ssize_t);
int PyTuple_SetItem(PyObject*, ssize_t, PyObject*);
PyObject* PyLong_FromLongLong(long long);
long long PyLong_AsLongLong(PyObject*);
double PyFloat_AsDouble(PyObject*);
void Py_IncRef(PyObject*);
void Py_DecRef(PyObject*);
extern PyObject _Py_NoneStruct;
}

static PyObject* hooks[HOOKS];
static bool at_end = false;  // Python's modules are being taken down, and arrays that are freed then call nobody
extern "C" void end_hooks() { at_end = true; }
extern "C" void set_hook(int i, PyObject* hook) { Py_IncRef(hook); hooks[i] = hook; }

static PyObject* boxed(PyObject* x) { Py_IncRef(x); return x; }
template <class T> static PyObject* boxed(T x) { return PyLong_FromLongLong((long long)x); }

template <class R, class... A>
static R call(PyObject* hook, R if_it_raises, A... arguments) {
  if (at_end) {
    if constexpr (std::is_same_v<R, PyObject*>) return boxed(&_Py_NoneStruct);
    else return (R)0;
  }
  PyObject* tuple = PyTuple_New(sizeof...(arguments));
  ssize_t i = 0;
  (PyTuple_SetItem(tuple, i++, boxed(arguments)), ...);
  PyObject* result = PyObject_CallObject(hook, tuple);
  Py_DecRef(tuple);
  if (!result) return if_it_raises;
  if constexpr (std::is_same_v<R, PyObject*>) {
    return result;
  } else {
    R value = std::is_floating_point_v<R> ? (R)PyFloat_AsDouble(result) : (R)PyLong_AsLongLong(result);
    Py_DecRef(result);
    return value;
  }
}
"""
PLAIN = {"intptr_t", "size_t", "int", "unsigned int", "float"}

_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.restype, _capsule_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_kept: list[Any] = []  # what C code has pointers to

Hooks = dict[str, Callable[..., Any]]


def hook(
    module: ModuleType, functions: Hooks, own: Mapping[str, str] | None = None, globals_: str = ""
) -> ctypes.PyDLL:
    """Lead calls of these functions of a Cython module to Python functions, from C and from Python.

    Those in `own` run this C++ instead when they are called from C, with the arguments a0, a1 etc.; `globals_` declares
    its variables, which the library that is returned exports.
    """
    capsules = {name: module.__pyx_capi__[name] for name in functions}
    signatures = {name: _capsule_name(capsule) for name, capsule in capsules.items()}
    stubs = [_stub(i, name, text.decode(), (own or {}).get(name)) for i, (name, text) in enumerate(signatures.items())]
    source = HEADER.replace("HOOKS", str(len(functions))) + globals_ + "\n".join(stubs)
    library = gxx.library(source, [], f"the hooks of {module.__name__}")
    library.set_hook.argtypes = [ctypes.c_int, ctypes.py_object]
    atexit.register(library.end_hooks)
    for i, (name, function) in enumerate(functions.items()):
        library.set_hook(i, function)
        address = ctypes.cast(getattr(library, f"hook_{name}"), ctypes.c_void_p)
        label = ctypes.create_string_buffer(signatures[name])  # a capsule does not keep its name
        module.__pyx_capi__[name] = _new_capsule(address, ctypes.cast(label, ctypes.c_char_p), None)
        setattr(module, name, function)
        _kept.extend([library, function, label, capsules[name]])
    return library


def _stub(i: int, name: str, signature: str, cpp: str | None = None) -> str:
    """The C++ function in place of one with this signature, such as "intptr_t (size_t, int __pyx_skip_dispatch)"."""
    match = re.fullmatch(r"(.*?)\s*\((.*)\)", signature)
    assert match is not None, signature
    types = [text for text in match[2].split(", ") if text != "void"]
    parameters = ", ".join(f"{_c_type(text)} a{n}" for n, text in enumerate(types))
    # Cython's own parameters follow those of the function: options that were given, and how it was called
    own = [f", a{n}" for n, text in enumerate(types) if "__pyx_skip_dispatch" not in text and "__pyx_opt" not in text]
    result = _c_type(match[1])
    failed = "-1" if result == "int" else "0"  # as CuPy declares its functions: `int f() except? -1`
    body = f"return call<{result}>(hooks[{i}], ({result}){failed}{''.join(own)});"
    if cpp is not None:
        nothing = "boxed(&_Py_NoneStruct)" if result == "PyObject*" else f"({result})0"
        body = f"{cpp} return {nothing};"
    return f'extern "C" {result} hook_{name}({parameters}) {{ {body} }}'


def _c_type(text: str) -> str:
    """As Cython writes it. Names of its own are of the size of a pointer or smaller, and are passed like one."""
    text = text.replace("__pyx_skip_dispatch", "").strip()
    return "PyObject*" if "PyObject" in text else text if text in PLAIN else "void*"
