"""Answers that a hostile peer would publish, made from a seed: code, explosions, nesting, odd characters, damaged right answers.

Nothing here scores them; `checks/hostile_run.py` does, and watches. Code among the answers would leave a trace if it ran: it writes
the file CANARY_FILE, imports the module CANARY_MODULE, sets the variable CANARY_VARIABLE, starts a process or opens a socket.
"""

import json
import random
import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

from rl_swarm.randomness import generator

CANARY_MODULE = "hostile_canary"
CANARY_VARIABLE = "HOSTILE_CANARY"
CANARY_FILE = "hostile_canary_was_here"

LONGEST = 2400  # a little more than what is judged at all where the key is short
Family = Callable[[str, random.Random, Path], Iterator[str]]


def hostile_answers(key: str, seed: int, count: int, folder: Path) -> list[str]:
    """Make `count` distinct answers to a question whose right answer is `key`; families take turns, so a few answers cover all.

    `folder` is where code among the answers would write. The same arguments give the same answers."""
    streams = [family(key, generator("hostile", seed, family.__name__), folder) for family in FAMILIES]
    found: dict[str, None] = {}
    while len(found) < count:
        for stream in streams:
            answer = next(stream)
            if answer.strip() != key.strip():
                found.setdefault(answer)
    return list(found)[:count]


def _forever(fixed: list[str], rng: random.Random, more: Callable[[], str]) -> Iterator[str]:
    """Yield the fixed answers in an order drawn from the seed, then others without end."""
    rng.shuffle(fixed)
    yield from fixed
    while True:
        yield more()


# Code


def _traces(folder: Path) -> list[str]:
    """Expressions that leave a trace when evaluated."""
    file = str(folder / CANARY_FILE)
    imported = f"__import__({CANARY_MODULE!r})"
    return [
        imported,
        f"open({file!r}, 'w')",
        f"__import__('pathlib').Path({file!r}).write_text('x')",
        f"__import__('os').system('touch {file}')",
        f"__import__('subprocess').run(['touch', {file!r}])",
        "__import__('socket').create_connection(('127.0.0.1', 9))",
        f"__import__('os').environ.update({CANARY_VARIABLE}='x')",
        "__import__('os').fork()",
        "__import__('ctypes').CDLL(None)",
        f"__import__('importlib').import_module({CANARY_MODULE!r})",
        f"exec('import {CANARY_MODULE}')",
        f"eval(compile({imported!r}, 'x', 'eval'))",
        f"eval({imported!r})",
        f"getattr(__builtins__, '__imp' + 'ort__')({CANARY_MODULE!r})",
        f"globals()['__builtins__']['__import__']({CANARY_MODULE!r})",
        f"().__class__.__base__.__subclasses__()[-1].__init__.__globals__['sys'].modules['os'].system('touch {file}')",
        f"[c for c in ().__class__.__mro__[1].__subclasses__() if c.__name__ == 'Popen'][0](['touch', {file!r}])",
        f"type('X', (), {{'__del__': lambda self: {imported}}})()",
        f"(lambda f: f(f))(lambda f: {imported})",
        f"sympify({imported!r})",
        f"S({imported!r})",
        f"parse_expr({imported!r})",
        f"lambdify((), {imported!r})()",
        f"Symbol('x').__class__.__init__.__globals__['__builtins__']['__import__']({CANARY_MODULE!r})",
        f"Integer(1).__reduce__()[0].__globals__['__builtins__']['__import__']({CANARY_MODULE!r})",
        f"self.__class__.__init__.__globals__['__builtins__']['__import__']({CANARY_MODULE!r})",
        "entry.__class__.__base__.__subclasses__()",
        f"np.load({file!r}, allow_pickle=True)",
        f"numpy.fromfile({file!r})",
        "breakpoint()",
        "exit()",
        "input()",
        "__import__('sys').modules.clear()",
        "__import__('time').sleep(99)",
        "oracle_answer",
        "entry['answer']",
        "valid_solutions",
    ]


