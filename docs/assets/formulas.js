// Renders the formulas that pymdownx.arithmatex has marked.
document.querySelectorAll(".arithmatex").forEach((element) => {
  const text = element.textContent.trim();
  const display = text.startsWith("\\[");
  katex.render(text.slice(2, -2), element, { displayMode: display, throwOnError: false, strict: "ignore" });
});
