// The interactive chart. uPlot keeps the axes, the cursor and the selection; the lines are drawn here, so that
// every line has its own x values, a band, markers and a highlight.

const MANY = 8; // lines beyond which bands would hide each other
const state = {
  metric: null, axis: "round", band: "range", colours: "algorithm", logX: false, logY: false, seeds: false,
  hidden: new Set(), highlight: null, zoom: null, drawn: [], plot: null, spot: null, search: "",
};
let curves = new Map();

function curve(line) {
  const key = `${state.metric}\n${state.axis}\n${line.name}`;
  if (!curves.has(key)) curves.set(key, curveOf(line, state.metric, state.axis));
  return curves.get(key);
}

// What remains of a curve on logarithmic axes: positive values only.
function fitting(found) {
  const keep = found.x.map((x, place) => (!state.logX || x > 0) && (!state.logY || found.y[place] > 0));
  if (keep.every(Boolean)) return found;
  return Object.fromEntries(Object.entries(found).map(([name, values]) => [name, values.filter((_, place) => keep[place])]));
}

function bandOf(found, lines) {
  if (state.band === "none" || lines > MANY || !found.count.some((count) => count > 1)) return null;
  const low = state.band === "range" ? found.low : found.y.map((y, place) => y - found.std[place]);
  const high = state.band === "range" ? found.high : found.y.map((y, place) => y + found.std[place]);
  return { low: state.logY ? low.map((value, place) => (value > 0 ? value : found.y[place])) : low, high };
}

function seedCurves(line) {
  if (!state.seeds || line.runs.length < 2) return [];
  return line.runs.map((place) => report.runs[place].columns).filter((columns) => columns[state.metric]).map((columns) => {
    const x = [], y = [];
    columns[state.metric].forEach((value, place) => {
      const at = columns[state.axis][place];
      if (value !== null && at !== null && (!state.logY || value > 0) && (!state.logX || at > 0)) { x.push(at); y.push(value); }
    });
    return { x, y };
  });
}

function extent(values, log, most = Infinity) {
  let low = Infinity, high = -Infinity;
  for (const list of values) for (const value of list) { if (value < low) low = value; if (value > high) high = value; }
  if (low > high) return log ? [1, 10] : [0, 1];
  if (low === high) {
    const [below, above] = log ? [low / 2, high * 2] : [low - Math.abs(low || 1) / 10, high + Math.abs(high || 1) / 10];
    return [below, Math.min(above, Math.max(high, most))];
  }
  return [low, high];
}

const to = (value, log) => (log ? Math.log10(value) : value);
const from = (value, log) => (log ? 10 ** value : value);

function widened([low, high], log, share) {
  const a = to(low, log), b = to(high, log), margin = (b - a) * share;
  return [from(a - margin, log), from(b + margin, log)];
}

const view = () => state.zoom || state.full;

