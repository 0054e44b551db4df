"""The section [data] of a job: the sources of samples."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from ..core.errors import FileMissingError
from ..core.files import local_path
from ..data.criteo_text import NUMBERS, STRINGS, criteo
from ..data.movielens_100k import FEATURES, ITEM_FIELDS, movielens
from ..data.parquet_files import parquet
from ..data.source import BatchSource
from ..data.synthetic_clicks import DENSE_COLUMNS, SyntheticClicks, clicks, wide_clicks
from ..data.table_stream import TableStream
from ..data.tfrecord_files import tfrecord
from .config_file import ConfigPlace, NonNegativeInt, SectionVariant, Size

_EPOCH_SAMPLES = 2_000_000  # of synthetic clicks, if `steps` is not given
_TEST_SHARE = 20  # training steps per test step of synthetic clicks
_BEST_SAMPLES = 100_000  # gives the best AUC to about 0.001
_WINDOW_ROWS = 100_000


@dataclass(frozen=True, kw_only=True)
class DataJob(SectionVariant):
    """The settings of every source: the batch size, and the seed of the order."""

    key: ClassVar[str] = "source"
    is_files: ClassVar[bool] = False
    batch_size: Size = 1024
    seed: NonNegativeInt = 0

    def feature_names(self) -> tuple[str, ...]:
        """Returns the features of a batch."""
        raise NotImplementedError

    def dense_columns(self) -> int:
        """Returns the number of dense columns."""
        return 0

    def shared(self) -> Mapping[str, str]:
        """Returns the features that share rows, each with the name of the shared table."""
        return {}

    def item_names(self) -> tuple[str, ...]:
        """Returns the features that describe the item, if the source knows them."""
        return ()

    def located(self, folder: Path) -> DataJob:
        """Returns the section with absolute paths."""
        return self

    def check(self, place: ConfigPlace) -> None:
        """Raises `ConfigError` for invalid settings. It opens no data."""

    def hashed(self, fields: Mapping[str, str]) -> dict[str, str]:
        """Returns the hash field (see `hr.id64`) of every feature that may hold strings."""
        return {}

    def train(self, fields: Mapping[str, str]) -> BatchSource:
        """Opens the training samples. `fields` holds the hash field of features with strings."""
        raise NotImplementedError

    def test(self, fields: Mapping[str, str]) -> BatchSource | None:
        """Opens the test samples, if there are any."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class MovieLensData(DataJob):
    """MovieLens-100K. The test samples are the latest 20 % of each user's ratings."""

    word: ClassVar[str] = "movielens-100k"
    features: tuple[str, ...] = FEATURES
    cache: str | None = None

    def feature_names(self) -> tuple[str, ...]:
        """Returns the chosen fields of user and movie."""
        return self.features

    def hashed(self, fields: Mapping[str, str]) -> dict[str, str]:
        """Returns every feature with its own name as hash field."""
        return {name: name for name in self.features}

    def item_names(self) -> tuple[str, ...]:
        """Returns the fields of the movie."""
        return tuple(name for name in self.features if name in ("item", *ITEM_FIELDS))

    def located(self, folder: Path) -> DataJob:
        """Returns the section with an absolute path of the cache."""
        return self if self.cache is None else replace(self, cache=_full(folder, self.cache))

    def check(self, place: ConfigPlace) -> None:
        """Raises if a feature is unknown or repeated.

        The rating is not allowed: it implies the label.
        """
        check_names("feature", self.features, FEATURES, place.key("features"))
        if not self.features or len(set(self.features)) != len(self.features):
            place.key("features").refuse(
                f"is {list(self.features)}; name at least one, and each once."
            )

    def train(self, fields: Mapping[str, str]) -> BatchSource:
        """Opens the training ratings, shuffled."""
        return self._split("train", self.seed)

    def test(self, fields: Mapping[str, str]) -> BatchSource:
        """Opens the test ratings."""
        return self._split("test", 0)

    def _split(self, split: str, seed: int) -> BatchSource:
        features, cache = self.features, self.cache
        return movielens(self.batch_size, split, features=features, seed=seed, cache=cache)


