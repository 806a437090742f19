"""Branches, loops, comprehensions, exceptions and generators whose course is known without tensor data."""

import torch

from integration_tests.harness.differential import Case


def branch_on_flag() -> Case:
    def f(x: torch.Tensor, double: bool) -> torch.Tensor:
        if double:
            return x * 2
        return x + 1

    x = torch.randn(3)
    return Case(f, [(x, True), (x, False), (x, True)])


def branch_on_shape() -> Case:
    def f(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 3 and x.dim() == 2:
            return x.sum(0)
        elif x.numel() == 2:
            return x.flatten()
        return x.sin()

    return Case(f, [(torch.randn(4, 2),), (torch.randn(2),), (torch.randn(5, 3),), (torch.randn(3, 1),)])


def for_over_range() -> Case:
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        total = torch.zeros_like(x)
        for i in range(n):
            if i == 1:
                continue
            if i == 5:
                break
            total = total + x * i
        else:
            total = total - 1
        return total

    return Case(f, [(torch.randn(4), 3), (torch.randn(4), 8), (torch.randn(4), 0)])


def while_loop() -> Case:
    def f(x: torch.Tensor, n: int) -> tuple[torch.Tensor, int]:
        steps = 0
        while n > 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            x = x * 1.01
            steps += 1
        return x, steps

    return Case(f, [(torch.randn(4), 6), (torch.randn(4), 1), (torch.randn(4), 11)])


def nested_loops_over_tensors() -> Case:
    def f(rows: torch.Tensor, weights: list[float]) -> torch.Tensor:
        out = []
        for row in rows:
            acc = torch.zeros(())
            for value, weight in zip(row, weights):
                acc = acc + value * weight
            out.append(acc)
        return torch.stack(out)

    return Case(f, [(torch.randn(3, 2), [1.0, 2.0]), (torch.randn(2, 2), [0.5, -1.0])])


def comprehensions() -> Case:
    def f(x: torch.Tensor) -> dict:
        parts = [x[i] * i for i in range(x.shape[0]) if i != 1]
        table = {f"row{i}": part for i, part in enumerate(parts)}
        kinds = {p.dim() for p in parts}
        table["total"] = sum(p.sum() for p in parts)
        table["kinds"] = kinds
        table["nested"] = [[i * j for j in range(i)] for i in range(3)]
        return table

    return Case(f, [(torch.randn(4, 3),), (torch.randn(4, 3),), (torch.randn(2, 3),)])


def try_except_finally() -> Case:
    def f(x: torch.Tensor, table: dict, key: str) -> tuple:
        trail = []
        try:
            scale = table[key]
        except KeyError as error:
            trail.append(("missing", error.args))
            scale = 1.0
        else:
            trail.append("found")
        finally:
            trail.append("done")
        return x * scale, trail

    x = torch.randn(3)
    return Case(f, [(x, {"a": 2.0}, "a"), (x, {"a": 2.0}, "b"), (x, {"b": 3.0}, "b")])


def raise_and_catch_inside() -> Case:
    class Refused(ValueError):
        def __init__(self, amount: int) -> None:
            super().__init__(f"refused {amount}")
            self.amount = amount

    def check(n: int) -> int:
        if n > 2:
            raise Refused(n)
        return n

    def f(x: torch.Tensor, n: int) -> tuple:
        try:
            return x * check(n), None
        except Refused as error:
            return x - error.amount, str(error)

    return Case(f, [(torch.randn(2), 1), (torch.randn(2), 5), (torch.randn(2), 2)])


def exception_reaches_the_caller() -> Case:
    def f(x: torch.Tensor, n: int, log: list) -> torch.Tensor:
        log.append(n)
        if n < 0:
            raise ValueError("negative", n)
        return x * n

    log: list = []
    return Case(f, [(torch.randn(2), 1, log), (torch.randn(2), -1, log), (torch.randn(2), 2, log)], watch=[log])


def generator_inside() -> Case:
    def pieces(x: torch.Tensor, n: int):
        for i in range(n):
            received = yield x + i
            if received:
                yield received

    def f(x: torch.Tensor, n: int) -> list:
        out = [p * 2 for p in pieces(x, n)]
        gen = pieces(x, 3)
        first = next(gen)
        second = next(gen)
        return [*out, first, second, sum(1 for _ in gen)]

    return Case(f, [(torch.randn(2), 2), (torch.randn(2), 3), (torch.randn(2), 0)])


def match_statement() -> Case:
    def f(x: torch.Tensor, command: object) -> torch.Tensor:
        match command:
            case ("scale", factor):
                return x * factor
            case {"shift": amount, **rest}:
                return x + amount + len(rest)
            case [1, *others]:
                return x * len(others)
            case "abs" | "magnitude":
                return x.abs()
            case int(n) if n > 3:
                return x - n
            case _:
                return x

    commands = [("scale", 2.0), {"shift": 1, "other": 2}, [1, 2, 3], "abs", 5, None]
    return Case(f, [(torch.randn(3), command) for command in commands])


def chained_comparison_and_logic() -> Case:
    def f(x: torch.Tensor, a: int, b: int) -> tuple:
        inside = 0 < a <= b < 10
        name = (a and b) or "none"
        return x * (1 if inside else -1), name, not inside, a if b is not None else None, a in (1, 2, b)

    return Case(f, [(torch.randn(2), 1, 2), (torch.randn(2), 0, 2), (torch.randn(2), 5, 3)])


def with_blocks() -> Case:
    class Recorder:
        def __init__(self) -> None:
            self.events: list = []

        def __enter__(self) -> "Recorder":
            self.events.append("enter")
            return self

        def __exit__(self, kind: object, value: object, trace: object) -> bool:
            self.events.append("exit" if kind is None else kind.__name__)
            return kind is not None and issubclass(kind, KeyError)

    def f(x: torch.Tensor, fail: bool) -> tuple:
        recorder = Recorder()
        with recorder as r:
            y = x + len(r.events)
            if fail:
                raise KeyError("no")
            y = y * 2
        with torch.no_grad():
            z = y * 3
        return y, z, recorder.events

    x = torch.randn(3, requires_grad=True)
    return Case(f, [(x, False), (x, True), (x, False)])
