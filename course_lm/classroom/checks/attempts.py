"""What was wrong the last time: attempts at the same exercise, as long as the process lives."""

from collections.abc import Sequence

_wrong: dict[str, frozenset[str]] = {}


def compared_with_last(check: str, wrong: Sequence[str]) -> str:
    """What is right now and what is still wrong, in words; empty at a first attempt. Remembers this one."""
    before, now = _wrong.pop(check, None), frozenset(wrong)
    if now:
        _wrong[check] = now
    if before is None or not now:
        return ""
    parts = {
        "right now": sorted(before - now),
        "still wrong": [case for case in wrong if case in before],
        "wrong only now": [case for case in wrong if case not in before],
    }
    said = "; ".join(f"{what}: {', '.join(cases)}" for what, cases in parts.items() if cases)
    return f"since your last attempt: {said}"
