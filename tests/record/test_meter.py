"""Meters print what the tutorial prints and keep what they are given."""

from __future__ import annotations

import copy
import math
import pickle
import subprocess
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay import AvgMeter, Meter
from assay.core.errors import InputError

SRC = Path(__file__).resolve().parents[2] / "src"


@pytest.mark.row("C15")
def test_what_is_measured_comes_out_unchanged() -> None:
    tensor, items = torch.ones(3, requires_grad=True), [4]
    m = Meter()
    m.a, m.b, m.c, m.d = 1, "2", tensor, items

    m.percent(m.c_)
    str(m)

    assert (m.a, m.b) == (1, "2")
    assert m.c is tensor and m["c"] is tensor
    assert m.d is items
    assert list(m) == ["a", "b", "c", "d"]


@pytest.mark.row("C16")
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        (True, "True"),
        (None, "None"),
        ("2", "2"),
        ("two\nlines", "two\\nlines"),
        (0.70716, "0.7072"),
        (-1.0, "-1.0000"),
        (math.nan, "nan"),
        (torch.tensor(0.70716), "0.7072"),
        (torch.tensor([0.38916]), "0.3892"),
        (torch.tensor([[0.38916]]), "0.3892"),
        (torch.tensor(3), "3"),
        (torch.tensor([0.706, 0.4127]), "tensor([0.7060, 0.4127])"),
        (torch.tensor([[0.5, 0.25], [0.125, 0.0]]), "tensor([[0.5000, 0.2500],..."),
        (np.float32(0.25), "0.2500"),
        (np.array([0.25]), "0.2500"),
        (np.array([[1, 2], [3, 4]]), "array([[1, 2],..."),
        ([4], "[4]"),
        ({5: "6"}, "{5: '6'}"),
    ],
)
def test_a_value_is_printed_short(value: object, text: str) -> None:
    m = Meter()
    m.first, m.x = 1, value

    assert str(m) == repr(m) == f"@first=1  @x={text}"


def test_an_empty_meter_prints_nothing() -> None:
    assert str(Meter()) == str(AvgMeter()) == ""


@pytest.mark.row("C17")
def test_a_form_is_said_once_and_holds_for_all_later_values() -> None:
    m = Meter()
    m.a = 0.236
    m.percent(m.a_)
    assert str(m) == "@a=23.60%"

    m.a = torch.tensor(0.5)
    assert str(m) == "@a=50.00%"

    m.percent("a", 0)
    m.b, m.c = 3.14159, 2.7
    m.float("b", 2)
    m.int("c")
    assert str(m) == "@a=50%  @b=3.14  @c=3"


def test_a_form_leaves_what_is_no_number_alone() -> None:
    m = Meter()
    m.a, m.b = "high", True
    m.percent(m.a_)
    m.percent(m.b_)

    assert str(m) == "@a=high  @b=True"


@pytest.mark.parametrize("precision", [-1, 21, 1.5, True, "2"])
def test_a_wrong_precision_is_refused(precision: object) -> None:
    with pytest.raises(InputError, match="precision"):
        Meter().percent("a", precision)  # type: ignore[arg-type]


@pytest.mark.row("C18")
def test_a_name_with_an_underscore_behind_it_is_the_name_itself() -> None:
    m = Meter()
    assert m.a_ == "a"

    m.a = 1
    assert m.a_ == "a"
    assert AvgMeter().loss_ == "loss"


@pytest.mark.row("C19")
def test_a_form_may_come_before_the_value() -> None:
    m = Meter()
    m.percent(m.c_)
    m.a = 1
    m.c = 0.236

    assert str(m) == "@a=1  @c=23.60%"


def test_a_meter_is_a_mapping_that_takes_over_another() -> None:
    one, other = Meter(), Meter()
    one.a, one.b = 1, 2
    other.b, other["valid/acc"] = 0.5, 0.25
    other.percent("valid/acc")

    one.update(other)
    one.update({"c": 3})

    assert isinstance(one, Mapping)
    assert dict(one) == {"a": 1, "b": 0.5, "valid/acc": 0.25, "c": 3}
    assert str(one) == "@a=1  @b=0.5000  @valid/acc=25.00%  @c=3"


def test_what_is_not_there_is_told_with_the_nearest_name() -> None:
    m = Meter()
    m.loss = 1

    with pytest.raises(AttributeError, match="did you mean `loss`"):
        _ = m.los
    with pytest.raises(AttributeError, match="'x'"):
        del m.x
    del m.loss
    assert list(m) == []


@pytest.mark.parametrize("name", ["update", "percent", "keys", "a_"])
def test_a_name_that_could_not_be_read_back_is_refused(name: str) -> None:
    with pytest.raises(InputError):
        setattr(Meter(), name, 1)


def test_a_meter_is_copied_and_pickled() -> None:
    m = Meter()
    m.a = 1.0

    m.percent(m.a_)

    assert str(copy.deepcopy(m)) == str(pickle.loads(pickle.dumps(m))) == "@a=100.00%"


@pytest.mark.row("C20")
def test_an_average_meter_prints_the_last_value_and_the_mean() -> None:
    am = AvgMeter()
    for c in (0.25, 0.75):
        m = Meter()
        m.percent(m.c_)
        m.a, m.b, m.c = 1, "2", torch.tensor(c)
        m.c1, m.c2 = torch.tensor([c]), torch.tensor([c, 1.0])
        m.d, m.e = [4], {5: "6"}
        am.update(m)

    assert str(am) == (
        "@a=1  @b=2  @c=75.00%(50.00%)  @c1=0.7500(0.5000)  @c2=tensor([0.7500, 1.0000])  @d=[4]  @e={5: '6'}"
    )
    assert am.last("a") == 1
    assert am.means() == {"c": 0.5, "c1": 0.5}


