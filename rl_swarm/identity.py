"""A node's Ed25519 key, in a file that nobody else may read. Signs and verifies bytes; knows nothing about their meaning.

The `cryptography` library is an optional extra, imported only when there is a key or a signature to use.
"""

import importlib.util
import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rl_swarm.errors import ConfigError
from rl_swarm.extras import install_command
from rl_swarm.values import expanded

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_FILE = "swarm.pem"
_PUBLIC = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Identity:
    """`public` is the public key, as 64 hexadecimal digits."""

    public: str
    _private: "Ed25519PrivateKey" = field(repr=False)

    def sign(self, message: bytes) -> str:
        return self._private.sign(message).hex()


def can_check() -> bool:
    return importlib.util.find_spec("cryptography") is not None


def require_library(what: str) -> None:
    if not can_check():
        raise ConfigError(f"{what} needs the library 'cryptography', which is not installed: {install_command('signed')}")


def signed_by(public: str, signature: str, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(bytes.fromhex(signature), message)
    except (InvalidSignature, ValueError):
        return False
    return True


def load_identity(value: str, shared: Path | None = None) -> Identity:
    """Load the key from a file, or create it. `shared` is the store's folder, where everybody could read it."""
    require_library("SWARM_IDENTITY")
    path = expanded(value, "SWARM_IDENTITY").absolute()
    path = path / KEY_FILE if path.is_dir() else path
    if shared and path.resolve().is_relative_to(shared.resolve()):
        raise ConfigError(f"SWARM_IDENTITY lies in the shared folder, got {value!r}: keep the key where only you can read it")
    try:
        if not path.exists():
            _make(path)
        mode = path.stat().st_mode & 0o777
        if mode & 0o077:
            raise ConfigError(f"SWARM_IDENTITY may be read by others, mode {mode:04o}, got {value!r}: run chmod 600 {path}")
        return _read(path.read_bytes(), value)
    except OSError as error:
        raise ConfigError(
            f"SWARM_IDENTITY cannot be used, got {value!r} ({error.strerror}): name a file that you can read and write"
        ) from None


def _make(path: Path) -> None:
    """Write a new key under another name first: if several nodes start at once, one wins and all use its key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(pem)
    try:
        os.link(part, path)
    except FileExistsError:
        pass
    except OSError:  # a disk without links
        os.replace(part, path)
    part.unlink(missing_ok=True)


def _read(pem: bytes, value: str) -> Identity:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        private = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        private = None
    if not isinstance(private, Ed25519PrivateKey):
        raise ConfigError(
            f"SWARM_IDENTITY must be an Ed25519 key in PEM without a password, got {value!r}: name another file, or a new one to "
            "create a key"
        )
    return Identity(private.public_key().public_bytes_raw().hex(), private)


def allowed_keys(value: str, variable: str = "SWARM_ALLOWED_KEYS") -> dict[str, str | None]:
    """Public keys from a comma-separated list or a file with one per line, and the name that each may use, None for any.

    In a file, a name may follow its key after a space; '#' begins a comment."""
    require_library(variable)
    lines = value.split(",")
    if not all(_PUBLIC.fullmatch(line.strip().lower()) for line in lines):
        try:
            lines = [line.partition("#")[0] for line in expanded(value, variable).read_text().splitlines()]
        except (OSError, ValueError):
            raise ConfigError(
                f"{variable} is neither a list of keys nor a file that can be read, got {value!r}: "
                "a key is the 64 hexadecimal digits that a node prints when it starts"
            ) from None
    keys: dict[str, str | None] = {}
    for line in filter(str.strip, lines):
        key, _, name = line.strip().partition(" ")
        if not _PUBLIC.fullmatch(key.lower()):
            raise ConfigError(f"{variable} has a line that is no key, got {key!r}: a key is 64 hexadecimal digits")
        keys[key.lower()] = name.strip() or None
    if not keys:
        raise ConfigError(f"{variable} names no key, got {value!r}: leave it out to believe everybody")
    return keys
