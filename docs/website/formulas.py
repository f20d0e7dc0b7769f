"""Formulas as they are written in the documents, `g_i^{r,k} = β ∇F(x_i^{r,k}; ξ)`, as TeX for KaTeX.

KaTeX reads Greek letters, ∇ and small digits as they are. What is left to do: names (mean, min) and roots.
"""

import re

FORMULA = re.compile(r"[\^∇√≲≤²₁₂α-ωΑ-Ω]|^[A-Za-z]_(?:\d$|[\w{]+ = )")
SYMBOL = re.compile(
    r"(?<![\w`\\^{/$])(?:∇?[A-Za-zα-ω](?:_(?:\{[^}]*\}|\w))?\^(?:\{[^}]*\}|\w)|∇?(?:mean|[A-Za-zα-ωΣ])_[ikr0])(?![\w`])"
)
"""A symbol with an index, as it stands in a sentence: x^r, c_i, ∇f_i, mean_i."""

KEPT = re.compile(
    r"^ *```.*?^ *```[^\n]*$|^(?: {4}[^\n]*\n)+|<!--.*?-->|\\\(.*?\\\)|\]\([^)\s]*\)", re.MULTILINE | re.DOTALL
)
"""Blocks of code, comments, formulas that are TeX already, and where links lead."""

CODE = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
WORD = re.compile(r"(?:[a-z]{2,}[a-z-]*|K-th|``\w+``)[,.;:]?")


def is_formula(code: str) -> bool:
    """Whether a span of code is a formula rather than a name, an option or a value."""
    return bool(FORMULA.search(code)) and not re.search(r"[\"']|--|\.\w+\(|\(\w+=", code)


def to_tex(formula: str) -> str:
    """Return a formula as TeX."""
    tex = re.sub(r"\bmean_(\w)", r"\\operatorname{mean}_\1", formula)
    tex = re.sub(r"\bsign\(", r"\\operatorname{sign}(", tex)
    tex = re.sub(r"√(\w(?:\^\{[^}]*\})?)", r"\\sqrt{\1}", tex)
    tex = re.sub(r"\^old\b", r"^{\\text{old}}", tex)
    return _braces(tex.replace("...", r"\dots").replace("|", r"\vert "))


def in_words(rule: str) -> str:
    """Return a rule in which formulas and words alternate as Markdown with formulas."""
    parts: list[tuple[bool, str]] = []
    tokens = rule.split()
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        word = bool(WORD.fullmatch(token)) or (token == "a" and bool(WORD.fullmatch(following)))
        if parts and parts[-1][0] == word:
            parts[-1] = (word, f"{parts[-1][1]} {token}")
        else:
            parts.append((word, token))
    return " ".join(text.replace("``", "`") if word else _ended(text) for word, text in parts)


def typeset(markdown: str) -> str:
    r"""Put every formula of a page between ``\(`` and ``\)``; blocks of code stay as they are."""
    result, end = "", 0
    for kept in KEPT.finditer(markdown):
        result += _spans(markdown[end : kept.start()]) + _displayed(kept[0])
        end = kept.end()
    return result + _spans(markdown[end:])


def inline(tex: str) -> str:
    """Return TeX as a formula within a line of Markdown."""
    return rf"\({tex}\)"


def _spans(text: str) -> str:
    result, end = "", 0
    for span in CODE.finditer(text):
        result += _symbols(text[end : span.start()])
        result += inline(to_tex(span[2])) if is_formula(span[2]) else span[0]
        end = span.end()
    return result + _symbols(text[end:])


def _displayed(kept: str) -> str:
    """Return an indented line of formulas as a displayed one, and anything else as it is."""
    line = kept.strip()
    if not kept.startswith("    ") or "\n" in line or " = " not in line or not is_formula(line):
        return kept
    return "\\[" + r" \qquad ".join(to_tex(part) for part in re.split(r" {2,}", line)) + "\\]\n"


def _symbols(prose: str) -> str:
    """Typeset the symbols with superscripts that stand in a sentence without quotes."""
    return SYMBOL.sub(lambda found: inline(to_tex(found[0])), prose)


def _ended(formula: str) -> str:
    """Typeset a formula; a comma or semicolon after it belongs to the sentence."""
    body = formula.rstrip(",;")
    return inline(to_tex(body)) + formula[len(body) :]


def _braces(tex: str) -> str:
    """Turn the braces of ``min{...}`` and ``max{...}`` into braces that are printed."""
    while found := re.search(r"(?<!\\)\b(min|max)\{", tex):
        depth, end = 1, found.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(tex[end], 0)
            end += 1
        inside = tex[found.end() : end - 1]
        tex = f"{tex[: found.start()]}\\{found[1]}\\lbrace {inside}\\rbrace {tex[end:]}"
    return tex
