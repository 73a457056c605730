from __future__ import annotations

import copy
import functools
import gc
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NewType, Protocol

import pytest
import torch
from torch.utils.data import DataLoader

from assay.build.context import Context, context_here, current
from assay.build.context_entries import Promise
from assay.build.context_errors import ContextError
from assay.build.marks import inject, provides
from assay.build.parameters import Parameter, signature_of
from assay.core.errors import InputError
from assay.core.events import Event, Handler
from assay.engine import Supervised
from assay.engine.loop.bus import Bus

Config = NewType("Config", dict)  # type: ignore[type-arg]
Args = NewType("Args", dict)  # type: ignore[type-arg]


class Base: ...


class Net(Base): ...


class Optimizer: ...


@dataclass
class Writer:
    net: Net


def parameter(function: Callable[..., Any], name: str) -> Parameter:
    signature = signature_of(function)
    assert signature is not None
    return next(one for one in signature.named if one.name == name)


# --- names and types -------------------------------------------------------------------------------------------------


def test_what_is_set_is_found_by_name_by_type_and_by_base_type() -> None:
    context, net = Context(), Net()

    context.set("model", net)

    assert context.get("model") is net
    assert context.get(Net) is net
    assert context.get(Base) is net
    assert context.try_get("nothing") is None
    assert context.try_get(Optimizer, None) is None
    assert "model" in context and Net in context and "net" not in context and 3 not in context


def test_a_lookup_done_before_sees_what_is_set_after() -> None:
    context = Context()
    first, second = Net(), Net()
    context.set("model", first)
    assert context.get(Net) is first

    context.set("model", second)
    assert context.get(Net) is second and context.get("model") is second

    context.set("model", Optimizer())
    assert context.try_get(Net) is None


def test_a_missing_name_is_told_with_the_nearest_names_that_are_set() -> None:
    context = Context()
    with pytest.raises(ContextError, match="Nothing is set as `optimizer`"):
        context.get("optimizer")

    context.set("optimizer", Optimizer())
    with pytest.raises(ContextError, match="did you mean `optimizer`"):
        context.get("optimiser")
    with pytest.raises(ContextError, match="set are: optimizer"):
        context.get(Net)


def test_two_of_one_type_are_an_error_that_names_both() -> None:
    context = Context()
    context.set("generator", Net())
    context.set("critic", Net())

    with pytest.raises(ContextError, match=r"`generator` \(Net\) and `critic` \(Net\)"):
        context.get(Net)
    with pytest.raises(ContextError):
        context.try_get(Base)


def test_the_same_object_under_two_names_is_one() -> None:
    context, net = Context(), Net()

    context.set("model", net)
    context.set("net", net)

    assert context.get(Net) is net


def test_the_one_declared_with_a_type_is_the_one_of_that_type() -> None:
    context, chosen = Context(), Net()

    context.set("teacher", Net())
    context.set("model", chosen, type=Base)

    assert context.get(Base) is chosen


def test_a_declared_type_is_also_found_by_its_base() -> None:
    context = Context()

    context.set("stand_in", object(), type=Net)

    assert context.get(Base) is context.get("stand_in")


def test_a_second_object_of_a_type_is_noticed_however_it_came() -> None:
    context, net = Context(), Net()
    context.set("model", net)
    context.set("net", net)
    assert context.get(Net) is net

    context.set("net", Net())

    with pytest.raises(ContextError, match="More than one `Net`"):
        context.get(Net)


def test_a_newtype_alias_finds_what_was_declared_with_it() -> None:
    context = Context()

    context.set("config", {"lr": 1}, type=Config)
    context.set("args", {"lr": 2}, type=Args)

    assert context.get(Config) == {"lr": 1}
    assert context.get(Args) == {"lr": 2}


@pytest.mark.parametrize(
    "kind", [int, str, dict, list, object, bool, list[int], Iterable, int | str, Any]
)
def test_builtin_types_are_never_looked_up(kind: Any) -> None:
    context = Context()
    context.set("count", 3)
    context.set("name", "x")

    with pytest.raises(ContextError, match="says too little"):
        context.get(kind)


def test_a_protocol_that_cannot_be_asked_finds_nothing() -> None:
    class Speaks(Protocol):
        def speak(self) -> None: ...

    context = Context()
    context.set("model", Net())

    assert context.try_get(Speaks) is None


# --- providers -------------------------------------------------------------------------------------------------------


