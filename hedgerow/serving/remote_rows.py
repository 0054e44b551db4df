"""Rows that other servers have: what an entry model reads when its bundle holds none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate

import torch
from torch import Tensor

from ..core.shapes import Int64
from ..routing.router import Router
from ..tables.store import Lookup, Missing, TableKeys
from .model import ServingError, Tensors

Ask = Callable[[Mapping[str, Tensors]], Mapping[str, Tensors]]
"""The inputs of `raw_lookup` by sub graph (`ps_0`) in, all at once; the outputs of each out."""


class RemoteRows:
    """Reads every id once, from the server that owns it."""

    def __init__(self, dims: Mapping[str, int], routers: Mapping[str, Router], ask: Ask) -> None:
        self.names, self.dims = tuple(dims), tuple(dims.values())
        self._routers, self._ask = [routers[name] for name in dims], ask
        self._servers = self._routers[0].shards if self._routers else 0

    def lookup(
        self, keys: TableKeys, *, missing: Missing = "zeros", step: int | None = None
    ) -> Lookup:
        """Rows of `keys`; an absent one gives zeros, whatever `missing` and `step` say."""
        del missing, step
        tables = [_Distinct(keys.ids_of(k), router) for k, router in enumerate(self._routers)]
        requests = {f"ps_{s}": _request(tables, s) for s in range(self._servers)}
        requests = {name: inputs for name, inputs in requests.items() if len(inputs["id"])}
        answers = self._ask(requests) if requests else {}
        found = [
            torch.empty(len(t.ids), dim, dtype=torch.float32)
            for t, dim in zip(tables, self.dims, strict=True)
        ]
        for name, inputs in requests.items():
            self._fill(found, tables, name, inputs, answers)
        rows = [part[table.inverse].view(-1) for part, table in zip(found, tables, strict=True)]
        return Lookup(keys, torch.cat(rows), self.dims)

    def _fill(
        self,
        found: list[Tensor],
        tables: list[_Distinct],
        name: str,
        inputs: Tensors,
        answers: Mapping[str, Tensors],
    ) -> None:
        """Rows of one server to their places."""
        sizes = inputs["id_split"].diff().tolist()
        floats = [n * dim for n, dim in zip(sizes, self.dims, strict=True)]
        flat = answers[name].get("flat_emb") if name in answers else None
        if flat is None or flat.dtype != torch.float32 or flat.numel() != sum(floats):
            raise ServingError(
                "INTERNAL", f"{name} did not answer with {sum(floats)} floats named flat_emb."
            )
        server = int(name.removeprefix("ps_"))
        for rows, table, part, dim in zip(
            found, tables, flat.view(-1).split(floats), self.dims, strict=True
        ):
            rows[table.owners == server] = part.view(-1, dim)


class _Distinct:
    """The distinct ids of one table, and who owns each."""

    def __init__(self, ids: Int64[Tensor, "n"], router: Router) -> None:
        self.ids, self.inverse = ids.unique(return_inverse=True)
        self.owners = router.owners(self.ids)


def _request(tables: list[_Distinct], server: int) -> dict[str, Tensor]:
    parts = [table.ids[table.owners == server] for table in tables]
    splits = torch.tensor([0, *accumulate(len(part) for part in parts)])
    return {"id": torch.cat(parts), "id_split": splits}
