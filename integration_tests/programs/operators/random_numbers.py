"""Operators that draw random numbers, used and unused: the state of the generator afterwards is part of the result."""

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import distributions, nn

from integration_tests.harness.differential import Case
from integration_tests.programs.families import Family, nothing

family = Family()
AROUND = (nothing, torch.inference_mode, torch.no_grad)
HALF = torch.full((2, 4), 0.5)


def _recurrent(kind: type[nn.Module]) -> Callable[..., Any]:
    def draw(x):
        torch.manual_seed(7)
        return kind(4, 3, 2, dropout=0.5)(x.view(1, 2, 4))[0]

    return draw


#: name -> what draws, given 2 by 4 numbers
DRAWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "dropout_in_place": lambda x: F.dropout(x * 1, 0.5, inplace=True),
    "dropout_of_everything": lambda x: F.dropout(x, 1.0),
    "dropout_of_nothing": lambda x: F.dropout(x, 0.0),
    "dropout1d": lambda x: F.dropout1d(x, 0.5),
    "dropout2d": lambda x: F.dropout2d(x.view(1, 2, 2, 2), 0.5),
    "dropout3d": lambda x: F.dropout3d(x.view(1, 2, 2, 2, 1), 0.5),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, training=True),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x.view(1, 2, 4), 0.5, training=True),
    "native_dropout": lambda x: torch.native_dropout(x, 0.5, True),
    "bernoulli": lambda x: torch.bernoulli(HALF),
    "bernoulli_number": lambda x: torch.bernoulli(x, 0.3),
    "bernoulli_method": lambda x: HALF.bernoulli(),
    "binomial": lambda x: torch.binomial(torch.full((3,), 10.0), torch.full((3,), 0.5)),
    "poisson": lambda x: torch.poisson(HALF * 4),
    "normal_of_tensors": lambda x: torch.normal(x, HALF),
    "normal_of_numbers": lambda x: torch.normal(0.0, 2.0, (3,)),
    "normal_of_both": lambda x: torch.normal(x, 1.0),
    "rand": lambda x: torch.rand(3),
    "rand_empty": lambda x: torch.rand(0),
    "randn": lambda x: torch.randn(2, 2),
    "randn_double": lambda x: torch.randn(17, dtype=torch.float64),
    "randint": lambda x: torch.randint(3, 9, (4,)),
    "randperm": lambda x: torch.randperm(5),
    "rand_like": lambda x: torch.rand_like(x),
    "randn_like": lambda x: torch.randn_like(x.t()),
    "randint_like": lambda x: torch.randint_like(x, 7),
    "rand_out": lambda x: torch.rand(3, out=torch.empty(3)),
    "multinomial": lambda x: torch.multinomial(HALF, 2),
    "multinomial_with_replacement": lambda x: torch.multinomial(HALF, 6, replacement=True),
    "standard_gamma": lambda x: torch._standard_gamma(HALF),
    "dirichlet": lambda x: torch._sample_dirichlet(HALF),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "rrelu_in_place": lambda x: F.rrelu_(x * 1, training=True),
    "rrelu_evaluating": lambda x: F.rrelu(x, training=False),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x, hard=True),
    "lstm": _recurrent(nn.LSTM),
    "gru": _recurrent(nn.GRU),
    "rnn": _recurrent(nn.RNN),
    "attention_with_dropout": lambda x: F.scaled_dot_product_attention(*[x.view(1, 1, 2, 4)] * 3, dropout_p=0.5),
    "fractional_pooling": lambda x: F.fractional_max_pool2d(x.view(1, 1, 2, 4), 2, output_size=(1, 2)),
    "uniform_": lambda x: torch.empty(3).uniform_(),
    "normal_": lambda x: torch.empty(3).normal_(1, 2),
    "exponential_": lambda x: torch.empty(3).exponential_(),
    "geometric_": lambda x: torch.empty(3).geometric_(0.5),
    "log_normal_": lambda x: torch.empty(3).log_normal_(),
    "cauchy_": lambda x: torch.empty(3).cauchy_(),
    "random_": lambda x: torch.empty(3).random_(),
    "random_range_": lambda x: torch.zeros(3, dtype=torch.int64).random_(2, 9),
    "bernoulli_": lambda x: torch.empty(2, 4).bernoulli_(HALF),
    "bernoulli_number_": lambda x: torch.empty(3).bernoulli_(0.5),
    "on_a_slice": lambda x: torch.zeros(6)[::2].normal_(),
    "on_a_transposed": lambda x: torch.zeros(2, 3).t().uniform_(),
    "of_sixteen_and_more": lambda x: torch.randn(17) + torch.randn(16).sum(),
    "of_a_distribution": lambda x: distributions.Normal(x, 1.0).sample(),
    "of_a_reparametrized_one": lambda x: distributions.Gamma(HALF, HALF).rsample(),
    "of_categories": lambda x: distributions.Categorical(probs=HALF).sample(),
    "of_an_initializer": lambda x: nn.init.xavier_normal_(torch.empty(3, 3)),
    "low_rank": lambda x: torch.svd_lowrank(torch.eye(4) + x[0], q=2)[1],
    "seed_set": lambda x: torch.manual_seed(3) and torch.rand(2),
    "state_put_back": lambda x: (torch.get_rng_state(), torch.rand(2))[1],
}


def used(draw: Callable[..., Any]) -> Case:
    """The result is returned, and what is drawn behind it."""

    def f(x):
        return draw(x), torch.rand(2)

    return Case(f, [(torch.linspace(-1, 1, 8).view(2, 4),) for _ in AROUND], around=AROUND, rtol=1e-4)