@pytest.mark.row("D03")
def test_a_module_groups_providers_and_each_is_called_once() -> None:
    class Providers:
        def __init__(self) -> None:
            self.calls: list[str] = []

        @provides
        def net(self) -> Net:
            self.calls.append("net")
            return Net()

        @provides(name="writer", type=Writer)
        def make_writer(self, net: Net) -> Any:
            self.calls.append("writer")
            return Writer(net)

        def no_provider(self) -> Optimizer:
            raise AssertionError

    providers, context = Providers(), Context()
    context.install(providers)
    assert providers.calls == []

    assert context.get("writer") is context.get(Writer)
    assert context.get(Writer).net is context.get(Net) is context.get("net")
    assert providers.calls == ["net", "writer"]
    assert context.try_get(Optimizer) is None


@pytest.mark.row("D04")
def test_providers_get_what_they_ask_for_and_a_cycle_is_told_as_a_chain() -> None:
    class A: ...

    class B: ...

    def make_a(b: B) -> A:
        return A()

    def make_b(a: A) -> B:
        return B()

    make_a.__annotations__ = {"b": B, "return": A}
    make_b.__annotations__ = {"a": A, "return": B}
    context = Context()
    context.set("net", Net())
    context.provide(Writer)
    assert context.get(Writer).net is context.get(Net)

    context.provide(make_a)
    context.provide(make_b)

    with pytest.raises(ContextError, match=r"A -> [\w.<>]*B -> [\w.<>]*A") as caught:
        context.get("make_a")
    assert "test_context.py" in caught.value.where


def test_what_is_missing_deep_inside_is_told_before_anything_is_made() -> None:
    made = []

    def first() -> Net:
        made.append("net")
        return Net()

    def second(net: Net, optimizer: Optimizer) -> Base:
        return Base()

    def third(needs: Base) -> Writer:
        return Writer(Net())

    context = Context()
    context.provide(first)
    context.provide(second)
    context.provide(third, name="writer")

    with pytest.raises(ContextError) as caught:
        context.get("writer")

    assert "`optimizer` (Optimizer)" in str(caught.value)
    assert "second`, asked for by Writer" in str(caught.value)
    assert "test_context.py" in str(caught.value)
    assert made == []


def test_validate_finds_it_without_asking_for_anything() -> None:
    context = Context()
    context.provide(Writer)
    with pytest.raises(ContextError, match="`net`"):
        context.validate()

    context.set("net", Net())
    context.validate()
    context.child("epoch").validate()


def test_a_provider_that_asks_for_itself_while_it_runs_is_a_cycle() -> None:
    context = Context()

    def net() -> Net:
        return context.get(Net)

    context.provide(net)

    with pytest.raises(ContextError, match="need each other: Net -> Net"):
        context.get(Net)


def test_a_provider_that_fails_can_be_asked_again() -> None:
    context, tries = Context(), iter([0, 1])

    def net() -> Net:
        1 // next(tries)
        return Net()

    context.provide(net)

    with pytest.raises(ZeroDivisionError):
        context.get(Net)
    assert isinstance(context.get(Net), Net)


def test_two_threads_that_ask_at_once_get_one_object() -> None:
    context, barrier, seen = Context(), threading.Barrier(4), []
    calls = []

    def net() -> Net:
        calls.append(1)
        threading.Event().wait(0.05)
        return Net()

    context.provide(net)

    def ask() -> None:
        barrier.wait()
        seen.append(context.get(Net))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(calls) == 1
    assert len({id(net) for net in seen}) == 1


def test_a_class_is_built_unasked_only_under_inject() -> None:
    @inject
    class Marked:
        def __init__(self, net: Net, depth: int = 2) -> None:
            self.net, self.depth = net, depth

    class OnInit:
        @inject
        def __init__(self, marked: Marked) -> None:
            self.marked = marked

    OnInit.__init__.__annotations__["marked"] = Marked
    Marked.__init__.__annotations__["net"] = Net

    class Child(Marked): ...

    context = Context()
    context.set("net", Net())

    assert context.get(OnInit).marked is context.get(Marked)
    assert context.get(Marked).depth == 2
    for plain in (Optimizer, Child):
        with pytest.raises(ContextError):
            context.get(plain)


# --- injection -------------------------------------------------------------------------------------------------------


