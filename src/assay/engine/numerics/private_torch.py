"""Private names of torch that the engine uses, each with its reason and its stand-in.

Tried with torch 2.6 to 2.13. Nothing else in the engine names them. Where a name is gone, a slower
or a coarser way takes its place, and the docstring says which; a test takes each of them away.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd import graph as graph_module
from torch.optim import Optimizer
from torch.optim import optimizer as optimizer_module
from torch.utils.data import _utils as data_utils

from assay.engine.numerics.structures import tensors_in

# ------------------------------------------------------------------------------- lists of tensors

Tensors = Sequence[Tensor]


def _norm_each(tensors: Tensors) -> list[Tensor]:
    return [torch.linalg.vector_norm(tensor) for tensor in tensors]


def _multiply_each_(tensors: Tensors, factor: Any) -> None:
    for tensor in tensors:
        tensor.mul_(factor)


def _divide_each_(tensors: Tensors, divisor: Any) -> None:
    for tensor in tensors:
        tensor.div_(divisor)


def _add_each_(tensors: Tensors, others: Tensors) -> None:
    for tensor, other in zip(tensors, others, strict=True):
        tensor.add_(other)


def _subtract_each(tensors: Tensors, others: Tensors) -> list[Tensor]:
    return [tensor - other for tensor, other in zip(tensors, others, strict=True)]


def _lerp_each(tensors: Tensors, ends: Tensors, weight: float) -> list[Tensor]:
    return [tensor.lerp(end, weight) for tensor, end in zip(tensors, ends, strict=True)]


def _lerp_each_(tensors: Tensors, ends: Tensors, weight: float) -> None:
    for tensor, end in zip(tensors, ends, strict=True):
        tensor.lerp_(end, weight)


def _copy_each_(tensors: Tensors, sources: Tensors) -> None:
    for tensor, source in zip(tensors, sources, strict=True):
        tensor.copy_(source)


def _check_and_unscale_each_(tensors: Tensors, found: Tensor, inverse_scale: Tensor) -> None:
    for tensor in tensors:
        if not bool(tensor.isfinite().all()):
            found.fill_(1.0)
        tensor.mul_(inverse_scale)


# One kernel for a list of tensors on a GPU, one call on a CPU. torch's own optimizers are built on
# them. Without them: a loop with one call for each tensor.
foreach_norm = getattr(torch, "_foreach_norm", _norm_each)
foreach_mul_ = getattr(torch, "_foreach_mul_", _multiply_each_)
foreach_div_ = getattr(torch, "_foreach_div_", _divide_each_)
foreach_add_ = getattr(torch, "_foreach_add_", _add_each_)
foreach_sub = getattr(torch, "_foreach_sub", _subtract_each)
foreach_lerp = getattr(torch, "_foreach_lerp", _lerp_each)
foreach_lerp_ = getattr(torch, "_foreach_lerp_", _lerp_each_)
foreach_copy_ = getattr(torch, "_foreach_copy_", _copy_each_)

# The check of `torch.amp.GradScaler`: sets `found` to 1.0 where a value is not finite, and
# multiplies by `inverse_scale`. It costs a fifth of a norm. Without it: a loop, which waits for
# the device.
check_and_unscale_ = getattr(
    torch, "_amp_foreach_non_finite_check_and_unscale_", _check_and_unscale_each_
)


# ---------------------------------------------------------------------------------- modules


def buffers_of(module: nn.Module) -> dict[str, Tensor | None]:
    """Return the module's own table of buffers, which can be written to.

    `named_buffers` gives copies of the names only; a buffer that user code has put in the place of
    another has to be put back under its name. Documented by `register_buffer`, and unchanged since
    torch 0.4.
    """
    table: dict[str, Tensor | None] = module._buffers
    return table


def children_of(module: nn.Module) -> dict[str, nn.Module | None]:
    """Return the module's own table of children, as `buffers_of` does."""
    table: dict[str, nn.Module | None] = module._modules
    return table


_HOOKS = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"),
)


