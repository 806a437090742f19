"""Foreign code handed tensors late, things changed between calls, modes of torch, recompilations and odd holders."""

import copy
import dataclasses
import functools
import io
import json
import logging
import operator
import pathlib
import pickle
import types
import weakref

import torch
from torch import nn

from integration_tests.harness.differential import Case


def _xs(*others, n=3):
    return [(torch.arange(1.0, 4.0) + i, *others) for i in range(n)]


def json_with_a_default_that_computes() -> Case:
    def encode(obj):
        if isinstance(obj, torch.Tensor):
            return (obj * 2).tolist()
        raise TypeError(f"no {type(obj).__name__}")

    def f(x, items):
        y = x + 1
        try:
            text = json.dumps(items, default=encode, sort_keys=True)
        except TypeError as error:
            text = str(error)
        return y, text

    return Case(
        f, [(torch.ones(2), items) for items in ({"a": 1}, {"a": torch.ones(2)}, {"a": object}, [torch.ones(1)])]
    )


def json_with_an_object_hook() -> Case:
    def decode(table):
        return torch.tensor(table["t"]) * 2 if "t" in table else table

    def f(x, text):
        return x + json.loads(text, object_hook=decode)["v"]

    return Case(f, [(torch.ones(2), text) for text in ('{"v": 1}', '{"v": {"t": [1.0, 2.0]}}', '{"v": 3}')])


def yaml_that_builds_tensors() -> Case:
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    def build(loader, node):
        return torch.tensor(loader.construct_sequence(node)).float().cos()

    Loader.add_constructor("!t", build)

    def f(x, text):
        return x * yaml.load(text, Loader)["a"]

    return Case(f, [(torch.ones(2), text) for text in ("a: 1", "a: !t [1, 2]", "a: 4.0")])


def a_log_record_with_tensors() -> Case:
    text = io.StringIO()
    log = logging.Logger("late")

    class Handler(logging.StreamHandler):
        def format(self, record):
            args = record.args or ()
            return f"{record.funcName} {record.lineno - record.lineno} {[float((a * 2).sum()) for a in args]}"

    log.addHandler(Handler(text))

    def f(x, n):
        y = x * n
        log.warning("at %s", *([] if n < 2 else [y]))
        return y + 1, text.getvalue()

    return Case(f, [(torch.ones(2), n) for n in (1, 2, 3)])


def pandas_applies_what_computes() -> Case:
    import pandas

    table = pandas.DataFrame({"a": [1.0, 2.0, 3.0], "b": [1, 0, 1]})
    seen = []

    def scaled(value):
        seen.append(value)
        return float((torch.ones(2) * value).sum())

    def f(x, late):
        y = x + table["a"].mean()
        if late:
            return y, table["a"].apply(scaled).tolist(), table.groupby("b")["a"].sum().tolist()
        return y, table.describe().to_dict()["a"]["max"]

    return Case(f, [(torch.ones(2), late) for late in (False, True, True)], watch=[seen])


def scipy_calls_back_with_tensors() -> Case:
    import scipy.optimize

    def loss(v):
        t = torch.tensor(v, requires_grad=True)
        out = ((t - 3) ** 2).sum()
        out.backward()
        return out.item(), t.grad.numpy()

    def f(x):
        result = scipy.optimize.minimize(loss, [0.0, 1.0], jac=True, method="BFGS")
        return x + round(float(result.x[0]), 4), bool(result.success)

    return Case(f, _xs())


def paths_and_pickles() -> Case:
    def f(x, n):
        path = pathlib.PurePosixPath("a") / f"{n}.pt"
        buffer = io.BytesIO()
        torch.save({"x": x * n}, buffer)
        buffer.seek(0)
        again = torch.load(buffer)["x"]
        other = pickle.loads(pickle.dumps((x, [x, n])))
        return again + other[1][0], path.stem, other[0] is other[1][0], path.with_suffix(".txt").name

    return Case(f, [(torch.ones(2), n) for n in (1, 2, 3)])


