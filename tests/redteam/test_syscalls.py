"""Run a nano swarm and every reading command under strace: no path below the store is opened without the guard."""

import sys
from collections.abc import Callable

import pytest

from tests.redteam.arena import NANO, Arena, Done
from tests.redteam.syscalls import Violation, command, parse, problem, read, touched, violations

ROOT = "/data/store"
SHOWN = 12

# The parser, on recorded lines


@pytest.mark.parametrize(
    "line",
    [
        'openat(AT_FDCWD</tmp>, "/data/store", O_RDONLY|O_NOFOLLOW|O_CLOEXEC|O_DIRECTORY) = 3</data/store>',
        'openat(AT_FDCWD</tmp>, "/data/store", O_RDONLY|O_NOFOLLOW|O_CLOEXEC|O_DIRECTORY|O_PATH) = 3</data/store>',
        'openat(3</data/store>, "experiments", O_RDONLY|O_NOFOLLOW|O_CLOEXEC|O_DIRECTORY) = 4</data/store/experiments>',
        'openat(4</data/store/d>, "x\\303\\251<>", O_WRONLY|O_CREAT|O_EXCL|O_NOFOLLOW|O_CLOEXEC, 0666) = 5</data/store/d/x\\74>',
        'openat2(3</data/store>, "a", {flags=O_RDONLY|O_CLOEXEC, resolve=RESOLVE_NO_SYMLINKS}, 24) = 4</data/store/a>',
        'newfstatat(4</data/store/d>, "x", 0x7ffe57873970, AT_SYMLINK_NOFOLLOW) = -1 ENOENT (No such file or directory)',
        'newfstatat(5</data/store/d/x\\303>, "", {st_mode=S_IFREG|0755, st_size=0, ...}, AT_EMPTY_PATH) = 0',
        'statx(4</data/store/d>, "x", AT_STATX_SYNC_AS_STAT|AT_SYMLINK_NOFOLLOW, STATX_ALL, {stx_mask=STATX_ALL}) = 0',
        "utimensat(5</data/store/d/x>, NULL, NULL, 0) = 0",
        'mkdirat(4</data/store/d>, "q", 0777)     = 0',
        'unlinkat(4</data/store/d>, "q", AT_REMOVEDIR) = 0',
        'renameat(4</data/store/d>, ".a.part", 4</data/store/d>, "a") = 0',
        'linkat(4</data/store/d>, ".a.part", 4</data/store/d>, "a", 0) = 0',
        'newfstatat(AT_FDCWD</tmp>, "/data/store", {st_mode=S_IFDIR|0755, st_size=4096, ...}, 0) = 0',
        'readlink("/data", 0x7ffc3d1d5e30, 1023)  = -1 EINVAL (Invalid argument)',
        'statfs("/data/store", {f_type=EXT2_SUPER_MAGIC}) = 0',
        'openat(AT_FDCWD</tmp>, "/data/store-of-another", O_RDONLY) = 3</data/store-of-another>',
        'openat(AT_FDCWD</tmp>, "/proc/self/mountinfo", O_RDONLY|O_CLOEXEC) = 3</proc/10/mountinfo>',
        'execve("/usr/bin/python3", ["python3", "/data/store/experiments"], 0x7ffd /* 20 vars */) = 0',
        'symlinkat("/data/store/a", 4</data/home>, "b") = 0',
        "+++ exited with 0 +++",
        "--- SIGTERM {si_signo=SIGTERM, si_code=SI_USER, si_pid=1, si_uid=0} ---",
    ],
)
def test_guarded_calls_are_no_violations(line: str) -> None:
    assert list(violations([line], ROOT, "/tmp")) == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('openat(AT_FDCWD</tmp>, "/data/store/a", O_RDONLY|O_NOFOLLOW|O_CLOEXEC) = 3</data/store/a>', "no handle"),
        ('openat(AT_FDCWD</data/store>, "a", O_RDONLY|O_NOFOLLOW) = 3</data/store/a>', "no handle"),
        ('openat(AT_FDCWD</data>, "store/a", O_RDONLY|O_NOFOLLOW) = 3</data/store/a>', "no handle"),
        ('openat(3</data/store>, "/data/store/a", O_RDONLY|O_NOFOLLOW) = 4</data/store/a>', "no handle"),
        ('openat(3</data/store>, "a/b", O_RDONLY|O_NOFOLLOW|O_CLOEXEC) = 4</data/store/a/b>', "more than one step"),
        ('openat(3</data/store/a/b>, "..", O_RDONLY|O_NOFOLLOW|O_DIRECTORY) = 4</data/store/a>', "more than one step"),
        ('openat(3</data/home>, "../store/a", O_RDONLY|O_NOFOLLOW) = 4</data/store/a>', "more than one step"),
        ('openat(3</data/store>, "O_NOFOLLOW", O_RDONLY|O_CLOEXEC) = 4</data/store/a>', "would be followed"),
        ('openat(3</data/store>, "a", O_RDONLY|O_CLOEXEC <unfinished ...>', "would be followed"),
        ('openat(AT_FDCWD</tmp>, "/data/store", O_RDONLY|O_NONBLOCK|O_CLOEXEC|O_DIRECTORY) = 3</data/store>', "the root"),
        ('newfstatat(4</data/store/d>, "x", 0x7ffe57873970, 0) = -1 ENOENT (No such file or directory)', "would be followed"),
        ('newfstatat(AT_FDCWD</tmp>, "/data/store/x", {st_mode=S_IFREG|0644, ...}, AT_SYMLINK_NOFOLLOW) = 0', "no handle"),
        ('linkat(4</data/store/d>, "y", 4</data/store/d>, "z", AT_SYMLINK_FOLLOW) = 0', "would be followed"),
        ('renameat(4</data/store/d>, "a", AT_FDCWD</tmp>, "/data/store/b") = 0', "no handle"),
        ('faccessat2(4</data/store/d>, "y", R_OK, 0) = 0', "would be followed"),
        ('fchmodat(4</data/store/d>, "y", 0600)   = 0', "would be followed"),
        ('mkdir("/data/store/a", 0777)            = 0', "no handle"),
        ('unlink("/data/store/a")                 = -1 ENOENT (No such file or directory)', "no handle"),
        ('rename("/tmp/x", "/data/store/a")       = 0', "no handle"),
        ('truncate("/data/store/a", 0)            = 0', "no handle"),
        ('statfs("/data/store/a", {f_type=EXT2_SUPER_MAGIC}) = 0', "no handle"),
        ('chdir("/data/store/a")                  = 0', "no handle"),
        ('execve("/data/store/a", ["a"], 0x7ffd /* 20 vars */) = 0', "no handle"),
        ('lgetxattr("/data/store/a", "user.x", NULL, 0) = -1 ENODATA (No data available)', "no handle"),
    ],
)
def test_calls_without_the_guard_are_found(line: str, reason: str) -> None:
    [found] = violations([line], ROOT, "/tmp")
    assert reason in found.reason and found.path.startswith(ROOT)


