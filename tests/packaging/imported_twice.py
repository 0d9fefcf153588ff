"""A test that passes; the run around it imports what it likes."""


def test_nothing() -> None:
    pass