def a_figure_of_results() -> Case:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    def f(x):
        y = (x * 2).sin()
        figure = Figure()
        canvas = FigureCanvasAgg(figure)
        (line,) = figure.add_subplot().plot(y.detach().numpy())
        canvas.draw()
        return y, line.get_ydata().sum().item(), len(bytes(canvas.buffer_rgba()))

    return Case(f, _xs(n=2))


def a_sort_key_that_computes_late() -> Case:
    def key(item):
        return float((item * 2).sum()) if isinstance(item, torch.Tensor) else item

    def f(x, items):
        best = sorted(items, key=key)[0]
        order = list(map(key, items))
        return x + best, order, functools.reduce(operator.add, order)

    return Case(f, [(torch.ones(2), items) for items in ([2, 1], [torch.ones(2), 1], [3, torch.zeros(2)])])


def a_deep_copy_of_a_model() -> Case:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model.note = ["a"]

    def f(x):
        other = copy.deepcopy(model)
        other.note.append("b")
        other[0].weight.data.zero_()
        y = model(x) + other(x)
        print(len(other.note))
        return y, other.note, model.note, other[1].num_batches_tracked.item()

    return Case(f, [(torch.rand(4, 3),) for _ in range(3)], watch=[model])


def a_model_in_training_and_not() -> Case:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))

    def f(x):
        return model(x), model.training

    return Case(
        f,
        [(torch.rand(4, 3),) for _ in range(4)],
        watch=[model],
        backward=True,
        before=[lambda: None, model.eval, model.train, lambda: model[1].eval()],
    )


def the_class_of_an_object_changes() -> Case:
    class A:
        scale = 2.0

        def run(self, x):
            return x * self.scale

    class B(A):
        scale = 3.0

        def run(self, x):
            self.ran = True
            return super().run(x) + 1

    obj = A()

    def f(x):
        return obj.run(x)

    def to_b():
        obj.__class__ = B

    def patched():
        A.run = lambda self, x: x - self.scale

    return Case(f, _xs(n=4), watch=[obj], before=[lambda: None, to_b, patched, lambda: setattr(B, "scale", 9.0)])


def fields_with_factories() -> Case:
    @dataclasses.dataclass
    class Config:
        sizes: list = dataclasses.field(default_factory=list)
        rate: float = 0.5
        t: torch.Tensor | None = None

        def __post_init__(self):
            self.sizes.append(len(self.sizes))

    config = Config()

    def f(x, n):
        other = dataclasses.replace(config, rate=float(n))
        config.sizes.append(n)
        other.t = x * other.rate
        print(len(other.sizes))
        made = Config([n])
        return other.t + sum(made.sizes), other.sizes is config.sizes, dataclasses.asdict(made)

    return Case(f, [(torch.ones(2), n) for n in (1, 2, 3)], watch=[config])


def a_default_dtype_set_inside() -> Case:
    def f(x, dtype):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            y = torch.ones(3) + 0.5
            z = torch.tensor(1.5)
            if dtype is torch.float64:
                raise ValueError
            return y, z, x
        except ValueError:
            return y.sum(), z * x
        finally:
            torch.set_default_dtype(before)

    return Case(f, [(torch.ones(3), d) for d in (torch.float32, torch.float64, torch.bfloat16)])


def deterministic_and_seeds() -> Case:
    def f(x, n):
        torch.use_deterministic_algorithms(n == 2)
        try:
            torch.manual_seed(n)
            y = x + torch.rand(3)
            with torch.random.fork_rng():
                z = torch.rand(3)
            return y * torch.rand(3) + z, torch.are_deterministic_algorithms_enabled()
        finally:
            torch.use_deterministic_algorithms(False)

    return Case(f, [(torch.ones(3), n) for n in (1, 2, 3)])