def test_a_relative_name_is_looked_at_from_where_the_process_has_gone() -> None:
    lines = ['chdir("/data")   = 0', 'stat("store/a", {st_mode=S_IFREG}) = 0', 'chdir("nowhere") = -1 ENOENT (No such file)']
    assert [found.path for found in violations(lines, ROOT, "/tmp")] == ["/data/store/a"]


def test_names_outside_ascii_are_read_as_they_were_written() -> None:
    call = parse('openat(AT_FDCWD</srv>, "/Donn\\303\\251es/\\"x\\"\\n", O_RDONLY) = 3')
    assert call is not None and len(call.arguments) == 3
    [found] = violations(['mkdir("/Donn\\303\\251es/a", 0777) = 0'], "/Données", "/")
    assert found.path == "/Données/a"


# The check, on real processes


@pytest.fixture(scope="module")
def strace() -> None:
    if reason := problem():
        pytest.skip(reason)


def traced(
    arena: Arena, *program: str, seconds: float = 200.0, touching: bool = True, **settings: object
) -> tuple[Done, list[Violation]]:
    """Run a program under strace; what a program with business in the store did is of use only if it touched it."""
    output = arena.temporary / f"trace-{len(arena.processes)}"
    done = arena.run_program([*command(output, program)], seconds, **settings)
    assert touched(output, arena.folder) or not touching, f"{program} never came near the store: {done.output[-2000:]}"
    return done, read(output, arena.folder, arena.cwd)


def assert_guarded(found: list[Violation], arena: Arena) -> None:
    lines = [str(each).replace(f"{arena.folder}", "STORE").replace(f"{arena.base}", "ARENA") for each in found]
    shown = "\n".join(list(dict.fromkeys(lines))[:SHOWN])
    assert not lines, f"{len(lines)} calls below the store without the guard:\n{shown}"


