"""The section [data] of a job: where samples come from, for every source."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from ..core.errors import FileMissingError
from ..core.files import local_path
from ..data.criteo_text import NUMBERS, STRINGS, criteo
from ..data.movielens import FEATURES, ITEM_FIELDS, movielens
from ..data.parquet_files import parquet
from ..data.source import BatchSource
from ..data.synthetic_clicks import DENSE_COLUMNS, SyntheticClicks, clicks, wide_clicks
from ..data.table_stream import TableStream
from ..data.tfrecord_files import tfrecord
from .config_file import ConfigPlace, NonNegativeInt, SectionVariant, Size

_EPOCH_SAMPLES = 2_000_000  # of synthetic clicks, unless steps are given
_TEST_SHARE = 20  # one test step for so many steps of synthetic clicks
_BEST_SAMPLES = 100_000  # the best AUC is known to about 0.001 then
_WINDOW_ROWS = 100_000


@dataclass(frozen=True, kw_only=True)
class DataJob(SectionVariant):
    """What every source has: the size of a batch, and the seed of its order."""

    key: ClassVar[str] = "source"
    is_files: ClassVar[bool] = False
    batch_size: Size = 1024
    seed: NonNegativeInt = 0

    def feature_names(self) -> tuple[str, ...]:
        """The features of its batches."""
        raise NotImplementedError

    def dense_columns(self) -> int:
        """Numbers of a sample."""
        return 0

    def shared(self) -> Mapping[str, str]:
        """Features that share rows, and the name of the table they share."""
        return {}

    def item_names(self) -> tuple[str, ...]:
        """The features of what is offered, where the source knows them."""
        return ()

    def located(self, folder: Path) -> DataJob:
        """Itself, with paths that do not depend on where the program runs."""
        return self

    def check(self, place: ConfigPlace) -> None:
        """Refuses what cannot be read, before anything is opened."""

    def hashed(self, fields: Mapping[str, str]) -> dict[str, str]:
        """Of every feature that may hold strings, what these are hashed with: `hr.id64`."""
        return {}

    def train(self, fields: Mapping[str, str]) -> BatchSource:
        """The samples to learn from; `fields` says what strings of features are hashed with."""
        raise NotImplementedError

    def test(self, fields: Mapping[str, str]) -> BatchSource | None:
        """The samples to test on, if there are any."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class MovieLensData(DataJob):
    """MovieLens-100K; the test is the last 20 % of each user's ratings in time."""

    word: ClassVar[str] = "movielens-100k"
    features: tuple[str, ...] = FEATURES
    cache: str | None = None

    def feature_names(self) -> tuple[str, ...]:
        """Fields of user and movie."""
        return self.features

    def hashed(self, fields: Mapping[str, str]) -> dict[str, str]:
        """Each with its own name."""
        return {name: name for name in self.features}

    def item_names(self) -> tuple[str, ...]:
        """Those of the movie."""
        return tuple(name for name in self.features if name in ("item", *ITEM_FIELDS))

    def located(self, folder: Path) -> DataJob:
        """With a cache that has a full path."""
        return self if self.cache is None else replace(self, cache=_full(folder, self.cache))

    def check(self, place: ConfigPlace) -> None:
        """Only fields; the rating would tell the label."""
        check_names("feature", self.features, FEATURES, place.key("features"))
        if not self.features or len(set(self.features)) != len(self.features):
            place.key("features").refuse(
                f"is {list(self.features)}; name at least one, and each once."
            )

    def train(self, fields: Mapping[str, str]) -> BatchSource:
        """All but the last ratings, shuffled."""
        return self._split("train", self.seed)

    def test(self, fields: Mapping[str, str]) -> BatchSource:
        """The last ratings."""
        return self._split("test", 0)

    def _split(self, split: str, seed: int) -> BatchSource:
        features, cache = self.features, self.cache
        return movielens(self.batch_size, split, features=features, seed=seed, cache=cache)