# fmt: off
_WRAPPERS = (
    "{}", " {}", "\t{}\n", "[{}]", "[[{}]]", "({},)", "({})", "x + {}", "{} + 1", "-({})", "1 if {} else 0", "{{1: {}}}", "{{{}}}",
    "[{} for x in (1,)]", "[x for x in ({},)]", "(lambda: {})()", "lambda: {}", "str({})", "max(0, {})", "f'{{{}}}'",
    "f'''{{{}!r}}'''",
    "(y := {})", "*[{}]", "0 or {}", "print({})", "{} # 1", "1\n{}", "1; {}", "sin({})", "x**({})", "\\frac{{{}}}{{2}}", '["{}"]',
    "{}.real", "'%s' % {}", "'{{}}'.format({})", "@{}\nclass X: pass", "assert {}", "import os; {}", "[1, 2, {}, 4]", "{}[0]",
    "not {}",
)
# fmt: on


def code(key: str, rng: random.Random, folder: Path) -> Iterator[str]:
    traces = _traces(folder)
    fixed = [wrapper.format(trace) for wrapper, trace in product(_WRAPPERS, traces)]

    def more() -> str:
        inner = rng.choice(traces)
        for _ in range(rng.randint(2, 4)):
            inner = rng.choice(_WRAPPERS).format(inner)
        return f"{inner}{rng.choice(['', key[:40], ' + ' + key[:40]])}"

    return _forever(fixed, rng, more)


def shells_and_formats(key: str, rng: random.Random, folder: Path) -> Iterator[str]:
    """Code for other interpreters: shells, templates, format strings, YAML, XML, paths."""
    file = folder / CANARY_FILE
    # fmt: off
    fixed = [
        f"$(touch {file})", f"`touch {file}`", f"; touch {file}", f"| touch {file}", f"&& touch {file}", f"\n!touch {file}\n",
        f"!!python/object/apply:os.system ['touch {file}']", f"!!python/object/new:os.system [touch {file}]",
        f"=cmd|'/C touch {file}'!A0",
        "{0.__class__.__init__.__globals__}", "{entry[answer]}", "%(answer)s", "%s" * 500, "%n" * 500, "{}" * 500,
        "{:>99999999}", "%99999999d",
        "{0:{1}}", "{{7*7}}", "${7*7}", "<%= 7*7 %>", "${jndi:ldap://127.0.0.1/a}", "\\x41\\u0041\\N{DIGIT ONE}",
        "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: [*c,*c,*c,*c,*c,*c,*c,*c]",
        '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]><a>&b;&b;&b;</a>',
        '<!ENTITY x SYSTEM "file:///etc/passwd">',
        "../../../../etc/passwd", "/etc/passwd", "/dev/zero", "/dev/stdin", "/proc/self/environ", "file:///etc/passwd",
        "http://127.0.0.1:9/",
        "\\\\127.0.0.1\\share", "~/.ssh/id_rsa", "gASVCgAAAAAAAACMBnBvc2l4lC4=", "cos\nsystem\n(S'true'\ntR.", "np.array([1])",
        "array([0, 1])",
        "</answer>", "<answer>1</answer>", "</answer><answer>", "<answer>" * 200, "None", "null", "True", "NaN", "undefined",
        "Ellipsis", "...",
        "NotImplemented", "__debug__", "self", "answer", "entry", "license", "copyright", "credits", "help", "quit", "exit",
    ]
    # fmt: on
    return _forever(fixed, rng, lambda: rng.choice(fixed) + rng.choice(["", " ", "\n", ","]) + rng.choice(fixed))


# Explosions


def _digits(rng: random.Random, length: int) -> str:
    return str(rng.randint(1, 9)) + "".join(rng.choices("0123456789", k=length - 1))


