"""TensorFlow Recommenders Addons: its cuckoo hash table and its own way to train it."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .subject import Subject, serve
from .workfile import Work


class DynamicEmbedding(Subject):
    """Takes real ids; eager mode, ids and gradients already tensors.

    Lookups time `CuckooHashTable.lookup` on a table made with room for all rows; inserts time
    `CuckooHashTable.insert`, growing from its default size. Updates time one step of the library's
    trainable path on a `Variable`: `embedding_lookup_unique` under a tape, the gradient of its
    rows, and `apply_gradients` of `DynamicEmbeddingOptimizer` around TensorFlow's Adagrad or
    gradient descent (version 1: the library takes no Keras 3 optimizer), which reads row and slot,
    steps, and writes both back.
    """

    packages: ClassVar[tuple[str, ...]] = ("tensorflow", "tensorflow-recommenders-addons")

    def __init__(self, work: Work, threads: int, optimizer: str | None) -> None:
        super().__init__(work, threads, optimizer)
        import tensorflow as tf  # pyright: ignore[reportMissingImports]

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
        # After TensorFlow has its threads: the library starts it.
        from tensorflow_recommenders_addons import (  # pyright: ignore[reportMissingImports]
            dynamic_embedding,
        )

        self._tf, self._de = tf, dynamic_embedding
        self._table: Any = None
        self._variable: Any = None

    def fill(self) -> None:
        """A table for reads, or a variable with an optimizer for updates."""
        if self.optimizer:
            self._variable = self._de.Variable(
                dim=self.work.dim,
                initializer=0.0,
                devices=["/CPU:0"],
                init_size=self.work.rows,
                name="rows",
            )
            # Slots take their size from here, and only rows that learn have one.
            self._variable.init_size = 0
            self._optimizer = self._de.DynamicEmbeddingOptimizer(self._make_optimizer())
            insert = self._variable.upsert
        else:
            self._make_table(self.work.rows)
            insert = self._table.insert
        ids = self.work.ids()
        for start, stop in self.work.calls():
            insert(self._tensor(ids[start:stop]), self._tensor(self.work.first_rows(start, stop)))

    def _make_optimizer(self) -> Any:
        train = self._tf.compat.v1.train
        if self.optimizer == "sgd":
            return train.GradientDescentOptimizer(self.work.rate)
        # Without an epsilon, which beside our accumulator is nothing.
        return train.AdagradOptimizer(
            self.work.rate, initial_accumulator_value=self.work.accumulator
        )

    def _tensor(self, values: NDArray[Any]) -> Any:
        return self._tf.constant(np.array(values))

    def place(self, access: str) -> None:
        """Real ids as tensors."""
        ids = self.work.ids()
        self._batches = [self._tensor(ids[np.array(b)]) for b in self.work.batches(access)]
        if self.optimizer:
            self._gradients = self._tensor(self.work.gradients())

    def lookup(self, batch: int, output: str) -> Any:
        """Fresh output only."""
        return self._table.lookup(self._batches[batch])

    def update(self, batch: int, output: str) -> Any:
        """Fresh output only."""
        with self._tf.GradientTape() as tape:
            rows, trainable = self._de.embedding_lookup_unique(
                self._variable, self._batches[batch], name="lookup", return_trainable=True
            )
        gradient = tape.gradient(rows, trainable, output_gradients=self._gradients)
        self._optimizer.apply_gradients([(gradient, trainable)])
        return rows

    def place_calls(self) -> None:
        """Ids and rows of every call."""
        ids = self.work.ids()
        self._calls = [
            (self._tensor(ids[a:b]), self._tensor(self.work.first_rows(a, b)))
            for a, b in self.work.calls()
        ]

    def empty(self) -> None:
        """A table of the default size."""
        self._make_table(0)

    def _make_table(self, room_rows: int) -> None:
        zeros = self._tf.zeros([self.work.dim])
        self._table = self._de.CuckooHashTable(
            self._tf.int64, self._tf.float32, zeros, init_size=room_rows
        )

    def insert(self, call: int) -> Any:
        """One call."""
        self._table.insert(*self._calls[call])

    def array(self, rows: Any) -> NDArray[np.float32]:
        """A copy."""
        return rows.numpy()

    def rows(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """A plain read."""
        holder = self._variable if self.optimizer else self._table
        return holder.lookup(self._tensor(self.work.ids()[np.array(numbers)])).numpy()


if __name__ == "__main__":
    serve(DynamicEmbedding)
