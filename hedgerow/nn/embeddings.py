"""Ids in, one vector an id out: for sequence models."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..core.id_batch import IdBatch
from ..core.ids import Ragged
from ..core.shapes import Float
from .collection import Collection, readable, wanted
from .compiling import between_graphs


class Embeddings(Collection):
    """The vector of every id of every feature, unpooled.

    >>> import hedgerow as hr
    >>> rows = hr.Embeddings([hr.Table("item", 3, features=["history"])])
    >>> found = rows(hr.IdBatch.from_lists({"history": [[1, 2], [], [1]]}))["history"]
    >>> tuple(found.values.shape), found.row_splits.tolist()
    ((3, 3), [0, 2, 2, 3])
    """

    @between_graphs
    def forward(self, batch: IdBatch, features: Sequence[str] | None = None) -> dict[str, Ragged]:
        """Ragged rows of vectors by feature, in the order in which features were declared.

        With `features`, of these alone and in their order; the batch need not have the others.
        """
        names = wanted(features, self.declared)
        batch = readable(batch, names, type(self).__name__)
        reading = self.reading(batch, names)
        rows = self.rows(batch, reading)
        found: dict[str, Float[Tensor, "n dim"]] = {
            feature.name: part for feature, part in zip(reading.features, rows, strict=True)
        }
        return {name: Ragged.trusted(found[name], batch.feature(name).row_splits) for name in names}
