// Who has which labels, and how the clients fare.

// The accuracy on the clients' own test sets if it was recorded, else on the data that they train on.
function clients() {
  const metric = ["clients_test_accuracy", "clients_accuracy"].find((name) => report.metrics.includes(name));
  const last = (line, metric) => {
    const ends = runsOf(line).map((run) => (run.columns[metric] || []).at(-1)).filter((value) => value !== null && value !== undefined);
    return ends.length ? ends.reduce((a, b) => a + b, 0) / ends.length : null;
  };
  const rows = report.lines.map((line) => ({ line, mean: last(line, metric), worst: last(line, `${metric}_worst_decile`) })).filter((row) => row.mean !== null);
  byId("clients").hidden = !rows.length;
  byId("client-bars").replaceChildren(...rows.slice(0, SOME).map(({ line, mean, worst }) => {
    const colour = colourOf(line), text = worst === null ? percent(mean) : `${percent(mean)}, ${percent(worst)}`;
    const drawn = svg("svg", { viewBox: "0 0 400 18", preserveAspectRatio: "none", role: "img", "aria-label": `${line.name}: mean ${percent(mean)}, worst tenth ${percent(worst)}` });
    drawn.append(svg("rect", { x: 0, y: 8, width: 400, height: 2, fill: "currentColor", opacity: 0.15 }));
    if (worst !== null) drawn.append(svg("rect", { x: 400 * Math.min(worst, mean), y: 7, width: 400 * Math.abs(mean - worst), height: 4, fill: colour, opacity: 0.45 }), svg("rect", { x: Math.max(0, 400 * worst - 2), y: 2, width: 4, height: 14, fill: colour, opacity: 0.75 }));
    drawn.append(svg("rect", { x: Math.max(0, 400 * mean - 4), y: 2, width: 8, height: 14, fill: colour }));
    return element("div", { class: "bar" }, element("span", { text: line.name }), drawn, element("span", { text }));
  }));
}

function partition() {
  const all = report.partitions;
  byId("data").hidden = !all.length;
  if (!all.length) return;
  const choice = byId("partition"), place = Math.max(0, choice.selectedIndex);
  choice.replaceChildren(...all.map((each) => element("option", { text: each.title })));
  choice.selectedIndex = Math.min(place, all.length - 1);
  const { title, counts, labels, clients: total, largest } = all[choice.selectedIndex], cell = 18, left = 46, top = 6;
  const width = left + counts.length * cell + 8, height = top + labels.length * cell + 36;
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${title}: which of ${total} clients has how many samples of which label` });
  const ink = { fill: "currentColor", "font-size": 11, "font-family": "system-ui, sans-serif" };
  labels.forEach((label, row) => drawn.append(svg("text", { x: left - 14, y: top + cell * row + 13, "text-anchor": "end", text: String(label), ...ink })));
  counts.forEach((own, client) => {
    const x = left + client * cell + cell / 2;
    if (client % 5 === 0) drawn.append(svg("text", { x, y: top + labels.length * cell + 14, "text-anchor": "middle", text: String(client), ...ink }));
    own.forEach((count, row) => {
      if (!count) return;
      const dot = svg("circle", { cx: x, cy: top + row * cell + cell / 2, r: Math.max(0.9, (cell / 2 - 0.5) * Math.sqrt(count / largest)).toFixed(2), fill: isDark() ? "#56b4e9" : "#0072b2" });
      dot.append(svg("title", { text: `client ${client}, label ${labels[row]}: ${count} samples` }));
      drawn.append(dot);
    });
  });
  drawn.append(svg("text", { x: left + (counts.length * cell) / 2, y: height - 4, "text-anchor": "middle", text: "client", ...ink }));
  byId("picture").replaceChildren(drawn);
  const which = counts.length < total ? `The first ${counts.length} of ${total} clients. ` : "";
  byId("picture-note").textContent = `${which}The area of a dot is the number of samples; the largest has ${largest}.`;
}
