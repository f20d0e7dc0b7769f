"""A page per algorithm: its section of docs/algorithms.md, and the pseudo-code beside the class.

The pseudo-code is put together from the rules in the docstring of the class, which the tests hold to the section; the
frame around them (cohort, local steps, averaging) is that of the paper's Algorithms 1 to 4.
"""

import dataclasses
import inspect
import re
from textwrap import dedent

from docs.website.formulas import in_words, inline, to_tex
from kedge.algorithms import ALGORITHMS, find_algorithm
from kedge.report.costs import SECTION, sections
from tests.cases import CASES

Rules = dict[str, list[str]]

RULES = re.compile(r"^    (local direction|client|server|start)? {2,}(.+)$")
EVERYONE, COHORT = r"i \in \{1, \dots, N\}", r"i \in \mathcal{S}_r"
SAMPLE, SIZE = r"\mathcal{S}_r \subseteq \{1, \dots, N\}", r"\vert\mathcal{S}_r\vert = S"
LATER = re.compile(r"= .*\b[xg]\^\{r\+1\}")


def overview(page: str) -> str:
    """Return the page of all algorithms without their sections, linked to the pages that hold them."""
    kept = [block for block in re.split(r"^(?=###? )", page, flags=re.MULTILINE) if not SECTION.match(block)]
    text = re.sub(r"^## .*\n+", "", "".join(kept), flags=re.MULTILINE)
    return re.sub(r"\[`([^`]+)`\]\(#[^)]+\)", r"[`\1`](algorithms/\1.md)", text)


def pages(page: str) -> dict[str, str]:
    """Return a page of Markdown for every algorithm, by its id."""
    return {name: _page(name, section) for name, section in sections(page).items()}


def families(page: str) -> list[tuple[str, list[str]]]:
    """Return the headings of the page and the ids of the algorithms below each."""
    found: list[tuple[str, list[str]]] = []
    for line in page.splitlines(keepends=True):
        if line.startswith("## "):
            found.append((line[3:].strip(), []))
        elif section := SECTION.match(line):
            found[-1][1].append(section["id"])
    return [(title, names) for title, names in found if names]


def title(name: str, page: str) -> str:
    """Return the name of an algorithm as it is written in prose."""
    found = SECTION.match(sections(page)[name])
    return found["name"] if found else name


def pseudo_code(name: str) -> str:
    """Return an algorithm as lines of HTML, indented by their depth."""
    rules = _rules(name)
    lines = [(0, f"**Require:** the initial model {_x('x^0')}, {_hyper_parameters(name)}")]
    lines += [(0, f"start with {in_words(line)}") for line in rules["start"]]
    lines.append((0, f"**for** {_x('r = 0, ..., R-1')} **do**"))
    lines += _usual(name, rules) if rules["local direction"][0].startswith("g_i^{r,k} =") else _labelled(rules)
    return "\n".join(f'<p class="step" style="--depth: {depth}" markdown="span">{text}</p>' for depth, text in lines)


def _usual(name: str, rules: Rules) -> list[tuple[int, str]]:
    """Return a round whose clients start at the server's model and take K steps, as in the paper's algorithms."""
    everyone = ALGORITHMS[name].full_participation
    lines = [] if everyone else [(1, f"sample {inline(SAMPLE)} uniformly, with {inline(SIZE)}")]
    lines.append((1, f"**for** each client {inline(EVERYONE if everyone else COHORT)} in parallel **do**"))
    if not any("started at" in line for line in rules["local direction"]):
        lines.append((2, f"initialize the local model {_x('x_i^{r,0} = x^r')}"))
    lines.append((2, "**for** each local step k **do**"))
    lines += [(3, in_words(line)) for line in rules["local direction"]]
    lines.append((3, f"update the local model {_x('x_i^{r,k+1} = x_i^{r,k} - η g_i^{r,k}')}"))
    client = [(2, in_words(line)) for line in rules["client"]]
    server = [(1, in_words(line)) for line in rules["server"]]
    if any(LATER.search(line) for line in rules["client"]):
        return [*lines, *server, (1, "**for** each of these clients, when it hears of this, **do**"), *client]
    return [*lines, *client, *server]


def _labelled(rules: Rules) -> list[tuple[int, str]]:
    """Return the rules of a round that is built differently, under their names."""
    lines = []
    for label in ("local direction", "client", "server"):
        if rules[label]:
            lines += [(1, f"**{label}**"), *((2, in_words(line)) for line in rules[label])]
    return lines


def _page(name: str, section: str) -> str:
    kind = find_algorithm(name)
    heading, _, body = section.partition("\n")
    (loop, *_) = [case.loop for case in CASES if case.id == name]
    return f"""---
title: {name}
hide:
  - toc
---

# {heading.lstrip("# ")}
{body}
## The pseudo-code beside the class

<div class="beside" markdown>
<div class="pseudo" markdown>

{pseudo_code(name)}

</div>
<div class="class" markdown>

```python
{_source(kind)}
```

</div>
</div>

In Python, `help(kedge.{kind.__name__})` prints the rules, the hyper-parameters and an example. In a terminal,
`kedge algorithms --detail {name}` prints the text of this page.

## The literal loop that the tests compare it with

Slow on purpose: one line per line of the pseudo-code, in float64. The class above must give the same model to 1e-10.

```python
{dedent(inspect.getsource(loop)).rstrip()}
```
"""


def _rules(name: str) -> Rules:
    """Read the rules from the docstring: a line of formulas or words each."""
    doc = inspect.cleandoc(ALGORITHMS[name].__doc__ or "")
    rules: Rules = {"local direction": [], "client": [], "server": [], "start": []}
    label = ""
    for line in doc.split(">>>")[0].splitlines():
        if found := RULES.match(line):
            text = found[2].strip()
            if found[1]:
                label = found[1]
            if not found[1] and text.startswith("+ "):  # the rest of a long formula
                rules[label][-1] += f" {text}"
            elif label:
                rules[label].append(text)
    paper = re.search(r"This g\^\{r\+1\} is (.+)\.$", doc, re.MULTILINE)
    if paper:  # the class sends less; this is what the paper writes
        rules["server"] = [
            f"g^{{r+1}} = {paper[1]}" if rule.startswith("g^{r+1}") else rule for rule in rules["server"]
        ]
    return rules


def _hyper_parameters(name: str) -> str:
    return ", ".join(f"`{field.name}`" for field in dataclasses.fields(ALGORITHMS[name]))


def _source(kind: type) -> str:
    """Return the source of a class without its docstring."""
    source = inspect.getsource(kind)
    return re.sub(r'\n    """.*?"""\n', "\n", source, count=1, flags=re.DOTALL).rstrip()


def _x(formula: str) -> str:
    return inline(to_tex(formula))
