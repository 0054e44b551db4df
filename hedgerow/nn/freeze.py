"""Makes a read-only copy of a model that torch.export accepts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..core import process_state
from ..core.checks import unknown
from ..core.errors import DtypeError, NotSupportedError
from ..core.id_batch import IdBatch, check_batch
from ..core.ids import Ragged
from ..core.shapes import Float
from ..tables.module_store import ModuleStore
from .embedding_modules import (
    EmbeddingBags,
    EmbeddingModule,
    Embeddings,
    NoBackward,
    ReadOnlyRows,
    collections_of,
    refuse,
    requested_features,
    unwrap,
)
from .export_ops import pooling_text, read_rows, register_batches


class FrozenRows(ReadOnlyRows):
    """Reads what a module with tables reads in eval, through one op; it has no way to write.

    `name` is what the op calls the store; the store itself is held here, so that it lives as long.
    """

    pooled = True

    def __init__(self, collection: EmbeddingModule, name: str) -> None:
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
        names = requested_features(features, self._declared)
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


_FORMS: dict[type[nn.Module], type[FrozenRows]] = {
    EmbeddingBags: FrozenBags,
    Embeddings: FrozenEmbeddings,
}

_COMPILED = "_orig_mod"  # what torch.compile calls the module within


def freeze(model: nn.Module, *, name: str | None = None) -> nn.Module:
    """A read-only form of a model, in eval mode: for serving and for `torch.export`.

    It shares rows and dense weights with the model, which is left as it is and can train on; the
    frozen form shows what it learns. What would train the frozen form is refused. Every
    EmbeddingBags and Embeddings reads through one op, which an exported graph holds in its place.
    The op names its store: `name`, or the model's class, and the module's place in the model. A
    program that is loaded elsewhere finds its rows once the same model was frozen there. The frozen
    form of a distributed model reads from all ranks: every rank must call it.

    >>> import torch, hedgerow as hr
    >>> bags = hr.EmbeddingBags([hr.Table("user", 2)], init=hr.Zeros(), optimizer=hr.Sgd(lr=1.0))
    >>> ids = hr.IdBatch.from_lists({"user": [[7], [8]]})
    >>> bags(ids)["user"].sum().backward()
    >>> frozen = hr.freeze(bags)
    >>> program = torch.export.export(frozen, (ids,), dynamic_shapes=hr.dynamic_shapes(ids))
    >>> program.module()(hr.IdBatch.from_lists({"user": [[8, 8], [9], []]}))["user"].tolist()
    [[-2.0, -2.0], [0.0, 0.0], [0.0, 0.0]]
    """
    if not isinstance(model, nn.Module):
        raise DtypeError(f"freeze of a {type(model).__name__}; pass an nn.Module.")
    model = unwrap(model)  # what torch.compile makes of it reads the original
    collections_of(model)  # refuses what is frozen already
    register_batches()
    base = type(model).__name__ if name is None else name
    places: dict[int, str] = {}
    for path, module in model.named_modules():
        if isinstance(module, EmbeddingModule):
            parts = [part for part in path.split(".") if part not in ("", _COMPILED)]
            wanted = ".".join([base, *parts])
            places[id(module)] = _claim(wanted, _readable(module), exactly=name is not None)
    return _view(model, places, {})


def _readable(module: EmbeddingModule) -> ModuleStore:
    """The store of a module, if an exported program can read it."""
    store = module.store
    if not store.programs_read:
        raise NotSupportedError(
            "freeze of tables on a device: programs are exported over rows in host memory. hr.save "
            "the model, hr.load it into one on the CPU, and freeze that."
        )
    return store


def _claim(wanted: str, store: ModuleStore, *, exactly: bool) -> str:
    """A name that is the store's own in this process: the wanted one, or that with a number."""
    for number in count(1):
        name = wanted if number == 1 else f"{wanted}#{number}"
        holder = process_state.find(name)
        if holder is None or (exactly and holder is not store):
            process_state.register(name, store)
            return name
        if holder is store:
            return name
    raise AssertionError("numbers do not end")


def _view(module: nn.Module, places: dict[int, str], made: dict[int, nn.Module]) -> nn.Module:
    """The module anew around the same weights; one that stands at two places is one here, too."""
    module = unwrap(module)  # a compiled part would read Monolith, in its mode
    if id(module) in made:
        return made[id(module)]
    if isinstance(module, EmbeddingModule):
        view = _frozen(module, places[id(module)])
    else:
        view = cast("nn.Module", object.__new__(type(module)))
        own: dict[str, Any] = {**module.__dict__, "training": False}
        own.pop("_compiled_call_impl", None)  # of module.compile(): it reads the original
        own |= {part: dict(own[part]) for part in ("_parameters", "_buffers")}
        view.__dict__.update(own)
    made[id(module)] = view
    view.__dict__["_modules"] = {
        name: child if child is None else _view(child, places, made)
        for name, child in module._modules.items()
    }
    view.__dict__["train"] = partial(_train, view)
    return view


def _frozen(module: EmbeddingModule, name: str) -> FrozenRows:
    form = _FORMS.get(type(module))
    if form is None:
        raise NotSupportedError(
            f"freeze of a {type(module).__name__}, a class of its own; hr.EmbeddingBags and "
            f"hr.Embeddings can be frozen: hold one of them instead of deriving from it."
        )
    return form(module, name)


def _train(view: nn.Module, mode: bool = True) -> nn.Module:
    """In place of `train`: eval is what it is in."""
    if mode:
        refuse("train() of")
    return view
