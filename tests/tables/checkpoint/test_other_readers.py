"""Checkpoints are read by programs that know nothing of Hedgerow."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

import hedgerow as hr
from hedgerow.routing.router import Router

from .common import filled


def test_pyarrow_pandas_and_duckdb_see_ids_rows_and_times(tmp_path: Path) -> None:
    table = filled(500)
    manifest = hr.save([table], tmp_path / "a", router=Router("roundrobin", 3))
    parts = []
    for file in manifest.files:
        with pa.memory_map(str(tmp_path / "a" / file.file)) as source:
            parts.append(pa.ipc.open_file(source).read_all())
    arrow = pa.concat_tables(parts)
    wanted = {
        int(key): (int(ts), row)
        for entries in table.scan()
        for key, ts, row in zip(
            entries.ids.tolist(), entries.ts.tolist(), entries.rows.numpy(), strict=True
        )
    }
    assert len(wanted) == table.size()

    frame = arrow.to_pandas().set_index("id")
    listed = duckdb.sql("select id, ts, row from arrow").fetchall()
    assert len(frame) == len(listed) == len(wanted)
    for key, ts, row in listed:
        np.testing.assert_array_equal(np.asarray(row, np.float32), wanted[key][1])
        np.testing.assert_array_equal(frame.loc[key, "row"], wanted[key][1])
        assert ts == frame.loc[key, "ts"] == wanted[key][0]