@pytest.mark.slow
@pytest.mark.usefixtures("strace")
class TestRealCalls:
    def test_one_plain_open_fails_the_check(self, plain: Arena) -> None:
        (plain.folder / "document").write_text("x")
        code = "import sys; open(sys.argv[1] + '/document').close()"
        _, found = traced(plain, sys.executable, "-c", code, str(plain.folder))
        assert [each.path for each in found] == [str(plain.folder / "document")]

    def test_steps_with_handles_pass_it(self, plain: Arena) -> None:
        code = (
            "import os, sys\n"
            "root = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)\n"
            "os.mkdir('folder', dir_fd=root)\n"
            "folder = os.open('folder', os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root)\n"
            "os.close(os.open('a', os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, dir_fd=folder))\n"
            "os.link('a', 'b', src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)\n"
            "os.replace('a', 'c', src_dir_fd=folder, dst_dir_fd=folder)\n"
            "assert sorted(os.listdir(folder)) == ['b', 'c']\n"
            "os.stat('b', dir_fd=folder, follow_symlinks=False)\n"
            "os.unlink('b', dir_fd=folder)\n"
        )
        done, found = traced(plain, sys.executable, "-c", code, str(plain.folder))
        assert done.code == 0, done.output
        assert_guarded(found, plain)

    @pytest.mark.parametrize("kind", ["plain", "mounted"])
    def test_a_swarm_goes_through_the_guard(self, kind: str, request: pytest.FixtureRequest) -> None:
        arena: Arena = request.getfixturevalue(kind)
        program = (sys.executable, "-m", "rl_swarm.cli", "swarm", "--workers", "2")
        done, found = traced(arena, *program, **NANO | {"MAX_ROUNDS": 2, "NUM_TRANSPLANT_TREES": 1})
        assert done.code == 0, done.output
        assert_guarded(found, arena)
        arena.assert_contained()

    @pytest.mark.parametrize(
        ("codes", "arguments", "settings"),
        [
            ({0}, ["status"], {}),
            ({0}, ["status", "--json"], {}),
            ({0, 1}, ["validate"], {}),
            ({0}, ["report"], NANO),
            ({0, 1}, ["validate", "--output", "{tmp}/results.json"], {}),
            ({0}, ["ask", "What is 1 + 1?"], NANO),
            ({0}, ["export", "{tmp}/model"], NANO),
            ({0, 1}, ["doctor"], NANO),
            ({0, 1, 2}, ["analyze", "trial", "--output", "{tmp}/analysis"], {}),
            ({0}, ["work"], NANO | {"NODE_ID": "worker_1", "MAX_ROUNDS": 4}),
            ({0}, ["join", "{store}/trial"], {"NODE_ID": "late", "MAX_ROUNDS": 4, "CPU_ONLY": "true", "EVAL_INTERVAL": 0}),
            ({0}, ["coordinate", "--round-advance", "timer"], {"MAX_ROUNDS": 5, "COORDINATOR_ROUND_INTERVAL": 0.5}),
            ({0}, ["demo", "--workers", "1"], NANO | {"EXPERIMENT_NAME": "demo", "MAX_ROUNDS": 1}),
        ],
        ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
    )
    def test_a_command_goes_through_the_guard(
        self,
        codes: set[int],
        arguments: list[str],
        settings: dict[str, object],
        plain: Arena,
        finished: Callable[[Arena], None],
    ) -> None:
        finished(plain)
        places = {"tmp": plain.temporary, "store": plain.folder}
        program = [sys.executable, "-m", "rl_swarm.cli", *(each.format(**places) for each in arguments)]
        done, found = traced(plain, *program, **settings)
        assert done.code in codes, done.output
        assert_guarded(found, plain)
        plain.assert_contained()

    @pytest.mark.parametrize(
        "arguments",
        [
            ["config"],
            ["memory", "nano"],
            ["probe", "--tasks", "gcd", "--seconds", "10"],
            ["reproduce", "--splits", "2/0,1/1", "--seeds", "1", "--rounds", "2", "--nodes", "2", "--output", "{tmp}/table"],
        ],
        ids=lambda value: value[0],
    )
    def test_a_command_without_business_in_the_store_is_no_exception(
        self, arguments: list[str], plain: Arena, finished: Callable[[Arena], None]
    ) -> None:
        finished(plain)
        program = [sys.executable, "-m", "rl_swarm.cli", *(each.format(tmp=plain.temporary) for each in arguments)]
        done, found = traced(plain, *program, touching=False, **NANO)
        assert done.code == 0, done.output
        assert_guarded(found, plain)
        plain.assert_contained()
