"""Compiles hedgerow/wire/protos into what the package loads: one set of descriptors, and stubs.

`make protos` runs it as `python -m tools.protos`; the compiler comes with grpcio-tools.
"""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

WIRE = Path(__file__).parents[1] / "hedgerow" / "wire"
_HEAD = '''"""The compiled descriptors of protos/*.proto, written by `make protos`."""

from __future__ import annotations

import base64

# A FileDescriptorSet, every file after those it imports.
DESCRIPTOR_SET = base64.b64decode(
    """
{lines}
    """
)
'''


def generated() -> dict[Path, str]:
    """Every generated file and what should stand in it."""
    sources = sorted(path.name for path in (WIRE / "protos").glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{WIRE / 'protos'}"]
        command += [f"--pyi_out={out}", f"--descriptor_set_out={out / 'set'}", "--include_imports"]
        subprocess.run([*command, *sources], check=True)
        files = {WIRE / "descriptors.py": _module((out / "set").read_bytes())}
        for source in sources:
            name = source.removesuffix(".proto")
            stub = (out / f"{name}_pb2.pyi").read_text()
            files[WIRE / "messages" / f"{name}.pyi"] = _stub(stub)
    return files


def _module(descriptor_set: bytes) -> str:
    text = base64.b64encode(descriptor_set).decode()
    return _HEAD.format(lines="\n".join(textwrap.wrap(text, 100)))


def _stub(text: str) -> str:
    """The compiler's stub, with imports that hold inside the package."""
    return re.sub(r"^import (\w+)_pb2 as", r"from . import \1 as", text, flags=re.MULTILINE)


def main() -> None:
    """Writes the generated files."""
    for path, text in generated().items():
        path.write_text(text)
        print(path.relative_to(WIRE.parents[1]))


if __name__ == "__main__":
    main()
