"""Read-only forms of the modules with rows: one op each, in eager mode and in exported graphs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.checks import unknown
from ..core.id_batch import IdBatch, check_batch
from ..core.ids import Ragged
from ..core.shapes import Float
from .collection import Collection, wanted
from .read_only import NoBackward, ReadOnlyRows
from .read_op import pooling_text, read_rows


class FrozenRows(ReadOnlyRows):
    """Reads what a module with tables reads in eval, through one op; it has no way to write.

    `name` is what the op calls the store; the store itself is held here, so that it lives as long.
    """

    pooled = True

    def __init__(self, collection: Collection, name: str) -> None:
        super().__init__()
        self.name, self.tables, self.store = name, collection.tables, collection.store
        self._declared = collection.declared
        features = collection.features
        self._features = [feature.name for feature in features]
        self._tables = [self.store.names[feature.table] for feature in features]
        self._dims = [self.store.dims[feature.table] for feature in features]
        self._poolings = [pooling_text(f.pooling) if self.pooled else "none" for f in features]
        self._step = collection.updates.step  # rows of some compressors look different by step
        self._anchor = torch.empty(0, requires_grad=True)
        self.training = False

    def rows(self, batch: IdBatch, features: Sequence[str] | None) -> dict[str, Tensor]:
        """The op's tensors by feature, in the order in which features were declared or asked."""
        names = wanted(features, self._declared)
        check_batch(batch, type(self).__name__)
        for name in names:
            if name not in batch.names:
                unknown("feature", name, batch.names)
        batch = batch.source()
        chosen = [i for i, feature in enumerate(self._features) if feature in names]
        found = read_rows(
            self.name,
            list(batch.names),
            [self._features[i] for i in chosen],
            [self._tables[i] for i in chosen],
            [self._poolings[i] for i in chosen],
            [self._dims[i] for i in chosen],
            self._step,
            batch.values,
            batch.offsets,
            batch.weights,
        )
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            found = NoBackward.apply(self._anchor, *found)
        by_name = {self._features[i]: rows for i, rows in zip(chosen, found, strict=True)}
        return {name: by_name[name] for name in names}

    def extra_repr(self) -> str:
        """Where the rows are."""
        return f"{self.name!r}: rows of {', '.join(self.store.names)}"


class FrozenBags(FrozenRows):
    """`EmbeddingBags`, read-only."""

    def forward(
        self, batch: IdBatch, features: Sequence[str] | None = None
    ) -> dict[str, Float[Tensor, "samples dim"]]:
        """Vectors by feature, as `EmbeddingBags` gives them."""
        return self.rows(batch, features)


class FrozenEmbeddings(FrozenRows):
    """`Embeddings`, read-only."""

    pooled = False

    def forward(self, batch: IdBatch, features: Sequence[str] | None = None) -> dict[str, Ragged]:
        """Ragged rows of vectors by feature, as `Embeddings` gives them."""
        found, whole = self.rows(batch, features), batch.source()
        return {n: Ragged.trusted(rows, _splits(whole, n)) for n, rows in found.items()}


def _splits(batch: IdBatch, name: str) -> Tensor:
    """Borders of a feature's rows, without a look at their values: an export has none."""
    samples = (batch.offsets.shape[0] - 1) // len(batch.names)
    first = batch.names.index(name) * samples
    splits = batch.offsets[first : first + samples + 1]
    return splits - splits[0]
