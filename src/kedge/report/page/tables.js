// Cards, the sortable table of results, settings, runs and versions.

const SOME = 100; // rows of a table before somebody asks for all
const sorting = { column: null, down: true, all: false, allRuns: false };

function card(title, value, more, line) {
  const small = element("p", { class: "quiet" });
  if (line) small.append(swatch(line), " ");
  small.append(more || "");
  return element("div", { class: "card" }, element("p", { class: "quiet", text: title }), element("p", { class: "value", text: value }), small);
}

function best(key, higher, heldOut) {
  const known = report.lines.filter((line) => line[key] !== null && line.held_out === heldOut);
  return known.length ? known.reduce((a, b) => ((higher ? b[key] > a[key] : b[key] < a[key]) ? b : a)) : null;
}

function cards() {
  const made = [], runs = report.runs, target = targetNow(), metric = byId("target-metric").value;
  for (const heldOut of kinds()) {
    const top = best("accuracy", true, heldOut), low = best("loss", false, heldOut);
    if (top) made.push(card(`Highest final ${kindName(heldOut)} accuracy`, percent(top.accuracy), top.name, top));
    if (low) made.push(card(`Lowest final ${kindName(heldOut)} loss`, significant(low.loss), low.name, low));
    if (!metric || !Number.isFinite(target)) continue;
    const own = report.lines.filter((line) => line.held_out === heldOut);
    const hits = own.map((line) => ({ line, hit: reached(line, metric, target) })).filter((each) => each.hit.round !== null);
    const quick = hits.length ? hits.reduce((a, b) => (b.hit.round < a.hit.round ? b : a)) : null;
    const cheap = hits.length ? hits.reduce((a, b) => (b.hit.bytes < a.hit.bytes ? b : a)) : null;
    const title = `to ${metric.replaceAll("_", " ").replace(/^test /, `${kindName(heldOut)} `)} ${metricText(metric, target)}`;
    made.push(card(`Fewest rounds ${title}`, quick ? significant(quick.hit.round) : "–", quick ? quick.line.name : "no line reaches it", quick && quick.line));
    made.push(card(`Fewest bytes ${title}`, cheap ? bytes(cheap.hit.bytes) : "–", cheap ? cheap.line.name : "no line reaches it", cheap && cheap.line));
  }
  const finished = runs.filter((run) => run.state === "finished").length, diverged = runs.filter((run) => run.state.startsWith("diverged")).length;
  const others = runs.length - finished - diverged;
  const parts = [`${finished} finished`, diverged ? `${diverged} diverged` : "", others ? `${others} not finished` : ""].filter(Boolean);
  made.push(card("Runs", String(runs.length), parts.join(", ")));
  byId("cards").replaceChildren(...made);
}

const targetNow = () => Number.parseFloat(byId("target").value);

function columns() {
  const metric = byId("target-metric").value, target = targetNow(), goal = Number.isFinite(target) ? metricText(metric, target) : "target";
  const has = (key) => report.lines.some((line) => line[key] !== null);
  const mixed = kinds().length > 1, kind = kinds()[0] && !mixed ? "held-out " : "";
  const spread = (line) => (line.spread === null ? "" : ` ± ${(100 * line.spread).toFixed(1)}`);
  const hit = (line, which, show) => {
    const found = metric && Number.isFinite(target) ? reached(line, metric, target) : { round: null, hits: 0, of: 0 };
    if (found[which] !== null && found[which] !== undefined) return [found[which], show(found[which])];
    return [null, found.hits ? `${found.hits} of ${found.of} seeds` : "–"];
  };
  const all = [
    ["line", (line) => [line.name, line.name], true],
    ["seeds", (line) => [line.runs.length, line.diverged ? `${line.runs.length}, ${line.diverged} diverged` : String(line.runs.length)]],
    ...(mixed ? [["evaluated on", (line) => [samples(line.held_out), samples(line.held_out)], true]] : []),
    [`final ${kind}accuracy`, (line) => [line.accuracy, percent(line.accuracy) + spread(line)], false, "accuracy"],
    [`best ${kind}accuracy`, (line) => [line.best, percent(line.best)], false, "best"],
    [`final ${kind}loss`, (line) => [line.loss, significant(line.loss)], false, "loss"],
    [`rounds to ${goal}`, (line) => hit(line, "round", (value) => significant(value))],
    [`bytes to ${goal}`, (line) => hit(line, "bytes", bytes)],
    ["rounds", (line) => [line.round, significant(line.round, 6)]],
    ["bytes", (line) => [line.bytes, bytes(line.bytes)]],
    ["gradients", (line) => [line.gradients, axisText("gradients", line.gradients)]],
    ["seconds", (line) => [line.seconds, significant(line.seconds, 3)]],
  ];
  return all.filter(([, , , key]) => !key || has(key));
}

