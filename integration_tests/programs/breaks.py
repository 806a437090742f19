"""Programs that cannot be one graph: the rest must still be right, and happen in order."""

import torch

from integration_tests.harness.differential import Case


def print_in_the_middle() -> Case:
    def f(x: torch.Tensor):
        y = x.sin()
        print("shape", tuple(y.shape))
        z = y * 2
        print("done")
        return z + 1

    return Case(f, [(torch.randn(3),), (torch.randn(3),), (torch.randn(4),)])


def item_and_branch_on_data() -> Case:
    def f(x: torch.Tensor):
        y = x * 2
        if y.sum() > 0:
            z = y + 1
        else:
            z = y - 1
        n = int(z.abs().max().item())
        return z * 3, n

    return Case(f, [(torch.ones(3),), (-torch.ones(3),), (torch.ones(3) * 2,)])


def break_in_a_callee() -> Case:
    def noisy(x: torch.Tensor):
        y = x + 1
        print("inside")
        return y * 2

    def f(x: torch.Tensor):
        a = x.cos()
        b = noisy(a)
        return a + noisy(b)

    return Case(f, [(torch.randn(3),)] * 3)


def print_in_a_loop() -> Case:
    def f(x: torch.Tensor, n: int):
        x = x * 2
        for i in range(n):
            x = x + i
            print("step", i)
        return x.sum()

    return Case(f, [(torch.randn(3), 3), (torch.randn(3), 30), (torch.randn(3), 0)])


def break_with_pending_stack() -> Case:
    def speak(text: str) -> int:
        print(text)
        return len(text)

    def f(x: torch.Tensor, log: list):
        log.append("before")
        out = {"a": x + 1, "b": [x * 2, speak("middle"), x * 3]}
        log.append("after")
        return out, (x.sum(), speak("last"))

    log: list = []
    return Case(f, [(torch.randn(2), log)] * 3, watch=[log])


def break_inside_with_and_try() -> Case:
    def f(x: torch.Tensor, fail: bool):
        try:
            with torch.no_grad():
                y = x * 2
                print("in the block", torch.is_grad_enabled())
                if fail:
                    raise RuntimeError("asked for")
                y = y + 1
        except RuntimeError as error:
            y = x - 1
            print("caught", error)
        finally:
            print("finally")
        return y

    x = torch.randn(2, requires_grad=True)
    return Case(f, [(x, False), (x, True), (x, False)])


def unsupported_c_call() -> Case:
    import zlib

    def f(x: torch.Tensor, data: bytes):
        y = x + 1
        crc = zlib.crc32(data)
        return y * 2, crc

    return Case(f, [(torch.randn(2), b"abc"), (torch.randn(2), b"abc"), (torch.randn(2), b"xyz")])


def backward_inside() -> Case:
    def f(x: torch.Tensor):
        y = (x * x).sum()
        y.backward()
        g = x.grad
        x.grad = None
        return g + 1

    return Case(f, [(torch.randn(3, requires_grad=True),) for _ in range(3)])


def data_dependent_shapes() -> Case:
    def f(x: torch.Tensor):
        positive = x[x > 0]
        unique = torch.unique(x.round())
        return positive * 2, unique + 1, torch.nonzero(x > 0).sum()

    return Case(f, [(torch.tensor([1.0, -2.0, 3.0]),), (torch.tensor([1.0, 2.0, 3.0]),), (-torch.ones(3),)])


def numpy_round_trip() -> Case:
    def f(x: torch.Tensor):
        y = x * 2
        array = y.numpy() + 1
        return torch.from_numpy(array).sin()

    return Case(f, [(torch.randn(3),)] * 3)
