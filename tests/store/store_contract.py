"""What every store backend must do; a backend's test class inherits this and gives `store` and `second`."""

import threading
from pathlib import Path

import pytest

from rl_swarm.errors import NotFound, Refused
from rl_swarm.store import Store


class StoreContract:
    removes_folders = True  # or the service decides what becomes of an empty one

    @pytest.fixture
    def store(self) -> Store:
        raise NotImplementedError("the backend's own test class makes its store")

    def second(self, store: Store) -> Store:
        """Another handle on the same place, as another node would have."""
        raise NotImplementedError

    def test_what_was_put_is_got(self, store: Store) -> None:
        data = bytes(range(256)) * 10
        assert store.put("a/b/c.json", data)
        assert self.second(store).get("a/b/c.json", limit=1 << 24) == data

    def test_a_key_is_written_once(self, store: Store) -> None:
        assert store.put("a/x", b"first")
        assert not self.second(store).put("a/x", b"second")
        assert store.get("a/x", limit=1 << 24) == b"first"

    def test_a_rewrite_replaces(self, store: Store) -> None:
        store.rewrite("a/x", b"first, longer")
        store.rewrite("a/x", b"second")
        assert self.second(store).get("a/x", limit=1 << 24) == b"second"

    def test_what_is_not_there_is_not_found(self, store: Store) -> None:
        store.put("a/x", b"")
        for key in ("a/y", "b/x", "a", "a/x/y"):
            with pytest.raises(NotFound):
                store.get(key, limit=1 << 24)

    def test_listed_keys_that_are_missing_are_retried_then_not_found(self, store: Store) -> None:
        with pytest.raises(NotFound):
            store.get("a/y", listed=True, limit=1 << 24)
        assert store.counts["retries"] == store.attempts - 1

    def test_names_directly_below_a_folder_are_listed(self, store: Store) -> None:
        for key in ("a/1", "a/2", "a/f/3", "b/4", "ab/5"):
            store.put(key, b"")
        assert sorted(self.second(store).list("a")) == ["1", "2", "f/"]
        assert store.list("nothing") == []

    def test_a_part_of_a_folder_is_listed_in_order(self, store: Store) -> None:
        for key in ("a/1", "a/2", "a/3", "a/f/4", "ab/5"):
            store.put(key, b"")
        second = self.second(store)
        assert second.list_from("a", "", 2) == ["1", "2"]
        assert second.list_from("a", "1", 2) == ["2", "3"]
        assert second.list_from("a", "2.", 9) == ["3", "f/"]
        assert second.list_from("a", "g", 9) == second.list_from("nothing", "", 9) == []

    def test_the_size_of_a_key(self, store: Store) -> None:
        store.put("a/x", b"0123456789")
        assert self.second(store).size("a/x") == 10
        for key in ("a/y", "a", "b/x"):
            with pytest.raises(NotFound):
                store.size(key)

    def test_an_empty_folder_may_be_removed(self, store: Store) -> None:
        store.put("a/b/x", b"1")
        store.remove_folder("a/b")
        assert store.list("a/b") == ["x"]
        store.delete("a/b/x")
        store.remove_folder("a/b")
        store.remove_folder("a/b")
        assert store.list("a/b") == [] and (not self.removes_folders or store.list("a") == [])
        assert store.put("a/b/x", b"2")

    def test_delete(self, store: Store) -> None:
        store.put("a/x", b"1")
        store.delete("a/x")
        store.delete("a/x")
        assert store.list("a") == []
        assert store.put("a/x", b"2")

    def test_a_limit_bounds_what_is_read(self, store: Store) -> None:
        store.put("a/x", b"0123456789")
        assert store.get("a/x", limit=4) == b"01234"

    def test_an_offset_is_where_reading_begins(self, store: Store) -> None:
        store.put("a/x", b"0123456789")
        assert store.get("a/x", limit=4, offset=3) == b"34567"
        assert store.get("a/x", limit=4, offset=8) == b"89"
        assert store.get("a/x", limit=4, offset=10) == store.get("a/x", limit=4, offset=99) == b""

    def test_a_negative_offset_counts_from_the_end(self, store: Store) -> None:
        store.put("a/x", b"0123456789")
        assert store.get("a/x", limit=4, offset=-3) == b"789"
        assert store.get("a/x", limit=1, offset=-3) == b"78"
        assert store.get("a/x", limit=4, offset=-99) == b"01234"

    def test_files_go_there_and_back(self, store: Store, tmp_path: Path) -> None:
        source, target = tmp_path / ".source", tmp_path / ".target"
        source.write_bytes(bytes(range(256)) * 10_000)
        assert store.put_file("c/big.pt", source)
        assert not store.put_file("c/big.pt", source)
        self.second(store).get_file("c/big.pt", target, limit=2_560_000)
        assert target.read_bytes() == source.read_bytes()
        with pytest.raises(NotFound):
            store.get_file("c/none.pt", target, limit=10)
        with pytest.raises(Refused):
            store.get_file("c/big.pt", target, limit=2_559_999)
        assert not target.exists()

    @pytest.mark.parametrize("key", ["../x", "/x", "a//b", "a/../b", "", ".hidden", "a\nb", "a/.b", "ä"])
    def test_keys_that_could_leave_the_store_are_refused(self, store: Store, key: str) -> None:
        with pytest.raises(ValueError, match="not a valid store key"):
            store.put(key, b"")

    def test_of_many_writers_one_wins_and_readers_see_it_whole(self, store: Store) -> None:
        for race in range(20):
            won = self.race([self.second(store) for _ in range(8)], f"race/{race}")
            assert len(won) == 1
            assert store.get(f"race/{race}", limit=1 << 24) == bytes(won) * 5000

    def test_of_32_writers_one_wins(self, store: Store) -> None:
        won = self.race([self.second(store) for _ in range(32)], "race/x")
        assert len(won) == 1
        assert store.get("race/x", limit=1 << 24) == bytes(won) * 5000

    def race(self, stores: list[Store], key: str) -> list[int]:
        """Who of many writers of one key was told that it had written."""
        barrier = threading.Barrier(len(stores))
        won: list[int] = []

        def write(number: int) -> None:
            barrier.wait()
            if stores[number].put(key, bytes([number]) * 5000):
                won.append(number)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(len(stores))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return won

    def test_operations_and_bytes_are_counted(self, store: Store) -> None:
        store.put("a/x", b"12345")
        store.put("a/x", b"12345")
        store.get("a/x", limit=1 << 24)
        store.list("a")
        store.delete("a/x")
        assert dict(store.counts) == {"put": 2, "bytes_out": 5, "get": 1, "bytes_in": 5, "list": 1, "delete": 1}
