"""Docstrings as `help` shows them: kedge completes some when it is imported, from what it declares once elsewhere."""

import inspect
from functools import reduce
from importlib import import_module
from typing import Any

import griffe


class RuntimeDocstrings(griffe.Extension):
    """Reads the docstrings of kedge's functions and classes from the imported package."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Replace a docstring that is different at run time."""
        if (
            not obj.docstring
            or not isinstance(obj, griffe.Function | griffe.Class)
            or not obj.path.startswith("kedge.")
        ):
            return
        module = obj.module.path
        if module == "kedge.__main__":
            return
        names = obj.path.removeprefix(f"{module}.").split(".")
        found = reduce(lambda thing, name: getattr(thing, name, None), names, import_module(module))
        text = inspect.getdoc(found) if found is not None else None
        if text:
            obj.docstring.value = text
