"""What the sources of one release define, read with `ast`: nothing is imported or run."""

from __future__ import annotations

import ast
import copy
import re
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Function = (ast.FunctionDef, ast.AsyncFunctionDef)
KINDS_OF_METHOD = ("classmethod", "staticmethod", "property")


class Sources:
    """The modules of one release, by path."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._trees: dict[str, ast.Module] = {}

    @property
    def modules(self) -> list[str]:
        """Return the dotted names of all modules, sorted."""
        return sorted(_dotted(path) for path in self._texts)

    def definition(self, point: str) -> str | None:
        """Return the normalized definition of ``package.module:name``, ``package.module:Class.name`` or a module.

        A function gives its parameters without annotations, ``(self, tensor, stage=None, *, group)``; everything else
        gives ``module``, ``class``, ``value`` or ``imported from MODULE``. Returns None if there is no such definition:
        an inherited method is not one. Of several, such as one per branch of a condition, the last counts.
        """
        module, _, name = point.partition(":")
        if not name:
            return "module" if self._path(module) else None
        body = self._body(module)
        *owners, last = name.split(".")
        for owner in owners:
            classes = [n for n in _statements(body) if isinstance(n, ast.ClassDef) and n.name == owner]
            if not classes:
                return None
            body = classes[-1].body
        found = [text for text in (_describe(node, last) for node in _statements(body)) if text]
        if found or owners:
            return found[-1] if found else None
        stars = (star for star in self._star_imports(module) if self.definition(f"{star}:{last}"))
        return next((f"imported from {star}" for star in stars), None)

    def derived_classes(self, roots: Sequence[str]) -> list[str]:
        """Return all classes derived from classes named in `roots`, directly or not, as ``package.module:Class``.

        Classes are matched by name, over all modules: an import under another name is not followed.
        """
        known, found = set(roots), set[str]()
        while True:
            new = {
                f"{module}:{node.name}": node.name
                for module, node in self._classes
                if known & {_last_name(base) for base in node.bases}
            }
            if set(new) <= found:
                return sorted(found)
            found |= set(new)
            known |= set(new.values())

    def functions(self, pattern: str) -> list[str]:
        """Return all functions of modules whose name matches a regular expression, as ``package.module:function``."""
        return sorted(
            f"{module}:{node.name}"
            for module, body in self._bodies()
            for node in _statements(body)
            if isinstance(node, Function) and re.fullmatch(pattern, node.name)
        )

    def members(self, owner: str) -> list[str]:
        """Return the names assigned in the body of the class ``package.module:Class``, such as those of an enum."""
        module, _, name = owner.partition(":")
        bodies = [
            node.body
            for node in _statements(self._body(module))
            if isinstance(node, ast.ClassDef) and node.name == name
        ]
        targets = [
            target
            for body in bodies
            for node in body
            if isinstance(node, ast.Assign)
            for target in node.targets
        ]
        return [target.id for target in targets if isinstance(target, ast.Name)]

    def _star_imports(self, module: str) -> Iterator[str]:
        """Yield the modules of this release from which a module imports all names."""
        path = self._path(module)
        package = module if path and path.endswith("/__init__.py") else module.rpartition(".")[0]
        for node in _statements(self._body(module)):
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                parts = package.split(".")
                base = parts[: len(parts) - node.level + 1] if node.level else []
                yield ".".join([*base, *([node.module] if node.module else [])])

    @cached_property
    def _classes(self) -> list[tuple[str, ast.ClassDef]]:
        return [
            (module, node)
            for module, body in self._bodies()
            for node in _statements(body)
            if isinstance(node, ast.ClassDef)
        ]

    def _bodies(self) -> Iterator[tuple[str, list[ast.stmt]]]:
        for path in sorted(self._texts):
            yield _dotted(path), self._tree(path).body

    def _body(self, module: str) -> list[ast.stmt]:
        path = self._path(module)
        return self._tree(path).body if path else []

    def _path(self, module: str) -> str | None:
        base = module.replace(".", "/")
        return next(
            (path for path in (f"{base}.py", f"{base}/__init__.py", f"{base}.pyi") if path in self._texts),
            None,
        )

    def _tree(self, path: str) -> ast.Module:
        if path not in self._trees:
            self._trees[path] = ast.parse(self._texts[path], filename=path)
        return self._trees[path]


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the parameters of a function with their defaults and without annotations."""
    arguments = copy.deepcopy(function.args)
    for each in ast.walk(arguments):
        if isinstance(each, ast.arg):
            each.annotation = None
    kinds = [name for name in map(_last_name, function.decorator_list) if name in KINDS_OF_METHOD]
    text = f"({ast.unparse(arguments)})"
    if isinstance(function, ast.AsyncFunctionDef):
        kinds.append("async")
    return " ".join([*kinds, text])


def _describe(node: ast.stmt, name: str) -> str | None:
    """Return the description of a statement if it defines `name`."""
    if isinstance(node, Function):
        return parameters(node) if node.name == name and not _is_setter(node) else None
    if isinstance(node, ast.ClassDef):
        return "class" if node.name == name else None
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        source = getattr(node, "module", None) or "its package"
        return f"imported from {source}" if name in [a.asname or a.name for a in node.names] else None
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return "value" if any(isinstance(t, ast.Name) and t.id == name for t in targets) else None


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body, and those inside its conditions and its handling of exceptions."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try)):
            handlers = [handler.body for handler in node.handlers] if isinstance(node, ast.Try) else []
            for inner in (node.body, *handlers, node.orelse):
                yield from _statements(inner)


def _is_setter(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(d, ast.Attribute) and d.attr == "setter" for d in function.decorator_list)


def _last_name(node: ast.expr) -> str:
    """Return the last part of a dotted name, "" for another expression."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _dotted(path: str) -> str:
    return path.removesuffix("i").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
