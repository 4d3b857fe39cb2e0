"""A certificate of its own for a hostile HTTPS server.

Comes in: a folder. Goes out: the paths of a certificate for 127.0.0.1 that signs itself, and of its key.
"""

from __future__ import annotations

import subprocess
from pathlib import Path


def certificate_in(folder: Path) -> tuple[Path, Path]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-keyout", key, "-out", cert, "-subj", "/CN=hostile", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True, timeout=20,
    )  # fmt: skip
    return cert, key