@dataclass(frozen=True, kw_only=True)
class SyntheticData(DataJob):
    """Samples of a known truth: an epoch of `steps` batches, and others to test on."""

    steps: Size | None = None
    test_steps: Size | None = None

    def dense_columns(self) -> int:
        """As the truth has them."""
        return DENSE_COLUMNS

    def train(self, fields: Mapping[str, str]) -> SyntheticClicks:
        """Two million samples, unless it says otherwise."""
        return self._made(self.steps or max(1, _EPOCH_SAMPLES // self.batch_size))

    def test(self, fields: Mapping[str, str]) -> SyntheticClicks:
        """Other samples of the same truth."""
        train = self.train(fields)
        steps = self.test_steps or max(1, len(train) // _TEST_SHARE)
        return train.held_out(self.batch_size, steps)

    def _made(self, steps: int) -> SyntheticClicks:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class ClicksData(SyntheticData):
    """Users who see an item and have a history of others."""

    word: ClassVar[str] = "clicks"
    users: Size = 500
    items: Size = 200
    history: Size = 8

    def feature_names(self) -> tuple[str, ...]:
        """Three."""
        return ("user", "item", "history")

    def item_names(self) -> tuple[str, ...]:
        """What is offered; the history is the user's."""
        return ("item",)

    def shared(self) -> Mapping[str, str]:
        """A history is of items."""
        return {"history": "item"}

    def _made(self, steps: int) -> SyntheticClicks:
        sizes = {"users": self.users, "items": self.items, "history": self.history}
        return clicks(self.batch_size, steps, seed=self.seed, **sizes)


@dataclass(frozen=True, kw_only=True)
class WideClicksData(SyntheticData):
    """Many features whose ids repeat as they do in production."""

    word: ClassVar[str] = "wide-clicks"
    features: Size = 26
    rows: Size = 1_000_000

    def feature_names(self) -> tuple[str, ...]:
        """Numbered."""
        return tuple(f"f{i}" for i in range(self.features))

    def _made(self, steps: int) -> SyntheticClicks:
        sizes = {"features": self.features, "rows": self.rows}
        return wide_clicks(self.batch_size, steps, seed=self.seed, **sizes)


@dataclass(frozen=True, kw_only=True)
class FileData(DataJob):
    """Files to learn from and files to test on: paths or patterns such as "day-*.parquet"."""

    is_files: ClassVar[bool] = True
    files: tuple[str, ...]
    test_files: tuple[str, ...] = ()
    window_rows: NonNegativeInt = _WINDOW_ROWS

    def located(self, folder: Path) -> FileData:
        """With full paths."""
        files = tuple(_full(folder, file) for file in self.files)
        return replace(
            self, files=files, test_files=tuple(_full(folder, f) for f in self.test_files)
        )

    def unlabelled(self) -> FileData:
        """The same without labels, to predict."""
        return self

    def train(self, fields: Mapping[str, str]) -> TableStream:
        """Shuffled among `window_rows` neighbours."""
        return self._opened(self.files, self.window_rows, fields)

    def test(self, fields: Mapping[str, str]) -> TableStream | None:
        """In the order of the files."""
        return self._opened(self.test_files, 0, fields) if self.test_files else None

    def _opened(
        self,
        files: Sequence[str],
        window_rows: int,
        fields: Mapping[str, str],
        keys: tuple[str, ...] = (),
    ) -> TableStream:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class ColumnData(FileData):
    """Files whose columns have names; `fields` says what strings are hashed with.

    `fill` takes the place of nulls in dense columns and weights, `keys` go with predictions.
    """

    features: tuple[str, ...]
    label: str | None
    dense: tuple[str, ...] = ()
    weight: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    fill: Mapping[str, float] = field(default_factory=dict)
    keys: tuple[str, ...] = ()

    def feature_names(self) -> tuple[str, ...]:
        """As listed."""
        return self.features

    def dense_columns(self) -> int:
        """As listed."""
        return len(self.dense)

    def shared(self) -> Mapping[str, str]:
        """Features of one field share its rows."""
        return self.fields

    def hashed(self, fields: Mapping[str, str]) -> dict[str, str]:
        """With the name of the column, or the field that it shares."""
        given = self._all_fields(fields)
        return {name: given.get(name, name) for name in self.features}

    def test_with_keys(
        self, fields: Mapping[str, str], keys: Sequence[str] = ()
    ) -> TableStream | None:
        """The test with columns that say which sample each is: `keys`, or else the job's."""
        if not self.test_files:
            return None
        return self._opened(self.test_files, 0, fields, tuple(keys) or self.keys)

    def unlabelled(self) -> FileData:
        """Neither label nor weight."""
        fill = {name: value for name, value in self.fill.items() if name != self.weight}
        return replace(self, label=None, weight=None, fill=fill)

    def check(self, place: ConfigPlace) -> None:
        """Features exist and every column has one use."""
        if not self.features:
            place.key("features").refuse("is empty; name at least one column.")
        check_names("feature", self.fields, self.features, place.key("fields"))
        filled = [*self.dense, *([] if self.weight is None else [self.weight])]
        check_names("dense column or weight", self.fill, filled, place.key("fill"))
        columns = [*self.features, *self.dense, *filter(None, (self.label, self.weight))]
        for name in columns:
            if columns.count(name) > 1:
                place.refuse(f"column {name!r} is named twice; each column has one use.")

    def _columns(
        self, window_rows: int, fields: Mapping[str, str], keys: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        return {
            "fill": self.fill,
            "label_bounds": (0.0, 1.0),
            "keys": keys,
            "window_rows": window_rows,
            "seed": self.seed,
            "features": self.features,
            "dense": self.dense,
            "label": self.label,
            "weight": self.weight,
            "fields": self._all_fields(fields),
        }

    def _all_fields(self, fields: Mapping[str, str]) -> dict[str, str]:
        return {**self._untouched(fields), **self.fields}

    def _untouched(self, fields: Mapping[str, str]) -> dict[str, str]:
        """Fields of tables without a feature of which `self.fields` says something."""
        touched = {fields[feature] for feature in self.fields if feature in fields}
        return {feature: name for feature, name in fields.items() if name not in touched}


@dataclass(frozen=True, kw_only=True)
class ParquetData(ColumnData):
    """Parquet files."""

    word: ClassVar[str] = "parquet"

    def _opened(
        self,
        files: Sequence[str],
        window_rows: int,
        fields: Mapping[str, str],
        keys: tuple[str, ...] = (),
    ) -> TableStream:
        return parquet(_listed(files), self.batch_size, **self._columns(window_rows, fields, keys))


@dataclass(frozen=True, kw_only=True)
class TfrecordData(ColumnData):
    """TFRecord files of tf.Example."""

    word: ClassVar[str] = "tfrecord"

    def _opened(
        self,
        files: Sequence[str],
        window_rows: int,
        fields: Mapping[str, str],
        keys: tuple[str, ...] = (),
    ) -> TableStream:
        return tfrecord(_listed(files), self.batch_size, **self._columns(window_rows, fields, keys))


@dataclass(frozen=True, kw_only=True)
class CriteoData(FileData):
    """Text of a label, 13 numbers and 26 strings a line."""

    word: ClassVar[str] = "criteo"

    def feature_names(self) -> tuple[str, ...]:
        """C1 to C26."""
        return STRINGS

    def hashed(self, fields: Mapping[str, str]) -> dict[str, str]:
        """Each with its own name."""
        return {name: name for name in STRINGS}

    def dense_columns(self) -> int:
        """I1 to I13."""
        return len(NUMBERS)

    def _opened(
        self,
        files: Sequence[str],
        window_rows: int,
        fields: Mapping[str, str],
        keys: tuple[str, ...] = (),  # text has no columns but those that are learned from
    ) -> TableStream:
        return criteo(_listed(files), self.batch_size, window_rows=window_rows, seed=self.seed)


def _full(folder: Path, file: str) -> str:
    return str(folder / local_path(file))


def check_names(
    what: str, names: Mapping[str, Any] | Sequence[str], known: Sequence[str], place: ConfigPlace
) -> None:
    """Every name is known."""
    for name in names:
        if name not in known:
            place.refuse_name(f"unknown {what} {name!r}", name, known)


def batches_of(source: BatchSource, batch_size: int) -> int | None:
    """Batches of an epoch, where that is known without reading them."""
    if isinstance(source, SyntheticClicks):
        return len(source)
    rows = source.rows if isinstance(source, TableStream) else None
    return None if rows is None else -(-rows // batch_size)


def best_auc(source: BatchSource) -> float | None:
    """What nobody can beat in the mean, where the truth is known."""
    return source.best(_BEST_SAMPLES).auc if isinstance(source, SyntheticClicks) else None


def _listed(patterns: Sequence[str]) -> list[str]:
    """Files of all patterns, those of one pattern in the order of their names."""
    found: list[str] = []
    for pattern in patterns:
        here = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]
        if not here:
            raise FileMissingError(f"no file fits {pattern}; check the pattern.")
        found += here
    return found
