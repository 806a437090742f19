"""Summaries of a suite's rows: mean ratio to torch.compile, slower cases, cases that could not run."""

from __future__ import annotations

import statistics

from benchmarks.harness.timing import Row, geometric_mean, readable

#: Ratios up to this one count as 1.
NOTABLE = 1.03

#: A figure of rows: the first call's milliseconds, compilation included, while other processes compile.
FIRST_CALL = "first call, ms"
#: A figure of rows: the share, in hundredths, of the bandwidth of a copy.
SHARE = "share of a copy, %"
#: Ratios that come first: framesmith in a mode, and its competitor.
RIVALS = (
    ("framesmith", "torch.compile"),
    ("framesmith", "eager"),
    ("framesmith reduce-overhead", "torch.compile reduce-overhead"),
)


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


def of_mode(rows: list[Row], word: str) -> list[Row]:
    """The rows of models in a mode."""
    return [row for row in rows if f", {word}, " in row.case]


def ratio_lines(rows: list[Row], label: str) -> list[str]:
    """Of each candidate, its mean ratio to every other one, and over how many cases."""
    names = list(dict.fromkeys(row.candidate for row in rows))
    lines = []
    for name in names:
        mine = [row for row in rows if row.candidate == name]
        cells = []
        for other in names:
            ratios = [row.ratio_to[other] for row in mine if other in row.ratio_to]
            if ratios:
                cells.append(f"{geometric_mean(ratios):.3f}x {other} ({len(ratios)})")
        if cells:
            lines.append(f"{label:<10} {name:<29} {'  '.join(cells)}")
    return lines


def loss_lines(rows: list[Row], most: int) -> list[str]:
    """Return the cases where framesmith is slower than torch.compile in the same mode, or than eager; worst first."""
    lines = []
    for ours, other in RIVALS:
        worst = slower_than(other, [row for row in rows if row.candidate == ours])
        listed = "; ".join(f"{case} {ratio:.2f}" for ratio, case in worst[:most])
        lines.append(f"{ours} slower than {other}, {len(worst)} cases: {listed}")
    return lines


def reason_lines(rows: list[Row], most: int) -> list[str]:
    """Rows that could not be measured: those cut off by time counted, the others with their reasons."""
    refused = [row for row in rows if row.reason]
    cut = [row for row in refused if row.reason.endswith("in time")]
    others = [row for row in refused if row not in cut]
    lines = [f"not measured: {len(others)}, and {len(cut)} for lack of time"]
    return lines + [f"  {row.case}, {row.candidate}: {row.reason[:110]}" for row in others[:most]]


def first_call_lines(rows: list[Row]) -> list[str]:
    """The median of each candidate's first calls, where all candidates have one."""
    names = list(dict.fromkeys(row.candidate for row in rows if FIRST_CALL in row.figures))
    taken = {(row.case, row.candidate): row.figures[FIRST_CALL] for row in rows if FIRST_CALL in row.figures}
    cases = [case for case in dict.fromkeys(row.case for row in rows) if all((case, name) in taken for name in names)]
    if not cases:
        return []
    medians = (f"{name} {statistics.median(taken[case, name] for case in cases):.0f}" for name in names)
    return [f"{FIRST_CALL}, medians of {len(cases)} cases, with others compiling at once: {', '.join(medians)}"]


def models_table(rows: list[Row], most: int = 12) -> list[str]:
    """Return the results of `gpu_models`, in few lines."""
    lines = [line for mode in ("inference", "training") for line in ratio_lines(of_mode(rows, mode), mode)]
    for mode in ("inference", "training"):
        lines += [f"{mode}: {line}" for line in loss_lines(of_mode(rows, mode), most)]
    return lines + first_call_lines(rows) + reason_lines(rows, most)


def kernels_table(rows: list[Row], most: int = 12) -> list[str]:
    """Return the results of `large_kernels`: for each case all candidates' shares of a copy's bandwidth."""
    shown = {(row.case, row.candidate): row.figures[SHARE] for row in rows if SHARE in row.figures}
    names = list(dict.fromkeys(name for _, name in shown))
    lines = [*ratio_lines(rows, "kernels"), f"{SHARE}: {', '.join(names)}"]
    by_title: dict[str, list[str]] = {}
    for case in dict.fromkeys(case for case, _ in shown):
        title, _, dtype = case.rpartition(", ")
        shares = " ".join(f"{shown.get((case, name), '-'):>4}" for name in names)
        by_title.setdefault(title, []).append(f"{dtype} {shares}")
    lines += [f"  {title[:46]:<46} {'  '.join(cells)}" for title, cells in by_title.items()]
    return lines + loss_lines(rows, most)[:2] + reason_lines(rows, most)


def seconds_lines(rows: list[Row]) -> list[str]:
    """A line for each case: all candidates' times."""
    lines = []
    for case in dict.fromkeys(row.case for row in rows):
        figures = (f"{row.candidate} {row.reason or readable(row.seconds)}" for row in rows if row.case == case)
        lines.append(f"{case:<28} {'  '.join(figures)}")
    return lines
