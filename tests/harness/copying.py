"""What a copy of a store tells, for those who do not listen."""

from perdure.runtime._copy import Tally


class Silent:
    """Hears how a copy goes on, and does nothing about it."""

    def kind(self, tally: Tally, /) -> None:
        """See ``Tell.kind``."""

    def verifying(self) -> None:
        """See ``Tell.verifying``."""
