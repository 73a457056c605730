"""A recorded run evaluated on its test splits, with a record of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from assay.compose.house import House, open_house
from assay.compose.launch import Launch, RunResult
from assay.compose.parts import is_for_tests, make_loader, make_process, promise_no_training, splits_of
from assay.compose.records import at_home, ended, failed, new_record, set_recorder
from assay.config import load
from assay.core.errors import InputError, did_you_mean
from assay.core.events import Event
from assay.core.facts import Evaluated
from assay.query.find import find, find_checkpoint

if TYPE_CHECKING:
    pass


def test(address: str, launch: Launch | None = None, *, splits: Sequence[str] = ()) -> RunResult:
    """Evaluate a recorded run on splits; the weights are the best ones if it kept any, else the newest.

    Without `splits` it is `test`, and each whose name begins with `test_`.
    Makes a record of its own (kind test) whose parent is the checkpoint.
    """
    from assay.build import Promise, entered
    from assay.engine.handlers.ema import evaluated_weights
    from assay.engine.handlers.evaluate import evaluate
    from assay.engine.handlers.save import load_model_state

    launch = launch or Launch()
    view, name = find(address)
    if not name:
        name = "best" if view.best_checkpoint else "latest"
    view, folder = find_checkpoint(f"{view.id}@{name}")
    config = load(view.folder.config_toml)
    config = at_home(config, view.file)
    with open_house(config, launch) as house:
        promise_no_training(house.context)
        for name in splits_of(config.root):
            house.context.promise(f"{name}_loader", Promise(never="this is a test, not a training"))
        process = make_process(house, training=False)
        load_model_state(process.model, evaluated_weights(folder))
        known = splits_of(config.root)
        wanted = list(splits) or [name for name in known if is_for_tests(name)] or ["test"]
        for split in wanted:
            if split not in known:
                fix = did_you_mean(split, known) or f"It has: {', '.join(known)}."
                raise InputError(f"The config of {view.id} has no [data.{split}].", fix=fix)
        loaders = {split: make_loader(house, split) for split in wanted}
        recorder = new_record(config, launch, None, kind="test", parent=f"{view.id}@{folder.name}", device=house.device)
        set_recorder(house, recorder)
        step = _step_of(folder)
        value: dict[str, float] = {}
        try:
            with entered(house.plugins):
                fire = _evaluation_events(house, step)
                for split, loader in loaders.items():
                    fire(Event.EVAL_BEGIN)
                    results, samples = evaluate(
                        process,
                        loader,
                        split=split,
                        seed=house.seed,
                        device=house.device,
                        before=lambda: fire(Event.EVAL_STEP_BEGIN),
                        after=lambda: fire(Event.EVAL_STEP_END),
                    )
                    recorder.log(results, step)
                    recorder.tell(Evaluated(split=split, step=step, metrics=results, samples=samples))
                    value |= results
                    fire(Event.EVAL_END)
        except BaseException as error:
            return failed(recorder, config, error, step=0)
        return ended(recorder, config, "finished", "", value, step=step)


def _evaluation_events(house: House, step: int) -> Callable[[Event], None]:
    """Calls what the plugins want to be called for while a split is looked at; there is no engine to do it."""
    from assay.engine.bus import Bus

    bus = Bus(house.context.bind)
    handlers = [handler for plugin in house.plugins for handler in plugin.handlers()]
    bus.extend(handler for handler in handlers if handler.event in _EVALUATION)
    return lambda event: bus.points[event].fire(step)


_EVALUATION = (Event.EVAL_BEGIN, Event.EVAL_END, Event.EVAL_STEP_BEGIN, Event.EVAL_STEP_END)


def _step_of(checkpoint: Path) -> int:
    from assay.core.manifest import read

    return read(checkpoint).step
