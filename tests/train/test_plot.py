"""Pictures: whole PNG files with what was asked for in them."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import matplotlib.image
import pytest
from matplotlib.figure import Figure

from hedgerow.core.errors import InputError, MissingExtraError
from hedgerow.train.events import Event
from hedgerow.train.plot import bars, learning_curves

_EVENTS: list[Event] = [
    *(
        {"kind": "train", "samples": 64_000 * i, "loss": 0.7 / (1 + i), "auc": 0.8 - 0.3 / (1 + i)}
        for i in range(20)
    ),
    {"kind": "eval", "samples": 640_000, "loss": 0.4, "auc": 0.7},
    {"kind": "eval", "samples": 1_280_000, "loss": 0.35, "auc": math.nan},
    {"kind": "checkpoint", "samples": 1_280_000, "path": "here"},
]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Every figure that is saved."""
    figures: list[Figure] = []
    save = Figure.savefig

    def record(figure: Figure, *given: object, **named: object) -> None:
        figures.append(figure)
        save(figure, *given, **named)

    monkeypatch.setattr(Figure, "savefig", record)
    return figures


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_learning_curves_show_both_kinds_and_the_baselines(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    path = tmp_path / "new" / "curves.png"
    learning_curves(_EVENTS, path, title="DeepFM", baselines={"majority": 0.5, "best": 0.81})
    assert matplotlib.image.imread(path).shape == (504, 1320, 4)
    assert _files(path.parent) == ["curves.png"]
    (figure,) = drawn
    loss, auc = figure.axes
    assert [line.get_label() for line in loss.lines] == ["train", "eval"]
    assert [line.get_label() for line in auc.lines] == [
        *("train", "eval", "majority 0.5000", "best 0.8100")
    ]
    assert list(loss.lines[1].get_xdata()) == [640_000, 1_280_000]
    assert list(loss.lines[1].get_ydata()) == [0.4, 0.35]
    assert (loss.get_xlabel(), auc.get_ylabel()) == ("samples trained on", "AUC")


@pytest.mark.parametrize("events", [[], [{"kind": "eval", "samples": 0, "auc": math.nan}]])
def test_a_job_with_nothing_to_show_still_gives_a_picture(
    tmp_path: Path, events: list[Event]
) -> None:
    learning_curves(events, tmp_path / "a.png", title="$nothing$ costs $5 {")
    assert matplotlib.image.imread(tmp_path / "a.png").size


def test_bars_have_a_panel_a_group_and_show_their_spread(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    rows = [
        ("MovieLens-100K", "own rows", 0.7312, 0.0011),
        ("MovieLens-100K", "hashed, $1/4$", 0.7105, 0.0023),
        ("synthetic clicks", "own rows", 0.9112, 0.0004),
    ]
    bars(rows, tmp_path / "bars.png", title="Quality", unit="AUC", start=0.5)
    assert matplotlib.image.imread(tmp_path / "bars.png").size
    assert _files(tmp_path) == ["bars.png"]
    first, second = drawn[0].axes
    assert [axes.get_title(loc="left") for axes in (first, second)] == [rows[0][0], rows[2][0]]
    assert [label.get_text() for label in first.get_yticklabels()] == [rows[0][1], rows[1][1]]
    ends = [bar.get_x() + bar.get_width() for bar in first.patches]
    assert ends == pytest.approx([0.7312, 0.7105])
    assert [text.get_text().strip() for text in second.texts] == ["0.9112 ± 0.0004"]


def test_bars_below_their_start_and_without_rows(tmp_path: Path) -> None:
    bars([("g", "worse", 0.4, 0.0)], tmp_path / "a.png", title="t", unit="AUC", start=0.5)
    assert _files(tmp_path) == ["a.png"]
    with pytest.raises(InputError, match="no rows to draw"):
        bars([], tmp_path / "b.png", title="t", unit="AUC")


def test_a_picture_that_fails_leaves_the_old_one_and_nothing_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "curves.png"
    learning_curves(_EVENTS, path, title="first")
    before = path.read_bytes()

    def half(figure: Figure, target: Path, **_: object) -> None:
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(OSError, match="No space left"):
        learning_curves(_EVENTS, path, title="second")
    assert path.read_bytes() == before
    assert _files(tmp_path) == ["curves.png"]


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install hedgerow\[plan\]"):
        learning_curves(_EVENTS, tmp_path / "a.png", title="t")


def test_no_state_of_pyplot_is_touched(tmp_path: Path) -> None:
    loaded = "matplotlib.pyplot" in sys.modules
    learning_curves(_EVENTS, tmp_path / "a.png", title="t")
    assert ("matplotlib.pyplot" in sys.modules) == loaded
