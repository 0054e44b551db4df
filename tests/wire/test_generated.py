"""What is committed as generated is what the .proto files give."""

from __future__ import annotations

from hedgerow.wire.messages import FILES
from tools import protos


def test_generated_files_are_current() -> None:
    for path, text in protos.generated().items():
        assert path.read_text() == text, f"{path.name} is old; run `make protos`"


def test_every_proto_file_has_a_name_and_a_stub() -> None:
    names = {path.stem for path in (protos.WIRE / "protos").glob("*.proto")}
    messages = protos.WIRE / "messages"
    assert {path.stem for path in messages.glob("*.pyi")} == names
    assert set(FILES) == names
