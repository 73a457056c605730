"""Conditions on which the bits of a run depend: safe ones, bound ones, and traps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from assay.config.tree import Table, get_at, plain
from assay.core.errors import ConfigError
from assay.query.run import RunView

Kind = Literal["trap", "code", "bound", "safe"]
KINDS: Mapping[Kind, str] = {
    "trap": "two runs may differ although nothing was changed",
    "code": "depends on your code",
    "bound": "equal bits only with the same",
    "safe": "cannot make two runs differ",
}
"""Kinds of conditions with what each of them means, the worst first."""

_OWN = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "NVIDIA_VISIBLE_DEVICES", "TORCH_LOGS")
_SHOWN_ELSEWHERE = ("CUBLAS_WORKSPACE_CONFIG", "OMP_NUM_THREADS", "PYTHONHASHSEED")
_AXES = ("data", "shard", "tensor", "pipeline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Switch, version or setting with its value. `why` explains it, `remedy` says what to do."""

    name: str
    value: str
    kind: Kind
    why: str = ""
    remedy: str = ""


def conditions(view: RunView) -> list[Condition]:
    """Return the conditions of the newest attempt of a run, the worst first."""
    found = list(_Conditions(view).all())
    order = list(KINDS)
    return sorted(found, key=lambda each: order.index(each.kind))


