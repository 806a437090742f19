"""The suites of the command line, by name."""

from __future__ import annotations

from typing import NamedTuple


class Suite(NamedTuple):
    """A suite: its module lies in `folder` and has a function `run` that returns rows."""

    folder: str
    about: str
    #: takes the options that choose rows of a registry
    selective: bool = False
    #: its cases are shared by processes
    shared: bool = False
    #: runs on other devices than the CPU, too
    anywhere: bool = False


SUITES = {
    "calls": Suite("calls", "time of a call around a graph that does next to nothing"),
    "captured_passes": Suite(
        "calls", "training steps heavy in hooks or accumulation, with and without compile_backward"
    ),
    "checkpoint_programs": Suite(
        "calls", "programs with activation checkpoints: graphs and breaks, time of a step", selective=True
    ),
    "checkpoints": Suite(
        "models", "training steps with activation checkpoints: seconds and peak memory, beside eager's", selective=True
    ),
    "compile_time": Suite("calls", "seconds of a first call, in fresh processes", selective=True, anywhere=True),
    "control_flow": Suite("calls", "control flow and scans: graphs and breaks, time of a step", selective=True),
    "cubins": Suite(
        "kernels",
        "machine code of the cuda backend's kernels: registers, spills, shared memory; needs no GPU",
        selective=True,
    ),
    "dynamic": Suite("models", "sentences of changing lengths through a small transformer"),
    "flex_attention": Suite(
        "kernels", "flex attention on the CPU: score and mask functions, checked against eager", selective=True
    ),
    "foreign": Suite("calls", "code without tensors inside compiled functions"),
    "functions_and_transforms": Suite(
        "calls", "autograd Functions and torch.func programs: graphs, time of a step", selective=True
    ),
    "generation": Suite("models", "text generated token by token with a cache that grows"),
    "gpu_models": Suite(
        "models",
        "whole models in all modes, compiled by many processes against a deadline, timed by one at a time",
        selective=True,
        shared=True,
        anywhere=True,
    ),
    "guards": Suite("calls", "time of guards over many inputs"),
    "hooks": Suite("calls", "training steps of a small model with hooks of modules and tensors, and made leaves"),
    "instructions": Suite(
        "kernels", "machine code of elementary functions on the CPU, for all kinds of processors", selective=True
    ),
    "interpreted": Suite(
        "kernels", "kernels of the cuda backend in Triton's interpreter, checked against eager", selective=True
    ),
    "kernels": Suite("kernels", "single kernels of all kinds, checked against eager", selective=True, anywhere=True),
    "large_kernels": Suite(
        "kernels",
        "memory-bound kernels at sizes for a large GPU, as shares of a copy's bandwidth",
        selective=True,
        shared=True,
        anywhere=True,
    ),
    "launches": Suite("kernels", "launch overhead of a CUDA kernel beside the driver; needs no GPU"),
    "memory": Suite(
        "models", "memory, tensors and operator calls of a step of whole models, and of compiling it", selective=True
    ),
    "models": Suite("models", "whole models, inference and training", selective=True, anywhere=True),
    "optimizers": Suite("kernels", "optimizer steps over 60 and 500 small tensors", selective=True),
    "second_derivatives": Suite(
        "models",
        "gradient penalties, Hessians times vectors and MAML: the module compiled, or the whole step",
        selective=True,
    ),
    "whole_steps": Suite(
        "models", "training steps with backward() inside: graphs, first steps, later ones, peak memory", selective=True
    ),
}


def module_of(suite: str) -> str:
    """Return the name of a suite's module."""
    return f"benchmarks.suites.{SUITES[suite].folder}.{suite}"
