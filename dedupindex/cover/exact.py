"""Least covers by HiGHS, a solver of integer programs; the one door to it, which is an extra.

It counts in doubles, with tolerances that do not depend on how large costs are. So it is given
shares of the least one, none that is very much larger, and its bound is taken with a margin.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dedupindex.errors import BadInput, to_install

SPAN = 1e7  # how much larger than the least a cost may be
_TOLERANCE = 1e-10  # of what is 1 in the program: the least cost, a document that is kept


class ExactCover(NamedTuple):
    """The best cover that was found, empty for none; any cover costs `bound` at least."""

    kept: list[int]
    bound: float


def available() -> None:
    """Raise `BadInput` where HiGHS is not installed."""
    try:
        import highspy  # noqa: F401
    except ImportError as error:
        raise BadInput(
            f"exact covers need a package: {to_install('cover')}, or take greedy ones with "
            "--exact-seconds 0"
        ) from error


def solve(
    coverers: Mapping[int, set[int]], costs: Mapping[int, float], seconds: float
) -> ExactCover:
    """Keep one at least of the coverers of each, for the least cost, within the time given.

    The dearest document costs at most `SPAN` times what the cheapest costs.
    """
    import highspy  # an extra
    import numpy  # comes with HiGHS

    documents = sorted(set().union(*coverers.values()))
    place = {document: number for number, document in enumerate(documents)}
    rows = sorted({tuple(sorted(place[one] for one in by)) for by in coverers.values()})
    least = min(costs[one] for one in documents)
    shares = numpy.array([costs[one] / least for one in documents], dtype=float)
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = len(documents), len(rows)
    program.col_cost_ = shares
    program.col_lower_ = numpy.zeros(len(documents))
    program.col_upper_ = numpy.ones(len(documents))
    program.row_lower_ = numpy.ones(len(rows))
    program.row_upper_ = numpy.full(len(rows), highspy.kHighsInf)
    program.integrality_ = [highspy.HighsVarType.kInteger] * len(documents)
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    starts = numpy.cumsum([0, *map(len, rows)])
    program.a_matrix_.start_ = starts
    program.a_matrix_.index_ = numpy.array([one for row in rows for one in row])
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
    whole = all(chosen.intersection(row) for row in rows)  # it may have found none in time
    bound = max(info.mip_dual_bound * (1 - _TOLERANCE), 0.0) * least
    return ExactCover([documents[number] for number in sorted(chosen)] if whole else [], bound)
