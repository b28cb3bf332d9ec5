"""Find out whether a bucket's service honours conditional creation, and agree on the answer with all other nodes.

The first writer tries: of several simultaneous writers of one name at most one may win, and no later one. It leaves the
answer in the bucket, since all nodes must write and read in the same way.
"""

import contextlib
import json
import secrets
from concurrent.futures import ThreadPoolExecutor

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotSupportedError, PreconditionError
from obstore.store import ObjectStore

ANSWER = "store.json"
WRITERS = 4
NOT_IMPLEMENTED = "501 "


def creates_conditionally(client: ObjectStore, writable: bool) -> bool:
    """The answer that the bucket holds. If there is none, a writer tries and leaves one, and a reader has nothing to read yet."""
    try:
        return bool(json.loads(bytes(obstore.get(client, ANSWER).bytes()))["conditional_create"])
    except (ValueError, KeyError, TypeError):  # damaged: try again
        pass
    except FileNotFoundError as error:
        if "NoSuchKey" not in str(error) and "BlobNotFound" not in str(error) and "No such object" not in str(error):
            raise  # there is no such bucket
    if not writable:
        return True
    answer = json.dumps({"conditional_create": try_it(client)}).encode()
    obstore.put(client, ANSWER, answer)
    return creates_conditionally(client, False)  # which may be another node's, and is the same for all


def try_it(client: ObjectStore) -> bool:
    """Whether at most one of several writers of one name is told that it has created it, and none later.

    It may be none at all: the answer to the one that did may be lost on its way.
    """
    name = f"probe-{secrets.token_hex(8)}"

    def create(number: int) -> bool:
        try:
            obstore.put(client, name, bytes([number]), mode="create")
        except (AlreadyExistsError, PreconditionError):
            return False
        return True

    try:
        with ThreadPoolExecutor(WRITERS) as writers:
            won = sum(writers.map(create, range(WRITERS)))
        return won <= 1 and not create(WRITERS)
    except NotSupportedError:
        return False
    except BaseError as error:
        if NOT_IMPLEMENTED in str(error):
            return False
        raise
    finally:
        with contextlib.suppress(BaseError, FileNotFoundError):
            obstore.delete(client, name)