def hooks_of(thing: nn.Module | Optimizer) -> dict[str, dict[int, Any]]:
    """Return the tables of hooks of a module or an optimizer; without the names: none."""
    found = {name: vars(thing).get(name) for name in _HOOKS}
    return {name: table for name, table in found.items() if table}


def passing_buffers_of(module: nn.Module) -> set[str]:
    """Return the names of a module's own buffers that are not persistent. There is no stand-in."""
    names: set[str] = module._non_persistent_buffers_set
    return names


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Return the module's own table of parameters, which can be written to, as `buffers_of`."""
    table: dict[str, nn.Parameter | None] = module._parameters
    return table


def version_of(tensor: Tensor) -> int:
    """Return the count of writes into the memory of `tensor`.

    autograd's own count: it shows a change without a look at the values. There is no stand-in.
    """
    return tensor._version


def is_view(tensor: Tensor) -> bool:
    """Return whether autograd sees `tensor` as a view. There is no stand-in."""
    return tensor._is_view()


# Batch and instance normalisation. They write their running statistics without a change of the
# count of `version_of`. Without the name: the classes that torch derives from it.
Normalisation: tuple[type[nn.Module], ...] = (
    getattr(nn.modules.batchnorm, "_NormBase", nn.BatchNorm2d),
    nn.SyncBatchNorm,
    nn.BatchNorm1d,
    nn.BatchNorm3d,
)


def compiled_call(module: nn.Module) -> Callable[..., Any] | None:
    """Return the compiled code of a module, None if it was not compiled by `Module.compile`."""
    return getattr(module, "_compiled_call_impl", None)


def set_compiled_call(module: nn.Module, call: Callable[..., Any] | None) -> None:
    """Set or take away the compiled code of a module, as `Module.compile` would.

    Without the name the module runs as it was written.
    """
    module._compiled_call_impl = call


def plain_call(module: nn.Module) -> Callable[..., Any]:
    """Return the call of a module with its hooks, and without its compiled code."""
    call: Callable[..., Any] = module._call_impl
    return call


def compiler_counts() -> tuple[int, dict[str, int]]:
    """Return the number of graphs compiled so far in this OS process, and graph breaks by reason.

    Without the name both are 0 and empty.
    """
    try:
        # Loading it takes a second: only who compiles pays.
        from torch._dynamo.utils import counters
    except ImportError:
        return 0, {}
    return counters["stats"]["unique_graphs"], dict(counters["graph_break"])


def compiler_or_eager(backend: str, tell: Callable[[Exception], None]) -> Callable[..., Any] | str:
    """Return a backend of torch.compile that runs a graph as it is when it cannot compile it.

    `tell` gets the error. Without the name it is the backend itself, whose error ends the run.
    """
    try:
        from torch._dynamo import lookup_backend
    except ImportError:
        return backend

    def compile_graph(graph: Any, inputs: Any) -> Any:
        try:
            return lookup_backend(backend)(graph, inputs)
        except Exception as error:  # of a C++ compiler, of Triton, of torch: any of them may fail
            tell(error)
            return graph.forward

    return compile_graph


COMPILER_MODULE = "torch._dynamo"
"""Module of torch that is loaded once something was compiled."""


# ------------------------------------------------------------------------------- sparse, DTensor


def sparse_indices(tensor: Tensor) -> Tensor:
    """Return the indices of a tensor in coordinate layout.

    `Tensor.indices` refuses one that is not coalesced. There is no stand-in.
    """
    return tensor._indices()


def sparse_values(tensor: Tensor) -> Tensor:
    """Return the values of a tensor in coordinate layout, as `sparse_indices`."""
    return tensor._values()


LOCAL_TENSOR = "_local_tensor"
"""Attribute of a DTensor: the local part, in the same memory.

The class lies in a module that takes long to load, and `to_local` would make a new tensor and an
entry in the graph of autograd. Without the name all tensors count as whole.
"""


# ------------------------------------------------------------------------------------- optimizers


def supports_found_inf(optimizer: Optimizer) -> bool:
    """Return whether `found_inf` makes a step of the optimizer a no-op, as in torch's fused ones.

    Without the name: no, and the host reads the numbers of each step.
    """
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