class _Conditions:
    """The conditions of one run, from its config, launch and environment."""

    def __init__(self, view: RunView) -> None:
        attempts = view.file.attempts
        self.view = view
        self.attempt = attempts[-1] if attempts else None
        self.environment = view.environment
        self.variables: Mapping[str, str] = self.environment.get("variables", {})
        torch = self.environment.get("torch")
        self.torch: Mapping[str, Any] = torch if isinstance(torch, Mapping) else {}
        self.devices: Sequence[str] = self.attempt.devices if self.attempt is not None else ()
        self.on_gpu = any(not device.startswith("cpu") for device in self.devices)
        self.train = self._section("train")
        self.is_deterministic = bool(self.train.get("deterministic", False))

    def _section(self, *path: str) -> Mapping[str, Any]:
        try:
            node = get_at(self.view.config_tree, path)
        except ConfigError:  # a damaged config is told by other commands
            return {}
        return dict(plain(node)) if isinstance(node, Table) else {}

    def all(self) -> Iterator[Condition]:
        yield from self._randomness()
        yield from self._kernels()
        yield from self._arithmetic()
        yield from self._versions()
        yield from self._outside()

    def _randomness(self) -> Iterator[Condition]:
        seeds = self.attempt.seeds if self.attempt is not None else {}
        if "seed" in seeds:
            why = "keys weights, order of the samples, augmentation, dropout"
            yield Condition(name="seed", value=str(seeds["seed"]), kind="safe", why=why)
        else:
            why = "nothing keys the random generators of a script"
            remedy = "torch.manual_seed, numpy.random.seed and random.seed at its beginning"
            yield Condition(name="seed", value="not recorded", kind="code", why=why, remedy=remedy)
        yield from self._data()
        hashes = self.variables.get("PYTHONHASHSEED", "")
        if hashes.isdecimal():
            why = "a set of strings has one order in all OS processes"
            yield Condition(name="PYTHONHASHSEED", value=hashes, kind="safe", why=why)
        else:
            why = "a set of strings has another order in each OS process"
            remedy = "sort what you iterate over, or set PYTHONHASHSEED=0"
            value = hashes or "not set"
            yield Condition(name="PYTHONHASHSEED", value=value, kind="code", why=why, remedy=remedy)

    def _data(self) -> Iterator[Condition]:
        exactness = self.attempt.exactness if self.attempt is not None else ""
        claim, _, reason = exactness.partition(": ")
        if claim == "not exact":
            remedy = (
                "draw from torch, numpy or random only, and cache nothing drawn; or give the"
                " data set set_rng(key)"
            )
            yield Condition(name="data.train", value=claim, kind="trap", why=reason, remedy=remedy)
        elif exactness in ("exact (plan)", "exact (position)", "exact (a list)"):
            why = (
                "order and augmentation are keyed by seed, epoch and position; workers change "
                "nothing"
            )
            yield Condition(name="data.train", value=exactness, kind="safe", why=why)
        elif exactness:
            why = "only its own code knows whether it gives the same again after a resume"
            remedy = "give a data set and batch_size; or draw from torch, numpy and random only"
            yield Condition(name="data.train", value=exactness, kind="code", why=why, remedy=remedy)
        if "time" in self.train:
            why = "a clock ends the run, at another step each time"
            remedy = "train.steps or train.epochs in its place"
            value = str(self.train["time"])
            yield Condition(name="train.time", value=value, kind="trap", why=why, remedy=remedy)

    def _kernels(self) -> Iterator[Condition]:
        if self.devices:
            told = [*self.devices, *self.torch.get("devices", ())]
            value = ", ".join(dict.fromkeys(map(str, told)))
            why = "kernels of another kind of device, or of another GPU type, add in another order"
            yield Condition(name="device", value=value, kind="bound", why=why)
        value = str(self.is_deterministic).lower()
        if not self.on_gpu:
            why = "on a CPU torch gives the same bits each time, with the same number of threads"
            yield Condition(name="train.deterministic", value=value, kind="safe", why=why)
            return
        if self.is_deterministic:
            why = "torch.use_deterministic_algorithms: an op without such a form is an error"
            yield Condition(name="train.deterministic", value=value, kind="safe", why=why)
            return
        why = "scatter_add, index_add, atomics in backward passes and cuDNN add in no fixed order"
        remedy = "train.deterministic = true"
        yield Condition(
            name="train.deterministic", value=value, kind="trap", why=why, remedy=remedy
        )
        workspace = self.variables.get("CUBLAS_WORKSPACE_CONFIG", "")
        if workspace not in (":4096:8", ":16:8"):
            why = "cuBLAS picks its algorithm by the workspace of a stream: LSTM, GRU and matmul"
            remedy = "train.deterministic = true, or CUBLAS_WORKSPACE_CONFIG=:4096:8"
            name = "CUBLAS_WORKSPACE_CONFIG"
            value = workspace or "not set"
            yield Condition(name=name, value=value, kind="trap", why=why, remedy=remedy)
        if self.torch.get("cudnn_benchmark"):
            why = (
                "cuDNN times its algorithms and takes the fastest, which may be another one each "
                "time"
            )
            remedy = "train.deterministic = true, or torch.backends.cudnn.benchmark = False"
            yield Condition(
                name="cudnn.benchmark", value="true", kind="trap", why=why, remedy=remedy
            )

    def _arithmetic(self) -> Iterator[Condition]:
        threads = self.torch.get("threads")
        if threads is not None:
            by = self.variables.get("OMP_NUM_THREADS")
            value = f"{threads}" + (f" (OMP_NUM_THREADS={by})" if by else "")
            why = "sums are cut by threads; resume and replay use as many"
            yield Condition(name="threads", value=value, kind="bound", why=why)
        precision = str(self.train.get("precision", "fp32"))
        why = "fp32 products of a GPU are in tf32 only for tf32" if self.on_gpu else ""
        yield Condition(name="train.precision", value=precision, kind="bound", why=why)
        compiled = self.train.get("compile", False)
        if compiled:
            why = "compiled kernels round otherwise than eager ones, and by the version of torch"
            yield Condition(name="train.compile", value=_spell(compiled), kind="bound", why=why)
        launch = self.attempt.launch if self.attempt is not None else {}
        if "fused" in launch:
            why = "a fused update rounds otherwise than one parameter after another"
            value = _spell(launch["fused"])
            yield Condition(name="optimizer fused", value=value, kind="bound", why=why)
        layout = self._layout(launch)
        if layout:
            why = "sums over ranks are cut otherwise by another layout"
            yield Condition(name="processes", value=layout, kind="bound", why=why)
            if self.on_gpu and "NCCL_ALGO" not in self.variables:
                why = "NCCL picks the order of its sums by topology and version"
                remedy = "NCCL_ALGO=Ring and NCCL_PROTO=Simple fix it"
                yield Condition(
                    name="NCCL_ALGO", value="not set", kind="bound", why=why, remedy=remedy
                )

    def _layout(self, launch: Mapping[str, Any]) -> str:
        parallel = self._section("parallel")
        sizes = {axis: int(parallel[axis]) for axis in _AXES if int(parallel.get(axis, 1)) > 1}
        if sizes:
            return " x ".join(f"{axis} {size}" for axis, size in sizes.items())
        count = int(launch.get("nproc", 1)) * int(launch.get("nnodes", 1))
        return f"data {count}" if count > 1 else ""

    def _versions(self) -> Iterator[Condition]:
        packages = self.environment.get("packages", {})
        versions = {
            "python": self.environment.get("python"),
            "torch": self.torch.get("version"),
            "CUDA": self.torch.get("cuda") if self.on_gpu else None,
            "cuDNN": self.torch.get("cudnn"),
            "driver": self.environment.get("driver") if self.on_gpu else None,
            "numpy": packages.get("numpy"),
            "instructions": self.torch.get("cpu"),
        }
        value = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        if value:
            why = "other versions have other kernels; assay replay looks at them first"
            yield Condition(name="versions", value=value, kind="bound", why=why)

    def _outside(self) -> Iterator[Condition]:
        kept = [name for name in self.variables if name not in (*_OWN, *_SHOWN_ELSEWHERE)]
        if kept:
            value = ", ".join(f"{name}={self.variables[name]}" for name in sorted(kept))
            why = "variables that libraries read; assay replay sets them as they were"
            yield Condition(name="variables", value=value, kind="bound", why=why)
        changed = self.attempt.changed if self.attempt is not None else ()
        files = self.attempt.changed_code if self.attempt is not None else ()
        if changed or files:
            why = "changed between two attempts: one go from the first step on differs"
            remedy = "assay replay RUN@CKPT compares each attempt alone"
            value = ", ".join([*changed, *files])
            yield Condition(name="attempts", value=value, kind="bound", why=why, remedy=remedy)
        if not self.view.code.snapshot:
            why = "the code was not kept, or is not here: nobody can tell what ran"
            remedy = "keep the snapshot: assay pack takes it along"
            yield Condition(name="code", value="not kept", kind="code", why=why, remedy=remedy)


def _spell(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
