"""A door as the lane-free code sees it: a way in that is one session's, whoever comes by it from wherever."""

from tidegate.session.identity import SessionId

__all__ = ["Door"]


class Door:
    """Whose it is, by what the keeper believes that (the session's own token), and whether it is still open."""

    __slots__ = ("listener", "open", "session", "token")

    def __init__(self, session: SessionId, token: str, way: str) -> None:
        self.session = session
        self.token = token
        self.listener = f"door:{way}"
        self.open = True

    @property
    def source(self) -> str:
        """What stands for the peer's address where the keeper is asked, and where peers are told apart."""
        return f"door:{self.session}"
