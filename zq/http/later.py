# SPDX-License-Identifier: Apache-2.0
"""Routes of the interface that this version does not have yet: 400 and a sentence, for callers to tell from a typo.

Not 501, which python-zaqarclient and all that is built on it take for success (decision 0046).
"""

import falcon

from zq.errors import NotBuilt

SUBSCRIPTIONS = "subscriptions"


class Later:
    """Answers 400 to the given methods; ``feature`` says what is missing. Who builds it drops its line in ``app``."""

    def __init__(self, feature: str, *methods: str, rule: str = "") -> None:
        self.policy = dict.fromkeys(methods, rule) if rule else {}
        self._sentence = f"This version of zq does not have {feature} yet."
        for method in methods:
            setattr(self, f"on_{method.lower()}", self._refuse)

    def _refuse(self, _req: falcon.Request, _resp: falcon.Response, **_params: str) -> None:
        raise NotBuilt(self._sentence)
