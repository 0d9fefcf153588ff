"""
Identify: which conventions a black box follows, read off its answers to a few recipes.

Questions are asked in rounds. The recipes of a round show its questions and nothing that is not
known from the rounds before: first square calls without masks, then other lengths, then masks, then
rows that see no key. An answer is what explains all recipes of its round, within the yardstick of a
diagnosis; "none of ..." is an answer too, and so is "not told apart".
"""

from attnverify.backends.implementation import Backend, Implementation
from attnverify.conventions.convention import conventions
from attnverify.diagnosis.identification.card import ConventionCard
from attnverify.diagnosis.identification.staged import identify_staged
from attnverify.diagnosis.identification.unstaged import identify_unstaged


def identify(backend: Backend, dtype: str = "float32") -> list[ConventionCard]:
    """
    One card for each implementation that has a question to answer; gradients have none of their
    own.
    """
    asked = [
        i
        for i in backend.implementations
        if not i.operation.is_gradient and conventions(i.operation.name)
    ]
    return [
        card_of(implementation, dtype if dtype in implementation.operation.dtypes else "bool")
        for implementation in asked
    ]


def card_of(implementation: Implementation, dtype: str) -> ConventionCard:
    card = ConventionCard(implementation.name, implementation.backend.name, dtype)
    if implementation.operation.is_staged:
        identify_staged(implementation, dtype, card)
    else:
        identify_unstaged(implementation, dtype, card)
    return card
