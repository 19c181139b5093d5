"use strict";
// Charts by Observable Plot: each takes a width and returns an SVG element.

const PARTS = {
  compute: ["Compute", "in a step, no collective in flight"],
  overlapped: ["Overlapped", "a collective in flight while the rank computes on"],
  transfer: ["Exposed transfer", "the rank waits while data moves"],
  wait: ["Wait for the last rank", "the rank waits for one that has not come"],
  input: ["Input", "between steps: the next batch, and callbacks"],
};

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function isDark() {
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

// From nothing to much, on a light and on a dark page.
function heatColors() {
  return isDark()
    ? ["#232b36", "#5d3a2a", "#b6562a", "#ff9a4d", "#ffe3b0"]
    : ["#f3f1ee", "#fbd9a8", "#f5a054", "#d9541e", "#8a1f0c"];
}

const TIP = { pointer: "xy", lineWidth: 30, textPadding: 8 };
const ROW_LABEL = { labelAnchor: "top", labelArrow: "none", labelOffset: 0, tickSize: 0 };
const STYLE = { fontSize: "12px", fontFamily: "inherit", background: "transparent" };

// The form of a chart with a row a rank, or a host.
function rowsForm(width, labels, step) {
  return {
    width,
    height: labels.length * step + 74,
    marginTop: 26,
    marginBottom: 44,
    marginLeft: Math.min(width / 3, 22 + 7 * d3.max(labels, (label) => label.length)),
    marginRight: 12,
    style: STYLE,
  };
}

function partsChart(parts) {
  const kind = parts.kind;
  const labels = parts.groups.map((group) => group.label);
  const rows = parts.groups.flatMap((group) =>
    parts.names.map((part, index) => ({ group, part, ms: group.ms[index] })));
  const step = parts.groups.length > 32 ? 14 : parts.groups.length > 8 ? 20 : 30;
  const draw = (width) => Plot.plot({
    ...rowsForm(width, labels, step),
    x: { label: "ms a step", grid: true, labelArrow: "none", ticks: Math.max(3, width / 130) },
    y: { label: kind, domain: labels, padding: 0.18, ...ROW_LABEL },
    color: { domain: parts.names, range: parts.names.map(color) },
    marks: [
      Plot.barX(rows, {
        x: "ms", y: (row) => row.group.label, fill: "part", order: parts.names,
        title: text, tip: TIP,
      }),
      Plot.ruleX([0], { stroke: "currentColor", strokeOpacity: 0.4 }),
    ],
  });
  const text = ({ group, part, ms: value }) =>
    `${kind === "host" ? "Host" : group.ranks.includes("-") ? "Ranks" : "Rank"} ${group.label}` +
    (kind === "host" ? ` (ranks ${group.ranks})` : "") +
    `\n${PARTS[part][0]}: ${ms(value)} (${percent(value / d3.sum(group.ms))})`;
  return { draw, rows, text, mark: "bar", label: `Stacked bars: ms a step by ${kind}` };
}

function heatChart(heat) {
  const labels = heat.rows.map((row) => row.label);
  const rows = heat.rows.flatMap((row) =>
    row.ms.flatMap((value, bin) => value === null ? []
      : [{ label: row.label, value, from: heat.edges_s[bin], to: heat.edges_s[bin + 1] }]));
  const step = labels.length > 32 ? 9 : labels.length > 8 ? 18 : 30;
  // One long pause must not hide the rest.
  const largest = d3.max(rows, (row) => row.value) || 1;
  const usual = d3.quantile(rows.map((row) => row.value).filter((value) => value > 0), 0.95) || 1;
  const isCut = largest > 8 * usual;
  const most = isCut ? 4 * usual : largest;
  // Every label does not fit between rows of 9 pixels.
  const shown = labels.filter((_, index) => step > 9 || index % 2 === 0);
  const draw = (width) => Plot.plot({
    ...rowsForm(width, labels, step),
    x: { label: "seconds since the first collective", labelArrow: "none",
      ticks: Math.max(3, width / 130), domain: [0, heat.edges_s.at(-1)] },
    y: { label: heat.kind, domain: labels, ticks: shown, padding: 0.06, ...ROW_LABEL },
    color: { type: "sqrt", domain: [0, most], clamp: true,
      interpolate: d3.interpolateRgbBasis(heatColors()) },
    marks: [
      Plot.barX(rows, {
        x1: "from", x2: "to", y: "label", fill: "value", inset: 0, insetRight: -0.4,
        title: text, tip: TIP,
      }),
    ],
  });
  const text = (row) =>
    `${heat.kind === "host" ? "Host" : heat.kind === "rank" ? "Rank" : "Ranks"} ${row.label}` +
    ` at ${digits(row.from)} to ${digits(row.to)} s\n` +
    `${ms(row.value)} after the first rank` + (heat.kind === "rank" ? "" : " (the latest of them)");
  return { draw, rows, text, mark: "bar", most: (isCut ? "\u2265 " : "") + ms(most), label: `Heat map: lateness by ${heat.kind} and time` };
}

function speedChart(speeds) {
  const kinds = [...new Set(speeds.rows.map((row) => row.kind))];
  // Where dots lie on each other, that of most collectives is on top.
  const rows = [...speeds.rows].sort((a, b) => a.num_collectives - b.num_collectives);
  const range = ["compute", "wait", "input", "transfer", "overlapped"].map(color);
  const bounds = [{ y: speeds.best, text: `best in this recording, ${rate(speeds.best)}` }];
  if (speeds.copy !== null) {
    bounds.push({ y: speeds.copy, text: `memory copy of one core, ${rate(speeds.copy)}` });
  }
  // Whole powers of 2, as many as fit.
  let low = Math.floor(Math.log2(d3.min(rows, (row) => row.num_bytes)));
  let high = Math.ceil(Math.log2(d3.max(rows, (row) => row.num_bytes)));
  if (high - low < 2) [low, high] = [low - 1, high + 1];
  const speedsSeen = [...rows.flatMap((row) => [row.slow, row.fast]), ...bounds.map((one) => one.y)];
  const [least, most] = d3.extent(speedsSeen);
  const scale = most < 20 * least
    ? { domain: [0, 1.12 * most] }
    : { type: "log", domain: [10 ** Math.floor(Math.log10(least)), 2 * most],
      ticks: d3.range(Math.floor(Math.log10(least)), Math.log10(most) + 0.3).map((power) => 10 ** power) };
  const powers = (width) => d3.range(low, high + 1,
    Math.max(1, Math.ceil((high - low) * 75 / width))).map((power) => 2 ** power);
  const draw = (width) => Plot.plot({
    width,
    height: 300,
    marginLeft: 62,
    marginRight: 20,
    marginTop: 28,
    marginBottom: 44,
    style: STYLE,
    x: { type: "log", base: 2, label: "bytes of a collective", labelArrow: "none",
      tickFormat: bytes, ticks: powers(width), domain: [2 ** low, 2 ** high] },
    y: { label: "bytes a second", labelArrow: "none", grid: true, tickFormat: rate, ...scale },
    color: { domain: kinds, range },
    marks: [
      Plot.ruleY(bounds, { y: "y", strokeDasharray: "5,4", stroke: "currentColor", strokeOpacity: 0.6 }),
      Plot.text(bounds, { y: "y", text: "text", frameAnchor: "left", dx: 6, dy: -8,
        textAnchor: "start", fill: "currentColor", fillOpacity: 0.75 }),
      Plot.ruleX(rows, { x: "num_bytes", y1: "slow", y2: "fast", stroke: "kind", strokeWidth: 2,
        strokeOpacity: 0.45 }),
      Plot.dot(rows, { x: "num_bytes", y: "median", fill: "kind", r: 5,
        stroke: color("card"), title: text, tip: TIP }),
    ],
  });
  const text = (row) =>
    `${row.kind} of ${bytes(row.num_bytes)}\n${rate(row.median)}, ${percent(row.of_best)} of the best` +
    `\n${plural(row.num_collectives, "collective")}, from ${rate(row.slow)} to ${rate(row.fast)}`;
  return { draw, rows, text, mark: "dot", kinds, range, label: "Dots: speed by size" };
}

function fusionChart(fusion) {
  const rows = fusion.rows;
  const draw = (width) => Plot.plot({
    width,
    height: 226,
    marginTop: 28,
    marginBottom: 44,
    marginLeft: 62,
    style: STYLE,
    x: { label: "tensors in a collective", domain: rows.map((row) => row.label), padding: 0.3,
      labelArrow: "none", tickSize: 0 },
    y: { label: "collectives", grid: true, labelArrow: "none", ticks: 4 },
    marks: [
      Plot.barY(rows, { x: "label", y: "count", fill: color("compute"), title: text, tip: TIP }),
      Plot.ruleY([0], { stroke: "currentColor", strokeOpacity: 0.4 }),
    ],
  });
  const text = (row) => `${plural(row.count, "collective")} of ${row.label} tensors`;
  return { draw, rows, text, mark: "bar", label: "Bars: collectives by the number of their tensors" };
}

// Shows a chart at the width there is. With the focus on it, arrow keys go from
// mark to mark: they show its tooltip and read it aloud.
function figure(chart) {
  const made = el("figure", { class: "chart", tabindex: "0", role: "group",
    "aria-label": `${chart.label}. Arrow keys go through the marks; a table follows.` });
  let width = 0;
  let at = -1;
  let svg = null;
  const draw = () => {
    width = made.clientWidth;
    if (!width) return;
    svg = chart.draw(width);
    svg.setAttribute("aria-hidden", "true");
    made.replaceChildren(svg);
    at = -1;
  };
  const show = (index) => {
    const marks = [...svg.querySelectorAll(`g[aria-label="${chart.mark}"] > *`)];
    if (!marks.length) return;
    at = (index + marks.length) % marks.length;
    marks[at].scrollIntoView({ block: "nearest" });
    const box = marks[at].getBoundingClientRect();
    point("pointermove", box.x + box.width / 2, box.y + box.height / 2);
    document.getElementById("live").textContent = chart.text(chart.rows[d3.select(marks[at]).datum()]);
  };
  const point = (type, x, y) => svg.dispatchEvent(new PointerEvent(type,
    { clientX: x, clientY: y, pointerType: "mouse", bubbles: true }));
  made.addEventListener("keydown", (event) => {
    if (event.key === "ArrowRight" || event.key === "ArrowDown") show(at + 1);
    else if (event.key === "ArrowLeft" || event.key === "ArrowUp") show(at - 1);
    else if (event.key === "Home") show(0);
    else if (event.key === "End") show(-1);
    else if (event.key === "Escape") point("pointerleave", 0, 0);
    else return;
    event.preventDefault();
  });
  made.addEventListener("blur", () => svg && point("pointerleave", 0, 0));
  new ResizeObserver(() => made.clientWidth !== width && draw()).observe(made);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  return made;
}
