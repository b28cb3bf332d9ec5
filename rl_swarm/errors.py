"""Every failure that RL Swarm raises on purpose.

    SwarmError
    ├── ConfigError          a setting is wrong: one line, exit code 2
    ├── StoreError           the boundary to the shared store
    │   ├── NotFound         no such key: "not yet", never "gone for good"
    │   │   └── Refused      this name can never be used: a link, a pipe, a folder, too large, no permission
    │   └── StoreAway        the store did not answer after retries: go on alone and try again later
    ├── BadDocument          a peer's document that must not be trusted; carries a `reason` that is counted
    │   └── Incomplete       the document is not all there yet: look again later
    ├── BadRollout           a peer's rollout that cannot be verified; carries a `reason` that is counted
    ├── ModelError           a model cannot be loaded or used as asked
    ├── LibraryError         a library is missing, or of a version that does not work
    ├── CheckpointError      a checkpoint cannot be used; the one before it is tried
    │   └── OtherModel       the checkpoint is whole, but of another model: a wrong setting, or somebody else's checkpoint
    ├── EndedAtOnce          a second Ctrl-C ended a node before it had saved and published everything
    └── NodeFailed, CellFailed  a child process of a command ended; defined beside that command

Any other exception that escapes is our own bug: it ends the process with a traceback and a non-zero exit code.
"""


class SwarmError(Exception):
    """Root of the tree; its text is one line that states the fact, the value and the remedy."""


class ConfigError(SwarmError): ...


class StoreError(SwarmError): ...


class NotFound(StoreError): ...


class Refused(NotFound):
    """A reader may take it for not found; a writer sets its document aside and says why."""


class StoreAway(StoreError): ...


class _Counted(SwarmError):
    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class BadDocument(_Counted): ...


class Incomplete(BadDocument): ...


class BadRollout(_Counted): ...


class ModelError(SwarmError): ...


class LibraryError(SwarmError): ...


class CheckpointError(SwarmError): ...


class OtherModel(CheckpointError): ...


class EndedAtOnce(SwarmError): ...
