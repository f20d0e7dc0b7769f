// Fill the page, connect the controls and, on a live page, ask for news.

const option = (value, text) => element("option", { value, text });

function choices(id, values, text, chosen) {
  const select = byId(id);
  select.replaceChildren(...values.map((value) => option(value, text(value))));
  select.value = values.includes(chosen) ? chosen : values[0] ?? "";
  return select.value;
}

function legend() {
  const wanted = state.search.toLowerCase(), found = report.lines.filter((line) => line.name.toLowerCase().includes(wanted));
  byId("legend").replaceChildren(...found.slice(0, 5 * SOME).map((line) => {
    const button = element("button", { type: "button", "aria-pressed": String(!state.hidden.has(line.name)) }, swatch(line), element("span", { text: line.name }));
    const light = (name) => () => { if (state.highlight !== name) { state.highlight = name; repaint(); } };
    button.addEventListener("click", (event) => { if (event.shiftKey) alone(line); else toggle(line); });
    button.addEventListener("mouseenter", light(line.name));
    button.addEventListener("mouseleave", light(null));
    button.addEventListener("focus", light(line.name));
    button.addEventListener("blur", light(null));
    return element("li", {}, button);
  }));
}

function toggle(line) {
  if (!state.hidden.delete(line.name)) state.hidden.add(line.name);
  pressed();
}

function alone(line) {
  state.hidden = new Set(report.lines.filter((other) => other !== line).map((other) => other.name));
  pressed();
}

function pressed() {
  byId("legend").querySelectorAll("button").forEach((button) => {
    button.setAttribute("aria-pressed", String(!state.hidden.has(button.textContent)));
  });
  state.zoom = null;
  rebuild();
}

function matching(hide) {
  const wanted = state.search.toLowerCase();
  for (const line of report.lines) {
    if (!line.name.toLowerCase().includes(wanted)) continue;
    if (hide) state.hidden.add(line.name); else state.hidden.delete(line.name);
  }
  pressed();
}

function heading() {
  const lines = report.lines.length, runs = report.runs.length, plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
  byId("title").textContent = report.title;
  document.title = `${report.title} – kedge`;
  byId("subtitle").textContent = `${plural(lines, "line")} from ${plural(runs, "run")}`;
  byId("notes").replaceChildren(...report.notes.map((note) => element("li", { text: note })));
}

function fill() {
  curves = new Map();
  state.metric = choices("metric", report.metrics, words, state.metric);
  state.axis = choices("axis", report.axes, (axis) => AXIS_SHORT[axis], state.axis);
  const targets = Object.keys(report.targets), chosen = byId("target-metric").value;
  choices("target-metric", targets, words, chosen);
  if (!byId("target").value && targets.length) byId("target").value = report.targets[byId("target-metric").value];
  heading();
  cards();
  legend();
  rebuild();
  results();
  settings();
  requestAnimationFrame(() => setTimeout(() => { clients(); partition(); runTable(); environment(); document.body.dataset.ready = "true"; }));
}

function connect() {
  const redraw = (id, key, value) => byId(id).addEventListener("change", (event) => { state[key] = value(event.target); state.zoom = null; rebuild(); });
  redraw("metric", "metric", (target) => target.value);
  redraw("axis", "axis", (target) => target.value);
  redraw("band", "band", (target) => target.value);
  redraw("log-x", "logX", (target) => target.checked);
  redraw("log-y", "logY", (target) => target.checked);
  redraw("seeds", "seeds", (target) => target.checked);
  byId("colours").addEventListener("change", (event) => { state.colours = event.target.value; recolour(); });
  byId("chart").addEventListener("keydown", keys);
  byId("find").addEventListener("input", (event) => { state.search = event.target.value; legend(); });
  byId("all").addEventListener("click", () => matching(false));
  byId("none").addEventListener("click", () => matching(true));
  byId("zoom-in").addEventListener("click", () => zoomBy(-0.2));
  byId("zoom-out").addEventListener("click", () => zoomBy(0.33));
  byId("reset").addEventListener("click", () => zoomTo(null));
  byId("target").addEventListener("input", () => { results(); cards(); });
  byId("target-metric").addEventListener("change", (event) => { byId("target").value = report.targets[event.target.value]; results(); cards(); });
  byId("partition").addEventListener("change", partition);
  byId("download").addEventListener("click", () => saved(download));
  byId("copy").addEventListener("click", () => saved(copy));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  window.addEventListener("beforeprint", () => { printing = true; recolour(); });
  window.addEventListener("afterprint", () => { printing = false; recolour(); });
  new ResizeObserver(() => { if (state.plot && Math.abs(state.plot.width - byId("chart").clientWidth) > 1) rebuild(); }).observe(byId("chart"));
}

function recolour() { legend(); rebuild(); results(); cards(); clients(); partition(); }

async function saved(way) {
  try {
    byId("said").textContent = await way(byId("format").value);
  } catch (error) {
    byId("said").textContent = `That did not work: ${error.message}`;
  }
}

const KINDS = { png: "image/png", svg: "image/svg+xml", csv: "text/csv" };

async function content(format) {
  if (format === "png") return chartAsPng();
  return new Blob([format === "svg" ? chartAsSvg() : curvesAsCsv()], { type: KINDS[format] });
}

async function download(format) {
  const address = URL.createObjectURL(await content(format)), name = `${state.metric}-${state.axis}.${format}`.replace(/[^\w.-]+/g, "_");
  const link = element("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
  return `Saved as ${name}.`;
}

async function copy(format) {
  if (format !== "png") return (await copyText(await (await content(format)).text())) ? "Copied." : "The browser does not allow copying.";
  await navigator.clipboard.write([new ClipboardItem({ "image/png": chartAsPng() })]);
  return "Copied.";
}

// What is drawn anew keeps the keyboard's place.
function keepingFocus(action) {
  const active = document.activeElement, home = active && active.closest("#legend, #table, #run-table");
  const place = home ? [...home.querySelectorAll("button")].indexOf(active) : -1;
  action();
  if (place >= 0) home.querySelectorAll("button")[place]?.focus({ preventScroll: true });
}

// A live page asks its server for news; the answer is empty while nothing has changed.
async function follow() {
  let seen = "";
  const status = byId("live"), token = new URLSearchParams(location.search).get("token");
  status.hidden = false;
  for (;;) {
    try {
      const answer = await fetch(`data.json?token=${encodeURIComponent(token)}&seen=${seen}`, { cache: "no-store" });
      if (answer.status === 200) {
        seen = answer.headers.get("x-seen");
        report = await answer.json();
        keepingFocus(fill);
      } else if (answer.status !== 204) throw new Error(`the server answers ${answer.status}`);
      status.textContent = report.runs.length ? "Live: this page follows the runs." : "Live: there are no runs yet.";
    } catch {
      status.textContent = "The server of this page has ended; this is the last state.";
    }
    await new Promise((later) => { setTimeout(later, 1000); });
  }
}

state.colours = report.lines.length > 1 && new Set(report.lines.map((line) => line.algorithm)).size === 1 ? "line" : "algorithm";
byId("colours").value = state.colours;
connect();
fill();
if (document.body.dataset.live === "true") follow();