function measure() {
  const shown = report.lines.filter((line) => !state.hidden.has(line.name));
  state.drawn = shown.map((line) => ({ line, curve: fitting(curve(line)) })).filter((each) => each.curve.x.length);
  for (const each of state.drawn) {
    each.band = bandOf(each.curve, state.drawn.length);
    each.seeds = seedCurves(each.line);
  }
  const ys = state.drawn.flatMap((each) => [each.curve.y, ...(each.band ? [each.band.low, each.band.high] : []), ...each.seeds.map((seed) => seed.y)]);
  state.full = {
    x: widened(extent(state.drawn.flatMap((each) => [each.curve.x, ...each.seeds.map((seed) => seed.x)]), state.logX), state.logX, 0.012),
    y: widened(extent(ys, state.logY, isShare(state.metric) ? 1 : Infinity), state.logY, 0.04),
  };
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function rebuild() {
  measure();
  const host = byId("chart"), ink = printing ? "#000" : css("--ink"), grid = { stroke: printing ? "#e4e8ec" : css("--grid"), width: 1 };
  const width = Math.max(240, host.clientWidth), height = width < 560 ? 320 : 420;
  const font = "12px system-ui, sans-serif";
  const tick = (value) => (isShare(state.metric) ? `${Number((100 * value).toPrecision(6))} %` : significant(value));
  const axis = (show, more) => ({
    stroke: ink, grid, ticks: grid, font, labelFont: font, labelGap: 2, labelSize: 20, ...more,
    values: (_, splits) => splits.map((split) => (split === null ? null : show(split))),
  });
  const options = {
    width, height, legend: { show: false }, padding: [10, 12, 0, 0],
    scales: {
      x: { time: false, distr: state.logX ? 3 : 1, range: () => view().x },
      y: { distr: state.logY ? 3 : 1, range: () => view().y },
    },
    axes: [
      axis((value) => axisText(state.axis, value), { label: AXIS_NAMES[state.axis], space: 70, size: 38 }),
      axis(tick, { label: words(state.metric), size: 62 }),
    ],
    series: [{}, { paths: () => null, points: { show: false } }],
    cursor: { points: { show: false }, drag: { x: true, y: true, uni: 30, setScale: false } },
    hooks: { draw: [paint], setSelect: [zoomToSelection] },
  };
  if (state.plot) state.plot.destroy();
  state.plot = new uPlot(options, [view().x, view().y], host);
  state.plot.over.addEventListener("mousemove", hover);
  state.plot.over.addEventListener("mouseleave", () => pointAt(null));
  state.plot.over.addEventListener("dblclick", () => zoomTo(null));
  host.setAttribute("aria-label", `${words(state.metric)} against ${AXIS_NAMES[state.axis]}, ${state.drawn.length} lines`);
  pointAt(null);
}

// Positions of values on the canvas, in its pixels.
function places(plot) {
  const { left, top, width, height } = plot.bbox, now = view();
  const [x0, x1] = now.x.map((value) => to(value, state.logX)), [y0, y1] = now.y.map((value) => to(value, state.logY));
  return {
    x: (value) => left + ((to(value, state.logX) - x0) / (x1 - x0)) * width,
    y: (value) => top + height - ((to(value, state.logY) - y0) / (y1 - y0)) * height,
  };
}

function paint(plot) {
  const pen = plot.ctx, at = places(plot), ratio = uPlot.pxRatio, box = plot.bbox;
  const base = state.drawn.length > 60 ? 0.45 : 1;
  pen.save();
  pen.beginPath();
  pen.rect(box.left, box.top, box.width, box.height);
  pen.clip();
  const trace = (xs, ys) => { for (let i = 0; i < xs.length; i += 1) { const x = at.x(xs[i]), y = at.y(ys[i]); if (i) pen.lineTo(x, y); else pen.moveTo(x, y); } };
  for (const { curve: found, line, band, seeds } of state.drawn) {
    const dim = state.highlight !== null && state.highlight !== line.name, colour = colourOf(line);
    pen.strokeStyle = pen.fillStyle = colour;
    if (band && !dim) {
      pen.globalAlpha = 0.14;
      pen.beginPath();
      trace(found.x, band.high);
      for (let i = found.x.length - 1; i >= 0; i -= 1) pen.lineTo(at.x(found.x[i]), at.y(band.low[i]));
      pen.fill();
    }
    pen.globalAlpha = dim ? 0.05 : 0.35;
    pen.lineWidth = ratio;
    pen.setLineDash([]);
    for (const seed of seeds) { pen.beginPath(); trace(seed.x, seed.y); pen.stroke(); }
    pen.globalAlpha = dim ? 0.13 : base;
    pen.lineWidth = (state.highlight === line.name ? 3 : 1.8) * ratio;
    pen.setLineDash(line.look.dash.map((length) => length * ratio));
    pen.beginPath();
    trace(found.x, found.y);
    pen.stroke();
    for (const spot of markerPlaces(found)) pen.fill(new Path2D(markerPath(line.look.marker, at.x(found.x[spot]), at.y(found.y[spot]), 3.4 * ratio)));
  }
  pen.restore();
}

function repaint() { if (state.plot) state.plot.redraw(false, false); }

function zoomTo(zoom) {
  state.zoom = zoom;
  state.plot.setData([view().x, view().y]);
  pointAt(null);
}

function zoomToSelection(plot) {
  const { left, top, width, height } = plot.select;
  if (width < 4 && height < 4) return;
  const now = view(), wide = width >= 4, high = height >= 4;
  zoomTo({
    x: wide ? [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")] : now.x,
    y: high ? [plot.posToVal(top + height, "y"), plot.posToVal(top, "y")] : now.y,
  });
  plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
}

function zoomBy(share) {
  const now = view();
  zoomTo({ x: widened(now.x, state.logX, share), y: widened(now.y, state.logY, share) });
}

// The nearest point of any line to the mouse.
function hover(event) {
  const plot = state.plot, at = places(plot), ratio = uPlot.pxRatio;
  const x = event.offsetX * ratio + plot.bbox.left, y = event.offsetY * ratio + plot.bbox.top;
  let best = null, least = (40 * ratio) ** 2;
  state.drawn.forEach(({ curve: found }, line) => {
    for (let place = 0; place < found.x.length; place += 1) {
      const across = at.x(found.x[place]) - x;
      if (across * across > least) continue;
      const distance = across ** 2 + (at.y(found.y[place]) - y) ** 2;
      if (distance < least) { least = distance; best = { line, place }; }
    }
  });
  pointAt(best);
}

// Show the values of a point; the keyboard moves from one to the next.
function pointAt(spot) {
  state.spot = spot;
  const tip = byId("tip"), readout = byId("readout");
  tip.hidden = spot === null;
  if (spot === null) { readout.textContent = ""; return; }
  const { line, curve: found } = state.drawn[spot.line], place = spot.place, at = places(state.plot), ratio = uPlot.pxRatio;
  const value = metricText(state.metric, found.y[place]), seeds = found.count[place];
  const range = seeds > 1 ? ` (${metricText(state.metric, found.low[place])} to ${metricText(state.metric, found.high[place])}, ${seeds} seeds)` : "";
  const where = state.axis === "round" ? `round ${found.round[place]}` : `${axisText(state.axis, found.x[place])} (round ${found.round[place]})`;
  tip.replaceChildren(element("p", { text: line.name }), element("p", { text: `${words(state.metric)} ${value}${range}` }), element("p", { text: where }));
  const x = at.x(found.x[place]) / ratio, y = at.y(found.y[place]) / ratio, wide = byId("figure").clientWidth;
  tip.style.left = `${Math.max(0, Math.min(x + 14, wide - tip.offsetWidth - 4))}px`;
  tip.style.top = `${Math.max(0, y - tip.offsetHeight - 12)}px`;
  readout.textContent = `${line.name}, ${where}: ${words(state.metric)} ${value}${range}`;
}

function step(lines, points) {
  if (!state.drawn.length) return;
  const now = state.spot || { line: 0, place: -1 };
  const line = (now.line + lines + state.drawn.length) % state.drawn.length, last = state.drawn[line].curve.x.length - 1;
  pointAt({ line, place: Math.max(0, Math.min(last, now.place + points)) });
}

function keys(event) {
  const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  if (moves[event.key]) step(...moves[event.key]);
  else if (event.key === "+" || event.key === "=") zoomBy(-0.2);
  else if (event.key === "-") zoomBy(0.33);
  else if (event.key === "0") zoomTo(null);
  else if (event.key === "Escape") pointAt(null);
  else return;
  event.preventDefault();
}

function curvesAsCsv() {
  const quoted = (text) => `"${(/^[=+\-@\t\r]/.test(text) ? "'" : "") + text.replaceAll('"', '""')}"`;
  const rows = [["line", "round", state.axis === "round" ? "x" : state.axis, quoted(state.metric), "smallest", "largest", "deviation", "seeds"].join(",")];
  for (const { line, curve: found } of state.drawn) {
    found.x.forEach((x, i) => rows.push([quoted(line.name), found.round[i], x, found.y[i], found.low[i], found.high[i], found.std[i], found.count[i]].join(",")));
  }
  return `${rows.join("\n")}\n`;
}

async function chartAsPng() {
  const source = URL.createObjectURL(new Blob([chartAsSvg()], { type: "image/svg+xml" })), picture = new Image();
  try {
    picture.src = source;
    await picture.decode();
    const canvas = element("canvas", { width: 2 * picture.width, height: 2 * picture.height });
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    return await new Promise((done) => { canvas.toBlob(done, "image/png"); });
  } finally {
    URL.revokeObjectURL(source);
  }
}
