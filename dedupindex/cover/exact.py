"""Minimum covers by HiGHS, a solver of integer programs; only this module imports it.

HiGHS calculates in doubles with absolute tolerances. So it gets costs relative to the smallest,
none of them very much larger, and a margin is taken off its bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

from dedupindex.errors import BadInput, to_install

SPAN = 1e7  # the largest cost that is possible, relative to the smallest
_TOLERANCE = 1e-10  # relative to the smallest cost


class ExactCover(NamedTuple):
    """The best cover that was found, empty if none was, and a lower bound of the cost of any."""

    kept: list[int]
    bound: float


def check_installed(seconds: float) -> None:
    """Raise `BadInput` if exact covers have time, but HiGHS is not installed."""
    if (
        seconds > 0 and find_spec("highspy") is None
    ):  # not imported: NumPy, which it needs, starts threads
        raise BadInput(
            f"exact covers need a package: {to_install('cover')}, or take greedy ones with "
            "--exact-seconds 0"
        )


def solve(
    coverers: Mapping[int, set[int]],
    costs: Mapping[int, float],
    seconds: float,
    minimums: Sequence[tuple[int, Sequence[int]]] = (),
) -> ExactCover:
    """Find a minimum cover in limited time; the highest cost is at most `SPAN` times the lowest.

    Each of `minimums` is a number of documents to keep of some that may be kept.
    """
    import highspy  # an extra
    import numpy  # comes with HiGHS

    documents = sorted(set().union(*coverers.values()))
    place = {document: number for number, document in enumerate(documents)}
    rows = sorted({tuple(sorted(map(place.__getitem__, by))) for by in coverers.values()})
    least = [1] * len(rows) + [count for count, _ in minimums]
    rows += [tuple(map(place.__getitem__, of_these)) for _, of_these in minimums]
    lowest = min(costs[document] for document in documents)
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = len(documents), len(rows)
    program.col_cost_ = numpy.array([costs[one] / lowest for one in documents], dtype=float)
    program.col_lower_ = numpy.zeros(len(documents))
    program.col_upper_ = numpy.ones(len(documents))
    program.row_lower_ = numpy.array(least, dtype=float)
    program.row_upper_ = numpy.full(len(rows), highspy.kHighsInf)
    program.integrality_ = [highspy.HighsVarType.kInteger] * len(documents)
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    starts = numpy.cumsum([0, *map(len, rows)])
    program.a_matrix_.start_ = starts
    program.a_matrix_.index_ = numpy.array([column for row in rows for column in row])
    program.a_matrix_.value_ = numpy.ones(int(starts[-1]))
    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    for name, value in {
        "output_flag": False, "threads": 1, "random_seed": 1, "time_limit": float(seconds),
        "mip_rel_gap": 0.0, "mip_abs_gap": 0.0, "mip_feasibility_tolerance": _TOLERANCE,
        "primal_feasibility_tolerance": _TOLERANCE, "dual_feasibility_tolerance": _TOLERANCE,
    }.items():  # fmt: skip
        solver.setOptionValue(name, value)
    solver.passModel(program)
    solver.run()
    info, values = solver.getInfo(), solver.getSolution().col_value
    chosen = {number for number, value in enumerate(values) if value > 0.5}
    # it may have run out of time
    found = all(
        len(chosen.intersection(row)) >= count for row, count in zip(rows, least, strict=True)
    )
    bound = max(info.mip_dual_bound * (1 - _TOLERANCE), 0.0) * lowest
    return ExactCover([documents[number] for number in sorted(chosen)] if found else [], bound)
