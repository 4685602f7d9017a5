"""List or remove what the cache holds: references' embeddings, models from GGUF files, hashes of large files.

Downloads (below sha256/ and hub/) are left alone. Nothing here is needed: what is removed is computed again.
"""

import argparse
import datetime
import math
import time
from collections.abc import Sequence

from refbias.acquisition.cache import cache_root
from refbias.audit import store
from refbias.errors import UserError, printable

_DAY_S = 24 * 3600.0


def _list() -> None:
    found = store.entries()
    print(f"{cache_root()}: {len(found)} entries, {sum(entry.size_mb for entry in found):.1f} MB")
    for entry in found:
        used = datetime.datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M")
        print(f"{entry.key[:12]}  {entry.kind:<10}  {entry.size_mb:10.1f} MB  used {used}  {printable(entry.name)}")


def _chosen(args: argparse.Namespace) -> list[store.Entry]:
    ways = {"KEY": bool(args.keys), "--all": args.all, "--unused-days": args.unused_days is not None}
    given = [name for name, is_given in ways.items() if is_given]
    if len(given) != 1:
        said = f"{' and '.join(given)} at once: give one of them" if given else "name keys of `refbias cache ls`, or"
        raise UserError(f"refbias cache rm: {said}" + ("" if given else " say --all or --unused-days N"))
    if args.unused_days is not None and not 0 <= args.unused_days < math.inf:
        raise UserError(f"--unused-days {args.unused_days:g}: must be 0 or more")
    found = store.entries()
    if args.kind:
        found = [entry for entry in found if entry.kind == args.kind]
    if args.unused_days is not None:
        return [entry for entry in found if time.time() - entry.used > args.unused_days * _DAY_S]
    if args.all:
        return found
    chosen = []
    for key in args.keys:
        matching = [entry for entry in found if entry.key.startswith(key)]
        if len(key) < 4 or len(matching) != 1:
            raise UserError(f"refbias cache rm {key!r}: {len(matching)} entries begin so: see refbias cache ls")
        chosen += matching
    return chosen


def main(argv: Sequence[str]) -> None:
    """List the cache's entries, or remove some.

    Raises
    ------
    UserError
        If a key names no entry, or several.
    """
    parser = argparse.ArgumentParser(prog="refbias cache", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("ls", help="list entries, the latest used first")
    remove = actions.add_parser("rm", help="remove entries")
    remove.add_argument("keys", nargs="*", metavar="KEY", help="the first characters of a key, four or more")
    remove.add_argument("--all", action="store_true", help="all entries")
    remove.add_argument("--kind", choices=store.KINDS, help="of this kind alone")
    remove.add_argument("--unused-days", type=float, metavar="N", help="those not used for N days")
    args = parser.parse_args(argv)
    if args.action == "ls":
        _list()
        return
    chosen = _chosen(args)
    for entry in chosen:
        store.remove(entry)
    leftovers = store.remove_leftovers()
    also = f", and {leftovers} unfinished" if leftovers else ""
    print(f"removed {len(chosen)} entries, {sum(entry.size_mb for entry in chosen):.1f} MB{also}")