def test_names_keep_the_order_in_which_they_were_first_set() -> None:
    am = AvgMeter()
    am.update({"z": 1.0, "a": 2})
    am.update({"b": 1.0, "a": 3, "z": 2.0})

    assert str(am) == "@z=2.0000(1.5000)  @a=3  @b=1.0000(1.0000)"


@pytest.mark.row("C22")
def test_five_values_in_each_step_make_no_device_wait() -> None:
    """On this device nothing is computed, so that no number can be read from it."""
    am = AvgMeter()
    for _ in range(100):
        am.update({name: torch.ones((), device="meta") for name in "abcde"}, weight=32)

    with pytest.raises(RuntimeError, match="meta"):
        am.mean("a")


@pytest.mark.row("C21")
def test_weights_make_the_mean_that_of_all_samples_and_reset_begins_again() -> None:
    samples = torch.rand(40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    am = AvgMeter()
    for _ in range(2):
        am.reset()
        for part in samples.split(32):
            am.update({"loss": part.mean()}, weight=len(part))

        assert am.mean("loss") == pytest.approx(samples.mean().item(), rel=1e-15)


def test_after_a_reset_nothing_is_left_but_the_forms() -> None:
    am = AvgMeter()
    am.percent(am.acc_)
    am.update({"acc": 0.5, "step": 1})

    am.reset()

    assert str(am) == "" and am.means() == {}
    with pytest.raises(KeyError):
        am.mean("acc")
    am.update({"acc": 0.25})
    assert str(am) == "@acc=25.00%(25.00%)"


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(1, 64), st.booleans()), min_size=1))
def test_the_mean_is_that_of_all_values_in_whatever_form_they_came(
    values: list[tuple[float, int, bool]],
) -> None:
    am = AvgMeter()
    for value, weight, as_tensor in values:
        am.update({"x": torch.tensor(value, dtype=torch.float64) if as_tensor else value}, weight)

    expected = math.fsum(value * weight for value, weight, _ in values) / sum(
        weight for _, weight, _ in values
    )
    scale = max(abs(value) for value, _, _ in values)
    assert am.mean("x") == pytest.approx(expected, rel=1e-9, abs=1e-9 * (scale + 1))


def test_a_mean_keeps_neither_the_graph_nor_a_tensor_that_changes_later() -> None:
    weight = torch.ones((), requires_grad=True)
    loss = weight * 2
    gone = weakref.ref(loss)
    buffer = torch.tensor([1.0], dtype=torch.float64)
    am = AvgMeter()

    am.update({"loss": loss, "buffer": buffer})
    buffer.fill_(9.0)
    am.update({"buffer": buffer})
    del loss

    assert gone() is None
    assert am.mean("buffer") == 5.0


def test_tensors_of_every_kind_and_mode_go_into_one_mean() -> None:
    am = AvgMeter()
    with torch.inference_mode():
        am.update({"x": torch.tensor([1])})
    am.update({"x": torch.tensor(True)}, weight=0.5)
    am.update({"x": torch.tensor([[0.5]], dtype=torch.float16, requires_grad=True)}, weight=2)
    am.update({"x": np.float32(2)}, weight=0)

    assert am.mean("x") == pytest.approx((1 + 0.5 + 1) / 3.5)


def test_what_has_no_mean_shows_its_last_value_alone() -> None:
    am = AvgMeter()
    for i in range(2):
        am.update(
            {
                "complex": torch.tensor(1 + 2j),
                "count": np.int64(i),
                "text": np.str_("x"),
                "flag": True,
            }
        )

    assert str(am) == "@complex=(1+2j)  @count=1  @text=x  @flag=True"
    with pytest.raises(KeyError, match="no mean"):
        am.mean("count")
    with pytest.raises(KeyError, match="did you mean `count`"):
        am.last("cuont")


@pytest.mark.parametrize("weight", [-1, math.nan, math.inf])
def test_a_wrong_weight_is_refused(weight: float) -> None:
    with pytest.raises(InputError, match="weight"):
        AvgMeter().update({"x": 1.0}, weight)


def test_an_average_meter_points_to_last_and_mean() -> None:
    with pytest.raises(AttributeError, match=r"last\('loss'\)"):
        _ = AvgMeter().loss


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_measuring_never_waits_for_the_device() -> None:
    values = torch.rand(5, device="cuda", requires_grad=True)
    am = AvgMeter()
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            m = Meter()
            m.percent(m.a_)
            m.a, m.b, m.c = values[0], values[1:2], values
            am.update(m, weight=8)
    finally:
        torch.cuda.set_sync_debug_mode(mode)

    assert am.mean("a") == pytest.approx(values[0].item())


def test_meters_work_with_nothing_else_of_the_house() -> None:
    script = (
        "import sys\n"
        "from assay import AvgMeter, Meter\n"
        "m, am = Meter(), AvgMeter()\n"
        "m.a = 0.5\n"
        "am.update(m)\n"
        "print(m, am)\n"
        "rooms = {name.split('.')[1] for name in sys.modules if name.startswith('assay.')}\n"
        "assert rooms == {'core', 'record'}, rooms\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'psutil', 'rich', 'click'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "@a=0.5000 @a=0.5000(0.5000)\n"), done.stderr
