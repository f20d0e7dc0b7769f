"use strict";
// What the page shows, and how numbers look.

const byId = (id) => document.getElementById(id);
let report = JSON.parse(byId("contents").textContent);

const AXIS_NAMES = { round: "rounds", bytes: "communication down and up", gradients: "minibatch gradients, all clients", seconds: "seconds" };

const AXIS_SHORT = { round: "rounds", bytes: "bytes", gradients: "gradients", seconds: "seconds" };

const words = (name) => report.words[name] ?? name.replaceAll("_", " ");
// The kinds of samples that the lines were evaluated on; numbers of one kind are never ranked against the other's.
const kinds = () => [true, false].filter((heldOut) => report.lines.some((line) => line.held_out === heldOut));
const kindName = (heldOut) => (heldOut ? "held-out" : "test");
const samples = (heldOut) => (heldOut ? "held-out samples" : "test set");
const isShare = (metric) => /accuracy/.test(metric);

function significant(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-4)) return value.toExponential(2);
  return String(Number(value.toPrecision(digits)));
}

function percent(value) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`;
}

function bytes(value) {
  if (value === null || value === undefined) return "–";
  let size = value;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (Math.abs(size) < 1000) return `${Number(size.toPrecision(3))} ${unit}`;
    size /= 1000;
  }
  return `${Number(size.toPrecision(3))} TB`;
}

const metricText = (metric, value) => (isShare(metric) ? percent(value) : significant(value));
const axisText = (axis, value) => {
  if (axis === "bytes") return bytes(value);
  const whole = axis === "gradients" && value !== null && Math.abs(value) >= 100; // a mean over seeds may have a fraction
  return whole ? significant(Math.round(value), 6) : significant(value, 5);
};

function element(kind, options = {}, ...children) {
  const made = document.createElement(kind);
  for (const [name, value] of Object.entries(options)) {
    if (name === "text") made.textContent = value;
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const isDark = () => !printing && window.matchMedia("(prefers-color-scheme: dark)").matches;
let printing = false;

// The runs of a line that a mean is taken over: those that did not diverge, or all if all did.
function runsOf(line) {
  const own = line.runs.map((place) => report.runs[place]);
  const healthy = own.filter((run) => run.healthy);
  return healthy.length ? healthy : own;
}

// One curve over the seeds: at every round the mean of the runs that have it, and the smallest, largest and deviation.
function curveOf(line, metric, axis) {
  const rounds = new Map();
  for (const run of runsOf(line)) {
    const x = run.columns[axis], y = run.columns[metric];
    if (!y) continue;
    run.columns.round.forEach((round, place) => {
      if (y[place] === null || x[place] === null) return;
      const at = rounds.get(round);
      if (at) { at.x.push(x[place]); at.y.push(y[place]); } else rounds.set(round, { x: [x[place]], y: [y[place]] });
    });
  }
  const curve = { round: [], x: [], y: [], low: [], high: [], std: [], count: [] };
  for (const round of [...rounds.keys()].sort((a, b) => a - b)) {
    const { x, y } = rounds.get(round), mean = y.reduce((a, b) => a + b, 0) / y.length;
    curve.round.push(round);
    curve.x.push(x.reduce((a, b) => a + b, 0) / x.length);
    curve.y.push(mean);
    curve.low.push(Math.min(...y));
    curve.high.push(Math.max(...y));
    curve.std.push(y.length > 1 ? Math.sqrt(y.reduce((a, b) => a + (b - mean) ** 2, 0) / (y.length - 1)) : 0);
    curve.count.push(y.length);
  }
  return curve;
}

// Rounds and bytes until every run of a line has reached the target; null if one has not.
function reached(line, metric, target) {
  const higher = report.higher[metric], hits = [];
  for (const run of runsOf(line)) {
    const [rounds, sizes, values] = run.records[metric] || [[], [], []];
    const place = values.findIndex((value) => (higher ? value >= target : value <= target));
    if (place >= 0) hits.push([rounds[place], sizes[place]]);
  }
  const all = hits.length > 0 && hits.length === line.runs.length;
  const mean = (which) => hits.reduce((sum, hit) => sum + hit[which], 0) / hits.length;
  return { round: all ? mean(0) : null, bytes: all ? mean(1) : null, hits: hits.length, of: line.runs.length };
}