# Hooks around every step of any optimizer. In a torch that has them elsewhere, somebody always is
# called, and `optimizer.step()` runs as it is.
_GLOBAL_HOOKS: tuple[Mapping[Any, Any], ...] = tuple(
    getattr(optimizer_module, name, {0: None})
    for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
)


def has_step_hooks(optimizer: Any) -> bool:
    """Return whether a hook is called around a step of the optimizer."""
    own = getattr(optimizer, "_optimizer_step_pre_hooks", True) or getattr(
        optimizer, "_optimizer_step_post_hooks", True
    )
    return bool(own) or any(_GLOBAL_HOOKS)


# Whether somebody makes a profile. Without the name: always.
is_profiled: Callable[[], bool] = getattr(torch.autograd, "_profiler_enabled", lambda: True)


# ----------------------------------------------------------------------------------- backward pass

# `torch.autograd.backward` behind its checks of arguments, which compare shapes as if they were
# symbols: 9 % of a bare step. Without the name: with those checks.
_run_backward = getattr(graph_module, "_engine_run_backward", None)


def backward(loss: Tensor, grad: Tensor) -> None:
    """`loss.backward(grad)` for a loss and a gradient of one shape, dtype and device."""
    if _run_backward is None or type(loss) is not Tensor:
        torch.autograd.backward(loss, grad)
        return
    # As torch calls it: keep the graph, create a graph, the inputs (none: all leaves).
    _run_backward((loss,), (grad,), False, False, (), allow_unreachable=True, accumulate_grad=True)


# ------------------------------------------------------------------------------- seeing operations

# Number of the backward pass that runs on this thread, -1 outside of one. Without it operations of
# the backward pass are told as forward.
current_backward: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)

try:
    # Documented way to see every operation ("Extending PyTorch"), under a path with an underscore.
    # Without it memory and FLOPs of a rehearsal stay unknown, and a trace sees no operation.
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError:
    TorchDispatchMode = None  # type: ignore[assignment, misc]

if TYPE_CHECKING or TorchDispatchMode is not None:
    DispatchMode = TorchDispatchMode
else:

    class DispatchMode:
        """Stand-in that sees nothing."""

        def __enter__(self) -> DispatchMode:
            return self

        def __exit__(self, *error: object) -> None:
            pass


def can_see_operations() -> bool:
    """Return whether a `DispatchMode` sees operations."""
    return TorchDispatchMode is not None


def operation_name(operation: Any) -> str:
    """Return the name of an operation without its overload, such as `add` of `add.Tensor`."""
    return str(overload_packet(operation).__name__)


def overload_packet(operation: Any) -> Any:
    """Return all overloads of an operation together, which `flop_registry` has as its keys."""
    return operation._overloadpacket


def schema_of(operation: Any) -> Any:
    """Return the schema of an operation: its arguments, its results, and which are aliases."""
    return operation._schema


