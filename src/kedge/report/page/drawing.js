// Shapes that the canvas, the SVG file and the legend share.

const SVG = "http://www.w3.org/2000/svg";

function svg(kind, options = {}, ...children) {
  const made = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(options)) {
    if (name === "text") made.textContent = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// The markers of the figures, by matplotlib's letters, as a path around a point.
function markerPath(kind, x, y, r) {
  const poly = (points) => `M${points.map(([a, b]) => `${(x + a * r).toFixed(1)} ${(y + b * r).toFixed(1)}`).join("L")}Z`;
  const shapes = {
    s: [[-1, -1], [1, -1], [1, 1], [-1, 1]],
    "^": [[0, -1.15], [1.1, 0.9], [-1.1, 0.9]],
    v: [[0, 1.15], [1.1, -0.9], [-1.1, -0.9]],
    D: [[0, -1.35], [1.35, 0], [0, 1.35], [-1.35, 0]],
    P: [[-0.4, -1.2], [0.4, -1.2], [0.4, -0.4], [1.2, -0.4], [1.2, 0.4], [0.4, 0.4], [0.4, 1.2], [-0.4, 1.2], [-0.4, 0.4], [-1.2, 0.4], [-1.2, -0.4], [-0.4, -0.4]],
    X: [[-1.1, -0.6], [-0.6, -1.1], [0, -0.5], [0.6, -1.1], [1.1, -0.6], [0.5, 0], [1.1, 0.6], [0.6, 1.1], [0, 0.5], [-0.6, 1.1], [-1.1, 0.6], [-0.5, 0]],
    "*": Array.from({ length: 10 }, (_, place) => {
      const angle = (place * Math.PI) / 5 - Math.PI / 2, size = place % 2 ? 0.6 : 1.5;
      return [size * Math.cos(angle), size * Math.sin(angle)];
    }),
  };
  if (shapes[kind]) return poly(shapes[kind]);
  return `M${(x - r).toFixed(1)} ${y.toFixed(1)}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`;
}

function colourOf(line, dark = isDark()) {
  const [light, night] = state.colours === "line" ? [line.look.shade, line.look.shade_dark] : [line.look.color, line.look.dark];
  return dark ? night : light;
}

function swatch(line) {
  const colour = colourOf(line);
  const drawn = svg("svg", { class: "swatch", viewBox: "0 0 34 14", "aria-hidden": "true" });
  drawn.append(svg("line", { x1: 1, y1: 7, x2: 33, y2: 7, stroke: colour, "stroke-width": 2, "stroke-dasharray": line.look.dash.join(" ") }));
  drawn.append(svg("path", { d: markerPath(line.look.marker, 17, 7, 3.4), fill: colour }));
  return drawn;
}

// The chart as an SVG file, with the ticks of the chart on the screen.
function chartAsSvg() {
  const plot = state.plot, width = plot.width, height = plot.height, ratio = uPlot.pxRatio;
  const box = { left: plot.bbox.left / ratio, top: plot.bbox.top / ratio, width: plot.bbox.width / ratio, height: plot.bbox.height / ratio };
  const names = state.drawn.map((each) => each.line.name), rows = Math.min(names.length, 40);
  const total = height + 30 + 18 * rows;
  const ink = "#1c2024", quiet = "#5b6470", font = { "font-family": "system-ui, sans-serif", "font-size": 12 };
  const root = svg("svg", { xmlns: SVG, width, height: total, viewBox: `0 0 ${width} ${total}` });
  root.append(svg("title", { text: `${words(state.metric)} against ${AXIS_NAMES[state.axis]}` }));
  root.append(svg("rect", { width, height: total, fill: "#ffffff" }));
  root.append(svg("defs", {}, svg("clipPath", { id: "inside" }, svg("rect", { x: box.left, y: box.top, width: box.width, height: box.height }))));
  plot.axes.forEach((axis, which) => {
    axis._splits.forEach((split, place) => {
      if (split === null) return;
      const at = plot.valToPos(split, which ? "y" : "x"), label = axis._values[place];
      const x = box.left + at, y = box.top + at;
      root.append(which ? svg("line", { x1: box.left, x2: box.left + box.width, y1: y, y2: y, stroke: "#e4e8ec" })
        : svg("line", { x1: x, x2: x, y1: box.top, y2: box.top + box.height, stroke: "#e4e8ec" }));
      if (label === null || label === "") return;
      root.append(which ? svg("text", { x: box.left - 8, y: y + 4, "text-anchor": "end", fill: ink, text: label, ...font })
        : svg("text", { x, y: box.top + box.height + 18, "text-anchor": "middle", fill: ink, text: label, ...font }));
    });
  });
  const middle = box.top + box.height / 2;
  root.append(svg("text", { x: box.left + box.width / 2, y: box.top + box.height + 38, "text-anchor": "middle", fill: quiet, text: AXIS_NAMES[state.axis], ...font }));
  root.append(svg("text", { x: 14, y: middle, transform: `rotate(-90 14 ${middle})`, "text-anchor": "middle", fill: quiet, text: words(state.metric), ...font }));
  const inside = svg("g", { "clip-path": "url(#inside)" });
  root.append(inside);
  const place = (x, y) => [box.left + plot.valToPos(x, "x"), box.top + plot.valToPos(y, "y")];
  const path = (xs, ys) => xs.map((x, i) => { const [a, b] = place(x, ys[i]); return `${i ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`; }).join("");
  for (const each of state.drawn) {
    const { line, curve } = each, colour = colourOf(line, false);
    if (each.band) {
      const back = { x: [...curve.x].reverse(), y: [...each.band.low].reverse() };
      inside.append(svg("path", { d: `${path(curve.x, each.band.high)}${path(back.x, back.y).replace("M", "L")}Z`, fill: colour, "fill-opacity": 0.14 }));
    }
    inside.append(svg("path", { d: path(curve.x, curve.y), fill: "none", stroke: colour, "stroke-width": 1.8, "stroke-dasharray": line.look.dash.join(" ") }));
    for (const spot of markerPlaces(curve)) inside.append(svg("path", { d: markerPath(line.look.marker, ...place(curve.x[spot], curve.y[spot]), 3.4), fill: colour }));
  }
  names.slice(0, rows).forEach((name, row) => {
    const y = height + 16 + 18 * row, line = state.drawn[row].line, colour = colourOf(line, false);
    root.append(svg("line", { x1: box.left, x2: box.left + 32, y1: y, y2: y, stroke: colour, "stroke-width": 2, "stroke-dasharray": line.look.dash.join(" ") }));
    root.append(svg("path", { d: markerPath(line.look.marker, box.left + 16, y, 3.4), fill: colour }));
    root.append(svg("text", { x: box.left + 40, y: y + 4, fill: ink, text: name, ...font }));
  });
  return new XMLSerializer().serializeToString(root);
}

const markerPlaces = (curve) => {
  if (state.drawn.length > 24) return [];
  const step = Math.max(1, Math.ceil(curve.x.length / 8)), places = [];
  for (let place = 0; place < curve.x.length; place += step) places.push(place);
  return places;
};
