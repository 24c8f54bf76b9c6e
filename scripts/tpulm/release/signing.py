"""Signatures of files and folders with a key of one's own, without a network.

model-signing (https://github.com/sigstore/model-transparency) writes a DSSE envelope with the SHA-256 of each file, and
`python -m model_signing verify key` checks it.
"""

from collections.abc import Sequence
from pathlib import Path

from tpulm.core.errors import UserError
from tpulm.core.files import atomic_write

CURVES = ("secp256r1", "secp384r1", "secp521r1")


def check_key(key: str) -> None:
    """Refuse what is no private key of an elliptic curve. Raises UserError."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        loaded = load_pem_private_key(Path(key).read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"archive.sign is {key}, which cannot be read as a private key without a password: {error}"
        ) from None
    if not isinstance(loaded, EllipticCurvePrivateKey) or loaded.curve.name not in CURVES:
        raise UserError(
            f"archive.sign is {key}, which is not an elliptic curve key; to create one: "
            "`openssl ecparam -name prime256v1 -genkey -noout`."
        )


def sign(path: str, key: str, signature: str, names: Sequence[str] = ()) -> None:
    """Write the signature of a file, of a folder, or of the files `names` of a folder. Raises UserError."""
    check_key(key)
    from model_signing import hashing, signing

    config = signing.Config().use_elliptic_key_signer(private_key=Path(key))
    if names:
        there = (file.relative_to(path) for file in Path(path).rglob("*") if file.is_file())
        others = [file for file in there if str(file) not in names]
        hashed = hashing.Config()
        hashed.add_ignored_paths(model_path=path, paths=others)
        config.set_hashing_config(hashed)
    with atomic_write(signature) as partial:
        config.sign(Path(path), partial)
