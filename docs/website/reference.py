"""The reference: every public name of kedge, on a page per room, from its docstring."""

import inspect

import kedge

PAGES = {
    "running": (
        "Running",
        ("kedge.runs", "kedge.settings", "kedge.schedule"),
        "Run an algorithm, look at it, read it again.",
    ),
    "problems": ("Data and models", ("kedge.problem",), "What a run is about: clients with their data, and a model."),
    "algorithms": ("Algorithms", ("kedge.algorithms",), "The built-in algorithms, each with its hyper-parameters."),
    "writing": (
        "Writing an algorithm",
        ("kedge.algorithm", "kedge.direction", "kedge.exchange", "kedge.costs", "kedge.client", "kedge.local"),
        "The parts that an algorithm is made of. [Your own algorithm](../extend.md) shows how they fit together.",
    ),
    "inside": ("Simulation and questions", ("kedge.simulator", "kedge.questions"), "A run step by step."),
    "errors": ("Errors", ("kedge.errors",), "What kedge raises, with a sentence for the user."),
}
OTHERS = ("more", "More")


def pages() -> dict[str, tuple[str, str]]:
    """Return the title and the Markdown of every page of the reference, by file name."""
    by_page: dict[str, list[str]] = {}
    for name in sorted(kedge.__all__, key=lambda name: inspect.isclass(getattr(kedge, name))):  # functions first
        by_page.setdefault(_page(name), []).append(name)
    made = {}
    for file, names in by_page.items():
        title, _, intro = PAGES.get(file, (OTHERS[1], (), "Other public names."))
        made[file] = (title, f"# {title}\n\n{intro}\n\n" + "\n".join(_entry(name) for name in names))
    order = [*PAGES, OTHERS[0]]
    return {file: made[file] for file in order if file in made}


def _page(name: str) -> str:
    home = _home(name)
    fits = [
        (len(room), file)
        for file, (_, rooms, _) in PAGES.items()
        for room in rooms
        if f"{home}.".startswith(f"{room}.")
    ]
    return max(fits)[1] if fits else OTHERS[0]


def _home(name: str) -> str:
    """Return the module that defines a public name."""
    thing = getattr(kedge, name)
    if inspect.ismodule(thing):
        return str(thing.__name__)
    if inspect.isclass(thing) or inspect.isfunction(thing):
        return str(thing.__module__)
    return next(f"kedge.{home}" for home in kedge._HOMES if hasattr(__import__(f"kedge.{home}", fromlist=["x"]), name))


def _entry(name: str) -> str:
    thing = getattr(kedge, name)
    if inspect.ismodule(thing):
        return (
            f"::: {thing.__name__}\n    options:\n      show_root_heading: true\n      members: {list(thing.__all__)}\n"
        )
    if not _home(name).startswith("kedge."):
        return f"## `{name}`\n\nAnother name of `{_home(name)}.{thing.__qualname__}`.\n"
    if inspect.isclass(thing) or inspect.isfunction(thing):
        return f"::: {thing.__module__}.{thing.__qualname__}\n"
    return f"::: {_home(name)}.{name}\n"