function results() {
  const shown = columns(), table = byId("table");
  const heads = shown.map(([name, , text], place) => {
    const button = element("button", { type: "button", text: name });
    button.addEventListener("click", () => { sorting.down = sorting.column === place ? !sorting.down : !text; sorting.column = place; results(); byId("table").querySelectorAll("th button")[place].focus(); });
    return element("th", { scope: "col", class: text ? "text" : null, "aria-sort": sorting.column === place ? (sorting.down ? "descending" : "ascending") : "none" }, button);
  });
  table.tHead.replaceChildren(element("tr", {}, ...heads));
  const rows = report.lines.map((line) => ({ line, cells: shown.map(([, cell]) => cell(line)) }));
  if (sorting.column !== null) rows.sort((a, b) => b.line.held_out - a.line.held_out || compare(a.cells[sorting.column][0], b.cells[sorting.column][0]));
  table.tBodies[0].replaceChildren(...rows.slice(0, sorting.all ? undefined : SOME).map(({ line, cells }) => element("tr", {}, ...cells.map(([, text], place) => {
    const cell = element("td", { class: place ? null : "text name", text });
    if (!place) cell.prepend(swatch(line));
    return cell;
  }))));
  showMore("more", rows.length, sorting.all, () => { sorting.all = true; results(); });
}

function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null); // what is missing comes last, whatever the order
  const order = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
  return sorting.down ? -order : order;
}

function showMore(id, count, all, then) {
  const button = byId(id);
  button.hidden = all || count <= SOME;
  button.textContent = `Show all ${count}`;
  button.onclick = then;
}

function settings() {
  const apart = byId("apart"), keys = report.apart, common = Object.entries(report.common);
  apart.replaceChildren();
  if (keys.length) {
    const head = element("tr", {}, element("th", { class: "text", scope: "col", text: "line" }), ...keys.map((key) => element("th", { class: "text", scope: "col", text: key })));
    const body = report.lines.slice(0, SOME).map((line) => element("tr", {}, element("td", { class: "text name", text: line.name }), ...keys.map((key) => element("td", { class: "text", text: line.settings[key] ?? "–" }))));
    apart.append(element("p", { class: "quiet", text: "In these settings the lines differ:" }));
    apart.append(element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Settings that differ" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...body))));
    if (report.lines.length > SOME) apart.append(element("p", { class: "quiet", text: `The first ${SOME} of ${report.lines.length} lines.` }));
  } else {
    const text = common.length ? "All runs have the same settings, apart from their seeds." : "No run here has a configuration.";
    apart.append(element("p", { class: "quiet", text }));
  }
  byId("common").hidden = !common.length;
  byId("common").firstElementChild.textContent = `${common.length} settings that all lines share`;
  byId("common").lastElementChild.replaceChildren(pairs(common));
}

const pairs = (entries) => element("table", {}, element("tbody", {}, ...entries.map(([key, value]) => element("tr", {}, element("th", { class: "text", scope: "row", text: key }), element("td", { class: "text", text: value })))));

function runTable() {
  const table = byId("run-table"), rows = report.lines.flatMap((line) => line.runs.map((place) => [line, report.runs[place]]));
  const heads = [["line", "text"], ["seed", ""], ["state", "text"], ["command that repeats it", "text"], ["", "copy"]];
  table.tHead.replaceChildren(element("tr", {}, ...heads.map(([name, kind]) => (name ? element("th", { scope: "col", class: kind || null, text: name }) : element("td", { class: kind })))));
  table.tBodies[0].replaceChildren(...rows.slice(0, sorting.allRuns ? undefined : SOME).map(([line, run]) => {
    const state = element("td", { class: "text state", text: run.state }), copy = element("td", { class: "copy" });
    for (const problem of run.problems) state.append(element("div", { class: "problem quiet", text: problem }));
    if (run.command) {
      const button = element("button", { type: "button", text: "Copy", "aria-label": `Copy the command that repeats ${run.path}` });
      button.addEventListener("click", () => copyText(run.command).then((done) => { button.textContent = done ? "Copied" : "Not allowed"; }));
      copy.append(button);
    }
    return element("tr", {}, element("td", { class: "text name", text: line.name }), element("td", { text: run.seed === null ? "–" : String(run.seed) }), state,
      element("td", { class: "text path", text: run.command || `${run.path} (no command repeats it: the run was made in Python)` }), copy);
  }));
  showMore("more-runs", rows.length, sorting.allRuns, () => { sorting.allRuns = true; runTable(); });
}

function environment() {
  const made = report.environments.map((versions, place) => {
    const engines = new Set(report.runs.filter((run) => run.environment === place).map((run) => run.engine));
    const count = report.runs.filter((run) => run.environment === place).length;
    return element("div", {}, element("p", { class: "quiet", text: `${count} of ${report.runs.length} runs` }), pairs([...Object.entries(versions), ["engine", [...engines].join("; ")]]));
  });
  byId("versions").replaceChildren(...(made.length ? made : [element("p", { class: "quiet", text: "No run has ended yet, so none has recorded its versions." })]));
  byId("made").textContent = `Made by kedge ${report.version}` + (report.command ? ` with: ${report.command}` : "");
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = element("textarea", { "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
