"""Checkpoints that no trainer wrote: any header and any bytes, under a checksum that fits."""

import hashlib
import json
from typing import Any

from course_lm.checkpoints.files import FORMAT_VERSION

ZEROS = "0" * 64


def taken_apart(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the tensors' bytes of a checkpoint."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def beginning(**about: Any) -> dict[str, str]:
    """The metadata that every checkpoint begins with, and more of it."""
    known = {"sha256": ZEROS, "format": FORMAT_VERSION, "serial": 1, "step": 0}
    return {name: str(value) for name, value in {**known, **about}.items()}


def sealed(header: bytes | dict[str, Any], body: bytes = b"", length: int | None = None) -> bytes:
    """A file with a right checksum; length: what it says of its header."""
    if isinstance(header, dict):
        if isinstance(header["__metadata__"], dict):
            header = {**header, "__metadata__": {**header["__metadata__"], "sha256": ZEROS}}
        header = json.dumps(header, separators=(",", ":")).encode()
    content = (len(header) if length is None else length).to_bytes(8, "little") + header + body
    return content.replace(ZEROS.encode(), hashlib.sha256(content).hexdigest().encode(), 1)
