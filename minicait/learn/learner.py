"""A learner's folder: its files are imported one by one, when a check needs them, and always as they are now."""

from __future__ import annotations

import ast
import itertools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from .exercise import Exercise, Wrong
from .source import check_imports

COPY = "`minicait learn init fresh` makes a new folder, to copy the file from"
_numbers = itertools.count()


class Learner:
    """The folder during a check. `case` is what is being tried, for the sentence if it fails."""

    def __init__(self, folder: Path, package: str) -> None:
        self.folder, self.package = folder, package
        self.case = ""

    def get(self, name: str) -> Any:
        """Return the learner's object of this name, such as "tensor.Function.apply"."""
        file, _, inside = name.partition(".")
        found: Any = self.module(file)
        for part in inside.split("."):
            if not hasattr(found, part):
                raise Wrong(f"{file}.py has no `{inside}` any more: its name and arguments have to stay")
            found = getattr(found, part)
        return found

    def module(self, file: str) -> ModuleType:
        if not (self.folder / f"{file}.py").is_file():
            raise Wrong(f"there is no {file}.py in {self.folder}: {COPY}")
        return import_module(f"{self.package}.{file}")

    def where(self, error: BaseException, exercise: Exercise | None = None) -> str:
        """The learner's line that raised an error; and the line of the exercise that led there, if it is another."""
        lines, own = [], []
        trace = error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            if (path := Path(code.co_filename)).parent == self.folder:
                lines.append(f"{path.name}, line {trace.tb_lineno}")
                if exercise and path.name == exercise.file and f"{code.co_qualname}.".startswith(exercise.prefixes):
                    own.append(lines[-1])
            trace = trace.tb_next
        return "".join(lines[-1:]) + (f" (called in {own[-1]})" if own and own[-1] != lines[-1] else "")

    def place(self, error: SyntaxError) -> str:
        """The learner's line that Python cannot read; "" if their code raised the error itself."""
        if not isinstance(error.filename, str) or Path(error.filename).parent != self.folder:
            return ""
        return f"{Path(error.filename).name}, line {error.lineno}"


def require_exercises(folder: Path) -> None:
    missing = [name for name in ("by_hand.py", "__init__.py") if not (folder / name).is_file()]
    if len(missing) == 1:
        raise ValueError(f"there is no {missing[0]} in {folder}: {COPY}")
    if missing:
        why = f"it has no {' and '.join(missing)}" if folder.is_dir() else "it does not exist"
        raise ValueError(f"{folder} is no folder of exercises: {why}; `minicait learn init` makes one")


@contextmanager
def opened(folder: Path) -> Iterator[Learner]:
    """Import a folder as a package of its own; at the end, forget it."""
    folder = folder.absolute()
    package = f"_learner_{next(_numbers)}"
    spec = spec_from_file_location(
        package,
        folder / "__init__.py",
        loader=_FromSource(package, str(folder / "__init__.py")),
        submodule_search_locations=[str(folder)],
    )
    assert spec is not None and spec.loader is not None
    finder = _Finder(package, folder)
    sys.meta_path.insert(0, finder)
    try:
        sys.modules[package] = module_from_spec(spec)
        yield Learner(folder, package)
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            del sys.modules[name]


class _FromSource(SourceFileLoader):
    """Compiles the source every time: a cached file may be older than a change within the same second."""

    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(self.get_data(self.path), self.path)
        check_imports(Path(self.path), tree)
        return compile(tree, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, package: str, folder: Path) -> None:
        self.package, self.folder = package, folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, file = fullname.rpartition(".")
        source = self.folder / f"{file}.py"
        if package != self.package or not source.is_file():
            return None
        return spec_from_file_location(fullname, source, loader=_FromSource(fullname, str(source)))