def unused(draw: Callable[..., Any]) -> Case:
    """The result is dropped; what is drawn before and behind it is not."""

    def f(x):
        before = torch.rand(1)
        draw(x)
        return before, x * 2, torch.rand(2)

    return Case(f, [(torch.linspace(-1, 1, 8).view(2, 4),) for _ in AROUND], around=AROUND)


def alone(draw: Callable[..., Any]) -> Case:
    """Nothing else is drawn, and the result is not returned: only the generator shows it."""

    def f(x):
        made = draw(x)
        del made
        return x + 1

    return Case(f, [(torch.linspace(-1, 1, 8).view(2, 4),) for _ in AROUND], around=AROUND)


for _name, _draw in DRAWS.items():
    for _kind in (used, unused, alone):
        family.programs[f"{_name}__{_kind.__name__}"] = functools.partial(_kind, _draw)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "dropout_layer": lambda: nn.Dropout(0.5),
    "recurrent_layer": lambda: nn.LSTM(4, 3, 2, dropout=0.5),
    "gated_layer": lambda: nn.GRU(4, 3, 2, dropout=0.5, bidirectional=True),
    "attention_layer": lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True),
    "leaky_layer": lambda: nn.RReLU(),
}


def layer_training_and_not(make: Callable[[], nn.Module], keep: bool) -> Case:
    """A layer that draws in training only, called in both states, its result used or not."""
    layer = make()

    def f(x):
        y = layer(x)
        return (y, torch.rand(1)) if keep else (x * 2, torch.rand(1))

    steps = [layer.train, layer.eval, layer.train, layer.eval]
    around = (nothing, nothing, torch.inference_mode, torch.inference_mode)
    return Case(f, [(torch.linspace(-1, 1, 8).view(1, 2, 4),)] * 4, before=steps, around=around, rtol=1e-4)


for _name, _make in LAYERS.items():
    for _keep in (True, False):
        name = f"{_name}__{'used' if _keep else 'unused'}"
        family.programs[name] = functools.partial(layer_training_and_not, _make, _keep)


@family.program
def own_generator_used() -> Case:
    generator = torch.Generator().manual_seed(5)

    def f(x):
        return torch.rand(2, generator=generator), x + torch.randn(2, generator=generator)

    return Case(f, [(torch.ones(2),)] * 3, watch=[generator])


@family.program
def own_generator_unused() -> Case:
    generator = torch.Generator().manual_seed(5)

    def f(x):
        torch.rand(2, generator=generator)
        torch.empty(3).normal_(generator=generator)
        torch.bernoulli(torch.full((2,), 0.5), generator=generator)
        return x * 2

    return Case(f, [(torch.ones(2),)] * 3, watch=[generator])


@family.program
def own_generator_passed_and_seeded_inside() -> Case:
    generators = [torch.Generator().manual_seed(seed) for seed in (5, 6)]

    def f(x, generator):
        first = torch.randperm(4, generator=generator)
        generator.manual_seed(9)
        return first, torch.multinomial(torch.ones(4), 2, generator=generator), x + torch.rand(1)

    calls = [(torch.ones(2), generators[k]) for k in (0, 1, 0, 0)]
    return Case(f, calls, watch=[generators])


@family.program
def state_saved_and_restored() -> Case:
    def f(x):
        state = torch.get_rng_state()
        first = torch.rand(2)
        torch.set_rng_state(state)
        again = torch.rand(2)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            inside = torch.rand(1)
        return first, again, inside, torch.rand(1) + x

    return Case(f, [(torch.ones(2),)] * 3)


@family.program
def seeds_asked() -> Case:
    def f(x):
        torch.manual_seed(11)
        a = torch.rand(1)
        return a + x, torch.initial_seed()

    return Case(f, [(torch.ones(2),)] * 2)


@family.program
def drawn_in_a_branch() -> Case:
    def f(x, flag):
        if flag:
            torch.rand(3)
        noise = torch.rand(2) if x.shape[0] == 2 else torch.randn(3)
        return x + noise

    calls = [(torch.ones(n), flag) for n, flag in ((2, True), (2, False), (3, True), (3, False), (2, True))]
    return Case(f, calls)


@family.program
def drawn_then_raised() -> Case:
    log: list = []

    def f(x, index):
        torch.rand(3)
        log.append("drawn")
        y = x[index]
        torch.rand(3)
        log.append("again")
        return y

    return Case(f, [(torch.ones(3), torch.tensor([at])) for at in (1, 9, 2, 9)], watch=[log])


@family.program
def drawn_around_a_break() -> Case:
    def f(x):
        torch.rand(1)
        a = torch.rand(2)
        print("between")
        torch.randn(2)
        F.dropout(x, 0.5)
        return a + x

    return Case(f, [(torch.ones(2),)] * 3)


@family.program
def drawn_with_numpy_and_python() -> Case:
    np.random.seed(3)
    rng = np.random.default_rng(4)

    def f(x):
        k = random.random() + float(np.random.rand()) + float(rng.random())
        torch.rand(1)
        random.random()
        return x * k, np.random.randint(100), random.randint(0, 100)

    return Case(f, [(torch.ones(2),)] * 3)


@family.program
def drawn_for_a_gradient() -> Case:
    weight = torch.ones(4, requires_grad=True)

    def f(x):
        F.dropout(weight, 0.5)
        y = F.dropout(x * weight, 0.5)
        torch.rand_like(weight)
        return y * torch.rand(1)

    return Case(f, [(torch.ones(4),)] * 3, backward=True, watch=[weight])


family.warm_only.update(family.programs)