def test_bind_fills_required_parameters_by_type_and_by_name_and_leaves_defaults_alone() -> None:
    context, net = Context(), Net()
    context.set("model", net)
    context.set("seed", 3)

    def hook(anything: Net, seed, count=5, *, extra: Base) -> tuple[Any, ...]:  # type: ignore[no-untyped-def]
        return anything, seed, count, extra

    bound = context.bind(hook)
    context.set("seed", 4)

    assert bound() == (net, 3, 5, net)


def test_under_inject_defaults_are_filled_where_something_fits() -> None:
    context = Context()
    context.set("seed", 3)

    @inject
    def hook(seed: int = 0, other: int = 7) -> tuple[int, int]:
        return seed, other

    assert context.bind(hook)() == (3, 7)


def test_a_default_annotated_with_a_type_of_assay_is_filled() -> None:
    context = Context()
    context.set("store", context)

    def hook(where: Context | None = None, seed: int = 0) -> Context | None:
        return where

    assert context.bind(hook)() is context


def test_a_function_that_needs_nothing_is_bound_to_itself() -> None:
    def hook() -> int:
        return 1

    assert Context().bind(hook) is hook
    assert Context().bind(dict) is dict


def test_a_hook_that_asks_for_what_nobody_has_is_named_with_its_place() -> None:
    context = Context()
    context.set("optimizer", Optimizer())

    def hook(optimiser) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(ContextError) as caught:
        context.bind(hook)

    assert "`optimiser`, needed by `test_a_hook" in str(caught.value)
    assert "test_context.py:" in str(caught.value)
    assert "did you mean `optimizer`?" in str(caught.value)


def test_what_has_no_source_is_named_all_the_same() -> None:
    context = Context()

    with pytest.raises(ContextError, match="needed by `pow`"):
        context.bind(pow)
    with pytest.raises(ContextError, match="needed by `pow`"):
        context.bind(functools.partial(pow, exp=2))


def test_a_role_never_fills_the_parameter_of_another_role() -> None:
    context, net = Context(), Net()
    context.set("model", net)

    def process(model: Base, criterion: Base, module: Base) -> None: ...

    assert context.source(parameter(process, "criterion")) is None
    model, module = (
        context.source(parameter(process, "model")),
        context.source(parameter(process, "module")),
    )
    assert model is not None and model.value is net
    assert module is not None and module.value is net


def test_two_candidates_are_told_apart_by_the_name_of_the_parameter() -> None:
    context, net = Context(), Net()
    context.set("model", net)
    context.set("teacher", Net())

    def process(model: Net, other: Net) -> None: ...

    found = context.source(parameter(process, "model"))
    assert found is not None and found.value is net
    with pytest.raises(ContextError, match="for `other`"):
        context.source(parameter(process, "other"))


def test_only_roles_are_injected_by_name_when_roles_are_given() -> None:
    context = Context()
    context.set("width", 3)

    def build(width) -> None: ...  # type: ignore[no-untyped-def]

    assert context.source(parameter(build, "width"), roles=("model",)) is None
    assert context.source(parameter(build, "width")) is not None


# --- scopes, threads, ends -------------------------------------------------------------------------------------------


def test_the_inner_scope_is_asked_first_and_takes_what_it_holds_with_it() -> None:
    run = Context()
    outer, inner = Net(), Net()
    run.set("model", outer)
    epoch = run.child("epoch")
    step = epoch.child("step")

    step.set("model", inner)
    epoch.set("batch", 1)

    assert step.get("model") is inner and step.get(Net) is inner
    assert run.get(Net) is outer and epoch.get("model") is outer
    assert step.get("batch") == 1 and run.try_get("batch") is None
    assert step.names() == ["model", "batch"]


def test_a_singleton_of_the_run_does_not_hold_on_to_a_step() -> None:
    run = Context()
    run.set("net", Net())
    run.provide(Writer)
    step = run.child("step")
    step.set("net", Net())

    assert step.get(Writer).net is run.get("net")


def test_scopes_go_one_way() -> None:
    step = Context().child("step")
    for scope in ("run", "epoch", "step"):
        with pytest.raises(ContextError, match="run > epoch > step"):
            step.child(scope)  # type: ignore[arg-type]


def test_current_is_the_context_in_use() -> None:
    assert context_here() is None
    with pytest.raises(ContextError, match="No run is open"):
        current()

    run = Context()
    with run.use() as used:
        assert current() is used is run
        step = run.child("step")
        with step.use():
            assert current() is step
        assert current() is run
    assert context_here() is None


def in_a_thread(ask: Callable[[], Any]) -> Any:
    answers: list[Any] = []

    def work() -> None:
        try:
            answers.append(ask())
        except ContextError as error:
            answers.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return answers[0]


