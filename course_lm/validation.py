"""One way to refuse a bad value."""


def require(holds: bool, key: str, accepted: str, value: object) -> None:
    """Raise ValueError "<key> must be <accepted>, got <value>" unless `holds`."""
    if not holds:
        raise ValueError(f"{key} must be {accepted}, got {value!r}")