def many_shapes_and_numbers() -> Case:
    log = []

    def f(x, n):
        log.append(n)
        y = x * n
        if n % 2:
            y = y.sum(0)
        log[-1] += len(x)
        return y + len(log) % 3

    return Case(f, [(torch.ones(1 + n % 3, 2), n) for n in range(6)], watch=[log])


def a_namespace_and_a_mapping_proxy() -> Case:
    space = types.SimpleNamespace(n=1, t=torch.ones(2))
    proxy = types.MappingProxyType(vars(space))

    def f(x, name):
        setattr(space, name, getattr(space, name, 0) + 1)
        y = x * proxy["n"] + proxy["t"]
        print(len(proxy))
        del space.t
        space.t = y
        return y, list(proxy), proxy.get(name)

    return Case(f, [(torch.ones(2), name) for name in ("n", "m", "n")], watch=[space])


def a_weak_set_and_a_proxy() -> Case:
    class Item:
        def __init__(self, n):
            self.n = n

    items = [Item(1), Item(2)]
    weak = weakref.WeakSet(items)
    proxy = weakref.proxy(items[0])

    def f(x, k):
        y = x * sum(item.n for item in weak)
        proxy.n += k
        if len(items) > 1 and k == 2:
            weak.discard(items[1])
        return y + proxy.n, len(weak)

    return Case(f, [(torch.ones(2), k) for k in (1, 2, 3)], watch=[items])


def cached_functions_and_methods() -> Case:
    calls = []

    @functools.lru_cache(maxsize=2)
    def table(n):
        calls.append(n)
        return torch.arange(float(n))

    class Model:
        @functools.cached_property
        def weight(self):
            calls.append("weight")
            return torch.ones(3) * len(calls)

    model = Model()

    def f(x, n):
        y = x * model.weight + table(n).sum()
        print(table.cache_info().hits)
        if n == 4:
            del model.weight
            table.cache_clear()
        return y + table(n + 1)[0], len(calls)

    return Case(f, [(torch.ones(3), n) for n in (2, 3, 4, 3)], watch=[calls])


def a_metaclass_that_counts() -> Case:
    class Registry(type):
        made = []

        def __call__(cls, *args, **kwargs):
            obj = super().__call__(*args, **kwargs)
            Registry.made.append(cls.__name__)
            return obj

    class Layer(metaclass=Registry):
        def __init__(self, n):
            self.n = n

        def __call__(self, x):
            return x * self.n

        def __init_subclass__(cls, **kwargs):
            Registry.made.append(cls.__name__ + "!")

    def f(x, n):
        y = Layer(n)(x)
        if n > 1:

            class Sub(Layer):
                def __call__(self, x):
                    return super().__call__(x) + 1

            y = Sub(n)(y)
        return y, len(Registry.made)

    return Case(f, [(torch.ones(3), n) for n in (1, 2, 3)], watch=[Registry.made])


def operators_that_fall_back() -> Case:
    log = []

    class Scale:
        def __init__(self, n):
            self.n = n

        def __mul__(self, other):
            log.append("mul")
            return NotImplemented if isinstance(other, torch.Tensor) else self.n * other

        def __rmul__(self, other):
            log.append("rmul")
            return other * self.n

        def __matmul__(self, other):
            print("matmul")
            return other @ other

        def __iadd__(self, other):
            self.n = self.n + other
            return self

        def __index__(self):
            return int(self.n)

        def __format__(self, spec):
            return f"<{spec}:{self.n}>"

    scale = Scale(2)

    def f(x, n):
        nonlocal scale
        y = x * scale if n != 2 else scale @ x
        try:
            y = scale * y
        except TypeError:
            y = y - 1
        scale += n
        return y, [1, 2, 3, 4, 5, 6, 7, 8, 9][scale], f"{scale:a}"

    return Case(f, [(torch.ones(3), n) for n in (1, 2, 3)], watch=[log, lambda: scale])