def numbers(key: str, rng: random.Random, folder: Path) -> Iterator[str]:
    # fmt: off
    fixed = [
        "9**9**9", "9**9**9**9", "9**99**999", "(9**99)**99", "((9**99)**99)**99", "(((1+1/9**9)**999)**999)**999",
        "9**9**9/9**9**9",
        "2**(9**9*x)", "9**(9**9+x)", "9**(1/(1/9**9))", "9**sqrt(9**18)", "E**E**E**E**E", "exp(exp(exp(exp(9))))",
        "cosh(cosh(cosh(99)))",
        "N(sqrt(2), 99999999)", "sqrt(2)**99999999", "10**-99999999", "1/10**99999999", "x**(10**9)", "(x+y+z+w)**999",
        "(a+b+c+d+e+f+g)**99",
        "(x+1)**999*(x-1)**999", "sin(x)**99*cos(x)**99*tan(x)**99", "9^9^9", "9//9**-9**9", "gamma(9**9)", "factorial(99999)",
        "9999999!",
        "binomial(9**9, 9**8)", "0**0", "1/0", "0/0", "-1/0", "1//0", "0**-1", "log(0)", "tan(pi/2)", "zoo", "oo", "-oo", "nan",
        "I", "1j",
        "1e3200000", "1e-3200000", "-1E+3200000", "1e3_200_000", "1e٣٢٠٠٠٠٠", "1e999999999", "1e-999999999", "1e308", "1e309",
        "1e-400",
        "1e3200000/1", "1/1e3200000", "1e3200000/1e3200000", "0e3200000", "0.1e9999999", "1_0e9999", "1e9999j",
        "nan", "NaN", "sNaN", "-nan", "nan123", "inf", "-inf", "Infinity", "+Infinity", "infinityx", "0x" + "f" * 1900,
        "0b" + "1" * 1900,
        "0o" + "7" * 1900, "1" + "0" * 1900, "0" * 1900 + "1", "." + "9" * 1900, "9" * 4301, "-" + "9" * 1999, "1_" * 500 + "1",
        "1__0", "1,000" * 300,
        "٠١٢٣٤٥٦٧٨٩", "१२३", "１２３", "¹²³", "½", "Ⅷ", "一二三", "🄁", "1\u200b2", "\u22121", "+-1", "--1", "0x", "1.2.3", "1e",
        "e1", ".", "-", "+", "1/2/3",
        "1/" + "0" * 1900, "\\frac{" + "1" * 1900 + "}{2}", "\\frac{1}{0}", "\\dfrac{٣}{٤}", "99999999:99:99",
        "99999999999999999999 days, 1:1:1",
        "R99999999", "R9999 U9999 F9999", "F'99999999", "99999999R", "A+99999999", "A-99999999999999999999",
        "B+999999999 C-999999999", "U" * 1999,
        "Move disk 1 from Peg 999 to Peg 2", "Move disk 1 from Peg 1 to Peg \x1b[31m2", "Move disk 9 from Peg 9 to Peg 9 " * 40,
    ]
    # fmt: on

    def more() -> str:
        base, power = _digits(rng, rng.randint(1, 30)), _digits(rng, rng.randint(1, 18))
        form = rng.choice(
            [
                "{0}e{1}",
                "-{0}E-{1}",
                "{0}**{1}",
                "({0}**99)**{1}",
                "{0}/{1}e{1}",
                "{0}.{1}e+{1}",
                "x**{1}",
                "R{1}",
                "A+{1}",
                "{0}^{1}",
            ]
        )
        return form.format(base, power)

    return _forever(fixed, rng, more)


