"""A hash of the code that a stage really uses.

Snakemake notices edits of a rule, not of an imported module; naming the modules as inputs would
notice too much (a comment would retrain a model). So a stage's parameters carry this hash: the
syntax trees, without docstrings, comments and layout, of the import closure of the stage's
entry module inside the package. Imports inside functions count.
"""

import ast
import functools
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGE = "refbias"


def _module_file(name: str) -> Path | None:
    # plain strings: this is asked some thousand times at every start of Snakemake
    base = os.path.join(_ROOT, *name.split("."))
    for candidate in (os.path.join(base, "__init__.py"), f"{base}.py"):
        if os.path.isfile(candidate):
            return Path(candidate)
    return None


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """All statements, with what holds them: imports and docstrings stand nowhere else."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            part = getattr(node, name, None)
            # a conditional expression and a lambda have a body too, but no list
            if isinstance(part, list):
                waiting.extend(part)


def _strip_docstrings(tree: ast.Module) -> ast.Module:
    for node in _statements(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:]
    return tree


def _imports(tree: ast.Module, name: str, is_package: bool) -> frozenset[str]:
    found: set[str] = set()
    package = name if is_package else name.rpartition(".")[0]
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                anchor = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*anchor, *([node.module] if node.module else [])])
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return frozenset(item for item in found if item.split(".")[0] == _PACKAGE)


@functools.cache
def _read(text: str, name: str, is_package: bool) -> tuple[str, frozenset[str]]:
    """Return a module's syntax tree as text, and what it imports of the package: once for all stages that use it."""
    tree = _strip_docstrings(ast.parse(text, filename=name))
    return ast.dump(tree), _imports(tree, name, is_package)


def _module(name: str) -> tuple[str, frozenset[str]] | None:
    """Return `_read` of the module's present content; None if the package holds no such module."""
    path = _module_file(name)
    if path is None:
        return None
    return _read(path.read_text(encoding="utf-8"), name, path.name == "__init__.py")


def closure(entry: str) -> tuple[str, ...]:
    """Return the modules of the package that `entry` imports, directly or not.

    Parameters
    ----------
    entry
        A module name, such as ``refbias.cli.represent``.

    Returns
    -------
    tuple of str
        Sorted module names, `entry` and every parent package included.

    Raises
    ------
    ValueError
        If `entry` is not a module of the package.
    """
    if _module_file(entry) is None:
        raise ValueError(f"entry: {entry!r} is not a module of {_PACKAGE}")
    seen: set[str] = set()
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        parent = name.rpartition(".")[0]
        if parent:
            waiting.append(parent)
        module = _module(name)
        if module is not None:
            waiting.extend(item for item in module[1] if item not in seen and _module_file(item))
    return tuple(sorted(seen))


def code_hash(entry: str) -> str:
    """Return 16 hexadecimal digits that change when code used by `entry` changes.

    Parameters
    ----------
    entry
        A module name, such as ``refbias.cli.represent``.

    Returns
    -------
    str
        The hash; comments, docstrings and layout do not enter it.
    """
    digest = hashlib.sha256()
    for name in closure(entry):
        module = _module(name)
        if module is not None:
            digest.update(f"{name}\0{module[0]}\n".encode())
    return digest.hexdigest()[:16]