def test_a_thread_without_a_context_gets_that_of_the_only_open_run() -> None:
    one, two = Context(), Context()

    with one.use(), one.child("step").use():
        assert in_a_thread(current) is one
        with two.use():
            assert "2 runs are open" in str(in_a_thread(current))
        assert in_a_thread(current) is one
    assert "No run is open" in str(in_a_thread(current))


def test_two_runs_in_two_threads_see_their_own() -> None:
    barrier, seen = threading.Barrier(2), {}

    def work(number: int) -> None:
        context = Context()
        context.set("config", {"number": number}, type=Config)
        with context.use():
            for _ in range(3):
                barrier.wait()
                seen.setdefault(number, set()).add(current().get(Config)["number"])

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert seen == {1: {1}, 2: {2}}


def test_a_closed_context_holds_nothing() -> None:
    context, net = Context(), Net()
    context.set("model", net)
    context.get(Net)
    context.built["model",] = (None, net)
    gone = weakref.ref(net)

    context.close()
    del net
    gc.collect()

    assert gone() is None
    assert context.try_get("model") is None


def test_a_context_is_neither_pickled_nor_copied() -> None:
    context = Context()
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(ContextError, match="cannot be copied or sent"):
            copied(context)
    with pytest.raises(ContextError):
        pickle.dumps({"pipe": [context]})


def test_provides_and_inject_leave_the_function_as_it_is() -> None:
    @provides
    def net() -> Net:
        return Net()

    @inject
    def hook(x: int = 1) -> int:
        return x

    assert isinstance(net(), Net)
    assert hook() == 1 and hook(3) == 3


# --- injection as a whole --------------------------------------------------------------------------------------------


@pytest.mark.row("D02", "D05", "D06")
def test_inject_on_a_class_and_on_its_init_give_the_same_and_nothing_needs_to_be_bound() -> None:
    calls: list[str] = []

    class Module:
        @provides
        def configure_args(self) -> Args:
            calls.append("args")
            return Args({"batch_size": 16})

        @provides
        def configure_config(self, args: Args) -> Config:
            calls.append("config")
            return Config(
                {"train_batch_size": args["batch_size"], "val_batch_size": args["batch_size"]}
            )

    @inject
    class OnClass:
        def __init__(self, cfg: Config) -> None:
            self.cfg = cfg

    class OnInit:
        @inject
        def __init__(self, cfg: Config) -> None:
            self.cfg = cfg

    container = Context(Module)

    assert (
        container.get(OnClass).cfg
        == container.get(OnInit).cfg
        == {"train_batch_size": 16, "val_batch_size": 16}
    )
    assert container.get(OnClass) is container.get(OnClass)
    assert container.get(Config) is container.get(OnClass).cfg
    assert calls == ["args", "config"]


@pytest.mark.row("D10")
def test_an_event_with_an_injected_handler_calls_what_one_with_a_plain_function_calls() -> None:
    context = Context()
    context.set("model", Net())
    context.set("state", Optimizer())
    heard = []

    def plain() -> None:
        heard.append(1)

    def injected(state: Optimizer, model: Net) -> None:
        heard.append(1)

    injected.__annotations__ = {"state": Optimizer, "model": Net}

    def calls(function: Callable[..., None], events: int) -> dict[str, int]:
        """Count the calls of each Python function while an event happens `events` times."""
        bus = Bus(context.bind)
        bus.add(Handler(event=Event.STEP_END, fn=function))
        point = bus.points[Event.STEP_END]
        counts: dict[str, int] = {}

        def count(frame: Any, what: str, _: Any) -> None:
            if what == "call":
                counts[frame.f_code.co_name] = counts.get(frame.f_code.co_name, 0) + 1

        sys.setprofile(count)
        try:
            for number in range(events):
                point.fire(number)
        finally:
            sys.setprofile(None)
        return counts

    events = 100_000
    by_hand = calls(plain, events)
    assert by_hand.pop("plain") == events
    filled = calls(injected, events)
    assert filled.pop("injected") == events
    assert filled == by_hand and not filled.keys() & {"source", "arguments", "get", "value"}
    assert len(heard) == 2 * events


