"""A model as a read-only one that `torch.export` takes."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any, cast

from torch import nn

from ..core import registry
from ..core.errors import DtypeError, NotSupportedError
from ..tables.module_store import ModuleStore
from .bags import EmbeddingBags
from .collection import Collection, collections_of, undressed
from .embeddings import Embeddings
from .frozen import FrozenBags, FrozenEmbeddings, FrozenRows
from .pytree import register_batches
from .read_only import refuse

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
    model = undressed(model)  # what torch.compile makes of it reads the original
    collections_of(model)  # refuses what is frozen already
    register_batches()
    base = type(model).__name__ if name is None else name
    places: dict[int, str] = {}
    for path, module in model.named_modules():
        if isinstance(module, Collection):
            parts = [part for part in path.split(".") if part not in ("", _COMPILED)]
            wanted = ".".join([base, *parts])
            places[id(module)] = _claim(wanted, _readable(module), exactly=name is not None)
    return _view(model, places, {})


def _readable(module: Collection) -> ModuleStore:
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
        holder = registry.find(name)
        if holder is None or (exactly and holder is not store):
            registry.register(name, store)
            return name
        if holder is store:
            return name
    raise AssertionError("numbers do not end")


def _view(module: nn.Module, places: dict[int, str], made: dict[int, nn.Module]) -> nn.Module:
    """The module anew around the same weights; one that stands at two places is one here, too."""
    module = undressed(module)  # a compiled part would read the original, in its mode
    if id(module) in made:
        return made[id(module)]
    if isinstance(module, Collection):
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


def _frozen(module: Collection, name: str) -> FrozenRows:
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
