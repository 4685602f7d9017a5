"""B of every group in every cell of one model, and dB between two.

Relative representations and SEAT are computed within a model, so each model is gone through once,
site by site: its cosines are taken once and the cells choose their columns. Other methods look at
both models together and go through their functions in `refbias.metrics` cell by cell.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from refbias.ablations.cells import Cell
from refbias.ablations.table import IntArray, SentenceTable
from refbias.metrics import Embeddings, Method
from refbias.metrics.nested import bias_of_distances, fast_unit_rows, prefix_distances
from refbias.metrics.vectors import FloatArray

FAST = ("rr", "seat")
Matrices = Callable[[str], npt.NDArray[np.float32]]
"""Key of a site -> embeddings (n, d): all distinct sentences, or at the other sites the base's."""
Biases = dict[tuple[int, str], dict[str, float]]
"""(number of the cell, method) -> group -> B."""


class CellShift(NamedTuple):
    """dB of every group in one cell by one method, and the anchors that the method used."""

    n_anchors: int
    delta_b: dict[str, float]


Shifts = dict[tuple[int, str], CellShift]
"""(number of the cell, method) -> dB."""


def by_site(cells: Sequence[Cell]) -> dict[str, list[int]]:
    """Return site -> numbers of its cells."""
    found: dict[str, list[int]] = {}
    for number, cell in enumerate(cells):
        found.setdefault(cell.site, []).append(number)
    return found


def model_biases(
    matrices: Matrices,
    cells: Sequence[Cell],
    table: SentenceTable,
    methods: Iterable[str],
    advance: Callable[[], object] = lambda: None,
) -> Biases:
    """Compute B within one model.

    Parameters
    ----------
    matrices
        Embeddings of the model by site; one site is held at a time.
    cells
        From `refbias.ablations.cells.plan`.
    table
        Rows of the embeddings.
    methods
        Names of methods; those that are not computed within a model are passed over.
    advance
        Called after each site.

    Returns
    -------
    dict
        B of every group by cell and method.

    Raises
    ------
    ValueError
        If an embedding is zero or not finite, naming site and row.
    """
    methods = [method for method in methods if method in FAST]
    result: Biases = {}
    for site, numbers in by_site(cells).items():
        geometry = _Geometry(fast_unit_rows(matrices(site), site), table)
        nested: dict[tuple[str, int], list[int]] = {}
        for number in numbers:
            cell = cells[number]
            if "seat" in methods and cell.takes("seat"):
                result[number, "seat"] = geometry.seat(cell)
            if "rr" in methods and cell.seed is not None:
                nested.setdefault((cell.source, cell.seed), []).append(number)
            elif "rr" in methods:
                result[number, "rr"] = geometry.rr(cell)
        for together in nested.values():
            for number, found in zip(together, geometry.nested(cells, together), strict=True):
                result[number, "rr"] = found
        advance()
    return result


def pair_shifts(
    reference: Matrices, audited: Matrices, cells: Sequence[Cell], table: SentenceTable, methods: Mapping[str, Method]
) -> Shifts:
    """Compute dB with the methods that look at both models together.

    Parameters
    ----------
    reference, audited, cells, table
        As `model_biases`.
    methods
        From `refbias.metrics.chosen_methods`; those that are computed within a model are passed over.
    """
    paired = {name: method for name, method in methods.items() if name not in FAST}
    result: Shifts = {}
    for site, numbers in by_site(cells).items() if paired else ():
        matrix, other = reference(site), audited(site)
        for number in numbers:
            cell = cells[number]
            for name, method in paired.items():
                if cell.takes(name):
                    found = method(_embeddings(matrix, cell, table), _embeddings(other, cell, table))
                    used = max(shift.n_anchors for shift in found.values())
                    result[number, name] = CellShift(used, {group: shift.delta_b for group, shift in found.items()})
    return result


def shifts(reference: Biases, audited: Biases, cells: Sequence[Cell]) -> Shifts:
    """Return dB = B_audited - B_reference (eq. 7) for every cell, method and group."""
    return {
        (number, method): CellShift(
            cells[number].n_anchors if method == "rr" else 0,
            {group: value - reference[number, method][group] for group, value in found.items()},
        )
        for (number, method), found in audited.items()
    }