@dataclass(frozen=True, kw_only=True)
class SyntheticData(DataJob):
    """Samples of a known truth. Training and test samples differ."""

    steps: Size | None = None
    test_steps: Size | None = None

    def dense_columns(self) -> int:
        """Returns the number of dense columns."""
        return DENSE_COLUMNS

    def train(self, fields: Mapping[str, str]) -> SyntheticClicks:
        """Opens the training samples: two million if `steps` is None."""
        return self._made(self.steps or max(1, _EPOCH_SAMPLES // self.batch_size))

    def test(self, fields: Mapping[str, str]) -> SyntheticClicks:
        """Opens other samples of the same truth."""
        train = self.train(fields)
        steps = self.test_steps or max(1, len(train) // _TEST_SHARE)
        return train.held_out(self.batch_size, steps)

    def _made(self, steps: int) -> SyntheticClicks:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class ClicksData(SyntheticData):
    """Clicks of users on items. Each sample has a history of other items."""

    word: ClassVar[str] = "clicks"
    users: Size = 500
    items: Size = 200
    history: Size = 8

    def feature_names(self) -> tuple[str, ...]:
        """Returns the three features."""
        return ("user", "item", "history")

    def item_names(self) -> tuple[str, ...]:
        """Returns the item. The history belongs to the user."""
        return ("item",)

    def shared(self) -> Mapping[str, str]:
        """Returns the history, which shares the rows of the items."""
        return {"history": "item"}

    def _made(self, steps: int) -> SyntheticClicks:
        sizes = {"users": self.users, "items": self.items, "history": self.history}
        return clicks(self.batch_size, steps, seed=self.seed, **sizes)


@dataclass(frozen=True, kw_only=True)
class WideClicksData(SyntheticData):
    """Many features, whose ids repeat as in production."""

    word: ClassVar[str] = "wide-clicks"
    features: Size = 26
    rows: Size = 1_000_000

    def feature_names(self) -> tuple[str, ...]:
        """Returns f0, f1 and so on."""
        return tuple(f"f{i}" for i in range(self.features))

    def _made(self, steps: int) -> SyntheticClicks:
        sizes = {"features": self.features, "rows": self.rows}
        return wide_clicks(self.batch_size, steps, seed=self.seed, **sizes)


@dataclass(frozen=True, kw_only=True)
class FileData(DataJob):
    """Training files and test files: paths or patterns such as "day-*.parquet"."""

    is_files: ClassVar[bool] = True
    files: tuple[str, ...]
    test_files: tuple[str, ...] = ()
    window_rows: NonNegativeInt = _WINDOW_ROWS

    def located(self, folder: Path) -> FileData:
        """Returns the section with absolute paths."""
        files = tuple(_full(folder, file) for file in self.files)
        return replace(
            self, files=files, test_files=tuple(_full(folder, f) for f in self.test_files)
        )

    def unlabelled(self) -> FileData:
        """Returns the section without labels, for prediction."""
        return self

    def train(self, fields: Mapping[str, str]) -> TableStream:
        """Opens the training files. Rows are shuffled within windows of `window_rows`."""
        return self._opened(self.files, self.window_rows, fields)

    def test(self, fields: Mapping[str, str]) -> TableStream | None:
        """Opens the test files in their order."""
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
    """Files with named columns. `fields` holds the hash fields of features with strings.

    `fill` holds the values that replace nulls in dense columns and weights. `keys` are columns that
    are written with predictions.
    """

    features: tuple[str, ...]
    label: str | None
    dense: tuple[str, ...] = ()
    weight: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    fill: Mapping[str, float] = field(default_factory=dict)
    keys: tuple[str, ...] = ()

    def feature_names(self) -> tuple[str, ...]:
        """Returns the listed features."""
        return self.features

    def dense_columns(self) -> int:
        """Returns the number of listed dense columns."""
        return len(self.dense)

    def shared(self) -> Mapping[str, str]:
        """Returns the features with a shared field."""
        return self.fields

    def hashed(self, fields: Mapping[str, str]) -> dict[str, str]:
        """Returns the hash field of each feature: its own name, or the field that it shares."""
        given = self._all_fields(fields)
        return {name: given.get(name, name) for name in self.features}

    def test_with_keys(
        self, fields: Mapping[str, str], keys: Sequence[str] = ()
    ) -> TableStream | None:
        """Opens the test files with the key columns `keys`; if empty, with those of the job."""
        if not self.test_files:
            return None
        return self._opened(self.test_files, 0, fields, tuple(keys) or self.keys)

    def unlabelled(self) -> FileData:
        """Returns the section without label and weight."""
        fill = {name: value for name, value in self.fill.items() if name != self.weight}
        return replace(self, label=None, weight=None, fill=fill)

    def check(self, place: ConfigPlace) -> None:
        """Raises unless all features are known and every column has one use."""
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
        """Returns the fields of tables that have no feature in `self.fields`."""
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
    """Text lines with a label, 13 numbers and 26 strings."""

    word: ClassVar[str] = "criteo"

    def feature_names(self) -> tuple[str, ...]:
        """Returns C1 to C26."""
        return STRINGS

    def hashed(self, fields: Mapping[str, str]) -> dict[str, str]:
        """Returns every feature with its own name as hash field."""
        return {name: name for name in STRINGS}

    def dense_columns(self) -> int:
        """Returns the number of columns I1 to I13."""
        return len(NUMBERS)

    def _opened(
        self,
        files: Sequence[str],
        window_rows: int,
        fields: Mapping[str, str],
        keys: tuple[str, ...] = (),  # unused: the text has no further columns
    ) -> TableStream:
        return criteo(_listed(files), self.batch_size, window_rows=window_rows, seed=self.seed)


def _full(folder: Path, file: str) -> str:
    return str(folder / local_path(file))


def check_names(
    what: str, names: Mapping[str, Any] | Sequence[str], known: Sequence[str], place: ConfigPlace
) -> None:
    """Raises `ConfigError` if a name is unknown."""
    for name in names:
        if name not in known:
            place.refuse_name(f"unknown {what} {name!r}", name, known)


def batches_of(source: BatchSource, batch_size: int) -> int | None:
    """Returns the number of batches of an epoch, or None if only reading them would tell."""
    if isinstance(source, SyntheticClicks):
        return len(source)
    rows = source.rows if isinstance(source, TableStream) else None
    return None if rows is None else -(-rows // batch_size)


def best_auc(source: BatchSource) -> float | None:
    """Returns the expected AUC of the best possible model, if the truth is known."""
    return source.best(_BEST_SAMPLES).auc if isinstance(source, SyntheticClicks) else None


def _listed(patterns: Sequence[str]) -> list[str]:
    """Returns the files of all patterns; the files of one pattern are sorted by name."""
    found: list[str] = []
    for pattern in patterns:
        here = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]
        if not here:
            raise FileMissingError(f"no file matches {pattern}; check the pattern.")
        found += here
    return found
