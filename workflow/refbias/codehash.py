"""A hash of the code that a stage really uses.

Snakemake notices edits of a rule, not of an imported module; naming the modules as inputs would
notice too much (a comment would retrain a model). So a stage's parameters carry this hash: the
syntax trees, without docstrings, comments and layout, of the import closure of the stage's
entry module inside the package. Imports inside functions count.
"""

import ast
import functools
import hashlib
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGE = "refbias"


def _module_file(name: str) -> Path | None:
    base = _ROOT.joinpath(*name.split("."))
    for candidate in (base / "__init__.py", base.with_suffix(".py")):
        if candidate.is_file():
            return candidate
    return None


def _strip_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:]
    return tree


def _imports(tree: ast.Module, name: str, is_package: bool) -> set[str]:
    found: set[str] = set()
    package = name if is_package else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                anchor = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*anchor, *([node.module] if node.module else [])])
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return {item for item in found if item.split(".")[0] == _PACKAGE and _module_file(item)}


@functools.cache
def _parsed(path: Path, mtime_ns: int) -> ast.Module:
    return _strip_docstrings(ast.parse(path.read_text(encoding="utf-8"), filename=str(path)))


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
        path = _module_file(name)
        if path is not None:
            tree = _parsed(path, path.stat().st_mtime_ns)
            waiting.extend(_imports(tree, name, path.name == "__init__.py"))
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
        path = _module_file(name)
        if path is not None:
            digest.update(f"{name}\0{ast.dump(_parsed(path, path.stat().st_mtime_ns))}\n".encode())
    return digest.hexdigest()[:16]
