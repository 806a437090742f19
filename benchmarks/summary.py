"""What a suite's rows come to: the mean ratio to torch.compile, where framesmith is slower, what could not be run."""

from __future__ import annotations

from benchmarks.harness import Row, geometric_mean

#: Ratios up to this one are not told apart from 1.
NOTABLE = 1.03


def slower_than(other: str, rows: list[Row]) -> list[tuple[float, str]]:
    """Ratios to another candidate beyond what is notable, worst first, with their cases."""
    ratios = [(row.ratio_to[other], row.case) for row in rows if other in row.ratio_to]
    return sorted((pair for pair in ratios if pair[0] > NOTABLE), reverse=True)


def print_summary(rows: list[Row]) -> None:
    """Means and worst rows of framesmith, and every row with a reason."""
    ours = [row for row in rows if row.candidate == "framesmith"]
    for other in ("torch.compile", "eager"):
        ratios = [row.ratio_to[other] for row in ours if other in row.ratio_to]
        if not ratios:
            continue
        worst = slower_than(other, ours)
        print(f"framesmith / {other}: geometric mean {geometric_mean(ratios):.3f} of {len(ratios)} cases")
        print(f"    above {NOTABLE}: {len(worst)}")
        for ratio, case in worst:
            print(f"    {ratio:8.3f}x {case}")
    refused = [row for row in rows if row.reason]
    print(f"not measured: {len(refused)}", flush=True)
    for row in refused:
        print(f"    {row.case}, {row.candidate}: {row.reason[:100]}", flush=True)
