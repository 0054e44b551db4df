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
    """Reads what a module with tables reads in eval mode, through one custom op. It never writes.

    The op knows the store by `name`. This module holds a reference to the store, so the store lives
    as long as the module.
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
        self._step = collection.updates.step  # some compressors give other rows at other steps
        self._anchor = torch.empty(0, requires_grad=True)
        self.training = False

    def rows(self, batch: IdBatch, features: Sequence[str] | None) -> dict[str, Tensor]:
        """Returns the op's tensors by feature, in the order of declaration or of `features`."""
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
        """Returns the name of the store and its tables."""
        return f"{self.name!r}: rows of {', '.join(self.store.names)}"


class FrozenBags(FrozenRows):
    """`EmbeddingBags`, read-only."""

    def forward(
        self, batch: IdBatch, features: Sequence[str] | None = None
    ) -> dict[str, Float[Tensor, "samples dim"]]:
        """Returns vectors by feature, as `EmbeddingBags` does."""
        return self.rows(batch, features)


class FrozenEmbeddings(FrozenRows):
    """`Embeddings`, read-only."""

    pooled = False

    def forward(self, batch: IdBatch, features: Sequence[str] | None = None) -> dict[str, Ragged]:
        """Returns ragged rows of vectors by feature, as `Embeddings` does."""
        found, whole = self.rows(batch, features), batch.source()
        return {n: Ragged.trusted(rows, _splits(whole, n)) for n, rows in found.items()}


def _splits(batch: IdBatch, name: str) -> Tensor:
    """Returns the row splits of a feature without reading values, which an export cannot do."""
    samples = (batch.offsets.shape[0] - 1) // len(batch.names)
    first = batch.names.index(name) * samples
    splits = batch.offsets[first : first + samples + 1]
    return splits - splits[0]


_FORMS: dict[type[nn.Module], type[FrozenRows]] = {
    EmbeddingBags: FrozenBags,
    Embeddings: FrozenEmbeddings,
}

_COMPILED = "_orig_mod"  # name of the inner module in the wrapper of torch.compile


def freeze(model: nn.Module, *, name: str | None = None) -> nn.Module:
    """Returns a read-only form of a model in eval mode, for serving and for `torch.export`.

    The frozen form shares rows and dense weights with the model. The model does not change and can
    be trained further; the frozen form sees its updates. Training the frozen form raises an error.

    In place of each EmbeddingBags and Embeddings the frozen form has a module that reads rows
    through one custom op, which an exported graph can hold. The op finds its store by name: `name`
    (by default the class of the model) followed by the path of the module in the model. A program
    that is loaded in another process finds its rows once the same model is frozen there. The frozen
    form of a distributed model reads from all ranks, so every rank must call it.

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
    model = unwrap(model)  # a compiled wrapper would run the model that is not frozen
    collections_of(model)  # raises if the model is frozen already
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
    """Returns the store of a module. Raises if exported programs cannot read it."""
    store = module.store
    if not store.programs_read:
        raise NotSupportedError(
            "freeze of tables on a device: programs are exported over rows in host memory. hr.save "
            "the model, hr.load it into one on the CPU, and freeze that."
        )
    return store


def _claim(wanted: str, store: ModuleStore, *, exactly: bool) -> str:
    """Registers the store under a name of its own: the wanted name, or that name with a number."""
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
    """Returns a copy of the module that shares its weights. A repeated module is copied once."""
    module = unwrap(module)  # a compiled wrapper would run the module that is not frozen
    if id(module) in made:
        return made[id(module)]
    if isinstance(module, EmbeddingModule):
        view = _frozen(module, places[id(module)])
    else:
        view = cast("nn.Module", object.__new__(type(module)))
        own: dict[str, Any] = {**module.__dict__, "training": False}
        own.pop("_compiled_call_impl", None)  # of module.compile(): it runs the unfrozen module
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
            f"freeze of a {type(module).__name__}, a subclass; only hr.EmbeddingBags and "
            f"hr.Embeddings can be frozen: hold one of them instead of deriving from it."
        )
    return form(module, name)


def _train(view: nn.Module, mode: bool = True) -> nn.Module:
    """Replaces `train` of frozen modules: raises for training mode, does nothing for eval mode."""
    if mode:
        refuse("train() of")
    return view
