"""PyTorch Geometric without torch's compiler, which it imports and nothing here uses: over a second of every start.

`torch_geometric` says `import torch._dynamo` to recognise compiled models, which brings in sympy, fully sharded training and
four hundred other modules. torch itself leaves that module out until somebody reads `torch._dynamo`, and so does this: while
torch_geometric is being imported an empty module holds its place, and is taken away afterwards. Then everything is as torch
made it: `torch._dynamo`, by name or by import, is the real one, loaded when it is first asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

PACKAGE, COMPILER = "torch_geometric", "torch._dynamo"


def import_geometric_leanly() -> None:
    """The next import of torch_geometric in this process leaves torch's compiler out; nothing if it is imported already."""
    if PACKAGE not in sys.modules and not any(isinstance(finder, _Lean) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Lean())


class _Lean(MetaPathFinder, Loader):
    """Finds torch_geometric, once, and imports it in the way the module's docstring describes."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != PACKAGE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name)
        if spec is None or spec.loader is None or COMPILER in sys.modules:
            return spec
        self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        import_module("torch")  # the package needs it anyway, and it must not see the placeholder
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        placeholder = sys.modules[COMPILER] = _Placeholder(COMPILER)
        try:
            self._loader.exec_module(module)
        finally:
            placeholder.leave()


class _Placeholder(ModuleType):
    """Stands where the compiler would; gives way to it should anybody ask for more than that it is there."""

    def leave(self) -> None:
        if sys.modules.get(COMPILER) is self:
            del sys.modules[COMPILER]

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name != "__path__":  # what `inspect` asks every module
            raise AttributeError(name)
        self.leave()
        return getattr(import_module(COMPILER), name)