def _embeddings(matrix: npt.NDArray[np.float32], cell: Cell, table: SentenceTable) -> Embeddings:
    """Return the sentences of a cell whose anchors do not depend on the group."""
    wide = matrix.astype(np.float64)
    targets = table.targets[cell.targets]
    return Embeddings(
        targets={group: wide[rows] for group, rows in targets.items()},
        positive=wide[table.positive[cell.attributes]],
        negative=wide[table.negative[cell.attributes]],
        anchors=wide[cell.anchors(table, next(iter(targets)))],
    )


class _Geometry:
    """Cosines of one model at one site, each block computed once."""

    def __init__(self, unit: FloatArray, table: SentenceTable) -> None:
        self._unit = unit
        self._table = table
        self._blocks: dict[tuple[str, str, str], FloatArray] = {}
        self._done: dict[tuple[str, ...], dict[str, float]] = {}

    def _rows(self, kind: str, name: str) -> IntArray:
        if kind == "targets":
            return np.concatenate(list(self._table.targets[name].values()))
        return np.concatenate([self._table.positive[name], self._table.negative[name]])

    def _groups(self, name: str) -> dict[str, IntArray]:
        """Return group -> rows among the stacked targets of a set."""
        found, start = {}, 0
        for group, rows in self._table.targets[name].items():
            found[group] = np.arange(start, start + len(rows))
            start += len(rows)
        return found

    def _take(self, rows: IntArray) -> FloatArray:
        """Return rows of the unit vectors, as a view where they follow one another."""
        first = int(rows[0])
        if np.array_equal(rows, np.arange(first, first + len(rows))):
            return self._unit[first : first + len(rows)]
        return self._unit[rows]

    def _relative(self, kind: str, name: str, source: str) -> FloatArray:
        """Return the relative representations (eq. 4) of a set, over the whole source in its order."""
        key = (kind, name, source)
        if key not in self._blocks:
            anchors = self._take(self._table.anchors[source])
            self._blocks[key] = self._take(self._rows(kind, name)) @ anchors.T
        return self._blocks[key]

    def seat(self, cell: Cell) -> dict[str, float]:
        """B of eq. 3: the mean cosine is the cosine with the mean of the unit vectors, times its length."""
        key = ("seat", cell.targets, cell.attributes)
        if key not in self._done:
            table = self._table
            ends = [self._take(part[cell.attributes]).mean(axis=0) for part in (table.positive, table.negative)]
            each = self._take(self._rows("targets", cell.targets)) @ (ends[0] - ends[1])
            self._done[key] = {group: float(each[rows].mean()) for group, rows in self._groups(cell.targets).items()}
        return self._done[key]

    def rr(self, cell: Cell) -> dict[str, float]:
        """B of eq. 6 over the cell's anchors in the order of their source."""
        targets = self._relative("targets", cell.targets, cell.source)
        attributes = self._relative("attributes", cell.attributes, cell.source)
        n_positive, groups = len(self._table.positive[cell.attributes]), self._groups(cell.targets)
        if cell.by_group is not None:
            found: dict[str, float] = {}
            for group, rows in groups.items():
                columns = cell.by_group[group][: cell.n_anchors]
                left, right = targets[rows][:, columns], attributes[:, columns]
                (distances,) = prefix_distances(left, right, [cell.n_anchors])
                found |= bias_of_distances(distances, n_positive, {group: np.arange(len(rows))})
            return found
        key = ("rr", cell.targets, cell.attributes, cell.source)
        if key not in self._done:
            (distances,) = prefix_distances(targets, attributes, [targets.shape[1]])
            self._done[key] = bias_of_distances(distances, n_positive, groups)
        return self._done[key]

    def nested(self, cells: Sequence[Cell], numbers: Sequence[int]) -> Iterable[dict[str, float]]:
        """B of cells that differ in how far down one order of one source they go, ascending."""
        first = cells[numbers[0]]
        targets = self._relative("targets", first.targets, first.source)[:, first.order]
        attributes = self._relative("attributes", first.attributes, first.source)[:, first.order]
        n_positive, groups = len(self._table.positive[first.attributes]), self._groups(first.targets)
        for distances in prefix_distances(targets, attributes, [cells[number].n_anchors for number in numbers]):
            yield bias_of_distances(distances, n_positive, groups)