def nesting(key: str, rng: random.Random, folder: Path) -> Iterator[str]:
    # fmt: off
    pairs = [
        ("[", "]"), ("(", ")"), ("{", "}"), ('{"a":', "}"), ('[{"a":', "}]"), ("[[", "]]"), ("-", ""), ("~", ""), ("not ", ""),
        ("¬", ""),
        ("lambda:", ""), ("sin(", ")"), ("sqrt(", ")"), ("exp(", ")"), ("log(", ")"), ("abs(", ")"), ("(x+", ")"),
        ("2**(", ")"), ("x**(", ")"),
        ("(¬", ")"), ("(P∧", ")"), ("[1,", "]"), ("f'{", "}'"), ("*", ""), ("<a>", "</a>"), ("\\frac{1}{", "}"),
        ("<answer>", "</answer>"),
        ("1+(", ")"), ("[*", "]"), ("((", "))"), ("await ", ""), ("- +", ""), ("1 if 1 else ", ""), ("a.", ""), ("a[", "]"),
        ("{1:", "}"),
    ]
    # fmt: on
    depths = (20, 90, 199, 201, 450, 1000)

    def nested(opening: str, closing: str, depth: int, heart: str) -> str:
        return (opening * depth + heart + closing * depth)[:LONGEST]

    fixed = [
        nested(*pair, depth, heart)
        for pair in pairs
        for depth, heart in zip(depths, ("1", "x", "", "P", key[:9], "0"), strict=True)
    ]

    def more() -> str:
        inner = rng.choice(("1", "x", "P", key[:9]))
        while len(inner) < 400:
            inner = nested(*rng.choice(pairs), rng.randint(1, 20), inner)
        return inner

    return _forever(fixed, rng, more)


def many(key: str, rng: random.Random, folder: Path) -> Iterator[str]:
    """Very many small things: names, terms, keys, lines, moves."""

    def names(letters: str, length: int) -> Iterator[str]:
        for each in product(letters, repeat=length):
            yield "".join(each)

    def formula(size: int) -> str:
        pieces = list(names(rng.choice(["PQRS", "PQ", "PQRSTUV"]), rng.choice([2, 3, 4])))[:size]
        return rng.choice("∧∨→↔").join(pieces)[:299]

    def more() -> str:
        size = rng.randint(50, 600)
        glue = rng.choice([",", " ", "\n", ", ", " + ", "*", "×", ";", "|", " and ", "->", "="])
        thing = rng.choice(
            ["1", "x", "A", "ab", "0 1", "P", "(P", "¬P", "A=1", "w,A1,B2", "fill A", "up", "R", "U2", "A+1", '"a"', key[:5]]
        )
        return glue.join([thing] * size)[:LONGEST]

    fixed = [formula(size) for size in (5, 9, 12, 16, 20, 24, 30, 40, 58, 70)]
    fixed += [
        "∨".join("(" * number + "P" for number in range(1, 23)),
        "∨".join("P" + " " * number + "Q" for number in range(1, 22)),
    ]
    fixed += ["+".join(f"{letter}**{power}" for letter in "abcdefghijklmnopqrstuvwxyz" for power in range(9))]
    fixed += ["(" + ")*(".join(f"x+{number}" for number in range(250)) + ")", "*".join(["(a+b+c+d+e+f)"] * 99)]
    fixed += [json.dumps({str(number): number for number in range(300)}), json.dumps([[1] * 30] * 30), json.dumps(["a" * 9] * 200)]
    fixed += [json.dumps([{f"Agent[{n}, 0.5]": "move(box_red, square[0.5, 0.5])"} for n in range(40)]), "[" + "9" * 2200 + "]"]
    fixed += [
        "{" + ",".join(['"a":1'] * 300) + "}",
        "[" + "1," * 1000 + "1]",
        "[[" + "],[".join(["1"] * 500) + "]]",
        '["' + "a" * 2200 + '"]',
    ]
    fixed += [
        "move(" + ", " * 900 + ")",
        '[{"1_1": "move(' + "a, " * 600 + '"}]',
        "a" * 2000 + "!",
        "1" * 1999 + "x",
        " " * 2300,
        "\n" * 2000,
        "," * 2000,
    ]
    fixed += [
        "{" * 900 + "}" * 900,
        '{"a":"' * 200,
        "(a+)+$" * 200,
        "((a*)*)*b" * 100,
        "-".join("1" * 900),
        "1 " * 1100,
        "a b " * 550,
    ]
    return _forever(fixed, rng, lambda: formula(rng.randint(5, 80)) if rng.random() < 0.3 else more())


# Characters