@pytest.mark.row("D07")
def test_a_class_is_made_by_hand_with_fakes_and_no_container() -> None:
    class Fake:
        def __init__(self) -> None:
            self.calls: list[Any] = []
            self.param_groups = [{"params": [], "lr": 1.0}]

        def __call__(self, *arguments: Any) -> torch.Tensor:
            self.calls.append(arguments)
            return torch.tensor(2.0)

        def train(self, mode: bool) -> None:
            self.calls.append(mode)

    model, criterion, optimizer = Fake(), Fake(), Fake()

    process = Supervised(model, criterion, optimizer)  # type: ignore[arg-type]
    loss, output = process.forward_step(("input", "target"))
    process.eval()

    assert model.calls == [("input",), False] and criterion.calls == [(torch.tensor(2.0), "target")]
    assert loss == output["loss"] == 2.0
    assert context_here() is None


def test_one_name_provided_by_two_is_told_with_both() -> None:
    class One:
        @provides
        def net(self) -> Net:
            return Net()

    class Two(One): ...

    context = Context(One)

    with pytest.raises(ContextError, match="`net` is provided twice") as caught:
        context.install(Two)
    assert caught.value.where.count("test_context.py") == 2


# --- promises --------------------------------------------------------------------------------------------------------


def test_what_is_promised_is_known_but_cannot_be_had_yet() -> None:
    context = Context()
    context.promise(
        "optimizer", Promise(type=Optimizer, paths=(("optimizer",),), names=("params",))
    )
    context.provide(lambda optimizer: optimizer, name="writer", type=Writer)

    def hook(optimizer: Optimizer) -> None: ...

    hook.__annotations__ = {"optimizer": Optimizer}
    for ask in (
        lambda: context.get("optimizer"),
        lambda: context.get(Optimizer),
        lambda: context.bind(hook),
    ):
        with pytest.raises(
            ContextError, match="not there yet: it is made from `params` and `optimizer`"
        ):
            ask()
    assert "optimizer" not in context and context.try_get("optimizer", 3) == 3
    assert context.promises() == ["optimizer"]
    context.validate()

    optimizer = Optimizer()
    context.set("optimizer", optimizer)

    assert context.get(Optimizer) is optimizer and context.promises() == []


def test_what_will_never_be_there_says_why_and_fills_nothing() -> None:
    context = Context()
    context.promise("optimizer", Promise(type=Optimizer, never="this is a test"))

    with pytest.raises(ContextError, match="no `optimizer` here: this is a test"):
        context.get("optimizer")
    with pytest.raises(ContextError, match="Nothing provides `optimizer`"):
        context.bind(lambda optimizer: None)
    assert context.try_get(Optimizer) is None and context.names() == []


# --- scopes in use, and other processes ------------------------------------------------------------------------------


def test_a_scope_that_is_left_takes_what_it_holds_with_it() -> None:
    run, net = Context(), Net()
    gone = weakref.ref(net)

    with run.use(), run.opened("epoch") as epoch:
        epoch.set("net", net)
        assert current() is epoch and epoch.get(Net) is net
        with epoch.opened("step"):
            assert current().get(Net) is net
        del net

    gc.collect()
    assert gone() is None and run.try_get(Net) is None and epoch.run is run


class Pipe:
    """A data set that holds more than it should."""

    def __init__(self, **held: Any) -> None:
        self.stage = SimpleNamespace(**held)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.row("A26")
def test_a_pipe_that_holds_the_context_is_stopped_before_it_reaches_worker_processes() -> None:
    context, model = Context(), torch.nn.Linear(1, 1)
    context.set("model", model)

    loader = DataLoader(Pipe(ctx=context), num_workers=2, multiprocessing_context="spawn")
    with pytest.raises(ContextError, match="cannot be copied or sent to another process") as caught:
        iter(loader)
    assert caught.value.where.endswith(".stage.ctx")

    # A forked process copies nothing by name, so it must be asked before; the model would be sent
    # without a word.
    for name, held in {"ctx": context, "task": SimpleNamespace(net=model)}.items():
        with pytest.raises(InputError) as told:
            context.check_for_workers(Pipe(**{name: held}), "data.train.source")
        assert f"`data.train.source.stage.{name}" in str(told.value)
    assert "data.train.source.stage.task.net` holds the model of the run" in str(told.value)
    context.check_for_workers(Pipe(number=3), "data.train.source")


class Asks(Pipe):
    def __getitem__(self, index: int) -> bool:
        return context_here() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")
def test_a_forked_worker_begins_without_a_run() -> None:
    with Context().use():
        loader = DataLoader(Asks(), num_workers=1, multiprocessing_context="fork")
        assert all(bool(each) for batch in loader for each in batch)
        assert context_here() is not None
