"""Ids in, one vector an id out: for sequence models."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.id_batch import IdBatch
from ..core.ids import Ragged
from .collection import Collection
from .compiling import between_graphs


class Embeddings(Collection):
    """The vector of every id of every feature, unpooled.

    >>> import hedgerow as hr
    >>> rows = hr.Embeddings([hr.Table("item", 3, features=["history"])])
    >>> found = rows(hr.IdBatch.from_lists({"history": [[1, 2], [], [1]]}))["history"]
    >>> tuple(found.values.shape), found.row_splits.tolist()
    ((3, 3), [0, 2, 2, 3])
    """

    pools = False

    @between_graphs
    def forward(self, batch: IdBatch, features: Sequence[str] | None = None) -> dict[str, Ragged]:
        """Ragged rows of vectors by feature, in the order in which features were declared.

        With `features`, of these alone and in their order; the batch need not have the others.
        """
        bags = self.bags(batch, features)
        rows = self.outputs(bags)
        found: dict[str, Ragged] = {}
        for i in bags.group.order:
            name = bags.group.features[i].name
            found[name] = Ragged.trusted(rows[i], bags.batch.feature(name).row_splits)
        return found