# fmt: off
_ODD = (
    "\x00", "\x07", "\x08", "\x1b[2J", "\x1b]0;title\x07", "\x1b[31m", "\r", "\x0b", "\x0c", "\x7f", "\x85", "\xa0", "\xad",
    "\u0300" * 40,
    "\u200b", "\u200d", "\u200e", "\u202e", "\u2028", "\u2029", "\u2066", "\ufeff", "\ufffd", "\ufffe", "\ud800", "\udfff",
    "\U0001f468\u200d\U0001f469",
    "\U0010ffff", "ﷺ", "ß", "İ", "ı", "ſ", "ﬁ", "Å", "Ω", "ｅｖａｌ", "ｏｐｅｎ", "𝓮𝔁𝓮𝓬", "’", "“", "−", "×", "÷", "∧", "∨",
    "¬", "→", "↔", "°", "\\", '"', "'",
)
# fmt: on


def characters(key: str, rng: random.Random, folder: Path) -> Iterator[str]:
    def more() -> str:
        text = list(key[:500]) or ["1"]
        for _ in range(rng.randint(1, 8)):
            text.insert(rng.randint(0, len(text)), rng.choice(_ODD))
        return "".join(text)

    fixed = [*_ODD, *(odd * 50 for odd in _ODD), *(key + odd for odd in _ODD), *(odd + key for odd in _ODD)]
    return _forever(fixed, rng, more)


# Damaged right answers


def damaged(key: str, rng: random.Random, folder: Path) -> Iterator[str]:
    """The right answer made larger, longer or nearly right, to get past the first checks of a verifier."""

    def larger_numbers(match: re.Match[str]) -> str:
        return match[0] + rng.choice(["", "e9999999", "**9**9", "0" * 30, "99999999", "." + "9" * 30, "/0"])

    def more() -> str:
        text = key
        for _ in range(rng.randint(1, 3)):
            text = rng.choice(changes)(text)[:LONGEST]
        return text

    changes: list[Callable[[str], str]] = [
        lambda text: re.sub(r"\d+", larger_numbers, text),
        lambda text: re.sub(r"\d", lambda match: chr(0x660 + int(match[0])) if match[0].isascii() else match[0], text),
        lambda text: rng.choice(["\n", " ", ",", "", ", ", "+", "*", "**", "×", "∧", "/"]).join(
            [text] * rng.choice([2, 3, 10, 100, 1000])
        ),
        lambda text: f"({text})**{rng.randint(2, 10**9)}",
        lambda text: f"{text}e{rng.randint(2, 10**9)}",
        lambda text: rng.choice(["[{}]", "[[{}]]", "'{}'", '"{}"', "({})", "{{{}}}", '{{"a": {}}}', "str({})", "x={}"]).format(
            text[:900]
        ),
        lambda text: text[::-1],
        lambda text: text.swapcase(),
        lambda text: text[: rng.randint(0, len(text))],
        lambda text: text + rng.choice([" ", "\t", "\n", "\u3000"]) * rng.randint(1, 2000),
        lambda text: "".join(rng.sample(text, len(text))),
        lambda text: re.sub(r"[A-Za-z]", lambda match: match[0] * rng.randint(1, 3), text),
        lambda text: re.sub(r"[A-Z]", lambda match: match[0] + str(rng.randint(2, 10**9)), text),
        lambda text: text.replace("\n", rng.choice(["", " ", "\r\n", "\n\n", "\x0b"])),
        lambda text: text.replace(",", rng.choice(["", ";", ",,", "، "])),
        lambda text: text + rng.choice(["", " or ", " = ", "\n"]) + rng.choice(_ODD),
    ]
    repeated = [(glue.join([key] * times))[:LONGEST] for glue in ("", " ", "\n", ",", "+", "**") for times in (2, 50, 1000)]
    raised = [f"({key})**{power}" for power in (2, 99, 10**6, 10**18)] + [f"{key}e{power}" for power in (9, 999, 9999, 10**9)]
    return _forever([*repeated, *raised], rng, more)


FAMILIES: tuple[Family, ...] = (code, shells_and_formats, numbers, nesting, many, characters, damaged)