def written_by(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield the tensors among the arguments that an operation writes into."""
    arguments = schema_of(operation).arguments
    named = dict(zip((each.name for each in arguments), args, strict=False))
    for each in arguments:
        if each.alias_info is not None and each.alias_info.is_write:
            yield from tensors_in(named.get(each.name, kwargs.get(each.name)))


def gives_tensors(operation: Any) -> bool:
    """Return whether tensors are among the results of an operation."""
    return any("Tensor" in str(each.type) for each in schema_of(operation).returns)


# ------------------------------------------------------------------------------------ fake tensors

# Tensors with a shape, a dtype and a device, and no memory. torch.compile and torch.export are made
# of them; they have no public name. Without them a step is tried for real, on the CPU.
try:
    from torch._subclasses import fake_tensor
except ImportError:
    fake_tensor = None  # type: ignore[assignment]
FakeTensor: Any = getattr(fake_tensor, "FakeTensor", None)
FakeTensorMode: Any = getattr(fake_tensor, "FakeTensorMode", None)
unset_fake_temporarily: Any = getattr(fake_tensor, "unset_fake_temporarily", None)


def new_fake_mode() -> Any:
    """Return a mode of fake tensors, which may be mixed with real ones and copied."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    mode.__deepcopy__ = lambda _: mode  # else a copy of a tensor would have another mode
    return mode


def forget_fakes(mode: Any) -> None:
    """Drop the weak references of a mode to tensors: torch refuses to swap a tensor that has some.

    The mode can do without. Where the names are gone they stay.
    """
    memo = getattr(getattr(mode, "fake_tensor_converter", None), "meta_converter", None)
    if memo is not None:
        memo.tensor_memo.clear()


@contextmanager
def with_fakes(mode: Any) -> Iterator[None]:
    """Let code compute with fake tensors of a mode within, and modules change dtype or device.

    Torch swaps tensors then, as in `model.bfloat16()`. It also logs a traceback for each operation
    that fails on fake tensors, and warns when one is copied: both are silenced.
    """
    warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
    swap = torch.utils.swap_tensors
    logger = logging.getLogger("torch._subclasses.fake_tensor")

    def swap_without_memo(one: Tensor, other: Tensor) -> None:
        forget_fakes(mode)
        swap(one, other)  # type: ignore[no-untyped-call]

    was_disabled, logger.disabled = logger.disabled, True
    torch.utils.swap_tensors = swap_without_memo
    try:
        yield
    finally:
        torch.utils.swap_tensors = swap
        logger.disabled = was_disabled


def fake_store() -> Any:
    """Return the class of stores of process groups whose collectives do nothing, or None.

    Made for torch's own tests. With it FSDP2 and tensor parallelism run unchanged as one rank of
    many. Without it a layout stays unchecked.
    """
    try:
        from torch.testing._internal.distributed.fake_pg import FakeStore
    except ImportError:
        return None
    return FakeStore


DTENSOR_PROPAGATION = "torch.distributed.tensor._sharding_prop"
"""Module of torch in whose frames DTensor finds out the shape of a result."""


# ------------------------------------------------------------------------------------ data workers


def set_worker_info(*, number: int, workers: int, seed: int, dataset: Any) -> None:
    """Set what `torch.utils.data.get_worker_info` returns in this OS process.

    Datasets that split themselves among workers ask it. Without the names it returns None there.
    """
    worker = getattr(data_utils, "worker", None)
    info = getattr(worker, "WorkerInfo", None)
    if worker is not None and info is not None:
        worker._worker_info = info(id=number, num_workers=workers, seed=seed, dataset=dataset)


def worker_processes(iterator: Any) -> list[BaseProcess]:
    """Return the worker processes of an iterator of torch's DataLoader; none without the name."""
    return list(getattr(iterator, "_workers", ()))


def forget_worker_pids(iterator: Any) -> None:
    """Let torch not raise the end of a worker wherever the main thread is.

    Without the names it does, and the loader names the worker all the same.
    """
    forget = getattr(getattr(data_utils, "signal_handling", None), "_remove_worker_pids", None)
    if forget is not None and getattr(iterator, "_worker_pids_set", False):
        forget(id(iterator))
        iterator._worker_pids_set = False


def end_workers(iterator: Any) -> None:
    """Kill the workers of an iterator of torch's DataLoader, and close its queues.

    Torch's own way asks them politely, over locks that a dead worker may hold, and waits 5 s for
    each that is busy. It is taken where the names are gone.
    """
    names = ("_workers", "_shutdown", "_index_queues", "_worker_result_queue")
    if not all(hasattr(iterator, name) for name in names):
        getattr(iterator, "_shutdown_workers", lambda: None)()
        return
    forget_worker_pids(iterator)
    iterator._shutdown = True  # torch has nothing left to do
    for process in iterator._workers:
        process.kill()
    for process in iterator._workers:
        process.join(_UNKILLABLE_S)
    for queue in (*iterator._index_queues, iterator._worker_result_queue):
        queue.cancel_join_thread()
        queue.close()


_UNKILLABLE_S = 5.0
"""Seconds to wait for a killed worker, which may be inside the kernel, for a disk that is gone."""
